"""Recommends implementations: the fastest of each case, and those not significantly slower."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stats.axes import AXES, Values
from stats.ratios import FASTEST, NOT_RESOLVED, TIED

from ..reading import words
from ..reading.axes import AXIS_NAMES, LAYER
from ..reading.runs import Object, Run, RunError
from . import findings
from .grid import Case, Mark, grid
from .rows import Row, Rows, trusted, varying

Layers = Mapping[str, Values]
"""Axes of a model's attention layers, by kind."""

NOT_OF_A_MODEL = {
    "B", "T", "T_kv", "device", "threads", "mode", "scope", "dropout", "out_dropout", "page", "requests", "autocast",
    "deterministic", "tf32",
}  # fmt: skip
"""Axes that a model's configuration does not determine."""

AROUND_CORE = {"d_model", "qkv_bias", "out_bias", "latent", "rope"}
"""Axes that do not affect a core measured alone."""


def of_layer(rows: Rows, layer: Values, asked: Values) -> Rows:
    """Return the rows of a model's attention layer, or of its core; all rows if `layer` is empty."""
    if not layer:
        return rows
    known = {"D_v": layer["D_h"], "mask": "causal", "source": "self", **layer}
    axes = [axis for axis in AXIS_NAMES if axis not in NOT_OF_A_MODEL or (axis == "T_kv" and axis in layer)]
    return [row for row in rows if all(axis in asked or _has(row, axis, known.get(axis)) for axis in axes)]


def _has(row: Row, axis: str, wanted: Any) -> bool:
    """Whether a row has this value of an axis, or its default if that is None; also if the axis does not affect the row."""
    if (row["scope"] == "core" and axis in AROUND_CORE) or (row["mode"] == "decode" and axis == "mask"):
        return True
    if wanted is None:
        return row[axis] in (None, AXES[axis].omitted)
    hides_no_key = axis == "window" and row[axis] is None and row["T_kv"] <= wanted + 1
    return hides_no_key or bool(row[axis] == wanted)


def typed(wanted: Any) -> str:
    """Format a value or a range in command-line syntax."""
    return f"{wanted[0]}..{wanted[-1]}" if isinstance(wanted, range) else "none" if wanted is None else str(wanted)


def with_cache_length(asked: Object) -> Object:
    """Return the axes as `pytest bench/` reads them: `--mode decode --T 64` is one new token with a cache of 64."""
    if asked.get("mode") != "decode" or asked.get("T", 1) == 1 or "T_kv" in asked:
        return asked
    return {**asked, "T": 1, "T_kv": asked["T"]}


def advise(every: Rows, rows: Rows, asked: Values, run: Run) -> Object:
    """Return recommendations as a machine-readable table; seconds and bytes.

    `asked` maps axes to values, and `rows` are those of `every` that have them (see `narrowed`).

    Keys: `asked`; `left_out`, implementations that failed the correctness check anywhere in the run; `cells`, one for each
    case (see `choice`); `page_faults`, a sentence on their cost, or ''; `axes`, those that vary in the run.
    """
    return {
        "asked": dict(asked),
        "left_out": sorted(run.wrong),
        "axes": varying(trusted(every)),
        "cells": list(map(choice, grid(rows).cases)),
        "page_faults": findings.page_faults(rows, run.machine),
    }


def choice(case: Case) -> Object:
    """Return the recommendation for one case.

    `fastest`, the implementation with the smallest median, with its `median` and `peak_bytes`, and its `standing` (see
    `ratios.ranks`), None without intervals; `ties`, those tied with it; `not_resolved`, those that may be faster or 1.5
    times slower; `next_best` and its `slowdown` with the interval `slowdown_low`, `slowdown_high`; the result as `text`.
    """
    best, *others = case.ranked
    row, following = best.row, others[0] if others else Mark("", "")
    ties, open_ = ([it.impl for it in others if it.state == how] for how in (TIED, NOT_RESOLVED))
    parts = {
        "the only one": not others,
        "faster": others and best.state == FASTEST,
        f"tied with {words.listing(ties, 1)}": ties,
        f"not resolved: {words.listing(open_, 1)}": open_,
    }
    found = {
        "id": case.id, **{axis: row[axis] for axis in (LAYER, *AXIS_NAMES)},
        "fastest": best.impl, "median": row["median"], "peak_bytes": row["peak_bytes"], "standing": row["standing"],
        "next_best": following.impl or None,
        "slowdown": following.slowdown, "slowdown_low": following.low, "slowdown_high": following.high,
        "text": "; ".join(text for text, holds in parts.items() if holds), "ties": ties, "not_resolved": open_,
    }  # fmt: skip
    return {key: None if value != value else value for key, value in found.items()}


def narrowed(every: Rows, asked: Values) -> Rows:
    """Return the matching rows of correct implementations.

    Raises:
        RunError: no measured case matches the request; the message lists those available.
    """
    rows = trusted(every)
    if not rows:
        raise RunError("no implementation of this run was correct in all of its cases and has a time")
    for axis, wanted in asked.items():
        known = sorted({row[axis] for row in rows} - {None})
        rows = [row for row in rows if row[axis] in (wanted if isinstance(wanted, range) else [wanted])]
        if not rows:
            listed = ", ".join(map(words.number, known)) or f"no {axis}"
            raise RunError(f"{axis} = {typed(wanted)} was not measured here; measured: {listed}")
    return rows
