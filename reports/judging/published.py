"""Published times of the same cases, from the run file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stats import shares

from ..reading import units, words
from .grid import Case, Grid

COLUMNS = ("case", "published", "theirs", "nearest here", "ours", "fastest here", "its time", "source")


def table(grid: Grid, published: Sequence[dict[str, Any]]) -> tuple[list[tuple[str, ...]], list[str]]:
    """Return one line per published time whose case was measured, in the order of the run file, and numbered notes:
    source, machine, and other differences.
    """
    sources: dict[str, int] = {}
    cases = {case.id: case for case in grid.cases if case.ranked}
    lines = [
        (
            *_line(cases[it["id"]], it),
            str(sources.setdefault(f"{it['source']}; machine: {it['machine']}; {it['differs']}", 1 + len(sources))),
        )
        for it in published
        if it.get("id") in cases
    ]
    return lines, [*sources]


def _line(case: Case, figure: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a published time beside those of its case."""
    best, nearest = case.ranked[0].row, case.mark(figure["impl"])
    return (
        words.place(best, always=("B", "H", "D_h", "T")), str(figure["kernel"]), _time(figure["seconds"], best),
        str(figure["impl"] or units.MISSING), _time(nearest.row["median"], best) if nearest.counts else units.MISSING,
        best["impl"], _time(best["median"], best),
    )  # fmt: skip


def _time(seconds: float, row: Mapping[str, Any]) -> str:
    """Format '8.28 ms, 0.519 TFLOP/s', by the operations of the row's case."""
    return f"{units.seconds(seconds)}, {shares.significant(row['flops'] / seconds / 1e12)} TFLOP/s"
