"""Roofline of a run: the measured ceilings of its machine, and how close every cell comes.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", 2009.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..reading import words
from ..reading.runs import positive
from .frame import Row

AXES = ("device", "dtype", "autocast", "threads")
"""Axes that determine a row's ceiling."""

NARROW = ("bfloat16", "float16")
"""Dtypes that may be computed in float32 if that is faster, so that the higher ceiling applies."""

Corners = list[tuple[float, float]]
"""Points of FLOP per byte, FLOP per second."""


def points(rows: Iterable[Row]) -> list[Row]:
    """Return rows with `intensity`, FLOP per byte, and `rate`, FLOP per second; incomplete rows are dropped."""
    return [
        {**row, "intensity": row["flops"] / row["bytes"], "rate": row["flops"] / row["median"]}
        for row in rows
        if row["flops"] > 0 and row["bytes"] > 0
    ]


def ceilings(rooflines: Sequence[dict[str, Any]], rows: Sequence[Row]) -> dict[str, Corners]:
    """Return the ceilings of `points` by name, over the range of their intensities.

    Two slopes per product: copies of the largest measured footprint, and of the fastest one, which may fit a cache.
    """
    intensities = [row["intensity"] for row in rows]
    low, high = min(intensities) / 2, max(intensities) * 2
    found: dict[str, Corners] = {}
    for device, dtype, autocast, threads in dict.fromkeys(tuple(row.get(axis) for axis in AXES) for row in rows):
        here = [it for it in rooflines if it.get("device") == device and threads in (None, it.get("threads"))]
        wanted = autocast or dtype
        own = {wanted, "float32"} if wanted in NARROW else {wanted}
        rates = {
            it["flops_per_s"]: it["dtype"] for it in here if it.get("dtype") in own and positive(it.get("flops_per_s"))
        }
        copies = [(it.get("footprint") or 0, it["bytes_per_s"]) for it in here if positive(it.get("bytes_per_s"))]
        if rates and copies:
            peak = max(rates)
            product = f"product in {words.value('dtype', rates[peak])}, {peak / 1e9:,.0f} GFLOP/s"
            slopes = {max(rate for _, rate in copies): "fastest copy", max(copies)[1]: "large copy"}
            for bandwidth, label in slopes.items():
                ends = (min(low, peak / bandwidth / 2), peak / bandwidth, max(high, peak / bandwidth * 2))
                found[f"{label}, {bandwidth / 1e9:,.0f} GB/s; {product}"] = [
                    (at, min(peak, at * bandwidth)) for at in ends
                ]
    return found
