"""Draws a cell's time over runs as a small SVG: levels, steps, new versions of torch, baselines, and breaks."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median

from markupsafe import Markup

from ..judging.series import Series
from ..reading.runs import Run
from . import svg
from .measures import MEASURES, Points
from .palette import Style
from .svg import Scale

HEIGHT, TOP, BOTTOM = 184.0, 18.0, 160.0
MOST_TICKS = 6
CALM = 0.06
"""Least share covered by the axis on either side of the median, so that noise looks small."""


def draw(
    series: Series, runs: Sequence[Run], style: Style, baselines: Iterable[int], texts: Mapping[int, str]
) -> Markup:
    """Draw a cell's history. `baselines`: positions of runs. `texts`: tooltips by run."""
    ends = [end for at in texts for end in series.points[at][:3]]
    values = [point.median for point in series.points.values()]
    middle = median(values)
    low, high = min(*values, *ends, middle * (1 - CALM)), max(*values, *ends, middle * (1 + CALM))
    x = Scale(-0.5, len(runs) - 0.5, svg.LEFT + 8, svg.WIDTH - 16, float)
    y = Scale(low / 1.01, high * 1.01, BOTTOM, TOP)
    names = {float(at): runs[at].name.split("_")[0] for at in range(0, len(runs), -(-len(runs) // MOST_TICKS))}
    parts = [
        svg.axes(x, y, names, {tick: MEASURES["latency"].text(tick) for tick in y.ticks(most=4)}),
        *_events(x, series, runs),
        *_levels(x, y, series),
        *_points(x, y, series, texts),
        *(f'<path class="baseline" d="M{x(at) - 4} {BOTTOM}h8l-4-8z"/>' for at in baselines),
    ]
    return svg.drawing(f'<g class="{svg.kind(style)}">{"".join(parts)}</g>', HEIGHT)


def _events(x: Scale, series: Series, runs: Sequence[Run]) -> Iterator[str]:
    """Draw a line where torch changed, and at each step: red up, green down, grey if it has recovered."""
    versions = (run.machine.get("torch") for run in runs)
    lines = [("torch", at - 0.5) for at, (one, other) in enumerate(pairwise(versions), 1) if one != other]
    for step in series.steps:
        moved = "recovered" if step.recovered is not None else "slower" if step.slower else "faster"
        lines.append((f"moved {moved}", (series.before[step.at] + step.at) / 2))
    yield from (_path(kind, [(x(at), TOP), (x(at), BOTTOM)]) for kind, at in lines)


def _levels(x: Scale, y: Scale, series: Series) -> Iterator[str]:
    """Draw a line through the points, and a bar along each level."""
    starts = [step.at for step in series.steps]
    for piece in series.pieces:
        yield _path("line", [(x(at), y(series.points[at].median)) for at in piece])
        for start, stop in pairwise([0, *starts, math.inf]):
            if known := [at for at in piece if start <= at < stop]:
                level = y(median(series.points[at].median for at in known))
                yield _path("level", [(x(at), level) for at in (known[0], known[-1])])


def _points(x: Scale, y: Scale, series: Series, texts: Mapping[int, str]) -> Iterator[str]:
    for run, text in texts.items():
        at, low, high = (y(end) for end in series.points[run][:3])
        if low != high:
            yield _path("spread", [(x(run), low), (x(run), high)])
        yield f'<circle cx="{x(run)}" cy="{at}"><title>{html.escape(text)}</title></circle>'


def _path(kind: str, points: Points) -> str:
    return f'<path class="{kind}" d="{svg.path(points)}"/>'
