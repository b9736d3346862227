"""Roofline of a run: the measured ceilings of its machine, and how close every cell comes.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", 2009.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..reading import units, words
from ..reading.runs import Object
from .peaks import of_products
from .rows import Row, Rows

Corners = list[tuple[float, float]]
"""Points of FLOP per byte, FLOP per second."""


def intensity(row: Row) -> float:
    """Return FLOP per byte."""
    return float(row["flops"] / row["bytes"])


def ceilings(rooflines: Sequence[Object], rows: Rows) -> dict[str, Corners]:
    """Return the ceilings of rows by name, over the range of their intensities.

    Two slopes per product: copies of the largest measured footprint, and of the fastest one, which may fit a cache.
    """
    intensities = [*map(intensity, rows)]
    found: dict[str, Corners] = {}
    axes = ((row["device"], row["threads"], of_products(row)) for row in rows)
    for device, threads, dtype in dict.fromkeys(axes):
        here = [it for it in rooflines if it["device"] == device and threads in (None, it.get("threads"))]
        own = {dtype} if dtype == "float64" else {dtype, "float32"}  # narrow ones may be computed in float32
        rates = {it["flops_per_s"]: it["dtype"] for it in here if it.get("flops_per_s") and it.get("dtype") in own}
        if device != "cpu" and dtype == "float32":  # three of TF32 can replace one
            tf32 = [it["flops_per_s"] for it in here if it.get("flops_per_s") and it.get("dtype") == "tf32"]
            rates |= {rate / 3: "a third of tf32" for rate in tf32}
        copies = {it["footprint"]: it["bytes_per_s"] for it in here if it.get("footprint") and it.get("bytes_per_s")}
        if rates and copies:
            peak = max(rates)
            product = f"product in {words.value('dtype', rates[peak])}, {units.rate(peak)}FLOP/s"
            slopes = {max(copies.values()): "fastest copy", copies[max(copies)]: "large copy"}
            for bandwidth, label in slopes.items():
                bend = peak / bandwidth
                ends = (min(*intensities, bend) / 2, bend, max(*intensities, bend) * 2)
                found[f"{label}, {bandwidth / 1e9:,.0f} GB/s; {product}"] = [
                    (at, min(peak, at * bandwidth)) for at in ends
                ]
    return found
