"""Recommends implementations: the fastest of each case, those not significantly slower, and crossovers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from stats.ratios import FASTEST, NOT_RESOLVED, TIED, UNKNOWN

from ..reading import words
from ..reading.axes import KNOWN_AXES, LAYER, axis_names
from ..reading.runs import RunError
from . import findings
from . import frame as fr
from . import grid as grids
from .frame import Row
from .grid import Case, Grid, Mark

Layers = Mapping[str, Mapping[str, Any]]
"""Axes of a model's attention layers, by kind."""

NOT_OF_A_MODEL = {
    "B", "T", "T_kv", "device", "threads", "mode", "scope", "dropout", "out_dropout", "page", "requests", "autocast",
    "deterministic",
}  # fmt: skip
"""Axes that a model's configuration does not determine."""

AROUND_CORE = {"d_model", "qkv_bias", "out_bias", "latent", "rope"}


def of_layer(rows: Sequence[Row], layer: Row, asked: Mapping[str, Any]) -> Sequence[Row]:
    """Return the rows of a model's attention layer, or of its core; all rows if `layer` is empty."""
    if not layer:
        return rows
    known = {"D_v": layer["D_h"], "mask": "causal", "source": "self", **layer}
    axes = [axis for axis in axis_names() if axis not in NOT_OF_A_MODEL or (axis == "T_kv" and axis in layer)]
    return [row for row in rows if all(axis in asked or _has(row, axis, known.get(axis)) for axis in axes)]


def _has(row: Row, axis: str, wanted: Any) -> bool:
    """Whether a row is measured as a layer with this value of an axis, or None."""
    if (row["scope"] == "core" and axis in AROUND_CORE) or (row["mode"] == "decode" and axis == "mask"):
        return True
    if wanted is None:
        return row[axis] in (None, *KNOWN_AXES[axis].omitted)
    hides_no_key = axis == "window" and row[axis] is None and row["T_kv"] <= wanted + 1
    return hides_no_key or bool(row[axis] == wanted)


def typed(wanted: Any) -> str:
    """Format a value or a range in command-line syntax."""
    return f"{wanted[0]}..{wanted[-1]}" if isinstance(wanted, range) else str(wanted)


def read_as(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """Read `--mode decode --T 64` as `pytest bench/` does: one new token with a cache of 64. Others are unchanged."""
    if asked.get("mode") != "decode" or asked.get("T", 1) == 1 or "T_kv" in asked:
        return asked
    return {**asked, "T": 1, "T_kv": asked["T"]}


def advise(every: Sequence[Row], asked: Mapping[str, Any]) -> dict[str, Any]:
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
    meant = read_as(asked)
    rows, not_measured = narrowed(every, meant)
    along, _ = narrowed(every, {axis: value for axis, value in meant.items() if axis not in ("T", "T_kv")})
    made, of_all_lengths = map(grids.grid, (rows, along))
    return {
        "asked": dict(asked),
        "read_as": {axis: value for axis, value in meant.items() if asked.get(axis) != value},
        "not_measured": not_measured,
        "left_out": sorted({row["impl"] for row in every if row["wrong"]}),
        "axes": fr.varying(fr.trusted(every)),
        "cells": [choice(case) for case in made.cases],
        "crossovers": list(crossovers(of_all_lengths)),
        "page_faults": findings.page_faults(rows),
    }


def choice(case: Case) -> dict[str, Any]:
    """Return the recommendation for one case.

    `fastest`, the implementation with the smallest median, its `seconds` and `bytes`, and its `standing` (see
    `ratios.states`), empty without intervals; `ties`, those tied with it; `not_resolved`, those that may be faster or 1.5
    times slower; `next_best` and its time relative to the fastest, `ahead`, with interval `ahead_low`, `ahead_high`; the
    `verdict` in words.
    """
    best, *others = case.ranked
    row, following = best.row, others[0] if others else Mark("", "")
    ties, open_ = ([it.impl for it in others if it.state == how] for how in (TIED, NOT_RESOLVED))
    parts = {
        "the only one": not others,
        "faster": others and best.state == FASTEST,
        f"tied with {words.listing(ties, 1)}": ties,
        f"not resolved from {words.listing(open_, 1)}": open_,
    }
    found = {
        "id": case.id, **{axis: row[axis] for axis in (LAYER, *axis_names())},
        "fastest": best.impl, "seconds": row["median"], "bytes": row["peak_bytes"], "standing": row["standing"],
        "next_best": following.impl or None,
        "ahead": following.slowdown, "ahead_low": following.low, "ahead_high": following.high,
        "verdict": "; ".join(text for text, holds in parts.items() if holds), "ties": ties, "not_resolved": open_,
    }  # fmt: skip
    return {key: None if value != value else value for key, value in found.items()}


def crossovers(grid: Grid) -> Iterator[dict[str, Any]]:
    """Yield lengths T, between adjacent measured ones, at which the fastest implementation changes; all other axes are
    equal.

    Both differences are significant; the crossing point, `crosses_at`, is interpolated in log-log.
    """
    for along in grid.along("T"):
        for one, other in pairwise(along):
            a, b = one.ranked[0], other.ranked[0]
            first, last = a.row["over"].get(b.impl, UNKNOWN), b.row["over"].get(a.impl, UNKNOWN)
            if first.faster and last.faster:
                low, high = one.at["T"], other.at["T"]
                share = math.log(first.value) / math.log(first.value * last.value)
                yield {
                    **{axis: value for axis, value in one.at.items() if axis not in ("T", "T_kv")},
                    "from": a.impl, "to": b.impl, "crosses_at": low * (high / low) ** share, "between": [low, high],
                }  # fmt: skip


def sentence(crossing: Mapping[str, Any]) -> str:
    """Format a crossover: 'sdpa overtakes packed near T = 312 (measured at 256 and 1024)'."""
    low, high = crossing["between"]
    return f"{crossing['to']} overtakes {crossing['from']} near T = {crossing['crosses_at']:.0f} (measured at {low} and {high})"


def narrowed(every: Sequence[Row], asked: Mapping[str, Any]) -> tuple[list[Row], list[dict[str, Any]]]:
    """Return the matching rows of correct implementations, and their differences from the request. Words are matched
    before numbers, since they have no neighbours.
    """
    rows, missed = fr.trusted(every), []
    if not rows:
        raise RunError("no implementation of this run was correct in all of its cases and has a time")
    for axis in sorted(asked, key=lambda axis: KNOWN_AXES[axis].is_number):
        wanted, known = asked[axis], sorted({row[axis] for row in rows} - {None})
        is_range = isinstance(wanted, range)
        near = [value for value in known if (value in wanted if is_range else value == wanted)]
        if not near and KNOWN_AXES[axis].is_number and not is_range:
            near = [v for v in known if v < wanted][-1:] + [v for v in known if v > wanted][:1]
            missed.append({"axis": axis, "asked": wanted, "nearest": near})
        if not near:
            listed = ", ".join(map(words.number, known)) or f"no {axis}"
            raise RunError(f"{axis} = {typed(wanted)} was not measured here; measured: {listed}")
        rows = [row for row in rows if row[axis] in near]
    return rows, missed
