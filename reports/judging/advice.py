"""Which implementation to use: the fastest, those not shown to be slower, and the leanest that is nearly as fast."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from ..reading import command, runs, units, words
from ..reading.axes import KNOWN_AXES, axis_names
from ..reading.runs import Run, RunError
from . import frame as fr

#: The leanest is looked for among those that take at most so many times the fastest's time.
NEARLY = 1.10

#: Runs that are looked through for one that holds what is asked for.
MOST_RUNS = 200

#: Said of a case whose rows can't be paired.
NOT_SHOWN = "smallest median; no difference is shown"


def main(arguments: Sequence[str]) -> int:
    """`python -m reports advise`: exit code 0; 3 for a mistake of the user's, told in one line on stderr."""
    options, unknown = _parser().parse_known_args(arguments)
    try:
        run = command.chosen(options)
        if unknown:  # unless it is an axis of this run's
            options = _parser().parse_args(arguments)
        asked = {axis: value for axis in axis_names() if (value := getattr(options, axis, None)) is not None}
        if options.run is None:
            run = _answering(run, asked)
        table = advise(fr.tidy(run), asked)
    except RunError as error:
        return command.complain(str(error))
    if options.json:
        told = {"run": run.name, "date": run.date, "commit": run.commit_id}
        print(json.dumps({**told, **table}, indent=2, ensure_ascii=False, allow_nan=False))
    else:
        print(f"from run {run.name}" + (f" of {run.date[:10]}" if run.date else ""))
        _print(table)
    return 0


def _answering(newest: Run, asked: Mapping[str, Any]) -> Run:
    """The newest run of this machine that holds what is asked for; the newest of all where none does."""
    files = runs.newest_first(newest.path.parent.parent)
    others = [file for file in files if file.parent == newest.path.parent and file != newest.path]
    for run in itertools.chain([newest], _readable(others[:MOST_RUNS])):
        if any(asked.items() <= row["extra_info"].items() for row in run.rows):
            return run
    return newest


def _readable(files: Iterable[Path]) -> Iterator[Run]:
    for file in files:
        with contextlib.suppress(RunError):
            yield runs.read(file)


