"""Which implementation to use: the fastest of each case, those not shown to be slower, and where another one takes over."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
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
"""Memory that is worth a word of two that are tied in time: so many times less."""

MOST_RUNS = 200
"""Runs that are searched for one that holds what is asked for."""

COLUMNS = {"case": False, "use": False, "time": True, "next best": False, "ahead by": True, "verdict": False}
"""And whether they are flush right."""


def main(arguments: Sequence[str]) -> int:
    """`python -m reports advise`: exit code 0; 3 for a mistake of the user's, reported in one line on stderr."""
    options, _ = _parser().parse_known_args(arguments)
    return command.answered(lambda options: _answer(options, arguments), options)


def _answer(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    several = options.emit and options.run is not None
    chosen = list(command.several([options.run], command.results(options))) if several else [command.chosen(options)]
    options = _parser().parse_args(arguments)  # the axes of that run are options, too
    asked = {axis: value for axis in axis_names() if (value := getattr(options, axis)) is not None}
    long = {short: name for name, short in words.SHORT_DTYPE.items()}
    asked |= {axis: long.get(value, value) for axis, value in asked.items() if axis == "dtype"}
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
    says so. Implementations that were wrong anywhere in the run are `left_out`.

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
    cases, all_lengths = (grids.grid(part, pd.DataFrame(columns=["id"])).cases for part in (rows, along))
    return {
        "asked": dict(asked),
        "read_as": {axis: value for axis, value in meant.items() if asked.get(axis) != value},
        "not_measured": not_measured,
        "left_out": sorted(set(frame.loc[frame["wrong"] & frame["median"].notna(), "impl"])),
        "axes": fr.varying(fr.trusted(frame)),
        "cells": [choice(case) for case in cases],
        "crossovers": list(crossovers(all_lengths)),
        "page_faults": findings.kept_pages(rows),
    }


def choice(case: Case) -> dict[str, Any]:
    """What to use in one case.

    `fastest`, the one with the smallest median, its `seconds` and `bytes`, and its `standing` (see `ratios.standings`), empty
    where no difference can be shown; `ties`, those that are tied with it; `not_resolved`, those that may be faster, or take
    half as long again; `next_best` and how many times as long that takes, `ahead`, with its interval `ahead_low`,
    `ahead_high`; the `verdict` in words.
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
        "smallest median; no difference is shown": case.judged and not best.row["standing"],
        "faster": best.state == FASTEST and case.judged,
        f"tied with {tied}": ties,
        f"not resolved from {words.listing((it.impl for it in open_), 1)}": open_,
    }
    return "; ".join(text for text, holds in told.items() if holds)


def crossovers(cases: Sequence[Case]) -> Iterator[dict[str, Any]]:
    """Where, from one measured T to the next, another implementation is the best one; all other axes being equal.

    At both a difference is shown; the point between them, `crosses_at`, is interpolated in log-log.
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
    """'sdpa overtakes packed near T = 312 (measured at 256 and 1024)'"""
    low, high = crossing["between"]
    return f"{crossing['to']} overtakes {crossing['from']} near T = {crossing['crosses_at']:.0f} (measured at {low} and {high})"


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


def _print(table: Mapping[str, Any]) -> None:
    """For people: one line a case, then the crossovers."""
    console = Console(width=None if sys.stdout.isatty() else 80, highlight=False, markup=False)
    if table["read_as"]:
        console.print(f"decode at T = {table['asked']['T']}: one new token (T = 1) against a cache of as many (T_kv)")
    for miss in table["not_measured"]:
        nearest = " and ".join(map(words.number, miss["nearest"]))
        console.print(f"{miss['axis']} = {words.number(miss['asked'])} was not measured; the nearest: {nearest}")
    shown = Table(box=None, pad_edge=False)
    for heading, right in COLUMNS.items():
        shown.add_column(heading, justify="right" if right else "left", no_wrap=right, overflow="fold")
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
