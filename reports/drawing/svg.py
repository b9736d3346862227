"""Charts of the pages as SVG text, drawn in the page's own colours."""

from __future__ import annotations

import html
import math
import unicodedata
from collections.abc import Callable, Mapping, Sequence

from markupsafe import Markup

from ..reading import units
from ..reading.words import number
from .palette import Palette, Style

Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 460.0, 256.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, 316.0, 12.0, 222.0
"""Edges of the plot; labels are placed to its right."""

LINE = 13.5
"""Height of a label."""

LETTER = 7.0
"""Width of a letter, roughly."""

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


def lines(
    series: Mapping[str, Points], styles: Palette, y_text: Callable[[float], str], x_name: str, base: int = 10,
    least: float | None = None,
) -> Markup:  # fmt: skip
    """Draw one line per implementation from points (x, y) on logarithmic axes, with its name at the end. `least`: lower
    end of the y-axis.
    """
    every = [point for points in series.values() for point in points]
    xs = sorted({x for x, _ in every})
    low, high = least or min(y for _, y in every) / 1.1, max(y for _, y in every) * 1.1
    x, y = Log(xs[0], xs[-1], LEFT + 8, RIGHT - 8), Log(low, high, BOTTOM, TOP)
    parts = [_tick_y(y(tick), y_text(tick)) for tick in y.ticks(base)]
    shown = xs[:: -(-len(xs) // 6)]
    parts += [f'<text x="{x(v)}" y="{BOTTOM + 16}" text-anchor="middle">{number(v)}</text>' for v in shown]
    parts.append(f'<text x="{RIGHT}" y="{HEIGHT - 4}" text-anchor="end">{html.escape(x_name)}</text>')
    ends = spread([y(points[-1][1]) for points in series.values()], LINE, TOP, HEIGHT - 8)
    for (name, points), at in sorted(zip(series.items(), ends, strict=True), key=lambda it: styles[it[0][0]].own):
        style, places = styles[name], [(x(a), y(b)) for a, b in points]
        path = "L".join(f"{a} {b}" for a, b in places)
        marks = "".join(mark(style, a, b) for a, b in places if len(xs) <= MOST_MARKS)
        end = f'<path class="lead" d="M{places[-1][0] + 5} {places[-1][1]}L{RIGHT + 6} {at:.1f}h4"/>'
        text = f'<text class="name" x="{RIGHT + 24}" y="{at + 4:.1f}">{html.escape(label(name))}</text>'
        parts.append(f'<g class="{kind(style)}">{end}<path class="line" d="M{path}"/>{marks}'
                     f"{mark(style, RIGHT + 16, round(at, 1))}{text}</g>")  # fmt: skip
    return _svg("".join(parts))


def roofline(points: Sequence[tuple[float, float, Style, str]], rooflines: Mapping[str, Points]) -> Markup:
    """Draw a roofline chart, operations per second over operations per byte: cells as points, ceilings as lines."""
    every = [(a, b) for a, b, _, _ in points] + [point for ceiling in rooflines.values() for point in ceiling]
    x = Log(min(a for a, _ in every) / 1.2, max(a for a, _ in every) * 1.2, LEFT + 10, WIDTH - 10)
    y = Log(min(b for _, b in every) / 1.2, max(b for _, b in every) * 1.3, BOTTOM, TOP)
    parts = [_tick_y(y(tick), f"{tick / 1e9:g} G", WIDTH - 10) for tick in y.ticks()]
    parts += [f'<text x="{x(v)}" y="{BOTTOM + 16}" text-anchor="middle">{v:g}</text>' for v in x.ticks()]
    parts.append(f'<text x="{WIDTH - 10}" y="{HEIGHT - 4}" text-anchor="end">FLOP per byte</text>')
    for name, ceiling in rooflines.items():
        path = "L".join(f"{x(a)} {y(b)}" for a, b in ceiling)
        parts.append(f'<path class="ceiling" d="M{path}"><title>{html.escape(name)}</title></path>')
    for a, b, style, title in points:
        inner = f"<title>{html.escape(title)}</title>{mark(style, x(a), y(b))}"
        parts.append(f'<g class="{kind(style)}">{inner}</g>')
    return _svg("".join(parts))


def bars(rows: Sequence[tuple[str, str, Mapping[str, float]]]) -> Markup:
    """Draw a stacked bar per row, a label and a case with its parts in seconds, and a legend below; the longest of each
    case fills the width.
    """
    names = list(dict.fromkeys(name for *_, parts in rows for name in parts))
    longest = {case: max(sum(parts.values()) for _, it, parts in rows if it == case) for _, case, _ in rows}
    drawn = []
    for i, (label, case, parts) in enumerate(rows):
        x, y = 0.0, i * 2.5 * LINE
        drawn.append(f'<text class="name" x="0" y="{y + LINE - 3:g}">{html.escape(f"{label}, {case}")}</text>')
        for name, seconds in parts.items():
            width = WIDTH * seconds / longest[case]
            drawn.append(_part(name, names.index(name), x, y + LINE, width, units.seconds(seconds)))
            x += width
    x, y = 0.0, len(rows) * 2.5 * LINE
    for i, name in enumerate(names):
        width = 20 + LETTER * len(name)
        if x + width > WIDTH:
            x, y = 0.0, y + LINE
        drawn.append(_part(name, i, x, y, 9))
        drawn.append(f'<text x="{x + 12:.1f}" y="{y + 9:g}">{html.escape(name)}</text>')
        x += width
    return _svg("".join(drawn), y + LINE)


def _part(name: str, index: int, x: float, y: float, width: float, text: str = "") -> str:
    title = f"<title>{html.escape(name)} {text}</title>" if text else ""
    return (
        f'<rect x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="10" style="fill:var(--c{index + 1})">{title}</rect>'
    )


def kind(style: Style) -> str:
    """Return the CSS classes: colour, whether compiled, whether the user's own."""
    return f"k{style.index}{' hollow' if style.compiled else ''}{' own' if style.own else ''}"


def strips(blocks: Sequence[float]) -> Markup:
    """Draw a tick for each timed block, from half the median to twice the median."""
    ticks = "".join(f"M{_strip(value)} 1v10" for value in blocks)
    return Markup(
        f'<svg class="strip" viewBox="0 0 200 12" aria-hidden="true"><path class="zero" d="M67 0v12"/><path d="{ticks}"/></svg>'
    )


def _strip(share: float) -> float:
    """Map a ratio to a position: 0.5 -> 0, 1 -> 67, 2 -> 200."""
    return round(min(199.0, max(1.0, (share - 0.5) / 1.5 * 200)), 1)


def mark(style: Style, x: float, y: float) -> str:
    """Draw one of the page's symbols."""
    return f'<use href="#m{style.index}" x="{x}" y="{y}"/>'


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return the positions nearest to the wanted ones with at least `gap` between neighbours, within [low, high] if
    they fit.

    Isotonic least squares: pool adjacent violators on (wanted - rank * gap).
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    blocks: list[tuple[float, int]] = []  # (mean, count)
    for rank, i in enumerate(order):
        mean, count = wanted[i] - rank * gap, 1
        while blocks and blocks[-1][0] > mean:
            other, many = blocks.pop()
            mean, count = (other * many + mean * count) / (many + count), many + count
        blocks.append((mean, count))
    flat = [mean for mean, count in blocks for _ in range(count)]
    top = high - gap * (len(wanted) - 1)
    placed = [0.0] * len(wanted)
    for rank, i in enumerate(order):
        placed[i] = max(low, min(flat[rank], top)) + rank * gap
    return placed


def _tick_y(y: float, text: str, end: float = RIGHT) -> str:
    return f'<path class="rule" d="M{LEFT} {y}H{end}"/><text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{text}</text>'


def label(name: str) -> str:
    """Return a name for drawing: without control characters, truncated."""
    clean = "".join(" " if unicodedata.category(letter)[0] == "C" else letter for letter in name)
    return clean if len(clean) <= 20 else f"{clean[:19]}…"


def _svg(inside: str, height: float = HEIGHT) -> Markup:
    return Markup(f'<svg class="plot" aria-hidden="true" viewBox="0 0 {WIDTH:g} {height:g}">{inside}</svg>')
