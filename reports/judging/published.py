"""Published times of the same cases, from the run file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stats import shares

from ..reading import units, words
from .grid import Grid

COLUMNS = ("case", "published", "theirs", "nearest here", "ours", "source")


def table(grid: Grid, published: Sequence[dict[str, Any]]) -> tuple[list[tuple[str, ...]], list[str]]:
    """Return one line per published time whose case was measured, in the order of the run file, and numbered notes:
    source, machine, and other differences.
    """
    cases = {case.id: case for case in grid.cases if case.ranked}
    lines, sources = list[tuple[str, ...]](), dict[str, int]()
    for it in published:
        if case := cases.get(it["id"]):
            row, nearest = case.ranked[0].row, case.mark(it["impl"])
            source = f"{it['source']}; machine: {it['machine']}; {it['differs']}"
            lines.append((
                words.place(row, always=("B", "H", "D_h", "T")), it["kernel"], _time(it["seconds"], row),
                it["impl"] or units.MISSING, _time(nearest.row["median"], row) if nearest.counts else units.MISSING,
                str(sources.setdefault(source, 1 + len(sources))),
            ))  # fmt: skip
    return lines, [*sources]


def _time(seconds: float, row: Mapping[str, Any]) -> str:
    """Format '8.28 ms, 0.519 TFLOP/s', by the operations of the row's case."""
    return f"{units.seconds(seconds)}, {shares.significant(row['flops'] / seconds / 1e12)} TFLOP/s"
