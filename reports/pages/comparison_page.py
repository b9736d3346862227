"""A comparison as a page: what its text says, and every interval as a line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stats.verdict import UNCHANGED

from ..drawing.palette import Palette, themed
from ..judging.comparison import Cell, Comparison
from ..reading import units
from . import page
from .comparison_text import HEADINGS, answer, columns, counted, machine, sentences

WIDTH = 200.0
"""Of a line's picture."""

NARROWEST = 0.02
"""The smallest change at which the pictures end."""

WIDEST = 3.0
"""The largest."""

RADIUS = 4.0
"""Of a point: what lies beyond a picture is drawn whole at its end."""

MOST_SAID = 2
"""Sentences that a headline can hold."""


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
    used = [i for i in range(len(HEADINGS) - 1) if any(line[i] not in ("", units.MISSING) for line in lines)]
    said = list(sentences(this))
    short = len(said) <= MOST_SAID
    widest = min(WIDEST, max([NARROWEST, *(math.expm1(1.2 * _reach(cell)) for cell in this.cells)]))
    return page.rendered(
        "compare.html.j2",
        this=this,
        headline=": ".join([answer(this), *(["; ".join(said)] if said and short else [])]),
        counted=counted(this),
        sentences=[] if short else said,
        headings=[HEADINGS[i] for i in used],
        cells=[
            ([line[i] for i in used], _drawing(cell, this.margin, widest), _interval(line), _why(cell, line))
            for line, cell in zip(lines, this.cells, strict=True)
        ],
        widest=widest,
        colours=list(themed().values()),
        palette=Palette({}, [cell.impl for cell in this.cells]),
        machine=machine(this.machine),
        bad={cell.verdict.word for cell in this.cells if cell.regressed},
    )


def _why(cell: Cell, line: Sequence[str]) -> str:
    """Nothing, where all that is to be said is that nothing changed."""
    return "" if cell.verdict.word == UNCHANGED and not cell.changes else line[-1]


def _interval(line: Sequence[str]) -> str:
    """The change with its interval."""
    said = line[HEADINGS.index("change")]
    return "" if said == units.MISSING else said


def _reach(cell: Cell) -> float:
    ends = [abs(math.log(end)) for end in (cell.verdict.low, cell.verdict.high) if end > 0]
    return max(ends, default=0.0)


def _drawing(cell: Cell, margin: float, widest: float) -> Drawing | None:
    said = cell.verdict
    if not (math.isfinite(said.ratio) and said.low > 0):
        return None

    def place(ratio: float) -> float:
        at = WIDTH / 2 * (1 + math.log(ratio) / math.log1p(widest))
        return round(min(WIDTH - RADIUS, max(RADIUS, at)), 1)

    return Drawing(place(said.ratio), place(said.low), place(said.high), (place(1 / (1 + margin)), place(1 + margin)))
