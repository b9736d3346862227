"""A comparison as a page: what its text says, and every interval as a line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..drawing.palette import Palette, themed
from ..judging.compared import Cell, Comparison
from ..reading import units
from . import page
from .comparison_text import HEADINGS, columns, machine, sentences, summary

WIDTH = 200.0
"""Of a line's picture."""

NARROWEST = 0.02
"""The smallest change at which the pictures end."""

WIDEST = 1.0
"""The largest."""


@dataclass(frozen=True)
class Drawing:
    """Places of a ratio, its interval and the margin."""

    at: float
    low: float
    high: float
    band: tuple[float, float]


def html(this: Comparison) -> str:
    """The page; all that came from files is escaped."""
    lines = [columns(cell) for cell in this.cells]
    used = [i for i in range(len(HEADINGS)) if any(line[i] not in ("", units.MISSING) for line in lines)]
    widest = min(WIDEST, max([NARROWEST, *(1.2 * _reach(cell) for cell in this.cells)]))
    return page.rendered(
        "compare.html.j2",
        this=this,
        answer=summary(this),
        sentences=list(sentences(this)),
        headings=[HEADINGS[i] for i in used],
        cells=[
            ([line[i] for i in used], _drawing(cell, this.margin, widest), _interval(line))
            for line, cell in zip(lines, this.cells, strict=True)
        ],
        widest=widest,
        colours=list(themed().values()),
        palette=Palette({}, [cell.impl for cell in this.cells]),
        machine=machine(this.machine),
        bad={cell.verdict.word for cell in this.cells if cell.regressed},
    )


def _interval(line: Sequence[str]) -> str:
    """The change with its interval: of the ratio, or where runs share none, of the seconds."""
    said = dict(zip(HEADINGS, line, strict=True))
    return next((said[name] for name in ("ratio", "seconds") if said[name] != units.MISSING), "")


def _reach(cell: Cell) -> float:
    ends = [abs(math.log(end)) for end in (cell.verdict.low, cell.verdict.high) if end > 0]
    return max(ends, default=0.0)


def _drawing(cell: Cell, margin: float, widest: float) -> Drawing | None:
    said = cell.verdict
    if not (math.isfinite(said.ratio) and said.low > 0):
        return None

    def place(ratio: float) -> float:
        share = math.log(ratio) / math.log1p(widest)
        return round(WIDTH / 2 * (1 + min(1.0, max(-1.0, share))), 1)

    return Drawing(place(said.ratio), place(said.low), place(said.high), (place(1 / (1 + margin)), place(1 + margin)))
