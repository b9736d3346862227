"""A cell's time over runs, as a small SVG: levels, steps, new versions of torch, baselines, and breaks.

Where a step was found relative to the case's others, the seconds around it are those of a usual day, and what was measured is a
faint line.
Written by hand: hundreds of cells over a thousand runs are to be drawn in a second. Colours are the page's.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from markupsafe import Markup
from matplotlib.ticker import MaxNLocator

from ..judging.series import Point, Series
from ..reading import units
from ..reading.runs import Run
from .palette import Look
from .svg import kind

NEWEST = 60
"""Points with a mark, a spread and a name of their own; older ones are a line only."""

WIDTH, HEIGHT = 420, 168  # small, so that its letters can be read on a telephone
LEFT, RIGHT, TOP, BOTTOM = 62, 412, 20, 144  # of the plot itself
MOST_TICKS = 6
LABEL = 80  # room that the name of a version takes
CALM = 0.06
"""The axis spans at least this share either way of the middle: noise should look like noise."""


@dataclass(frozen=True)
class Scale:
    """Where runs and seconds lie. In a long history the newest runs have the right half."""

    runs: int
    low: float
    high: float

    def x(self, run: float) -> float:
        old = self.runs - NEWEST
        if old <= NEWEST:
            return LEFT + (run + 0.5) / self.runs * (RIGHT - LEFT)
        middle, half = (LEFT + RIGHT) / 2, (RIGHT - LEFT) / 2
        at = run + 0.5 - old
        return middle + (at / NEWEST if at > 0 else at / old) * half

    def y(self, seconds: float) -> float:
        return BOTTOM - (seconds - self.low) / (self.high - self.low) * (BOTTOM - TOP)


def draw(series: Series, runs: Sequence[Run], look: Look, baselines: Iterable[int], texts: Mapping[int, str]) -> Markup:
    """`baselines` are positions of runs; `texts` has what a point says of itself, by its position in the series."""
    scale = _scale(series, len(runs))
    parts = (*_frame(scale, runs), *_torches(scale, runs), *_levels(scale, series), *_lines(scale, series))
    marks = (*_points(scale, series, texts), *_baselines(scale, baselines))
    return Markup(
        f'<svg class="plot {kind(look)}" aria-hidden="true" viewBox="0 0 {WIDTH} {HEIGHT}">{"".join((*parts, *marks))}</svg>'
    )


def _scale(series: Series, runs: int) -> Scale:
    low, high = _span(series.points, CALM)
    newest = range(max(len(series.points) - NEWEST, 0), len(series.points))
    ends = [end for position in newest for end in _drawn(series, position)] + [*series.usual.values()]
    low, high = min(low, *ends), max(high, *ends)
    room = (high - low) * 0.06
    return Scale(runs, low - room, high + room)


def _drawn(series: Series, position: int) -> tuple[float, float, float]:
    """Its median, low and high. As on a usual day there is no spread: that of the processes has the machine's in it."""
    point, usual = series.points[position], series.usual.get(position)
    return (point.median, point.low, point.high) if usual is None else (usual, usual, usual)


def _span(points: Sequence[Point], calm: float) -> tuple[float, float]:
    values = sorted(point.median for point in points)
    middle = values[len(values) // 2]
    return min(values[0], middle * (1 - calm)), max(values[-1], middle * (1 + calm))


def _frame(scale: Scale, runs: Sequence[Run]) -> Iterator[str]:
    for value in MaxNLocator(4).tick_values(scale.low, scale.high):
        if scale.low < value < scale.high:
            y = scale.y(value)
            yield _line("grid", LEFT, y, RIGHT, y)
            yield f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{units.seconds(float(value))}</text>'
    for at in _ticks(len(runs)):
        name = html.escape(runs[at].name.split("_")[0])
        yield f'<text x="{scale.x(at):.1f}" y="{BOTTOM + 17}" text-anchor="middle">{name}</text>'


def _ticks(runs: int) -> Sequence[int]:
    """Few positions of runs, evenly spaced where they are drawn."""
    if runs <= 2 * NEWEST:
        return range(0, runs, -(-runs // MOST_TICKS))
    old = runs - NEWEST
    return [*range(old // 6, old, old // 3), *range(old + NEWEST // 6, runs, NEWEST // 3)]


def _torches(scale: Scale, runs: Sequence[Run]) -> Iterator[str]:
    """A line where torch changed, with the version it changed to where there is room for it."""
    versions = [str(run.machine.get("torch")) for run in runs]
    free = 0.0
    for at, (before, after) in enumerate(pairwise(versions), 1):
        if before != after:
            x = scale.x(at - 0.5)
            yield _line("torch", x, TOP, x, BOTTOM)
            anchor = "end" if x > (LEFT + RIGHT) / 2 else "start"  # behind it there might be no room
            if x - (LABEL if anchor == "end" else 0) >= free:
                yield f'<text x="{x:.1f}" y="{TOP - 6}" text-anchor="{anchor}">torch {html.escape(after[:24])}</text>'
                free = x if anchor == "end" else x + LABEL


def _levels(scale: Scale, series: Series) -> Iterator[str]:
    """A bar along each level, and a line where it moved: red up, green down, grey where it has recovered."""
    steps = {step.at: step for step in series.steps}
    for piece in series.pieces:
        edges = [piece.start, *(at for at in steps if at in piece), piece.stop]
        for start, stop in pairwise(edges):
            known = [at for at in range(start, stop) if not series.usual or at in series.usual]
            if known:
                y = scale.y(median(_drawn(series, at)[0] for at in known))
                yield _line("level", scale.x(series.points[known[0]].run), y, scale.x(series.points[known[-1]].run), y)
    for at, step in steps.items():
        kind = "recovered" if step.recovered is not None else "slower" if step.slower else "faster"
        x = scale.x((series.points[at - 1].run + series.points[at].run) / 2)
        yield _line(f"moved {kind}", x, TOP, x, BOTTOM)


def _lines(scale: Scale, series: Series) -> Iterator[str]:
    for piece in series.pieces:
        inside = series.points[piece.start : piece.stop]
        measured = [(scale.x(point.run), scale.y(point.median)) for point in inside]
        yield _path("measured" if series.usual else "line", measured)
    if series.usual:
        yield _path("line", [(scale.x(series.points[at].run), scale.y(y)) for at, y in series.usual.items()])
    if old := max(scale.runs - NEWEST, 0):
        yield _line("grid", scale.x(old - 0.5), TOP, scale.x(old - 0.5), BOTTOM)


def _points(scale: Scale, series: Series, texts: Mapping[int, str]) -> Iterator[str]:
    for position in range(max(len(series.points) - NEWEST, 0), len(series.points)):
        x = scale.x(series.points[position].run)
        y, low, high = map(scale.y, _drawn(series, position))
        kind = ' class="measured"' if series.usual and position not in series.usual else ""
        if low != high:
            yield _line("spread", x, low, x, high)
        yield f'<circle{kind} cx="{x:.1f}" cy="{y:.1f}"><title>{html.escape(texts.get(position, ""))}</title></circle>'


def _baselines(scale: Scale, baselines: Iterable[int]) -> Iterator[str]:
    for x in map(scale.x, baselines):
        yield f'<path class="baseline" d="M{x - 4:.1f} {BOTTOM}h8l-4-8z"/>'


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path class="{kind}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def _path(kind: str, points: Iterable[tuple[float, float]]) -> str:
    return f'<path class="{kind}" d="M{" ".join(f"{x:.1f} {y:.1f}" for x, y in points)}"/>'
