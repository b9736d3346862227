"""A cell's time over runs, as a small chart: levels, steps, new versions of torch, baselines, and breaks."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator

from . import canvas, units
from .palette import BAD, GOOD, INK, MUTED, Look
from .runs import Run
from .series import Series

WIDTH, HEIGHT = 4.2, 1.65  # inches: small, so that its letters can be read on a telephone
MOST_TICKS = 6
CALM = 0.06
"""The axis spans at least this share either way of the middle: noise should look like noise."""


def draw(series: Series, runs: Sequence[Run], look: Look, baselines: Iterable[int]) -> Figure:
    """`baselines` are positions of runs. Call it within `canvas.style`."""
    figure = Figure(figsize=(WIDTH, HEIGHT))
    FigureCanvasAgg(figure)
    ax = figure.add_axes((0.14, 0.16, 0.845, 0.72))
    _frame(ax, series, runs)
    _torches(ax, runs)
    _levels(ax, series, look)
    _points(ax, series, look)
    for position in baselines:
        ax.plot([position], [0.04], "^", color=INK[0], ms=4.5, transform=ax.get_xaxis_transform(), zorder=4)
    return figure


def with_tooltips(svg: str, texts: Mapping[str, str]) -> str:
    """The SVG's text, with a title in every group whose id is a key."""

    def titled(group: re.Match[str]) -> str:
        text = texts.get(group[1])
        return group[0] if text is None else f"{group[0]}<title>{html.escape(text)}</title>"

    return re.sub(r'<g id="([^"]*)">', titled, svg)


def point_id(position: int) -> str:
    """The id of the group that holds a point, by its position in the series."""
    return f"point-{position}"


def _frame(ax: Axes, series: Series, runs: Sequence[Run]) -> None:
    ends = [value for point in series.points for value in (point.median, point.low, point.high)]
    middle = sorted(point.median for point in series.points)[len(series.points) // 2]
    low, high = min(*ends, middle * (1 - CALM)), max(*ends, middle * (1 + CALM))
    room = (high - low) * 0.06
    ax.set_ylim(low - room, high + room)
    ax.set_xlim(-0.5, max(len(runs) - 0.5, 0.5))
    ax.yaxis.set_major_locator(MaxNLocator(4))
    ax.yaxis.set_major_formatter(lambda value, _: units.seconds(value))
    step = -(-len(runs) // MOST_TICKS)
    ax.xaxis.set_major_locator(FixedLocator(list(range(0, len(runs), step))))
    ax.xaxis.set_major_formatter(lambda at, _: canvas.label(runs[round(at)].name.split("_")[0]))
    ax.grid(axis="y")
    ax.set_axisbelow(True)


def _torches(ax: Axes, runs: Sequence[Run]) -> None:
    """A line where torch changed, with the version it changed to."""
    versions = [str(run.machine.get("torch")) for run in runs]
    for at, (before, after) in enumerate(pairwise(versions), 1):
        if before != after:
            ax.axvline(at - 0.5, color=MUTED[0], lw=0.8, ls=":")
            before_it = at > len(runs) / 2  # behind it there might be no room
            text = ax.text(at - 0.4, 1.02, f"torch {canvas.label(after)}", transform=ax.get_xaxis_transform())
            text.set(color=MUTED[0], size=6.5, va="bottom")
            if before_it:
                text.set(x=at - 0.6, ha="right")


def _levels(ax: Axes, series: Series, look: Look) -> None:
    """A bar along each level, and a line where it moved: red up, green down, grey where it has recovered."""
    steps = {step.at: step for step in series.steps}
    for piece in series.pieces:
        edges = [piece.start, *(at for at in steps if at in piece), piece.stop]
        for start, stop in pairwise(edges):
            inside = sorted(series.points[i].median for i in range(start, stop))
            ends = [series.points[start].run, series.points[stop - 1].run]
            ax.plot(ends, [inside[len(inside) // 2]] * 2, color=look.colour, lw=5, alpha=0.22, solid_capstyle="butt")
    for at, step in steps.items():
        colour = MUTED if step.recovered is not None else BAD if step.slower else GOOD
        middle = (series.points[at - 1].run + series.points[at].run) / 2
        ax.axvline(middle, color=colour[0], lw=1.3, ls="--")


def _points(ax: Axes, series: Series, look: Look) -> None:
    for piece in series.pieces:
        inside = [series.points[i] for i in piece]
        ax.plot([p.run for p in inside], [p.median for p in inside], color=look.colour, lw=1, ls=look.line)
    for position, point in enumerate(series.points):
        ax.plot([point.run] * 2, [point.low, point.high], color=look.colour, lw=0.8, alpha=0.5)
        (drawn,) = ax.plot([point.run], [point.median], look.marker, color=look.colour, mfc=look.fill, ms=4.5)
        drawn.set_gid(point_id(position))
