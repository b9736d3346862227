"""Figures for a README or a paper: latency, memory and speedup, each a single panel titled by its main finding."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ..judging.findings import recommended
from ..judging.grid import Case, Cases, Grid, Mark
from ..judging.rows import ratio
from ..reading import units, words
from ..reading.axes import labelled as axis_label
from .measures import MEASURES, Measure, Points, series
from .palette import GRID, INK, MUTED, SURFACE, Palette
from .svg import Scale, apart, label, spread

MOST_LABELLED = 5
NARROW, WIDE, HEIGHT, DPI = 3.9, 6.4, 3.5, 144
"""Sizes in inches, and pixels in an inch."""

SIZE = 9.0
"""Font size in points, readable when the figure is 600 pixels wide."""

EDGE, BESIDE, MARGIN = 0.7, 0.19, 0.06
"""Inches left of the plot, between it and the labels, and right of these."""


def draw(name: str, grid: Grid, palette: Palette, baseline: str, narrow: bool = False) -> Figure | None:
    """Draw one of MEASURES along the size axis with the most values, at the setting of the other axes with the most
    cases, of several the slowest. Labelled are the baseline and the best, the user's own, and the fastest, `MOST_LABELLED` in
    all. None if no size varies or there is nothing to show.
    """
    measure, axis = MEASURES[name], grid.length
    if not axis:
        return None
    cases = max(grid.along(axis), key=lambda cases: (len(cases), cases[-1].ranked[0].row["median"]))
    drawn = series(measure, cases, grid.impls, axis)
    if not drawn or (name == "speedup" and not any(case.mark(baseline).counts for case in cases)):
        return None
    width = NARROW if narrow else WIDE
    best = _best(name, cases[-1], recommended(grid.judged))
    named = {baseline, best.impl}
    labelled = sorted(drawn, key=lambda impl: (impl not in named, impl not in grid.own))[:MOST_LABELLED]
    figure = Figure(figsize=(width, HEIGHT), dpi=DPI)
    FigureCanvasAgg(figure)
    plot = width - EDGE - BESIDE - MARGIN - max(_inches(figure, label(name)) for name in labelled)
    ax = figure.add_axes((EDGE / width, 0.14, plot / width, 0.66))
    _lines(ax, drawn, palette, labelled, measure)
    known = name == "speedup" and _intervals(ax, cases, axis, palette, labelled)
    ax.set_xlabel(axis_label(axis))
    first, *others = (case.ranked[0].row for case in cases)
    shared = {key: value for key, value in first.items() if all(row.get(key) == value for row in others)}
    setting = words.setting(shared, always=("B", "H", "D_h", "dtype", "mask"))
    what = (
        measure.title
        + (f" over {label(baseline)}" if name == "speedup" else "")
        + (", 95 % intervals" if known else "")
    )
    title = _finding(name, cases[-1], best, baseline, axis) or what
    below = [it for it in (what, setting) if it != title]
    low, high = ax.get_ylim()
    inside = [any(low < y < high for _, y in drawn[impl]) for impl in drawn if impl not in labelled]
    if grey := sum(inside):
        below.append(f"grey: {words.plural(grey, 'other')}")
    if beyond := len(inside) - grey:
        below.append(f"{beyond} beyond the axis")
    _line(figure, 0.955, title, SIZE + 2, weight="bold")
    _line(figure, 0.875, " · ".join(below), SIZE - 1, color=MUTED)
    return figure


def _line(figure: Figure, y: float, text: str, size: float, **of: Any) -> None:
    """Write a text, on two lines if it is too long and has parts, and smaller until it fits."""
    drawn = figure.text(0.02, y, text, size=size, va="top", **of)
    parts = text.split(" · ")
    if len(parts) > 1 and drawn.get_window_extent().x1 > 0.99 * figure.bbox.x1:
        halves = [[" · ".join(parts[:i]), " · ".join(parts[i:])] for i in range(1, len(parts))]
        drawn.set(text="\n".join(min(halves, key=lambda it: max(map(len, it)))), y=y + 0.015)
    while drawn.get_window_extent().x1 > 0.99 * figure.bbox.x1:
        drawn.set_fontsize(size := size - 0.5)


def _inches(figure: Figure, text: str) -> float:
    """Return the width of a text."""
    drawn = figure.text(0, 0, text, size=SIZE)
    inches: float = drawn.get_window_extent().width / figure.dpi
    drawn.remove()
    return inches


def _lines(ax: Axes, series: Mapping[str, Points], palette: Palette, labelled: Sequence[str], measure: Measure) -> None:
    """Draw lines with labels at their ends; unlabelled ones are grey."""
    for name in sorted(series, key=labelled.__contains__):
        xs, ys = zip(*series[name], strict=True)
        style, named = palette[name], name in labelled
        colour = style.colour if named else MUTED
        ax.plot(
            xs, ys, "--" if style.compiled else "-", marker=style.marker if named else None, color=colour, ms=5,
            mfc=SURFACE if style.compiled else colour, lw=1.0 if not named else 2.4 if style.own else 1.6,
            zorder=3 if named else 2,
        )  # fmt: skip
    values = [y for name in labelled for _, y in series[name]]
    low, high = min(values) / 1.25, max(values) * 1.25
    ticks, sizes = Scale(low, high, 0, 1).ticks(measure.base, 6), sorted({x for of in series.values() for x, _ in of})
    sizes = apart(sizes, Scale(sizes[0], sizes[-1], 0, ax.bbox.width), 0.7 * SIZE * ax.figure.dpi / 72)
    ax.set(xscale="log", yscale="log", ylim=(low, high))
    ax.set_xticks(sizes, [*map(words.number, sizes)])
    ax.set_yticks(ticks, [*map(measure.text, ticks)])
    ax.minorticks_off()
    ax.grid(True)
    to_panel = ax.transData + ax.transAxes.inverted()
    wanted = [to_panel.transform(series[name][-1])[1] for name in labelled]
    step = BESIDE * ax.figure.dpi / ax.bbox.width
    for name, level in zip(labelled, spread(wanted, 0.075, 0.0, 1.0), strict=True):
        style = palette[name]
        ax.text(1 + step, level, label(name), transform=ax.transAxes, va="center", color=style.colour, size=SIZE)
        ax.plot(
            1 + 0.6 * step, level, style.marker, transform=ax.transAxes, clip_on=False, color=style.colour, ms=5,
            mfc=SURFACE if style.compiled else style.colour,
        )  # fmt: skip


def _intervals(ax: Axes, cases: Cases, axis: str, palette: Palette, labelled: Sequence[str]) -> bool:
    """Draw intervals of speedups as vertical lines, cut where they leave the axis; returns whether there are any."""
    marks = [mark for case in cases for name in labelled if (mark := case.mark(name)).counts]
    known = [mark for mark in marks if 0 < mark.row["ratio_low"] < mark.row["ratio_high"]]
    for mark in known:
        ends = 1 / mark.row["ratio_high"], 1 / mark.row["ratio_low"]
        ax.plot([mark.row[axis]] * 2, ends, color=palette[mark.impl].colour, lw=1.2, alpha=0.6, zorder=2)
    return bool(known)


def _best(name: str, case: Case, favourite: str) -> Mark:
    """Return the fastest of a case, or the `favourite` if it is tied with it; for `memory` the leanest."""
    if name != "memory":
        return case.mark(favourite) if case.mark(favourite).best else case.ranked[0]
    return min(case.ranked, key=lambda it: it.row["peak_bytes"] if it.row["peak_bytes"] > 0 else math.inf)


def _finding(name: str, case: Case, best: Mark, baseline: str, axis: str) -> str:
    """Return 'sdpa is 3.0× faster than fused at T = 1024' if that holds in the largest case; else ''."""
    over = case.mark(baseline)
    if not over.counts:
        return ""
    where = f"{baseline} at {axis} = {case.at[axis]}"
    if name == "memory":
        times = over.row["peak_bytes"] / best.row["peak_bytes"]
        return f"{label(best.impl)} needs {units.ratio(times)}× less memory than {where}" if times > 1.1 else ""
    times = ratio(over.row, best.row)
    return f"{label(best.impl)} is {units.ratio(times.value)}× faster than {where}" if times.slower else ""


@contextmanager
def style() -> Iterator[None]:
    """Apply the style of all figures within the block; nothing is changed afterwards."""
    settings = {
        "font.size": SIZE, "text.parse_math": False,  # names may contain dollar signs
        "text.color": INK, "axes.edgecolor": GRID, "axes.labelcolor": MUTED, "axes.facecolor": SURFACE, "axes.axisbelow": True,
        "axes.spines.top": False, "axes.spines.right": False, "figure.facecolor": SURFACE, "savefig.facecolor": SURFACE,
        "grid.color": GRID, "grid.linewidth": 0.6, "xtick.color": MUTED, "ytick.color": MUTED, "xtick.major.size": 0,
        "ytick.major.size": 0, "svg.fonttype": "none", "svg.hashsalt": "attention-bench",  # reproducible files
        "pdf.fonttype": 42,  # fonts that publishers accept
    }  # fmt: skip
    with matplotlib.rc_context(settings), warnings.catch_warnings():  # type: ignore[arg-type]
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        yield
