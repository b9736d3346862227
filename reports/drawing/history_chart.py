"""Draws a cell's time over runs as a small SVG: levels, steps, new versions of torch, baselines, and breaks."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from markupsafe import Markup
from matplotlib.ticker import MaxNLocator

from ..judging.series import Series
from ..reading import units
from ..reading.runs import Run
from .palette import Style
from .svg import kind

WIDTH, HEIGHT = 420, 168  # small, so that its labels are readable on a phone
LEFT, RIGHT, TOP, BOTTOM = 62, 412, 20, 144  # of the plot itself
MOST_TICKS = 6
CALM = 0.06
"""Least share covered by the axis on either side of the median, so that noise looks small."""


@dataclass(frozen=True)
class Scale:
    """Scales of runs and seconds."""

    runs: int
    low: float
    high: float

    def x(self, run: float) -> float:
        return LEFT + (run + 0.5) / self.runs * (RIGHT - LEFT)

    def y(self, seconds: float) -> float:
        return BOTTOM - (seconds - self.low) / (self.high - self.low) * (BOTTOM - TOP)


def draw(
    series: Series, runs: Sequence[Run], style: Style, baselines: Iterable[int], texts: Mapping[int, str]
) -> Markup:
    """Draw a cell's history. `baselines`: positions of runs. `texts`: tooltips by run."""
    ends = [end for at in texts for end in series.points[at][:3]]
    values = [point.median for point in series.points.values()]
    middle = median(values)
    low, high = min(*values, *ends, middle * (1 - CALM)), max(*values, *ends, middle * (1 + CALM))
    padding = (high - low) * 0.06
    scale = Scale(len(runs), low - padding, high + padding)
    parts = (*_frame(scale, runs), *_levels(scale, series), *_lines(scale, series), *_points(scale, series, texts))
    marks = (f'<path class="baseline" d="M{scale.x(at) - 4:.1f} {BOTTOM}h8l-4-8z"/>' for at in baselines)
    return Markup(
        f'<svg class="plot {kind(style)}" aria-hidden="true" viewBox="0 0 {WIDTH} {HEIGHT}">{"".join((*parts, *marks))}</svg>'
    )


def _frame(scale: Scale, runs: Sequence[Run]) -> Iterator[str]:
    """Draw both axes, and a line where torch changed."""
    for value in MaxNLocator(4).tick_values(scale.low, scale.high):
        if scale.low < value < scale.high:
            y = scale.y(value)
            yield _path("grid", [(LEFT, y), (RIGHT, y)])
            yield f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{units.seconds(float(value))}</text>'
    for at in range(0, len(runs), -(-len(runs) // MOST_TICKS)):
        name = html.escape(runs[at].name.split("_")[0])
        yield f'<text x="{scale.x(at):.1f}" y="{BOTTOM + 17}" text-anchor="middle">{name}</text>'
    versions = (run.machine.get("torch") for run in runs)
    for at, (one, other) in enumerate(pairwise(versions), 1):
        if one != other:
            yield _upright("torch", scale.x(at - 0.5))


def _levels(scale: Scale, series: Series) -> Iterator[str]:
    """Draw a bar along each level, and a line at each step: red up, green down, grey if it has recovered."""
    steps = {step.at: step for step in series.steps}
    for piece in series.pieces:
        for start, stop in pairwise([0, *steps, math.inf]):
            if known := [at for at in piece if start <= at < stop]:
                y = scale.y(median(series.points[at].median for at in known))
                yield _path("level", [(scale.x(at), y) for at in (known[0], known[-1])])
    for at, step in steps.items():
        moved = "recovered" if step.recovered is not None else "slower" if step.slower else "faster"
        yield _upright(f"moved {moved}", scale.x((series.before[at] + at) / 2))


def _lines(scale: Scale, series: Series) -> Iterator[str]:
    for piece in series.pieces:
        yield _path("line", [(scale.x(at), scale.y(series.points[at].median)) for at in piece])


def _points(scale: Scale, series: Series, texts: Mapping[int, str]) -> Iterator[str]:
    for run, text in texts.items():
        x = scale.x(run)
        y, low, high = map(scale.y, series.points[run][:3])
        if low != high:
            yield _path("spread", [(x, low), (x, high)])
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}"><title>{html.escape(text)}</title></circle>'


def _upright(kind: str, x: float) -> str:
    return _path(kind, [(x, TOP), (x, BOTTOM)])


def _path(kind: str, points: Iterable[tuple[float, float]]) -> str:
    return f'<path class="{kind}" d="M{" ".join(f"{x:.1f} {y:.1f}" for x, y in points)}"/>'