def advise(frame: pd.DataFrame, asked: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A table that a program can read; seconds and bytes.

    `asked` maps axes to values. A number that was not measured stands for its measured neighbours, and `not_measured`
    says so: nothing is invented between them. Implementations that were wrong anywhere in the run are `left_out`.

    Keys: `asked`; `not_measured`, a list of {axis, asked, nearest}; `left_out`, names; `cells`, one for each case
    (see `choice`); `crossovers` (see `crossovers`); `axes`, those that vary in the run.

    Raises:
        RunError: nothing was measured that answers the question; the message lists what was.
    """
    usable = frame.dropna(subset=["median"])
    trusted = usable[~usable["wrong"].astype(bool)]
    if trusted.empty:
        raise RunError(
            "no implementation of this run has a number and was right everywhere: there is nothing to advise"
        )
    rows, not_measured = _narrowed(trusted, asked or {})
    axes = fr.varying(trusted)
    return {
        "asked": dict(asked or {}),
        "not_measured": not_measured,
        "left_out": sorted(set(usable.loc[usable["wrong"].astype(bool), "impl"])),
        "axes": axes,
        "cells": [
            choice(part) for _, group in fr.groups(rows, axes) for _, part in group.groupby("id", sort=False)
        ],
        "crossovers": list(crossovers(_without(trusted, rows, "T"))),
    }  # fmt: skip


def choice(rows: pd.DataFrame) -> dict[str, Any]:
    """What to use in one case, from all its rows.

    `fastest`, of those that nobody is shown to beat the one with the smallest median, and its `seconds`; `ties`, the
    others of them; `shown`, whether anything is shown of who is faster (if not, `fastest` is the smallest median and
    nothing ties); `leanest`, the one with the smallest peak among those that take at most 10 % more time than the
    fastest, with `leanest_bytes` and `leanest_seconds`, None where no memory is known; `measured`, how many there were
    to choose from.
    """
    ranked = rows.assign(place=fr.places(rows)).sort_values(["place", "median"])
    shown = bool(ranked["place"].notna().any())
    best = fr.records(ranked)[0]
    ties = [name for name in ranked.loc[ranked["place"] == 1, "impl"] if name != best["impl"]]
    near = fr.leanest(ranked[[_times(row, best) <= NEARLY for row in fr.records(ranked)]])
    lean = fr.records(near)[0] if len(near) else None
    return {
        "id": str(best["id"]),
        **{axis: _plain(best[axis]) for axis in axis_names()},
        "fastest": best["impl"],
        "seconds": float(best["median"]),
        "ties": ties,
        "shown": shown,
        "leanest": lean and lean["impl"],
        "leanest_bytes": lean and float(lean["peak_bytes"]),
        "leanest_seconds": lean and float(lean["median"]),
        "measured": len(ranked),
    }


def crossovers(frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Where, over T, one of two best implementations overtakes the other; all other axes being equal.

    Each is between two neighbouring measured T; the point, `crosses_at`, is interpolated in log-log. `sure` says that
    a difference is shown at both ends, `tied_at` where it isn't; where it is shown at neither, nothing is said.
    """
    frame = fr.own_keys_unsaid(frame)
    axes = [axis for axis in fr.varying(frame) if axis != "T"]
    for values, part in fr.groups(frame, axes):
        if part["T"].nunique() < 2:
            continue
        ranked = part.sort_values("median").drop_duplicates("T")
        best = list(dict.fromkeys(ranked.sort_values("T")["impl"]))
        for one, other in itertools.combinations(best, 2):
            yield from ({**_plainly(values), **crossing} for crossing in _crossings(part, one, other))


def grids(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The cells as tables of a length and H: for every setting of the other axes its `title`, `along` (T, or T_kv where
    a cache is decoded from), `lengths`, `H`, and `cells` by (length, H)."""
    parts: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for cell in table["cells"]:
        parts.setdefault(tuple(_elsewhere(cell, table["axes"]).items()), []).append(cell)
    said = [axis for axis in ("device", "dtype", "mask", "mode") if axis not in table["axes"]]
    made = []
    for setting, cells in parts.items():
        along = _along(cells[0])
        values = {**dict(setting), **{axis: cells[0][axis] for axis in said}}
        made.append(
            {
                "title": words.place(values, always=values),
                "along": along,
                "lengths": sorted({cell[along] for cell in cells}),
                "H": sorted({cell["H"] for cell in cells}),
                "cells": {(cell[along], cell["H"]): cell for cell in cells},
            }
        )
    return made


def sentence(crossing: Mapping[str, Any]) -> str:
    """'sdpa overtakes packed near T = 312 (between 256 and 1024)', and how sure that is."""
    low, high = crossing["between"]
    told = f"{crossing['to']} overtakes {crossing['from']} near T = {crossing['crosses_at']:.0f}"
    if crossing["sure"]:
        return f"{told} (measured at {low} and {high})"
    return f"{told} (measured at {low} and {high}; not sure: no difference is shown at {crossing['tied_at'][0]})"


def _crossings(part: pd.DataFrame, one: str, other: str) -> Iterator[dict[str, Any]]:
    a, b = (part[part["impl"] == name].drop_duplicates("T").set_index("T").sort_index() for name in (one, other))
    common = a.index.intersection(b.index)
    ratios = {T: fr.ratio(a.loc[T], b.loc[T]) for T in common}
    lead = {T: math.log(found.value) for T, found in ratios.items() if found.known}  # below 0: `one` is ahead
    tied = {T: not found.resolved for T, found in ratios.items()}
    for low, high in itertools.pairwise(lead):
        if lead[low] * lead[high] >= 0 or (tied[low] and tied[high]):
            continue
        share = lead[low] / (lead[low] - lead[high])
        ahead, behind = (one, other) if lead[low] < 0 else (other, one)
        yield {
            "from": ahead,
            "to": behind,
            "crosses_at": float(low * (high / low) ** share),
            "between": [_plain(low), _plain(high)],
            "sure": not (tied[low] or tied[high]),
            "tied_at": [_plain(T) for T in (low, high) if tied[T]],
        }


def _times(row: Mapping[str, Any], best: Mapping[str, Any]) -> float:
    """How many times as long it takes as the fastest; by medians where they can't be paired."""
    paired = fr.ratio(row, best)
    return paired.value if paired.processes else float(row["median"] / best["median"])


def _along(cell: Mapping[str, Any]) -> str:
    """The axis that is its length: of the cache where one is decoded from."""
    return "T_kv" if cell["T"] == 1 < cell["T_kv"] else "T"


def _elsewhere(cell: Mapping[str, Any], axes: Sequence[str]) -> dict[str, Any]:
    """Where a cell stands on the axes that vary, but for H, its length, and keys that are its own tokens."""
    unsaid = {"H", _along(cell)} | ({"T_kv"} if cell["T_kv"] == cell["T"] else set())
    return {axis: cell[axis] for axis in axes if axis not in unsaid}


def _narrowed(frame: pd.DataFrame, asked: Mapping[str, Any]) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
    """The rows that answer, and where they stand for something that was not measured. Words first: they have no
    neighbours."""
    missed = []
    for axis in sorted(asked, key=lambda axis: KNOWN_AXES[axis].is_number):
        wanted, known = asked[axis], sorted(frame[axis].dropna().unique(), key=lambda v: (str(type(v)), v))
        near = [wanted] if wanted in known else _neighbours(wanted, known) if KNOWN_AXES[axis].is_number else []
        if not near:
            listed = ", ".join(map(words.number, known)) or "nothing"
            raise RunError(f"{axis} = {wanted} was not measured here; measured: {listed}")
        if near != [wanted]:
            missed.append({"axis": axis, "asked": wanted, "nearest": [_plain(value) for value in near]})
        frame = frame[frame[axis].isin(near)]
    return frame, missed


def _neighbours(wanted: float, known: Sequence[Any]) -> list[Any]:
    """The nearest below and the nearest above, where there are any."""
    return [v for v in known if v < wanted][-1:] + [v for v in known if v > wanted][:1]


def _without(frame: pd.DataFrame, rows: pd.DataFrame, axis: str) -> pd.DataFrame:
    """All of the frame that agrees with the rows on every axis that varies, but for one and what follows from it."""
    frame, rows = fr.own_keys_unsaid(frame), fr.own_keys_unsaid(rows)
    axes = [a for a in fr.varying(frame) if a != axis]
    if not axes:
        return frame
    wanted = pd.MultiIndex.from_frame(rows[axes].drop_duplicates())
    return frame[pd.MultiIndex.from_frame(frame[axes]).isin(wanted)]


def _plain(value: Any) -> Any:
    """As JSON knows it."""
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _plainly(values: Mapping[str, Any]) -> dict[str, Any]:
    return {axis: _plain(value) for axis, value in values.items()}


def _print(table: Mapping[str, Any]) -> None:
    """For people: one line a case, then the crossovers."""
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False, markup=False)
    for miss in table["not_measured"]:
        nearest = " and ".join(map(words.number, miss["nearest"]))
        console.print(f"{miss['axis']} = {words.number(miss['asked'])} was not measured; the nearest: {nearest}")
    grid = Table(box=None, pad_edge=False)
    for heading in ("case", "fastest", "time", "ties with", "leanest within 10 %", "memory"):
        grid.add_column(heading, justify="right" if heading in ("time", "memory") else "left", overflow="fold")
    for cell in table["cells"]:
        lean = cell["leanest"]
        grid.add_row(
            words.place(cell, always=[*table["axes"], "T", "H"]), cell["fastest"], units.seconds(cell["seconds"]),
            ", ".join(cell["ties"]) if cell["shown"] else NOT_SHOWN,
            lean or units.MISSING, units.memory(cell["leanest_bytes"]) if lean else "",
        )  # fmt: skip
    console.print(grid)
    for crossing in table["crossovers"]:
        console.print(f"{words.place(crossing, always=table['axes'])}: {sentence(crossing)}")
    if table["left_out"]:
        console.print(f"left out, wrong somewhere in this run: {', '.join(table['left_out'])}")


def _parser() -> command.Parser:
    parser = command.Parser(
        prog="python -m reports advise", description="Which implementation to use, from a saved run."
    )
    command.add_run(parser)
    for axis in axis_names():
        parser.add_argument(f"--{axis}", type=KNOWN_AXES[axis].parse, metavar=axis, help=f"only cases with this {axis}")
    parser.add_argument("--json", action="store_true", help="a table that a program can read")
    return parser
