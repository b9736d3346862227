"""The roofline of a run: what its machine was measured to do, and how near every cell comes.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", 2009.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from ..reading import units, words

#: A narrow dtype may be computed in float32 where that is faster, so the higher of both roofs is its own.
_NARROW = ("bfloat16", "float16")


def points(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame's rows with `intensity`, operations per byte, and `rate`, operations per second; those without are left
    out."""
    rows = frame.assign(intensity=frame["flops"] / frame["bytes"], rate=frame["flops"] / frame["median"])
    usable = (rows["intensity"] > 0) & (rows["rate"] > 0) & rows["intensity"].map(math.isfinite)
    return rows[usable & rows["rate"].map(math.isfinite)]


def lines(roofs: Sequence[dict[str, Any]], intensities: Sequence[float]) -> list[dict[str, Any]]:
    """Corners of the roofs over the range of the intensities: device, dtype, threads, label, intensity, rate.

    Two slopes: copies of the largest footprint that was measured, and of the fastest, which may fit a cache.
    """
    if not intensities:
        return []
    low, high = min(intensities) / 2, max(intensities) * 2
    return [corner for roof in _roofs(roofs) for corner in _corners(*roof, low, high)]


def table(roofs: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """For people: device, what was done, threads, how much per second."""
    lines: list[tuple[str, ...]] = []
    for roof in roofs:
        device, threads = str(roof.get("device")), str(roof.get("threads"))
        if _positive(roof.get("flops_per_s")):
            what = f"a product in {words.value('dtype', roof.get('dtype'))}"
            lines.append((device, what, threads, f"{_si(roof['flops_per_s'])}FLOP/s"))
        elif _positive(roof.get("bytes_per_s")):
            what = f"a copy of {units.memory(roof.get('footprint') or math.nan)}"
            lines.append((device, what, threads, f"{_si(roof['bytes_per_s'])}B/s"))
    return lines


def _roofs(roofs: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str, float, float]]:
    """(where, label, bytes per second, operations per second) of every roof that both numbers are known for."""
    computed = {_key(r): r["flops_per_s"] for r in roofs if _positive(r.get("flops_per_s"))}
    for device, dtype, threads in computed:
        rivals = [computed.get((device, name, threads), 0.0) for name in {dtype, *_faster(dtype)}]
        copies = [r for r in roofs if (r.get("device"), r.get("threads")) == (device, threads)]
        copies = sorted((r for r in copies if _positive(r.get("bytes_per_s"))), key=lambda r: r.get("footprint") or 0)
        if not copies:
            continue
        where = {"device": device, "dtype": dtype, "threads": threads}
        large, fast = copies[-1]["bytes_per_s"], max(r["bytes_per_s"] for r in copies)
        yield where, f"large copy, {_si(large)}B/s", large, max(rivals)
        if fast > large:
            yield where, f"fastest copy, {_si(fast)}B/s", fast, max(rivals)


def _corners(
    where: dict[str, Any], label: str, bandwidth: float, peak: float, low: float, high: float
) -> Iterator[dict[str, Any]]:
    ridge = peak / bandwidth
    low, high = min(low, ridge / 2), max(high, ridge * 2)
    product = f"product in {words.value('dtype', where['dtype'])}, {_si(peak)}FLOP/s"
    for intensity in (low, ridge, high):
        yield {**where, "label": label, "product": product, "intensity": intensity,
               "rate": min(peak, intensity * bandwidth)}  # fmt: skip


def _key(roof: dict[str, Any]) -> tuple[Any, Any, Any]:
    return roof.get("device"), roof.get("dtype"), roof.get("threads")


def _faster(dtype: str) -> tuple[str, ...]:
    return ("float32",) if dtype in _NARROW else ()


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0


def _si(value: float) -> str:
    """43e9 -> '43 G'."""
    size, unit = next(((s, u) for s, u in ((1e12, "T"), (1e9, "G"), (1e6, "M")) if value >= s), (1.0, ""))
    return f"{value / size:.3g} {unit}"
