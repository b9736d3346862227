"""The paper that charts are drawn on: panels that share axes, scales with readable ticks, labels that don't collide."""

from __future__ import annotations

import logging
import math
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from ..reading import units
from .palette import GRID, INK, MUTED, SURFACE

WIDE = 9.0  # inches: a page's width at a readable font
ALONE = 7.2  # one panel
NARROW = 4.3  # inches: a phone's
LABEL_SIZE = 7.5  # points
LONGEST_LABEL = 24  # characters
FEWEST_TICKS = 3
MOST_PANELS = 12
MOST_PANELS_NARROW = 4

#: Behind DejaVu, whatever the machine has with more of the world's letters.
_FONTS = ("DejaVu Sans", "Noto Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Zen Hei", "Arial Unicode MS",
          "Microsoft YaHei", "PingFang SC")  # fmt: skip


@dataclass(frozen=True)
class Panel:
    """One set of axes: its title and the rows drawn in it."""

    title: str
    rows: Any


@contextmanager
def style() -> Iterator[None]:
    """Our settings for everything drawn and saved inside; nothing is left behind."""
    installed = set(font_manager.get_font_names())
    settings = {
        "font.family": [font for font in _FONTS if font in installed] or ["sans-serif"],
        "font.size": LABEL_SIZE,
        "text.parse_math": False,  # a name may hold dollar signs
        "text.color": INK[0],
        "axes.edgecolor": GRID[0],
        "axes.labelcolor": MUTED[0],
        "axes.facecolor": SURFACE[0],
        "axes.titlesize": 8.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "figure.facecolor": SURFACE[0],
        "savefig.facecolor": SURFACE[0],
        "grid.color": GRID[0],
        "grid.linewidth": 0.6,
        "xtick.color": MUTED[0],
        "ytick.color": MUTED[0],
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "svg.fonttype": "none",  # text stays text: small, searchable, and in the reader's own fonts
        "svg.hashsalt": "attention-bench",  # the same run gives the same file
    }
    log = logging.getLogger("matplotlib.font_manager")
    level = log.level
    with matplotlib.rc_context(settings), warnings.catch_warnings():  # type: ignore[arg-type]
        # A letter that no installed font has is a box in the PNG; in the page the browser finds one.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        log.setLevel(logging.ERROR)
        try:
            yield
        finally:
            log.setLevel(level)


@dataclass(frozen=True)
class Sheet:
    """A figure with its axes, one per panel, in reading order."""

    figure: Figure
    axes: list[Axes]
    columns: int

    def left(self, index: int) -> bool:
        """Whether this panel stands at the left edge, where shared labels go."""
        return index % self.columns == 0

    def beside(self, index: int) -> slice:
        """The panels of the same line: they share a y-axis."""
        first = index - index % self.columns
        return slice(first, first + self.columns)

    def bottom(self, index: int) -> bool:
        """Whether no panel stands below this one."""
        return index + self.columns >= len(self.axes)


def sheet(
    panels: Sequence[Panel],
    title: str,
    note: str,
    *,
    width: float,
    columns: int,
    height: float,
    left: float,
    right: float,
) -> Sheet:
    """Empty panels in a grid. All lengths in inches: `height` of one panel, `left` of the sheet's edge for ticks,
    `right` of every panel for labels beside it."""
    columns = min(columns, len(panels))
    lines = math.ceil(len(panels) / columns)
    note_lines = wrap(note, int(width * 14.5))
    head = 0.42 + 0.15 * len(note_lines) + (0.18 if any(panel.title for panel in panels) else 0)
    foot, gap = 0.46, 0.46
    total = head + lines * height + (lines - 1) * gap + foot
    figure = Figure(figsize=(width, total))
    FigureCanvasAgg(figure)
    figure.text(0.12 / width, 1 - 0.12 / total, title, size=10.5, weight="bold", va="top", color=INK[0])
    figure.text(
        0.12 / width,
        1 - 0.335 / total,
        "\n".join(note_lines),
        size=LABEL_SIZE,
        va="top",
        color=MUTED[0],
        linespacing=1.3,
    )
    cell = (width - left - 0.12) / columns
    axes = []
    for index, panel in enumerate(panels):
        column, line = index % columns, index // columns
        x = left + column * cell
        y = foot + (lines - 1 - line) * (height + gap)
        ax = figure.add_axes((x / width, y / total, (cell - right) / width, height / total))
        ax.set_title(panel.title, loc="left", color=INK[0], pad=4)
        ax.set_axisbelow(True)
        axes.append(ax)
    return Sheet(figure, axes, columns)


