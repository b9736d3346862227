"""Roofline of a run: the measured ceilings of its machine, and how close every cell comes.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", 2009.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from ..reading import words
from ..reading.runs import positive

AXES = ("device", "dtype", "autocast", "threads")
"""Axes that determine a row's ceiling."""

NARROW = ("bfloat16", "float16")
"""Dtypes that may be computed in float32 if that is faster, so that the higher ceiling applies."""

Corners = list[tuple[float, float]]
"""Points of FLOP per byte, FLOP per second."""


def points(frame: pd.DataFrame) -> pd.DataFrame:
    """Return rows with `intensity`, FLOP per byte, and `rate`, FLOP per second; incomplete rows are dropped."""
    rows = frame.assign(intensity=frame["flops"] / frame["bytes"], rate=frame["flops"] / frame["median"])
    known = rows[["intensity", "rate"]]
    return rows[((known > 0) & (known < math.inf)).all(axis=1)]


def ceilings(rooflines: Sequence[dict[str, Any]], rows: pd.DataFrame) -> dict[str, Corners]:
    """Return the ceilings of `points` by name, over the range of their intensities.

    Two slopes per product: copies of the largest measured footprint, and of the fastest one, which may fit a cache.
    """
    low, high = rows["intensity"].min() / 2, rows["intensity"].max() * 2
    found: dict[str, Corners] = {}
    for device, dtype, autocast, threads in rows.reindex(columns=list(AXES)).drop_duplicates().values.tolist():
        here = [
            it for it in rooflines if it.get("device") == device and (pd.isna(threads) or it.get("threads") == threads)
        ]
        wanted = dtype if pd.isna(autocast) else autocast
        own = {wanted, "float32"} if wanted in NARROW else {wanted}
        rates = [it for it in here if it.get("dtype") in own and positive(it.get("flops_per_s"))]
        copies = [(it.get("footprint") or 0, it["bytes_per_s"]) for it in here if positive(it.get("bytes_per_s"))]
        if rates and copies:
            best = max(rates, key=lambda it: it["flops_per_s"])
            peak = best["flops_per_s"]
            product = f"product in {words.value('dtype', best['dtype'])}, {_si(peak)}FLOP/s"
            slopes = {max(rate for _, rate in copies): "fastest copy", max(copies)[1]: "large copy"}
            for bandwidth, label in slopes.items():
                ends = (min(low, peak / bandwidth / 2), peak / bandwidth, max(high, peak / bandwidth * 2))
                found[f"{label}, {_si(bandwidth)}B/s; {product}"] = [(at, min(peak, at * bandwidth)) for at in ends]
    return found


def _si(value: float) -> str:
    """Format a number with an SI prefix: 43e9 -> '43 G'."""
    size, unit = next((s, u) for s, u in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (0, "")) if value >= s)
    return f"{value / (size or 1):.3g} {unit}"
