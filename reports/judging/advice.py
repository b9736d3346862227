"""Recommends implementations: the fastest of each case, those not significantly slower, and crossovers."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from stats.ratios import NOT_RESOLVED, TIED, UNKNOWN

from ..reading import command, runs, units, words
from ..reading.axes import KNOWN_AXES, axis_names
from ..reading.runs import Run, RunError
from . import dispatcher, findings
from . import frame as fr
from . import grid as grids
from .grid import FASTEST, Case, Mark

LEANER = 1.25
"""Ratio of memory from which on it is mentioned for implementations that are tied in time."""

MOST_RUNS = 200
"""Most runs searched for one that contains the requested cases."""

COLUMNS = {"case": False, "use": False, "time": True, "next best": False, "ahead by": True, "verdict": False}
"""Columns, and whether they are aligned right."""


Layers = Mapping[str, Mapping[str, Any]]
"""Axes of a model's attention layers, by kind."""

NOT_OF_A_MODEL = {
    "B", "T", "T_kv", "device", "threads", "mode", "scope", "dropout", "out_dropout", "page", "requests", "autocast",
    "deterministic",
}  # fmt: skip
"""Axes that a model's configuration does not determine."""

AROUND_CORE = {"d_model", "qkv_bias", "out_bias", "latent", "rope"}


def main(arguments: Sequence[str], layers_of: Callable[[str], Layers]) -> int:
    """Run `python -m reports advise`: exit code 0; 3 for a usage error, reported in one line on stderr.

    `layers_of` returns the layers of a model by its name, or raises `RunError`.
    """
    options, _ = _parser().parse_known_args(arguments)
    return command.answered(lambda options: _answer(options, arguments, layers_of), options)


def _answer(options: argparse.Namespace, arguments: Sequence[str], layers_of: Callable[[str], Layers]) -> int:
    several = options.emit and options.run is not None
    chosen = list(command.several([options.run], command.results(options))) if several else [command.chosen(options)]
    options = _parser().parse_args(arguments)  # the axes of that run are options too
    asked = {axis: value for axis in axis_names() if axis != "model" and (value := getattr(options, axis)) is not None}
    long = {short: name for name, short in words.SHORT_DTYPE.items()}
    asked |= {axis: long.get(value, value) for axis, value in asked.items() if axis == "dtype"}
    layers = layers_of(options.model) if options.model else {"": None}
    if options.run is None:
        chosen = [_answering(chosen[0], _meant(asked), layers)]
    frames = [
        (kind, run, frame)
        for kind, layer in layers.items()
        for run in chosen
        if len(frame := _of_layer(fr.tidy(run), layer, asked)) or layer is None
    ]
    if not frames:
        raise RunError(
            f"no layer of {options.model} was measured here: `pytest bench/ --model {options.model}` does that"
        )
    if options.emit:
        rows = [(run, _narrowed(frame, _meant(asked))[0]) for _, run, frame in frames]
        print(dispatcher.emit(options.emit, rows))
    else:
        _show(options, chosen[0], {kind: advise(frame, asked) for kind, _, frame in frames})
    return command.FINE


def _show(options: argparse.Namespace, run: Run, tables: Mapping[str, dict[str, Any]]) -> None:
    if options.json:
        origin = {"run": run.name, "date": run.date, "commit": run.commit_id}
        content = {"model": options.model, "layers": tables} if options.model else tables[""]
        print(json.dumps({**origin, **content}, indent=2, ensure_ascii=False, allow_nan=False, default=_said))
        return
    print(f"from run {run.name}" + (f" of {run.date[:10]}" if run.date else ""))
    for kind, table in tables.items():
        if options.model:
            print(f"{options.model}, {kind} layers")
        _print(table)


def _answering(newest: Run, asked: Mapping[str, Any], layers: Mapping[str, Mapping[str, Any] | None]) -> Run:
    """Return the newest run of this machine that contains the requested cases; if none does, the newest."""
    files = runs.newest_first(newest.path.parent.parent)[:MOST_RUNS]
    for file in (file for file in files if file.parent == newest.path.parent):
        with contextlib.suppress(RunError):
            run = runs.read(file)
            frame = fr.tidy(run)
            for layer in layers.values():
                rows = fr.records(_of_layer(frame, layer, asked))
                if any(all(_is(row.get(axis), value) for axis, value in asked.items()) for row in rows):
                    return run
    return newest


