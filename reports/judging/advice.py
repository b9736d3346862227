"""Recommends implementations: the fastest of each case, those not significantly slower, and crossovers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pandas as pd

from stats.ratios import FASTEST, NOT_RESOLVED, TIED, UNKNOWN

from ..reading import words
from ..reading.axes import KNOWN_AXES, axis_names
from ..reading.runs import RunError
from . import findings
from . import frame as fr
from . import grid as grids
from .grid import Case, Mark

Layers = Mapping[str, Mapping[str, Any]]
"""Axes of a model's attention layers, by kind."""

NOT_OF_A_MODEL = {
    "B", "T", "T_kv", "device", "threads", "mode", "scope", "dropout", "out_dropout", "page", "requests", "autocast",
    "deterministic",
}  # fmt: skip
"""Axes that a model's configuration does not determine."""

AROUND_CORE = {"d_model", "qkv_bias", "out_bias", "latent", "rope"}


def of_layer(frame: pd.DataFrame, layer: Mapping[str, Any] | None, asked: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows of a model's attention layer, or of its core; all rows without a `layer`."""
    if layer is None:
        return frame
    layer = {"D_v": layer["D_h"], "mask": "causal", "source": "self", **layer}
    keep = pd.Series(True, frame.index)
    for axis in axis_names():
        if axis not in asked and (axis not in NOT_OF_A_MODEL or (axis == "T_kv" and axis in layer)):
            wanted = (None, *KNOWN_AXES[axis].omitted) if layer.get(axis) is None else (layer[axis],)
            around = frame["scope"] == "core" if axis in AROUND_CORE else (frame["mode"] == "decode") & (axis == "mask")
            seen = None in wanted or (axis == "window" and (frame["T_kv"] <= layer[axis] + 1))  # it hides no key
            keep &= around | frame[axis].isin(wanted) | (frame[axis].isna() & seen)
    return frame[keep]


def matches(value: Any, wanted: Any) -> bool:
    return value in wanted if isinstance(wanted, range) else bool(value == wanted)


def typed(wanted: Any) -> str:
    """Format a value or a range in command-line syntax."""
    return f"{wanted[0]}..{wanted[-1]}" if isinstance(wanted, range) else str(wanted)


def read_as(asked: Mapping[str, Any]) -> Mapping[str, Any]:
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
    meant = read_as(asked)
    rows, not_measured = narrowed(frame, meant)
    along, _ = narrowed(frame, {axis: value for axis, value in meant.items() if axis not in ("T", "T_kv")})
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
    `ratios.states`), empty without a significant difference; `ties`, those tied with it; `not_resolved`, those that
    may be faster or 1.5 times slower; `next_best` and its time relative to the fastest, `ahead`, with interval
    `ahead_low`, `ahead_high`; the `verdict` in words.
    """
    best, *others = case.ranked
    row = best.row
    following = others[0] if others and row["standing"] else Mark("", "")
    ties, open_ = ([it.impl for it in others if it.row["standing"] == how] for how in (TIED, NOT_RESOLVED))
    found = {
        "id": case.id, **{axis: row[axis] for axis in axis_names()},
        "fastest": best.impl, "seconds": row["median"], "bytes": row["peak_bytes"], "standing": row["standing"],
        "next_best": following.impl or None,
        "ahead": following.slowdown, "ahead_low": following.low, "ahead_high": following.high,
    }  # fmt: skip
    return {
        **{key: fr.plain(value) for key, value in found.items()},
        "ties": ties,
        "not_resolved": open_,
        "verdict": _verdict(case, ties, open_),
    }


def _verdict(case: Case, ties: Sequence[str], open_: Sequence[str]) -> str:
    if not case.judged:
        return "the only one"
    best = case.ranked[0]
    parts = {
        "smallest median; no significant difference": not best.row["standing"],
        "faster": best.state == FASTEST,
        f"tied with {words.listing(ties, 1)}": ties,
        f"not resolved from {words.listing(open_, 1)}": open_,
    }
    return "; ".join(text for text, holds in parts.items() if holds)


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


def narrowed(frame: pd.DataFrame, asked: Mapping[str, Any]) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
    """Return the matching rows of correct implementations, and their differences from the request. Words are matched
    before numbers, since they have no neighbours.
    """
    frame, missed = fr.trusted(frame), []
    if frame.empty:
        raise RunError("no implementation of this run was correct in all of its cases and has a time")
    for axis in sorted(asked, key=lambda axis: KNOWN_AXES[axis].is_number):
        wanted, known = asked[axis], sorted(frame[axis].dropna().unique())
        near = [value for value in known if matches(value, wanted)]
        if not near and KNOWN_AXES[axis].is_number and not isinstance(wanted, range):
            near = [v for v in known if v < wanted][-1:] + [v for v in known if v > wanted][:1]
            missed.append({"axis": axis, "asked": wanted, "nearest": list(map(fr.plain, near))})
        if not near:
            listed = ", ".join(map(words.number, known)) or f"no {axis}"
            raise RunError(f"{axis} = {typed(wanted)} was not measured here; measured: {listed}")
        frame = frame[frame[axis].isin(near)]
    return frame, missed
