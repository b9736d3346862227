"""Charts of the pages as SVG text, drawn in the page's own colours."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Container, Mapping, Sequence
from itertools import groupby

import numpy as np
from markupsafe import Markup

from ..reading import units
from ..reading.words import number, one_line
from .measures import Measure, Points
from .palette import Palette, Style

WIDTH, HEIGHT = 450.0, 256.0
LEFT, TOP, BOTTOM = 58.0, 12.0, 222.0
"""Edges of the plot; labels are placed to its right."""

LINE, LETTER, DIGIT = 13.5, 7.5, 8.5
"""Height of a label, and the widths of its letters and of digits, on a phone."""

MOST_MARKS = 6
"""Most points of a line that are marked."""


class Scale:
    """A scale from values to positions: logarithmic, or linear with `of=float`."""

    def __init__(
        self, low: float, high: float, start: float, end: float, of: Callable[[float], float] = math.log
    ) -> None:
        self.low, self.high, self.start, self.end, self.of = low, max(high, low * 1.01), start, end, of

    def __call__(self, value: float) -> float:
        low, at, high = map(self.of, (self.low, max(self.low, min(value, self.high)), self.high))
        return round(self.start + (at - low) / (high - low) * (self.end - self.start), 1)

    def ticks(self, base: int = 10, most: int = 5) -> list[float]:
        """Return round values within the scale: powers of `base`, or finer steps if fewer than two are inside."""
        first, last = (math.floor(math.log(end, base)) for end in (self.low, self.high))
        for steps in units.BINARY_STEPS if base == 2 else units.DECIMAL_STEPS:
            found = [step * float(base) ** power for power in range(first, last + 1) for step in steps]
            inside = [tick for tick in found if self.low * (1 - 1e-9) <= tick <= self.high * (1 + 1e-9)]
            if len(inside) >= 3:
                break
        return inside[:: -(-len(inside) // most)]


def lines(
    series: Mapping[str, Points],
    styles: Palette,
    measure: Measure,
    x_name: str,
    pale: Container[tuple[str, float]] = (),
) -> Markup:
    """Draw one line per implementation from points (x, y) on logarithmic axes, with its name at the end. Points in `pale`
    (name, x), and the line from and to them, are pale.
    """
    every = [point for points in series.values() for point in points]
    xs, ys = sorted({x for x, _ in every}), [y for _, y in every]
    right = WIDTH - 30 - LETTER * max(len(label(name)) for name in series)
    x, y = Scale(xs[0], xs[-1], LEFT + 8, right - 8), Scale(min(ys) / 1.1, max(ys) * 1.1, BOTTOM, TOP)
    sizes = {size: number(size) for size in apart(xs, x, DIGIT)}
    parts = [axes(x, y, sizes, {tick: measure.text(tick) for tick in y.ticks(measure.base)}, x_name)]
    ends = spread([y(points[-1][1]) for points in series.values()], LINE, TOP, BOTTOM)
    for (name, points), at in sorted(zip(series.items(), ends, strict=True), key=lambda it: styles[it[0][0]].own):
        style, places = styles[name], [(x(a), y(b)) for a, b in points]
        paled = [(name, a) in pale for a, _ in points]
        marked = zip(places, paled, strict=True) if len(xs) <= MOST_MARKS else ()
        marks = "".join(mark(style, *place, is_pale) for place, is_pale in marked)
        end = f'<path class="lead" d="M{places[-1][0] + 5} {places[-1][1]}L{right + 6} {at:.1f}h4"/>'
        text = f'<text class="name" x="{right + 24}" y="{at + 4:.1f}">{html.escape(label(name))}</text>'
        parts.append(f'<g class="{kind(style)}">{end}{stroke(places, paled)}{marks}'
                     f"{mark(style, right + 16, round(at, 1))}{text}</g>")  # fmt: skip
    return drawing("".join(parts))


def roofline(points: Sequence[tuple[float, float, Style, str]], rooflines: Mapping[str, Points]) -> Markup:
    """Draw a roofline chart, operations per second over operations per byte: cells as points, ceilings as lines."""
    every = [(a, b) for a, b, _, _ in points] + [point for ceiling in rooflines.values() for point in ceiling]
    xs, ys = zip(*every, strict=True)
    x = Scale(min(xs) / 1.2, max(xs) * 1.2, LEFT + 8, WIDTH - 18)
    y = Scale(min(ys) / 1.2, max(ys) * 1.3, BOTTOM, TOP + LINE)
    rates = {tick: units.tick(units.rate(tick)) for tick in y.ticks()}
    parts = [
        axes(x, y, {tick: number(tick) for tick in x.ticks()}, rates, "FLOP per byte"),
        f'<text x="0" y="{TOP}">FLOP per second</text>',
    ]
    for name, ceiling in rooflines.items():
        drawn = path([(x(a), y(b)) for a, b in ceiling])
        parts.append(f'<path class="ceiling" d="{drawn}"><title>{html.escape(name)}</title></path>')
    for a, b, style, title in points:
        inner = f"<title>{html.escape(title)}</title>{mark(style, x(a), y(b))}"
        parts.append(f'<g class="{kind(style)}">{inner}</g>')
    return drawing("".join(parts))


def axes(x: Scale, y: Scale, xs: Mapping[float, str], ys: Mapping[float, str], name: str = "") -> str:
    """Draw a line and a text at each of `ys`, a text at each of `xs`, and the name of the x-axis."""
    left, right = x.start - 8, x.end + 8
    parts = [
        f'<path class="rule" d="M{left} {y(at)}H{right}"/>'
        f'<text x="{left - 6}" y="{y(at) + 4}" text-anchor="end">{text}</text>'
        for at, text in ys.items()
    ]
    parts += [
        f'<text x="{x(at)}" y="{y.start + 16}" text-anchor="middle">{html.escape(text)}</text>'
        for at, text in xs.items()
    ]
    return "".join([*parts, f'<text x="{right}" y="{y.start + 30}" text-anchor="end">{html.escape(name)}</text>'])


def stroke(points: Points, pale: Sequence[bool]) -> str:
    """Draw the line through points; pale are its pieces from and to a pale point."""
    pieces = [(is_pale, [*of]) for is_pale, of in groupby(range(1, len(points)), lambda i: pale[i - 1] or pale[i])]
    return "".join(
        f'<path class="line{" pale" if is_pale else ""}" d="{path(points[of[0] - 1 : of[-1] + 1])}"/>'
        for is_pale, of in pieces
    )


def path(points: Points) -> str:
    """Return the line through points, as the attribute `d`."""
    return f"M{'L'.join(f'{a} {b}' for a, b in points)}"


def kind(style: Style) -> str:
    """Return the CSS classes: colour, whether compiled, whether the user's own."""
    return f"k{style.index}{' hollow' if style.compiled else ''}{' own' if style.own else ''}"


def mark(style: Style, x: float, y: float, pale: bool = False) -> str:
    """Draw one of the page's symbols."""
    attribute = 'class="pale" ' * pale
    return f'<use {attribute}href="#m{style.symbol}" x="{x}" y="{y}"/>'


def apart(sizes: Sequence[float], scale: Scale, digit: float) -> list[float]:
    """Return those of the sorted sizes, from the largest down, whose numbers do not touch. `digit`: its width."""
    wide, kept = digit * (0.5 + max(len(number(size)) for size in sizes)), list[float]()
    for size in reversed(sizes):
        if not kept or scale(kept[0]) - scale(size) >= wide:
            kept.insert(0, size)
    return kept


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
    """Return a name for drawing: without control characters, and if it is long, without its middle, since variants of a
    kernel differ at their ends.
    """
    clean = one_line(name)
    return clean if len(clean) <= 20 else f"{clean[:9]}…{clean[-10:]}"


def drawing(inside: str, height: float = HEIGHT) -> Markup:
    return Markup(f'<svg class="plot" aria-hidden="true" viewBox="0 0 {WIDTH:g} {height:g}">{inside}</svg>')