def _of_layer(frame: pd.DataFrame, layer: Mapping[str, Any] | None, asked: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows of a model's attention layer, or of its core; all rows without a `layer`."""
    if layer is None:
        return frame
    layer = {"D_v": layer["D_h"], "mask": "causal", "source": "self", **layer}
    keep = pd.Series(True, frame.index)
    for axis in axis_names():
        if axis in asked or (axis in NOT_OF_A_MODEL and not (axis == "T_kv" and axis in layer)):
            continue
        wanted = layer.get(axis)
        same = frame[axis].isin([None, *KNOWN_AXES[axis].unsaid]) | frame[axis].isna()
        same = same if wanted is None else frame[axis] == wanted
        other = (
            frame["scope"] == "core" if axis in AROUND_CORE else frame["mode"] == "decode" if axis == "mask" else False
        )
        keep &= same | other
    return frame[keep]


def _is(value: Any, wanted: Any) -> bool:
    return value in wanted if isinstance(wanted, range) else bool(value == wanted)


def _said(wanted: Any) -> str:
    """Format a value or a range in command-line syntax."""
    return f"{wanted[0]}..{wanted[-1]}" if isinstance(wanted, range) else str(wanted)


def _meant(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """Read `--mode decode --T 64` as `pytest bench/` does: one new token with a cache of 64. Others are unchanged."""
    if asked.get("mode") != "decode" or asked.get("T", 1) == 1 or "T_kv" in asked:
        return asked
    return {**asked, "T": 1, "T_kv": asked["T"]}


def advise(frame: pd.DataFrame, asked: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return recommendations as a machine-readable table; seconds and bytes.

    `asked` maps axes to values. A number that was not measured is replaced by its measured neighbours, listed in
    `not_measured`. Implementations that failed the correctness check anywhere in the run are `left_out`.

    Keys: `asked`; `read_as`, the axes actually used, if `decode` was requested at a T that is the length of its cache;
    `not_measured`, a list of {axis, asked, nearest}; `left_out`, names; `cells`, one for each case (see `choice`);
    `crossovers` (see `crossovers`), of all lengths; `page_faults`, a sentence on their cost, or ''; `axes`, those that
    vary in the run.

    Raises:
        RunError: no measured case matches the request; the message lists those available.
    """
    asked = asked or {}
    meant = _meant(asked)
    rows, not_measured = _narrowed(frame, meant)
    along, _ = _narrowed(frame, {axis: value for axis, value in meant.items() if axis not in ("T", "T_kv")})
    cases, all_lengths = (grids.grid(part, pd.DataFrame(columns=["id"])).cases for part in (rows, along))
    return {
        "asked": dict(asked),
        "read_as": {axis: value for axis, value in meant.items() if asked.get(axis) != value},
        "not_measured": not_measured,
        "left_out": sorted(set(frame.loc[frame["wrong"] & frame["median"].notna(), "impl"])),
        "axes": fr.varying(fr.trusted(frame)),
        "cells": [choice(case) for case in cases],
        "crossovers": list(crossovers(all_lengths)),
        "page_faults": findings.page_faults(rows),
    }


def choice(case: Case) -> dict[str, Any]:
    """Return the recommendation for one case.

    `fastest`, the implementation with the smallest median, its `seconds` and `bytes`, and its `standing` (see
    `ratios.standings`), empty without a significant difference; `ties`, those tied with it; `not_resolved`, those that
    may be faster or 1.5 times slower; `next_best` and its time relative to the fastest, `ahead`, with interval
    `ahead_low`, `ahead_high`; the `verdict` in words.
    """
    best, *others = case.ranked
    row = best.row
    following = others[0] if others and row["leads"] else Mark("", "")
    ties, open_ = ([it for it in others if it.row["standing"] == how] for how in (TIED, NOT_RESOLVED))
    found = {
        "id": case.id, **{axis: row[axis] for axis in axis_names()},
        "fastest": best.impl, "seconds": row["median"], "bytes": row["peak_bytes"], "standing": row["standing"],
        "next_best": following.impl or None,
        "ahead": following.slowdown, "ahead_low": following.low, "ahead_high": following.high,
    }  # fmt: skip
    return {
        **{key: fr.plain(value) for key, value in found.items()},
        "ties": [it.impl for it in ties],
        "not_resolved": [it.impl for it in open_],
        "verdict": _verdict(case, ties, open_),
    }


def _verdict(case: Case, ties: Sequence[Mark], open_: Sequence[Mark]) -> str:
    best = case.ranked[0]
    lean = [it for it in ties if best.row["peak_bytes"] > LEANER * it.row["peak_bytes"]]
    tied = f"{lean[0].impl}, which needs less memory" if lean else words.listing((it.impl for it in ties), 1)
    told = {
        "the only one": not case.judged,
        "smallest median; no significant difference": case.judged and not best.row["standing"],
        "faster": best.state == FASTEST and case.judged,
        f"tied with {tied}": ties,
        f"not resolved from {words.listing((it.impl for it in open_), 1)}": open_,
    }
    return "; ".join(text for text, holds in told.items() if holds)


def crossovers(cases: Sequence[Case]) -> Iterator[dict[str, Any]]:
    """Yield lengths T, between adjacent measured ones, at which the fastest implementation changes; all other axes are
    equal.

    Both differences are significant; the crossing point, `crosses_at`, is interpolated in log-log.
    """
    for along in grids.along(cases, "T").values() if cases and "T" in cases[0].at else ():
        for one, other in pairwise(along):
            a, b = one.ranked[0], other.ranked[0]
            first, last = a.row["over"].get(b.impl, UNKNOWN), b.row["over"].get(a.impl, UNKNOWN)
            if first.faster and last.faster:
                low, high = one.at["T"], other.at["T"]
                share = math.log(first.value) / (math.log(first.value) + math.log(last.value))
                yield {
                    **{axis: value for axis, value in one.at.items() if axis not in ("T", "T_kv")},
                    "from": a.impl, "to": b.impl, "crosses_at": low * (high / low) ** share, "between": [low, high],
                }  # fmt: skip


def sentence(crossing: Mapping[str, Any]) -> str:
    """Format a crossover: 'sdpa overtakes packed near T = 312 (measured at 256 and 1024)'."""
    low, high = crossing["between"]
    return f"{crossing['to']} overtakes {crossing['from']} near T = {crossing['crosses_at']:.0f} (measured at {low} and {high})"


def _narrowed(frame: pd.DataFrame, asked: Mapping[str, Any]) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
    """Return the matching rows of correct implementations, and their differences from the request. Words are matched
    before numbers, since they have no neighbours.
    """
    frame, missed = fr.trusted(frame), []
    if frame.empty:
        raise RunError("no implementation of this run was correct in all of its cases and has a time")
    for axis in sorted(asked, key=lambda axis: KNOWN_AXES[axis].is_number):
        wanted, known = asked[axis], sorted(frame[axis].dropna().unique())
        near = [value for value in known if _is(value, wanted)]
        if not near and KNOWN_AXES[axis].is_number and not isinstance(wanted, range):
            near = [v for v in known if v < wanted][-1:] + [v for v in known if v > wanted][:1]
            missed.append({"axis": axis, "asked": wanted, "nearest": list(map(fr.plain, near))})
        if not near:
            listed = ", ".join(map(words.number, known)) or f"no {axis}"
            raise RunError(f"{axis} = {_said(wanted)} was not measured here; measured: {listed}")
        frame = frame[frame[axis].isin(near)]
    return frame, missed


def _print(table: Mapping[str, Any]) -> None:
    """Print one line per case, then the crossovers."""
    console = Console(width=None if sys.stdout.isatty() else 80, highlight=False, markup=False)
    if table["read_as"]:
        console.print(
            f"decode at T = {_said(table['asked']['T'])}: one new token (T = 1) against a cache of as many (T_kv)"
        )
    for miss in table["not_measured"]:
        nearest = " and ".join(map(words.number, miss["nearest"]))
        console.print(f"{miss['axis']} = {words.number(miss['asked'])} was not measured; the nearest: {nearest}")
    shown = Table(box=None, pad_edge=False)
    for heading, right in COLUMNS.items():
        whole = heading not in ("case", "verdict")
        shown.add_column(heading, justify="right" if right else "left", no_wrap=whole, overflow="fold")
    for cell in table["cells"]:
        place = words.place({axis: cell[axis] for axis in table["axes"]} or cell, always=[*table["axes"], "T", "H"])
        ahead = units.span(cell["ahead_low"], cell["ahead_high"]) if cell["ahead_low"] else units.MISSING
        following = cell["next_best"] or units.MISSING
        shown.add_row(place, cell["fastest"], units.seconds(cell["seconds"], 2), following, ahead, cell["verdict"])
    console.print(shown)
    for crossing in table["crossovers"]:
        console.print(f"{words.place(crossing, always=table['axes'])}: {sentence(crossing)}")
    if table["page_faults"]:
        console.print(table["page_faults"])
    if table["left_out"]:
        console.print(f"left out, wrong somewhere in this run: {', '.join(table['left_out'])}")


def _parser() -> command.Parser:
    parser = command.Parser(
        prog="python -m reports advise",
        description="Find the fastest implementation of each case, in saved runs.",
        epilog="Any other axis of the run is an option as well, as --window 128. Numbers may be ranges: --T 512..8192.",
    )
    command.add_run(parser)
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="only the attention layers of this model, or of a config.json (`pytest bench/ --list` shows models)",
    )
    for axis in (name for name in axis_names() if name != "model"):  # the argument names a model's layers
        parser.add_argument(f"--{axis}", type=_reader(axis), metavar="VALUE", help=f"only cases with this {axis}")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument(
        "--emit", type=Path, metavar="FILE.py",
        help="write a module with a function like SDPA that calls what was fastest; --run may be a glob of one machine's runs",
    )  # fmt: skip
    return parser


def _reader(axis: str) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        first, dots, last = text.partition("..")
        parse = KNOWN_AXES[axis].parse
        if not dots or KNOWN_AXES[axis].kind != "size":
            return parse(text)
        if not (found := range(parse(first), parse(last) + 1)):
            raise argparse.ArgumentTypeError(f"{text}: a range begins with the smaller number")
        return found

    return read
