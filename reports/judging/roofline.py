"""The roofline of a run: what its machine was measured to do, and how near every cell comes.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", 2009.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from ..reading import units, words
from . import frame as fr
from .processes import positive

AXES = ("device", "dtype", "autocast", "threads")
"""What decides a row's roof."""

COLUMNS = ("device", "what", "threads", "per second")
"""Of `table`."""

#: A narrow dtype may be computed in float32 where that is faster, so the higher of both roofs is its own.
_NARROW = ("bfloat16", "float16")


def points(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame's rows with `intensity`, operations per byte, and `rate`, operations per second; those without are left
    out."""
    rows = frame.assign(intensity=frame["flops"] / frame["bytes"], rate=frame["flops"] / frame["median"])
    usable = (rows["intensity"] > 0) & (rows["rate"] > 0) & rows["intensity"].map(math.isfinite)
    return rows[usable & rows["rate"].map(math.isfinite)]


def lines(roofs: Sequence[dict[str, Any]], rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Corners of the roofs that `points` lie under, over the range of their intensities: where that is on AXES, label, product,
    intensity, rate.

    Two slopes: copies of the largest footprint that was measured, and of the fastest, which may fit a cache.
    """
    low, high = rows["intensity"].min() / 2, rows["intensity"].max() * 2
    settings = fr.records(rows.reindex(columns=list(AXES)).drop_duplicates())
    known = [{axis: None if pd.isna(value) else value for axis, value in where.items()} for where in settings]
    return [
        {**where, **corner}
        for where in known for slope in _slopes(roofs, where) for corner in _corners(*slope, low, high)
    ]  # fmt: skip


def table(roofs: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """For people: device, what was done, threads, how much per second."""
    lines: list[tuple[str, ...]] = []
    for roof in roofs:
        device, threads = str(roof.get("device")), str(roof.get("threads"))
        if positive(roof.get("flops_per_s")):
            lines.append(
                (
                    device,
                    f"a product in {words.value('dtype', roof.get('dtype'))}",
                    threads,
                    f"{_si(roof['flops_per_s'])}FLOP/s",
                )
            )
        elif positive(roof.get("bytes_per_s")):
            what = f"a copy of {units.memory(roof.get('footprint') or math.nan)}"
            lines.append((device, what, threads, f"{_si(roof['bytes_per_s'])}B/s"))
    return lines


def _slopes(roofs: Sequence[dict[str, Any]], where: Mapping[str, Any]) -> Iterator[tuple[str, str, float, float]]:
    """(label, product, bytes per second, operations per second) of both copies under the roof of one setting; nothing where
    a part of it was not measured."""
    here = [r for r in roofs if r.get("device") == where["device"] and where["threads"] in (None, r.get("threads"))]
    dtype = where["autocast"] or where["dtype"]
    own = {dtype, "float32"} if dtype in _NARROW else {dtype}
    products = [
        (r["flops_per_s"], r["dtype"]) for r in here if r.get("dtype") in own and positive(r.get("flops_per_s"))
    ]
    copies = [(r.get("footprint") or 0, r["bytes_per_s"]) for r in here if positive(r.get("bytes_per_s"))]
    if not products or not copies:
        return
    peak, fastest = max(products)
    product = f"product in {words.value('dtype', fastest)}, {_si(peak)}FLOP/s"
    large, fast = max(copies)[1], max(rate for _, rate in copies)
    yield f"large copy, {_si(large)}B/s", product, large, peak
    if fast > large:
        yield f"fastest copy, {_si(fast)}B/s", product, fast, peak


def _corners(
    label: str, product: str, bandwidth: float, peak: float, low: float, high: float
) -> Iterator[dict[str, Any]]:
    ridge = peak / bandwidth
    for intensity in (min(low, ridge / 2), ridge, max(high, ridge * 2)):
        yield {"label": label, "product": product, "intensity": intensity, "rate": min(peak, intensity * bandwidth)}


def _si(value: float) -> str:
    """43e9 -> '43 G'."""
    size, unit = next(((s, u) for s, u in ((1e12, "T"), (1e9, "G"), (1e6, "M")) if value >= s), (1.0, ""))
    return f"{value / size:.3g} {unit}"
