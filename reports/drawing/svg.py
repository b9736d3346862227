"""Charts of the pages as SVG text, drawn in the page's own colours."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from markupsafe import Markup

from ..reading import units
from ..reading.words import number
from .measures import Measure, Points
from .palette import Palette, Style

WIDTH, HEIGHT = 460.0, 256.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, 316.0, 12.0, 222.0
"""Edges of the plot; labels are placed to its right."""

LINE = 13.5
"""Height of a label."""

MOST_MARKS = 6
"""Most points of a line that are marked."""


class Log:
    """A logarithmic scale from values to positions."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high, self.start, self.end = low, max(high, low * 1.01), start, end

    def __call__(self, value: float) -> float:
        share = math.log(max(value, 1e-300) / self.low) / math.log(self.high / self.low)
        return round(self.start + min(1.0, max(0.0, share)) * (self.end - self.start), 1)

    def ticks(self, base: int = 10, most: int = 5) -> list[float]:
        """Return round values within the scale: powers of `base`, or finer steps if fewer than two are inside."""
        first, last = (math.floor(math.log(end, base)) for end in (self.low, self.high))
        ladders = [units.DECIMAL_STEPS, units.BINARY_STEPS][base == 2]
        for steps in ladders:
            found = [step * float(base) ** power for power in range(first, last + 1) for step in steps]
            inside = [tick for tick in found if self.low <= tick * (1 + 1e-9) and tick <= self.high * (1 + 1e-9)]
            if len(inside) >= 3:
                break
        return inside[:: -(-len(inside) // most)]


def lines(series: Mapping[str, Points], styles: Palette, measure: Measure, x_name: str) -> Markup:
    """Draw one line per implementation from points (x, y) on logarithmic axes, with its name at the end."""
    every = [point for points in series.values() for point in points]
    xs, ys = sorted({x for x, _ in every}), [y for _, y in every]
    x, y = Log(xs[0], xs[-1], LEFT + 8, RIGHT - 8), Log(min(ys) / 1.1, max(ys) * 1.1, BOTTOM, TOP)
    parts = [_axes(x, y, xs[:: -(-len(xs) // 6)], y.ticks(measure.base), measure.text, x_name)]
    ends = spread([y(points[-1][1]) for points in series.values()], LINE, TOP, HEIGHT - 8)
    for (name, points), at in sorted(zip(series.items(), ends, strict=True), key=lambda it: styles[it[0][0]].own):
        style, places = styles[name], [(x(a), y(b)) for a, b in points]
        marks = "".join(mark(style, a, b) for a, b in places if len(xs) <= MOST_MARKS)
        end = f'<path class="lead" d="M{places[-1][0] + 5} {places[-1][1]}L{RIGHT + 6} {at:.1f}h4"/>'
        text = f'<text class="name" x="{RIGHT + 24}" y="{at + 4:.1f}">{html.escape(label(name))}</text>'
        parts.append(f'<g class="{kind(style)}">{end}<path class="line" d="{_path(places)}"/>{marks}'
                     f"{mark(style, RIGHT + 16, round(at, 1))}{text}</g>")  # fmt: skip
    return _svg("".join(parts))


def roofline(points: Sequence[tuple[float, float, Style, str]], rooflines: Mapping[str, Points]) -> Markup:
    """Draw a roofline chart, operations per second over operations per byte: cells as points, ceilings as lines."""
    every = [(a, b) for a, b, _, _ in points] + [point for ceiling in rooflines.values() for point in ceiling]
    xs, ys = zip(*every, strict=True)
    x, y = Log(min(xs) / 1.2, max(xs) * 1.2, LEFT + 8, WIDTH - 18), Log(min(ys) / 1.2, max(ys) * 1.3, BOTTOM, TOP)
    parts = [_axes(x, y, x.ticks(), y.ticks(), lambda value: f"{value / 1e9:g} G", "FLOP per byte")]
    for name, ceiling in rooflines.items():
        path = _path([(x(a), y(b)) for a, b in ceiling])
        parts.append(f'<path class="ceiling" d="{path}"><title>{html.escape(name)}</title></path>')
    for a, b, style, title in points:
        inner = f"<title>{html.escape(title)}</title>{mark(style, x(a), y(b))}"
        parts.append(f'<g class="{kind(style)}">{inner}</g>')
    return _svg("".join(parts))


def _axes(x: Log, y: Log, xs: Sequence[float], ys: Sequence[float], y_text: Callable[[float], str], x_name: str) -> str:
    """Draw a line and a text at each of `ys`, a text at each of `xs`, and the name of the x-axis."""
    end = x.end + 8
    parts = [
        f'<path class="rule" d="M{LEFT} {y(v)}H{end}"/><text x="{LEFT - 6}" y="{y(v) + 4}" text-anchor="end">{y_text(v)}</text>'
        for v in ys
    ]
    parts += [f'<text x="{x(v)}" y="{BOTTOM + 16}" text-anchor="middle">{number(v)}</text>' for v in xs]
    return "".join([*parts, f'<text x="{end}" y="{HEIGHT - 4}" text-anchor="end">{html.escape(x_name)}</text>'])


def _path(points: Points) -> str:
    return f"M{'L'.join(f'{a} {b}' for a, b in points)}"


def kind(style: Style) -> str:
    """Return the CSS classes: colour, whether compiled, whether the user's own."""
    return f"k{style.index}{' hollow' if style.compiled else ''}{' own' if style.own else ''}"


def mark(style: Style, x: float, y: float) -> str:
    """Draw one of the page's symbols."""
    return f'<use href="#m{style.index}" x="{x}" y="{y}"/>'


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return positions in the order of the wanted ones and near to them, with at least `gap` between neighbours, within
    [low, high] if they fit: the mean of the nearest ones that are nowhere lower, and nowhere higher.
    """
    order, ranks = np.argsort(wanted, kind="stable"), gap * np.arange(len(wanted))
    free = np.take(wanted, order) - ranks
    near = (np.maximum.accumulate(free) + np.minimum.accumulate(free[::-1])[::-1]) / 2
    placed = np.empty(len(wanted))
    placed[order] = np.maximum(low, np.minimum(near, high - ranks[-1])) + ranks
    return [*map(float, placed)]


def label(name: str) -> str:
    """Return a name for drawing: without control characters, truncated."""
    clean = "".join(letter if letter.isprintable() else " " for letter in name)
    return clean if len(clean) <= 20 else f"{clean[:19]}…"


def _svg(inside: str) -> Markup:
    return Markup(f'<svg class="plot" aria-hidden="true" viewBox="0 0 {WIDTH:g} {HEIGHT:g}">{inside}</svg>')
