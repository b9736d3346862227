"""Data for the templates' charts: heat maps, scales of dots with bars, lines along an axis."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from stats.estimate import grouped
from stats.ratios import NOT_RESOLVED

from ..judging import grid as grids
from ..judging.grid import Case, Entry, Grid
from ..reading import words
from ..reading.axes import labelled
from . import svg
from .measures import MEASURES, SLOWDOWN, Points, series
from .palette import Palette
from .svg import Scale

HOTTEST, SHADE = 5.0, 75
"""Slowdown from which cells have the darkest shade, and that shade in percent."""

MOST_LINES = 14
"""Most lines of a chart whose labels fit beside it."""

OFF_THE_CHART = 8.0
"""Ratio to the next smaller value, above which a value is printed in words, so that the axis separates the others."""


@dataclass(frozen=True)
class HeatCell:
    text: str
    title: str
    kind: str
    """`best`, `pale` (not resolved), `good` (faster), `bad` (wrong), `gone` (no result) or empty."""
    shade: int = 0
    to: str = ""
    """Keys of its cases; a click selects the first."""


@dataclass(frozen=True)
class HeatMap:
    """A heat map. `headings` are lines of (text, number of columns spanned)."""

    axis: str | None
    name: str
    mean: str
    """Heading of the column before the cells."""
    headings: Sequence[Sequence[tuple[str, int]]]
    rows: Sequence[tuple[str, str, Sequence[HeatCell]]]
    """Implementation, its entry in the column before the cells, and its cells."""


def heat_maps(grid: Grid, keys: Mapping[str, str]) -> Iterator[HeatMap]:
    """Yield one map for each choice of columns, the default first."""
    for axis in grid.views:
        columns = grid.columns(axis)
        rows = [
            (
                impl,
                grid.mean_text(impl),
                [_cell(grid.entry(impl, it), " ".join(keys[case.id] for case in it.cases)) for it in columns],
            )
            for impl in grid.impls
        ]
        name = f"mean for each {axis}" if axis else "each case"
        yield HeatMap(axis, name, "mean", spans([it.heading for it in columns]), rows)


def _cell(entry: Entry, to: str) -> HeatCell:
    if math.isnan(entry.slowdown):
        return HeatCell(entry.text, entry.title, "bad" if entry.text == words.WRONG else "gone", to=to)
    kind = "best" if entry.best else "pale" if entry.open else ""
    return HeatCell(entry.text, entry.title, kind, shade(math.log(entry.slowdown) / math.log(HOTTEST)), to)


def shade(share: float) -> int:
    """Return the shade of a cell in percent; from a share of 1 on, it is the darkest."""
    return round(SHADE * min(1.0, max(0.0, share)))


def spans(headings: Sequence[tuple[str, ...]]) -> list[list[tuple[str, int]]]:
    """Merge equal neighbouring headings, in the order of axes, into spans."""
    ends = range(1, 1 + max(map(len, headings), default=0))
    parts = [grouped((heading[:end], heading) for heading in headings) for end in ends]
    return [[(key[-1], len(of)) for key, of in line.items()] for line in parts]


def scale(case: Case) -> Scale:
    """Return the scale of a case's slowdowns, in percent of the width; those far above all others are drawn at its end."""
    slowest = max(within(it.slowdown for it in case.ranked), default=1.0)
    drawn = (it for it in case.ranked if it.slowdown <= slowest)
    reach = max([1.2, *(min(max(it.slowdown, it.high), 4 * it.slowdown) for it in drawn)])  # high may be NaN
    return Scale(0.93, reach * 1.06, 0, 100)


def ticks(scale: Scale) -> list[tuple[float, str]]:
    return [(scale(tick), f"{tick:g}×") for tick in scale.ticks() if tick >= 1]


def lines(
    grid: Grid, palette: Palette, keys: Mapping[str, str]
) -> Iterator[tuple[str, str, Sequence[tuple[str, Markup]]]]:
    """Yield charts of slowdown (of one implementation: latency) and memory along the longest axis, for each setting of the
    others at which it has several values: the keys of their cases, the setting, and the charts with their titles.
    """
    axis, groups = grid.length, grid.along(grid.length)
    time = SLOWDOWN if len(grid.impls) > 1 else MEASURES["latency"]
    for cases in groups:
        at = {key: value for key, value in cases[-1].setting.items() if key != axis}
        drawn, beyond = _within(series(time, cases, grid.impls, axis))
        pale = {
            (impl, float(case.at[axis]))
            for impl in drawn
            for case in cases
            if time is SLOWDOWN and case.mark(impl).state == NOT_RESOLVED
        }
        memory = series(MEASURES["memory"], cases, drawn, axis)
        where = [words.title(at)] * (len(groups) > 1) + [f"not drawn: {words.listing(beyond)}"] * bool(beyond)
        yield (
            " ".join(keys[case.id] for case in cases),
            "".join(f" · {it}" for it in where if it),
            [
                (
                    measure.title + (" (pale: not resolved)" if unsure else ""),
                    svg.lines(of, palette, measure, labelled(axis), unsure),
                )
                for measure, of, unsure in ((time, drawn, pale), (MEASURES["memory"], memory, set()))
                if of
            ],
        )


def within(values: Iterable[float]) -> list[float]:
    """Return sorted values without the largest ones, from the first that is OFF_THE_CHART.

    >>> within([1.0, 2.0, 40.0])
    [1.0, 2.0]
    """
    kept = sorted(values)
    beyond = (i for i in range(1, len(kept)) if kept[i] > OFF_THE_CHART * kept[i - 1])
    return kept[: next(beyond, None)]


def _within(found: Mapping[str, Points]) -> tuple[dict[str, Points], list[str]]:
    """Return the series that fit in a chart, and a description of those far beyond the others, or beyond `MOST_LINES`."""
    most = {name: max(y for _, y in points) for name, points in found.items()}
    near = [name for name in found if most[name] <= within(most.values())[-1]]
    near.sort(key=lambda name: min(y for _, y in found[name]) > 1)  # the fastest stay
    drawn = {name: found[name] for name in near[:MOST_LINES]}
    beyond = [f"{name} (up to {grids.slowdown_text(most[name])}× as slow)" for name in found if name not in drawn]
    return drawn, beyond
