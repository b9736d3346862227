"""Times that others have published, beside those of a run in the same case. The run file holds them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from ..reading import units, words
from . import frame as fr

COLUMNS = (
    "case", "published", "machine", "time", "TFLOP/s", "nearest here", "time", "TFLOP/s", "ahead here", "time",
    "what else differs", "source",
)  # fmt: skip


def table(frame: pd.DataFrame, published: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """For people: a line a figure whose case was measured, in the order of the run file."""
    right = frame[~frame["wrong"]]
    cases = ((it, right[right["id"] == it.get("id")]) for it in published)
    return [_line(case, it) for it, case in cases if len(case)]


def _line(case: pd.DataFrame, figure: dict[str, Any]) -> tuple[str, ...]:
    """`case`: the rows of the figure's case."""
    title = words.place(fr.settings(case), always=("B", "H", "D_h", "T"))
    flops, seconds = float(case["flops"].iloc[0]), float(figure["seconds"])
    nearest = case[case["impl"] == figure.get("impl")]
    here = float(nearest["median"].iloc[0]) if len(nearest) else math.nan
    ahead = case.sort_values(["leads", "median"], ascending=[False, True]).iloc[0]
    return (
        title,
        str(figure.get("kernel", units.MISSING)),
        str(figure.get("machine", units.MISSING)),
        units.seconds(seconds),
        _rate(flops / seconds),
        str(figure.get("impl", units.MISSING)),
        units.seconds(here),
        _rate(flops / here),
        str(ahead["impl"]),
        units.seconds(float(ahead["median"])),
        str(figure.get("differs", units.MISSING)),
        str(figure.get("source", units.MISSING)),
    )


def _rate(flops_per_s: float) -> str:
    return units.significant(flops_per_s / 1e12) if math.isfinite(flops_per_s) else units.MISSING
