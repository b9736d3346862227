"""Published times of the same cases, from the run file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from stats import shares

from ..reading import units, words
from . import frame as fr

COLUMNS = ("case", "published", "theirs", "nearest here", "ours", "fastest here", "its time", "source")


def table(frame: pd.DataFrame, published: Sequence[dict[str, Any]]) -> tuple[list[tuple[str, ...]], list[str]]:
    """Return one line per published time whose case was measured, in the order of the run file, and numbered notes:
    source, machine, and other differences.
    """
    sources: dict[str, int] = {}
    parts = dict(iter(fr.trusted(frame).groupby("id")))
    lines = [
        (
            *_line(parts[it["id"]], it),
            str(sources.setdefault(f"{it['source']}; machine: {it['machine']}; {it['differs']}", 1 + len(sources))),
        )
        for it in published
        if it.get("id") in parts
    ]
    return lines, [*sources]


def _line(case: pd.DataFrame, figure: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a published time beside the rows of its case."""
    best, *_ = rows = fr.ranked(case)
    nearest = [_time(row["median"], row) for row in rows if row["impl"] == figure["impl"]]
    return (
        words.place(best, always=("B", "H", "D_h", "T")), str(figure["kernel"]), _time(figure["seconds"], best),
        str(figure["impl"] or units.MISSING), *(nearest or [units.MISSING])[:1], best["impl"], _time(best["median"], best),
    )  # fmt: skip


def _time(seconds: float, row: Mapping[str, Any]) -> str:
    """Format '8.28 ms, 0.519 TFLOP/s', by the operations of the row's case."""
    return f"{units.seconds(seconds)}, {shares.significant(row['flops'] / seconds / 1e12)} TFLOP/s"
