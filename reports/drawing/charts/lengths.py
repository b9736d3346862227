"""Time and memory along an axis: a line an implementation."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...judging import findings
from ...judging import frame as fr
from .. import interactive
from ..canvas import exact_ticks, log_scale
from ..chart import NUMBERS, Chart, Source
from ..palette import INK
from ..panels import (
    AXIS_WORDS,
    LATENCY,
    MEMORY,
    End,
    Measure,
    constants,
    finish_lines,
    finish_names_down,
    line_sheet,
    name_ends,
    name_stopped,
    names_down,
    off_the_chart,
    panels_of,
)


def latency_by_T(source: Source, narrow: bool = False) -> Figure | None:
    """Median latency against T, a panel for every other axis that varies; the band runs from q1 to q3.
    With one T, a point for each implementation."""
    return _lines(source, "T", LATENCY, narrow) or _points(source, LATENCY, narrow)


def memory_by_T(source: Source, narrow: bool = False) -> Figure | None:
    """Peak of newly allocated memory against T; with one T, a point for each implementation."""
    return _lines(source, "T", MEMORY, narrow) or _points(source, MEMORY, narrow)


def latency_by_keys(source: Source, narrow: bool = False) -> Figure | None:
    """Median latency against T_kv, where it varies by itself: a cache that gets longer, another sequence."""
    return _lines(source, "T_kv", LATENCY, narrow)


def memory_by_keys(source: Source, narrow: bool = False) -> Figure | None:
    """Peak of newly allocated memory against T_kv."""
    return _lines(source, "T_kv", MEMORY, narrow)


def latency_by_heads(source: Source, narrow: bool = False) -> Figure | None:
    """Median latency against H, at the smallest and the largest T."""
    return _lines(source.at_ends_of("T"), "H", LATENCY, narrow)


def latency_by_threads(source: Source, narrow: bool = False) -> Figure | None:
    """Median latency against the number of threads, at the smallest and the largest T."""
    return _lines(source.at_ends_of("T"), "threads", LATENCY, narrow)


def _lines(source: Source, x: str, measure: Measure, narrow: bool) -> Figure | None:
    """A line per implementation over `x`; None when no panel has two points to join."""
    rows = measure.known(source.frame).dropna(subset=[x])
    if x != "T":  # one number of heads or threads shows no growth; one T shows at least who stops there
        rows = _growing(rows, x)
    panels, dropped = panels_of(rows, narrow, without=(x,), needs=lambda part: part[x].nunique() > 1)
    if not panels:
        return None
    shown = pd.concat([panel.rows for panel in panels])
    dashes = " · dashed: compiled" if any(source.palette[name].compiled for name in shown["impl"]) else ""
    note = f"{constants(rows)} · {measure.note}{dashes}{dropped}"
    page = line_sheet(panels, shown, f"{measure.title} by {AXIS_WORDS[x][0]}", note, narrow)
    for index, (ax, panel) in enumerate(zip(page.axes, panels, strict=True)):
        exact_ticks(ax, sorted(shown[x].unique()))
        inside = _inside(pd.concat([panel.rows for panel in panels[page.beside(index)]]), x, measure)
        log_scale(ax.yaxis, inside, measure.tick, measure.base)
        far = [name for name, part in panel.rows.groupby("impl") if part[measure.column].min() > max(inside)]
        near = [(str(name), part.sort_values(x)) for name, part in panel.rows.groupby("impl") if name not in far]
        ends = [_line(ax, part, x, measure, source, name) for name, part in near]
        last = max((at for _, at, _ in ends), default=0.0)
        name_ends(ax, [end for end in ends if end[1] == last], source)
        name_stopped(ax, [end for end in ends if end[1] < last], source)
        _name_far(ax, panel.rows[panel.rows["impl"].isin(far)], x, measure, source)
        finish_lines(page, index, AXIS_WORDS[x][1], measure.title.lower())
    return page.figure


def _points(source: Source, measure: Measure, narrow: bool) -> Figure | None:
    """A point per implementation, with a bar from q1 to q3; a panel for every case."""
    rows = measure.known(source.frame)
    panels, dropped = panels_of(rows, narrow, last="T")
    if not panels:
        return None
    page, names = names_down(source, panels, rows, measure.title, f"{measure.note}{dropped}", narrow)
    for index, (ax, panel) in enumerate(zip(page.axes, panels, strict=True)):
        inside = fr.within(panel.rows[measure.column])
        for row in fr.records(panel.rows):
            look, level, value = source.palette[row["impl"]], names.index(row["impl"]), row[measure.column]
            if value > inside[-1]:
                off_the_chart(ax, level, measure.text(value))
                continue
            if measure.band:
                ends = [row[measure.band[0]], row[measure.band[1]]]
                ax.plot(ends, [level, level], color=look.colour, lw=4, alpha=0.3, solid_capstyle="butt")
            ax.plot([value], [level], look.marker, ms=5, color=look.colour, mfc=look.fill, mew=1.2)
        log_scale(ax.xaxis, inside, measure.tick, measure.base)
        finish_names_down(page, index, measure.title.lower())
    return page.figure


def _growing(rows: pd.DataFrame, x: str) -> pd.DataFrame:
    """Rows of implementations with more than one value of `x`, all else being equal."""
    keys = ["impl", *(axis for axis in fr.varying(rows) if axis != x)]
    return rows[rows.groupby(keys, dropna=False)[x].transform("nunique") > 1]


def _inside(rows: pd.DataFrame, x: str, measure: Measure) -> list[float]:
    """What the axis must hold: all lines and their bands, but nothing so far above them that it would squeeze them:
    no lone point over all lines, and no line that starts many times above the top of all others."""
    parts = sorted((part for _, part in rows.groupby("impl")), key=lambda part: float(part[measure.column].min()))
    lines = [part for part in parts if part[x].nunique() > 1]
    top = max(float(lines[0][measure.column].max()), float(parts[0][measure.column].max()))
    for part in lines:
        if part[measure.column].min() <= top * fr.OFF_THE_CHART:
            top = max(top, float(part[measure.column].max()))
    kept = rows[rows[measure.column] <= top * 1.2]
    return [v for column in (measure.column, *measure.band) for v in kept[column].dropna() if v > 0]


def _line(ax: Axes, part: pd.DataFrame, x: str, measure: Measure, source: Source, name: str) -> End:
    """Draws one implementation; returns its name and where its line ends."""
    look, y = source.palette[name], part[measure.column]
    if measure.band and len(part) > 1:
        low, high = measure.band
        ax.fill_between(part[x], part[low], part[high], color=look.colour, alpha=0.16, lw=0)
    ax.plot(
        part[x], y, look.line, marker=look.marker, color=look.colour, mfc=look.fill,
        lw=look.width * 0.85, ms=6.2 if look.own else 4.8, mew=1.0, zorder=4 if look.own else 3,
    )  # fmt: skip
    return name, float(part[x].iloc[-1]), float(y.iloc[-1])


def _name_far(ax: Axes, rows: pd.DataFrame, x: str, measure: Measure, source: Source) -> None:
    """What lies above the axis, in words at its upper edge, over its own x."""
    for _, stack in rows.sort_values(measure.column, ascending=False).groupby(x):
        for line, row in enumerate(fr.records(stack)):
            at_end = row[x] == ax.get_xticks().max()
            ax.annotate(
                f"▴ {source.name(row['impl'])} {measure.text(row[measure.column])}",
                (row[x], 1), (3 if at_end else -3, -1 - 9 * line), xycoords=("data", "axes fraction"),
                textcoords="offset points", ha="right" if at_end else "left", va="top", color=INK[0],
            )  # fmt: skip


CHARTS = (
    Chart("latency", "Latency", NUMBERS, latency_by_T, interactive.turned(interactive.LATENCY), order=1),
    Chart(
        "memory", "Peak memory", NUMBERS, memory_by_T, interactive.turned(interactive.MEMORY),
        lambda source: findings.lean(source.usable), order=2,
    ),
    Chart("keys", "Latency by keys", draw=latency_by_keys),
    Chart("keys-memory", "Memory by keys", draw=memory_by_keys),
    Chart("heads", "Latency by heads", draw=latency_by_heads),
    Chart("threads", "Latency by threads", draw=latency_by_threads),
)  # fmt: skip
