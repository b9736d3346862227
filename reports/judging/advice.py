"""Which implementation to use: the fastest, those not shown to be slower, and the leanest that is nearly as fast."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from stats import shares
from stats.ratios import FASTEST, LEVEL_WITH_IT, NOT_RESOLVED, UNKNOWN

from ..reading import command, runs, units, words
from ..reading.axes import KNOWN_AXES, axis_names
from ..reading.runs import Run, RunError
from . import dispatcher, findings
from . import frame as fr

#: The leanest is looked for among those that take at most so many times the fastest's time.
NEARLY = 1.10

#: Memory that is worth a word of two that are level in time: so many times less.
LEANER = 1.25

#: Runs that are looked through for one that holds what is asked for.
MOST_RUNS = 200

#: Said of a case whose rows can't be paired.
NOT_SHOWN = "smallest median; no difference is shown"


def main(arguments: Sequence[str]) -> int:
    """`python -m reports advise`: exit code 0; 3 for a mistake of the user's, reported in one line on stderr."""
    options, _ = _parser().parse_known_args(arguments)
    return command.answered(lambda options: _answer(options, arguments), options)


def _answer(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    several = options.emit and options.run is not None
    chosen = list(command.several([options.run], command.results(options))) if several else [command.chosen(options)]
    options = _parser().parse_args(arguments)  # the axes of that run are options, too
    asked = {axis: value for axis in axis_names() if (value := getattr(options, axis)) is not None}
    if asked.get("dtype") in words.SHORT_DTYPE.values():  # as tables print it
        asked["dtype"] = next(name for name, short in words.SHORT_DTYPE.items() if short == asked["dtype"])
    if options.run is None:
        chosen = [_answering(chosen[0], _meant(asked))]
    if options.emit:
        print(dispatcher.emit(options.emit, [(run, _narrowed(fr.tidy(run), _meant(asked))[0]) for run in chosen]))
        return command.FINE
    [run] = chosen
    table = advise(fr.tidy(run), asked)
    if options.json:
        origin = {"run": run.name, "date": run.date, "commit": run.commit_id}
        print(json.dumps({**origin, **table}, indent=2, ensure_ascii=False, allow_nan=False))
    else:
        print(f"from run {run.name}" + (f" of {run.date[:10]}" if run.date else ""))
        _print(table)
    return command.FINE


def _answering(newest: Run, asked: Mapping[str, Any]) -> Run:
    """The newest run of this machine that holds what is asked for; where none does, the newest."""
    files = runs.newest_first(newest.path.parent.parent)[:MOST_RUNS]
    for file in (file for file in files if file.parent == newest.path.parent):
        with contextlib.suppress(RunError):
            run = runs.read(file)
            if any(asked.items() <= row["extra_info"].items() for row in run.rows):
                return run
    return newest


def _meant(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """`--mode decode --T 64` as `pytest bench/` reads it: one new token against a cache of 64. Anything else is as it was."""
    if asked.get("mode") != "decode" or asked.get("T", 1) == 1 or "T_kv" in asked:
        return asked
    return {**asked, "T": 1, "T_kv": asked["T"]}


def advise(frame: pd.DataFrame, asked: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A table that a program can read; seconds and bytes.

    `asked` maps axes to values. A number that was not measured stands for its measured neighbours, and `not_measured`
    says so: nothing is invented between them. Implementations that were wrong anywhere in the run are `left_out`.

    Keys: `asked`; `read_as`, the axes that were answered for instead, where `decode` was asked for at a T that is the length
    of its cache; `not_measured`, a list of {axis, asked, nearest}; `left_out`, names; `cells`, one for each case
    (see `choice`); `crossovers` (see `crossovers`), of all lengths; `page_faults`, a sentence on what they
    cost, or ''; `axes`, those that vary in the run.

    Raises:
        RunError: nothing was measured that answers the question; the message lists what was.
    """
    asked = asked or {}
    meant = _meant(asked)
    rows, not_measured = _narrowed(frame, meant)
    along, _ = _narrowed(frame, {axis: value for axis, value in meant.items() if axis not in ("T", "T_kv")})
    axes = fr.varying(fr.trusted(frame))
    return {
        "asked": dict(asked),
        "read_as": {axis: value for axis, value in meant.items() if asked.get(axis) != value},
        "not_measured": not_measured,
        "left_out": sorted(set(frame.loc[frame["wrong"] & frame["median"].notna(), "impl"])),
        "axes": axes,
        "cells": [
            choice(part) for _, group in fr.groups(rows, axes) for _, part in group.groupby("id", sort=False)
        ],
        "crossovers": list(crossovers(along)),
        "page_faults": findings.kept_pages(rows),
    }  # fmt: skip


def choice(rows: pd.DataFrame) -> dict[str, Any]:
    """What to use in one case, from all its rows.

    `fastest`, who leads, its `seconds` and `bytes`, and its `standing` (see `ratios.standings`), empty where nothing is shown
    of who is faster: then `fastest` is the smallest median; `ties`, those that are level with it; `not_resolved`, those that
    may be, or may take half as long again; `next_best` and how many times as long that takes, `ahead`, with its interval
    `ahead_low`, `ahead_high`; `leanest`, the one with the smallest peak among those that take at most 10 % more time than
    the fastest, with `leanest_bytes` and `leanest_seconds`, None where no memory is known; `peaks`, the bytes of all;
    `measured`, how many there were to choose from.
    """
    best, *others = fr.ranked(rows)
    others.sort(key=lambda row: times(row, best))
    next_best = others[0] if others and best["leads"] else None
    ahead = fr.ratio(next_best, best) if next_best else UNKNOWN
    known = [row for row in (best, *others) if row["peak_bytes"] > 0]
    near = [row for row in known if times(row, best) <= NEARLY]
    most = fr.LEAN_WITHIN * min((row["peak_bytes"] for row in near), default=0)
    lean: Mapping[str, Any] = next((row for row in near if row["peak_bytes"] <= most), {})
    found = {
        "id": best["id"],
        **{axis: best[axis] for axis in axis_names()},
        "fastest": best["impl"], "seconds": best["median"], "bytes": best["peak_bytes"], "standing": best["standing"],
        "next_best": next_best and next_best["impl"],
        "ahead": ahead.value, "ahead_low": ahead.low, "ahead_high": ahead.high,
        "leanest": lean.get("impl"), "leanest_bytes": lean.get("peak_bytes"), "leanest_seconds": lean.get("median"),
        "measured": len(rows),
    }  # fmt: skip
    return {
        **{key: fr.plain(value) for key, value in found.items()},
        "ties": [row["impl"] for row in others if row["standing"] == LEVEL_WITH_IT],
        "not_resolved": [row["impl"] for row in others if row["standing"] == NOT_RESOLVED],
        "peaks": {row["impl"]: row["peak_bytes"] for row in known},
    }


def times(row: Mapping[str, Any], best: Mapping[str, Any]) -> float:
    """How many times as long it takes as the fastest; by medians where they can't be paired."""
    paired = fr.ratio(row, best)
    return paired.value if paired.processes else float(row["median"] / best["median"])


def crossovers(frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Where, from one measured T to the next, another implementation is the best one; all other axes being equal.

    At both a difference is shown; the point between them, `crosses_at`, is interpolated in log-log.
    """
    frame = fr.own_keys_unsaid(frame)
    axes = [axis for axis in fr.varying(frame) if axis != "T"]
    for values, part in fr.groups(frame, axes):
        best = [fr.ranked(rows)[0] for _, rows in part.groupby("T")]
        for one, other in itertools.pairwise(best):
            low, high = fr.plain(one["T"]), fr.plain(other["T"])
            first, last = (a["over"].get(b["impl"], UNKNOWN) for a, b in ((one, other), (other, one)))
            if first.faster and last.faster:
                share = math.log(first.value) / (math.log(first.value) + math.log(last.value))
                yield {
                    **{axis: fr.plain(value) for axis, value in values.items()},
                    "from": one["impl"], "to": other["impl"],
                    "crosses_at": low * (high / low) ** share, "between": [low, high],
                }  # fmt: skip


def sentence(crossing: Mapping[str, Any]) -> str:
    """'sdpa overtakes packed near T = 312 (measured at 256 and 1024)'"""
    low, high = crossing["between"]
    return f"{crossing['to']} overtakes {crossing['from']} near T = {crossing['crosses_at']:.0f} (measured at {low} and {high})"


def verdict_text(cell: Mapping[str, Any]) -> str:
    """The verdict on a case in words."""
    said = []
    if cell["measured"] < 2:
        said.append("the only one")
    elif not cell["standing"]:
        said.append(NOT_SHOWN)
    elif cell["standing"] == FASTEST:
        said.append("faster")
    if cell["ties"]:
        leaner = cell["leanest"] in cell["ties"] and (cell["bytes"] or 0) > LEANER * cell["leanest_bytes"]
        level = f"{cell['leanest']}, which needs less memory" if leaner else words.listing(cell["ties"], most=1)
        said.append(f"level with {level}")
    if cell["not_resolved"]:
        # of what is claimed it is known that it isn't far slower than any other, though it may be far faster
        bounded = "at least level with" if claimed(cell) else "not resolved from"
        said.append(f"{bounded} {words.listing(cell['not_resolved'], most=1)}")
    return "; ".join(said)


def claimed(cell: Mapping[str, Any]) -> bool:
    """Whether the one to use was shown to be the fastest, or level with it."""
    return cell["standing"] in (FASTEST, LEVEL_WITH_IT)


def ahead(cell: Mapping[str, Any]) -> str:
    """'1.06 to 1.08×': how many times as long the next best takes, by its interval; '1.2× or more' where that is wide."""
    low, high = cell["ahead_low"], cell["ahead_high"]
    if low and low > 1 and shares.too_wide(low, high):
        return f"{units.times(low, 2)} or more"
    return units.span(low, high) if low else units.MISSING


def _narrowed(frame: pd.DataFrame, asked: Mapping[str, Any]) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
    """The rows that answer, of what was right everywhere, and where they stand for something that was not measured. Words
    first: they have no neighbours."""
    frame, missed = fr.trusted(frame), []
    if frame.empty:
        raise RunError(
            "no implementation of this run has a number and was right everywhere: there is nothing to advise"
        )
    for axis in sorted(asked, key=lambda axis: KNOWN_AXES[axis].is_number):
        wanted, known = asked[axis], sorted(frame[axis].dropna().unique())
        near = [value for value in known if value == wanted]
        if not near and KNOWN_AXES[axis].is_number:
            near = [v for v in known if v < wanted][-1:] + [v for v in known if v > wanted][:1]
            missed.append({"axis": axis, "asked": wanted, "nearest": list(map(fr.plain, near))})
        if not near:
            listed = ", ".join(map(words.number, known)) or f"no {axis}"
            raise RunError(f"{axis} = {wanted} was not measured here; measured: {listed}")
        frame = frame[frame[axis].isin(near)]
    return frame, missed


COLUMNS = ("case", "use", "time", "next best", "ahead by", "memory", "verdict")
ROOMY = 100
"""Columns of a terminal from which on memory is shown too: what is needed least goes first where there is less room."""


def lines(table: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """What to use, a line a case, in the order of `COLUMNS`."""
    for cell in table["cells"]:
        yield (
            words.place({axis: cell[axis] for axis in table["axes"]} or cell, always=[*table["axes"], "T", "H"]),
            cell["fastest"], units.seconds(cell["seconds"], 2), cell["next_best"] or units.MISSING, ahead(cell),
            units.memory(cell["bytes"], 2) if cell["bytes"] else units.MISSING, verdict_text(cell),
        )  # fmt: skip


def _print(table: Mapping[str, Any]) -> None:
    """For people: one line a case, then the crossovers."""
    console = Console(width=None if sys.stdout.isatty() else 80, highlight=False, markup=False)
    if table["read_as"]:
        console.print(f"decode at T = {table['asked']['T']}: one new token (T = 1) against a cache of as many (T_kv)")
    for miss in table["not_measured"]:
        nearest = " and ".join(map(words.number, miss["nearest"]))
        console.print(f"{miss['axis']} = {words.number(miss['asked'])} was not measured; the nearest: {nearest}")
    shown = [i for i, heading in enumerate(COLUMNS) if heading != "memory" or console.width >= ROOMY]
    grid = Table(box=None, pad_edge=False)
    for heading in (COLUMNS[i] for i in shown):
        right = heading in ("time", "ahead by", "memory")
        grid.add_column(heading, justify="right" if right else "left", no_wrap=right, overflow="fold")
    for line in lines(table):
        grid.add_row(*(line[i] for i in shown))
    console.print(grid)
    for crossing in table["crossovers"]:
        console.print(f"{words.place(crossing, always=table['axes'])}: {sentence(crossing)}")
    if table["page_faults"]:
        console.print(table["page_faults"])
    if table["left_out"]:
        console.print(f"left out, wrong somewhere in this run: {', '.join(table['left_out'])}")
    if len(shown) < len(COLUMNS):
        console.print("left out for want of room: memory (--json has all)")


def _parser() -> command.Parser:
    parser = command.Parser(
        prog="python -m reports advise",
        description="Which implementation to use, from a saved run.",
        epilog="Any other axis of the run is an option as well, as --window 128.",
    )
    command.add_run(parser)
    for axis in axis_names():
        parser.add_argument(
            f"--{axis}", type=KNOWN_AXES[axis].parse, metavar="VALUE", help=f"only cases with this {axis}"
        )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="a table that a program can read")
    form.add_argument(
        "--emit", type=Path, metavar="FILE.py",
        help="write a module with a function like SDPA that calls what was fastest; --run may be a glob of one machine's runs",
    )  # fmt: skip
    return parser