def log_scale(
    axis: Any, values: Sequence[float], text: Callable[[float], str], base: int, most: int = 7, apart: float = 0.0
) -> None:
    """A logarithmic axis around the values, with round ticks: decimal for `base` 10, powers for 2. Ticks are `apart` by this
    share of the axis, at least: room for their texts."""
    low, high = min(values), max(values)
    pad = max((high / low) ** 0.06, 1.15)
    low, high = low / pad, high * pad
    _set_log(axis, low, high)
    ticks = list[float]()
    for tick in log_ticks(low, high, base, most):
        if not ticks or math.log(tick / ticks[-1]) >= apart * math.log(high / low):
            ticks.append(tick)
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: text(value))


def exact_ticks(ax: Axes, values: Sequence[float]) -> None:
    """A log2 x-axis whose ticks are the measured values; where they crowd, every second or third."""
    low, high = min(values), max(values)
    pad = max((high / low) ** 0.05, 1.1)
    _set_log(ax.xaxis, low / pad, high * pad)
    step = math.ceil(len(values) / 9)
    ax.xaxis.set_major_locator(FixedLocator(sorted(values, reverse=True)[::step]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")


def log_ticks(low: float, high: float, base: int, most: int = 7) -> list[float]:
    """Round values within a range: powers of `base`, thinned to at most so many, 1 among them if it lies inside; with finer
    steps where fewer than FEWEST_TICKS are inside."""
    exponents = range(math.floor(math.log(low, base)) - 1, math.ceil(math.log(high, base)) + 1)
    ladder = units.DECIMAL_STEPS if base == 10 else units.BINARY_STEPS
    powers = [exponent for exponent in exponents if low <= float(base) ** exponent <= high]
    skip = max(1, math.ceil(len(powers) / most))
    ticks = [float(base) ** exponent for exponent in powers if exponent % skip == 0]
    for steps in ladder:
        if len(ticks) >= min(FEWEST_TICKS, most):
            break
        ticks = [tick for e in exponents for step in steps if low <= (tick := step * float(base) ** e) <= high]
    return ticks


def inches(ax: Axes) -> tuple[float, float]:
    """A panel's width and height."""
    box, figure = ax.get_position(), ax.figure
    return float(box.width * figure.bbox.width / figure.dpi), float(box.height * figure.bbox.height / figure.dpi)


def label(name: str) -> str:
    """A name as it can be drawn: no control characters, not endless."""
    clean = "".join(" " if unicodedata.category(letter)[0] == "C" else letter for letter in name)
    return clean if len(clean) <= LONGEST_LABEL else f"{clean[: LONGEST_LABEL - 1]}…"


def label_width(names: Sequence[str]) -> float:
    """Inches that the longest label needs, with room for a mark behind it."""
    return 0.06 * max((sum(map(_letter, label(name))) for name in names), default=0) + 0.16


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions nearest to the wanted ones with at least `gap` between neighbours, kept within [low, high] if they fit.

    Least squares under an order: pool adjacent violators on (wanted - rank * gap).
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    blocks: list[tuple[float, int]] = []  # (mean, how many)
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


def thinned(panels: list[Panel], most: int = MOST_PANELS) -> list[Panel]:
    """At most so many panels, evenly picked, the first and the last among them."""
    if len(panels) <= most:
        return panels
    return [panels[round(i * (len(panels) - 1) / (most - 1))] for i in range(most)]


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width` letters, broken at ' · '."""
    lines: list[str] = []
    for piece in text.split(" · "):
        if lines and len(lines[-1]) + len(piece) + 3 <= width:
            lines[-1] = f"{lines[-1]} · {piece}"
        else:
            lines.append(piece)
    return lines


def _letter(letter: str) -> int:
    """How many Latin letters wide it is."""
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def _set_log(axis: Any, low: float, high: float) -> None:
    ax = axis.axes
    set_scale, set_limits = (ax.set_xscale, ax.set_xlim) if axis is ax.xaxis else (ax.set_yscale, ax.set_ylim)
    set_scale("log")
    set_limits(low, high)
