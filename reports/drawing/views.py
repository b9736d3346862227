"""Data for the templates' charts: heat maps, dots with bars, lines along an axis."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from ..judging import grid as grids
from ..judging.grid import Case, Entry, Grid
from ..reading import units, words
from ..reading.axes import labelled
from . import svg
from .palette import Palette
from .svg import Log

HOTTEST, SHADE = 5.0, 75
"""Slowdown from which cells have the darkest shade, and that shade in percent."""

MOST_LINES = 14
"""Most lines of a chart whose labels fit beside it."""

OFF_THE_CHART = 8.0
"""Ratio to the next largest beyond which a value is printed in words, so that the axis separates the others."""

TICKS = (1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 50.0, 100.0)
"""Ticks of slowdowns."""


@dataclass(frozen=True)
class Bar:
    """A dot with its interval, in percent of the width."""

    at: float
    low: float | None
    high: float | None
    pale: bool


@dataclass(frozen=True)
class HeatCell:
    text: str
    title: str
    kind: str = ""
    """`best`, `pale` (not resolved), `bad` (wrong), `gone` (no result) or empty."""
    shade: int = 0
    to: str = ""
    """Key of the case that a click selects."""


@dataclass(frozen=True)
class HeatRow:
    impl: str
    mean: str
    entries: Sequence[HeatCell]


@dataclass(frozen=True)
class HeatMap:
    """A heat map. `headings` are lines of (text, number of columns spanned)."""

    axis: str | None
    name: str
    mean: str
    """Heading of the column before the cells."""
    headings: Sequence[Sequence[tuple[str, int]]]
    rows: Sequence[HeatRow]


@dataclass(frozen=True)
class Lines:
    """Slowdown and memory along an axis, at one setting; `of` are the keys of its cases."""

    of: str
    at: str
    time: Markup
    memory: Markup | None


def heat_maps(grid: Grid, keys: Mapping[str, str]) -> list[HeatMap]:
    """Return one map for each choice of columns, the default first."""
    return [_heat_map(grid, axis, keys) for axis in grid.views]


def _heat_map(grid: Grid, axis: str, keys: Mapping[str, str]) -> HeatMap:
    columns = grid.columns(axis)
    entries = {impl: [_cell(grid.entry(impl, it), keys[it.cases[0].id]) for it in columns] for impl in grid.impls}
    rows = [HeatRow(impl, grid.mean_text(impl), entries[impl]) for impl in grid.impls]
    return HeatMap(
        axis,
        f"mean for each {axis}" if axis else "each case",
        "mean",
        spans([it.heading for it in columns]),
        rows,
    )


def _cell(entry: Entry, key: str) -> HeatCell:
    if math.isnan(entry.slowdown):
        return HeatCell(entry.text, entry.title, "bad" if entry.text == grids.SIGNS[grids.WRONG] else "gone", to=key)
    return HeatCell(
        entry.text, entry.title, "best" if entry.best else "pale" if entry.open else "", shade(entry.slowdown), key
    )


def shade(ratio: float) -> int:
    return round(SHADE * min(1.0, math.log(max(1.0, ratio)) / math.log(HOTTEST)))


def spans(headings: Sequence[Sequence[str]]) -> list[list[tuple[str, int]]]:
    """Merge equal neighbouring headings into spans."""
    lines = []
    for i in range(max(map(len, headings), default=0)):
        same = groupby(headings, key=lambda heading, upto=i + 1: tuple(heading[:upto]))  # type: ignore[misc]
        lines.append([(key[-1], len(list(part))) for key, part in same])
    return lines


def bar(scale: Log, value: float, low: float, high: float, pale: bool) -> Bar:
    known = low > 0 and math.isfinite(high)
    return Bar(scale(value), scale(low) if known else None, scale(high) if known else None, pale)


def scale(case: Case) -> Log:
    """Return the scale of a case's slowdowns, in percent of the width; those far above all others are drawn at its end."""
    slowest = max(within(it.slowdown for it in case.ranked), default=1.0)
    drawn = (it for it in case.ranked if it.slowdown <= slowest)
    reach = max([1.2, *(min(max(it.slowdown, it.high), 4 * it.slowdown) for it in drawn)])  # high may be NaN
    return Log(0.93, reach * 1.06, 0, 100)


def ticks(scale: Log) -> list[tuple[float, str]]:
    inside = [tick for tick in TICKS if tick <= scale.high]
    return [(scale(tick), f"{tick:g}×") for tick in inside if len(inside) < 4 or tick not in (1.25, 5.0)]


def lines(grid: Grid, palette: Palette, keys: Mapping[str, str]) -> list[Lines]:
    """Return charts for each setting of the other axes at which the longest axis has several values."""
    groups = grid.along(grid.length)
    return [_along(grid, palette, keys, cases, len(groups) > 1) for cases in groups]


def _along(grid: Grid, palette: Palette, keys: Mapping[str, str], cases: Sequence[Case], several: bool) -> Lines:
    axis = grid.length
    at = {key: value for key, value in cases[-1].setting.items() if key != axis}
    where = f" · {words.title(at)}" if several and at else ""
    marks = {impl: [(case.at[axis], it) for case in cases if (it := case.mark(impl)).counts] for impl in grid.impls}
    drawn, beyond = _within({impl: [(x, it.slowdown) for x, it in of] for impl, of in marks.items() if of})
    known = (
        (impl, [(x, float(it.row["peak_bytes"])) for x, it in marks[impl] if it.row["peak_bytes"] > 0])
        for impl in drawn
    )
    memory = {impl: points for impl, points in known if points}
    name = labelled(axis)
    one = svg.lines(drawn, palette, lambda value: f"{value:g}×", name, least=0.97)
    two = svg.lines(memory, palette, lambda value: units.tick(units.memory(value, 3)), name, 2) if memory else None
    left = f" · not drawn: {', '.join(beyond)}" if beyond else ""
    return Lines(" ".join(keys[case.id] for case in cases), where + left, one, two)


def within(values: Iterable[float]) -> list[float]:
    """Return sorted values without the largest ones, from the first that is OFF_THE_CHART.

    >>> within([1.0, 2.0, 40.0])
    [1.0, 2.0]
    """
    kept = sorted(values)
    beyond = (i for i in range(1, len(kept)) if kept[i] > OFF_THE_CHART * kept[i - 1])
    return kept[: next(beyond, None)]


def _within(series: dict[str, list[tuple[float, float]]]) -> tuple[dict[str, list[tuple[float, float]]], list[str]]:
    """Return the series that fit in a chart, and a description of those far beyond the others."""
    reach = within(max(y for _, y in points) for points in series.values())[-1]
    near = {name: points for name, points in series.items() if max(y for _, y in points) <= reach}
    drawn = dict(list(near.items())[:MOST_LINES])
    beyond = [
        f"{name} ({grids.slowdown(min(y for _, y in series[name]))}× as slow)" for name in series if name not in drawn
    ]
    return drawn, beyond
