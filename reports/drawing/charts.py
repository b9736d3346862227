"""Charts: each a function from frame to Figure, or to None where it would be empty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..judging import findings, processes
from ..judging import frame as fr
from ..reading import units, words
from . import anatomy
from .canvas import (
    ALONE,
    LABEL_SIZE,
    MOST_PANELS,
    MOST_PANELS_NARROW,
    NARROW,
    WIDE,
    Panel,
    Sheet,
    exact_ticks,
    inches,
    label,
    label_width,
    log_scale,
    sheet,
    spread,
    thinned,
)
from .palette import GRID, INK, MUTED, SURFACE, Look, Palette

_WORDS = {
    "T_kv": ("number of keys", "keys T_kv"),
    "T": ("sequence length", "tokens T"),
    "H": ("heads", "heads H"),
    "threads": ("threads", "threads"),
}
#: Bars of what is slower still are cut, so that the others stay readable.
SLOWEST_BAR = 1 / 8
#: An underscore keeps an artist out of legends.
WHISKER = "_interval"
_DTYPE_MARKERS = ("o", "D", "s", "^", "v")


#: An implementation's name, and where its line ends in data coordinates.
End = tuple[str, float, float]


@dataclass(frozen=True)
class Measure:
    """A column as it is drawn: its band, how its values are written, and the base of its ticks."""

    column: str
    title: str
    note: str
    text: Callable[..., str]
    base: int
    band: tuple[str, ...] = ()

    def tick(self, value: float) -> str:
        return units.tick(self.text(value, 4))

    def known(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Rows with a value that a logarithmic axis can show."""
        return frame[frame[self.column] > 0]


LATENCY = Measure("median", "Latency", "median, band from q1 to q3", units.seconds, 10, ("q1", "q3"))
MEMORY = Measure("peak_bytes", "Peak memory", "peak of newly allocated tensors in one call", units.memory, 2)


@dataclass(frozen=True)
class Source:
    """What every chart is drawn from."""

    frame: pd.DataFrame
    palette: Palette
    baseline_impl: str | None = None

    def name(self, impl: str) -> str:
        """The implementation's name as drawn, with a mark if it was wrong anywhere."""
        return words.marked(label(impl), [label(impl)] if impl in self._wrong else [])

    def at_ends_of(self, axis: str) -> Source:
        """Only the rows at the smallest and the largest value of an axis."""
        ends = (self.frame[axis].min(), self.frame[axis].max())
        known = self.frame[axis].notna().any()
        return replace(self, frame=self.frame[self.frame[axis].isin(ends)] if known else self.frame)

    @property
    def _wrong(self) -> set[str]:
        return set(self.frame.loc[self.frame["wrong"], "impl"])


@dataclass(frozen=True)
class Chart:
    """A figure's file name, what it shows, and how it is drawn, wide for a page or narrow for a phone."""

    name: str
    title: str
    draw: Callable[[Source, bool], Figure | None]


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


def latency_by_dtype(source: Source, narrow: bool = False) -> Figure | None:
    """One line per implementation from its fastest to its slowest dtype; a panel for every case."""
    rows = source.frame.dropna(subset=["median", "dtype"])
    kinds = list(dict.fromkeys(rows["dtype"]))
    panels, dropped = _panels(rows, narrow, without=("dtype",), last="T", needs=_several_dtypes)
    if not panels:
        return None
    key = ", ".join(f"{'●◆■▲▼'[i % 5]} {words.value('dtype', kind)}" for i, kind in enumerate(kinds))
    page, names = _names_down(source, panels, rows, "Latency by dtype", f"{key} · median{dropped}", narrow)
    for index, (ax, panel) in enumerate(zip(page.axes, panels, strict=True)):
        fastest = panel.rows.groupby("impl")["median"].transform("min")
        near = fastest <= fr.within(fastest)[-1]  # by the fastest dtype: a slow one of the same is what the chart shows
        inside = sorted(panel.rows.loc[near, "median"])
        for y, name in enumerate(names):
            look, mine = source.palette[name], panel.rows[panel.rows["impl"] == name]
            if mine.empty:
                continue
            if mine["median"].max() > inside[-1]:
                _off_the_chart(ax, y, " to ".join(units.seconds(v) for v in sorted(mine["median"])))
                continue
            ends = [mine["median"].min(), mine["median"].max()]
            ax.plot(ends, [y, y], look.line, color=look.colour, lw=1.4, alpha=0.6)
            for row in fr.records(mine):
                marker = _DTYPE_MARKERS[kinds.index(row["dtype"]) % len(_DTYPE_MARKERS)]
                ax.plot([row["median"]], [y], marker, ms=4.6, color=look.colour, mfc=look.fill, mew=1.2)
        log_scale(ax.xaxis, inside, LATENCY.tick, 10)
        _finish_names_down(page, index, "latency")
    return page.figure


def speedup(source: Source, narrow: bool = False) -> Figure | None:
    """Bars from 1× to the left where slower than the baseline implementation, to the right where faster; a panel a case."""
    rows = source.frame[source.frame["speedup"] > 0]
    rows = rows[rows["impl"] != source.baseline_impl]
    panels, dropped = _panels(rows, narrow, last="T")
    if not panels:
        return None
    title = f"Speed-up over {label(str(source.baseline_impl))}"
    known = rows[rows["ratio_low"] > 0]
    name = processes.interval_name(known["processes"].min())
    what = (
        f"whiskers: 95 % interval {name}" if len(known) else "medians: no interval is known, so no difference is shown"
    )
    page, names = _names_down(source, panels, rows, title, f"right of the line: faster · {what}{dropped}", narrow)
    for index, (ax, panel) in enumerate(zip(page.axes, panels, strict=True)):
        shown = [max(value, SLOWEST_BAR) for value in rows["speedup"]]
        low, high = min(*shown, 0.7), max(*shown, 1.4)
        room = (high / low) ** 0.2  # for the numbers at the bars' ends
        log_scale(ax.xaxis, [low / room, high * room], _ratio, 2, most=5)
        ax.axvline(1, color=MUTED[0], lw=0.9)
        for row in fr.records(panel.rows):
            _bar(ax, names.index(row["impl"]), row, source.palette[row["impl"]])
        _finish_names_down(page, index, "speed-up")
    return page.figure


def latency_against_memory(source: Source, narrow: bool = False) -> Figure | None:
    """Time against memory at the largest T; the line joins those that nobody beats in both."""
    rows = source.frame.dropna(subset=["median", "peak_bytes"])
    rows = _largest(rows[rows["peak_bytes"] > 0])
    panels, dropped = _panels(rows, narrow)
    if not panels:
        return None
    note = f"{_constants(rows)} · down and left is better; the line joins those that nobody is shown to beat in both{dropped}"
    page = _line_sheet(panels, rows, "Latency against memory", note, narrow)
    for index, (ax, panel) in enumerate(zip(page.axes, panels, strict=True)):
        beside = pd.concat([panel.rows for panel in panels[page.beside(index)]])
        log_scale(ax.xaxis, list(beside["peak_bytes"]), MEMORY.tick, 2, most=3 if narrow else 5)
        log_scale(ax.yaxis, list(beside["median"]), LATENCY.tick, 10)
        best = panel.rows[panel.rows["impl"].isin(findings.front(panel.rows))].sort_values("peak_bytes")
        ax.plot(best["peak_bytes"], best["median"], color=GRID[0], lw=5, solid_capstyle="round", zorder=1)
        ends = []
        for row in fr.records(panel.rows):
            look = source.palette[row["impl"]]
            ax.plot(
                [row["peak_bytes"]], [row["median"]], look.marker, ms=5.5, color=look.colour, mfc=look.fill, mew=1.3
            )
            ends.append((row["impl"], row["peak_bytes"], row["median"]))
        _name_ends(ax, ends, source)
        _finish_lines(page, index, "peak memory", "latency")
    return page.figure


def core_share(source: Source, narrow: bool = False) -> Figure | None:
    """How much of a layer is its core, q, k and v to o; the pale rest are its projections. A panel for every case."""
    note = "strong: the core, q, k and v to o · pale: the projections · share of the layer's median"
    return _shares(source, anatomy.cores(source.frame), "What a layer is made of", note, narrow)


def pass_share(source: Source, narrow: bool = False) -> Figure | None:
    """How much of forward and backward together is forward; a panel for every case."""
    note = "strong: forward · pale: backward · share of the median of both together"
    return _shares(source, anatomy.passes(source.frame), "Forward and backward", note, narrow)


def compiling(source: Source, narrow: bool = False) -> Figure | None:
    """After how many calls the time spent compiling is won back; a panel for every case."""
    found = anatomy.compilings(source.frame)
    panels, rows, dropped = _part_panels(found, narrow)
    paid = [one.pays_after for one in found if one.pays_after and not one.tied]
    if not paid:
        return None
    note = f"against the eager form, by medians · beside it what compiling took{dropped}"
    page, names = _names_down(source, panels, rows, "Calls after which compiling has paid", note, narrow)
    for index, (ax, panel) in enumerate(zip(page.axes, panels, strict=True)):
        log_scale(ax.xaxis, [*paid, max(paid) * 8], _calls, 10)  # with room for words behind the last point
        for row in fr.records(panel.rows):
            _paying(ax, names.index(row["impl"]), row, source.palette[row["impl"]])
        _finish_names_down(page, index, "calls")
    return page.figure


CHARTS = (
    Chart("latency", "Latency by sequence length", latency_by_T),
    Chart("memory", "Peak memory by sequence length", memory_by_T),
    Chart("speedup", "Speed-up over the baseline implementation", speedup),
    Chart("latency-against-memory", "Latency against memory", latency_against_memory),
    Chart("dtype", "Latency by dtype", latency_by_dtype),
    Chart("keys", "Latency by keys", latency_by_keys),
    Chart("keys-memory", "Memory by keys", memory_by_keys),
    Chart("heads", "Latency by heads", latency_by_heads),
    Chart("threads", "Latency by threads", latency_by_threads),
    Chart("core", "What a layer is made of", core_share),
    Chart("passes", "Forward and backward", pass_share),
    Chart("compiling", "Calls after which compiling has paid", compiling),
)


def _shares(source: Source, pairs: Sequence[anatomy.Pair], title: str, note: str, narrow: bool) -> Figure | None:
    """Bars to 100 %, their first part as strong as the implementation's colour."""
    panels, rows, dropped = _part_panels(pairs, narrow)
    if not panels:
        return None
    page, names = _names_down(source, panels, rows, title, f"{note}{dropped}", narrow)
    for index, (ax, panel) in enumerate(zip(page.axes, panels, strict=True)):
        for row in fr.records(panel.rows):
            look, share = source.palette[row["impl"]], row["one"] / row["other"]
            y, colour = names.index(row["impl"]), look.colour
            ax.barh(y, 1, height=0.66, color=colour, alpha=0.2)
            ax.barh(y, min(share, 1), height=0.66, color=colour, alpha=0.55 if look.compiled else 0.95)
            # beyond the end of the bar, where it is read on either ground
            ax.annotate(f"{share:.0%}", (1, y), (4, 0), textcoords="offset points", va="center", size=6.5, color=INK[0])
        ax.set_xlim(0, 1.16)
        ax.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
        _finish_names_down(page, index, "")
    return page.figure


def _part_panels(
    found: Sequence[anatomy.Pair | anatomy.Compiling], narrow: bool
) -> tuple[list[Panel], pd.DataFrame, str]:
    """A panel for every place and T; all rows; and a word on panels left out."""
    rows = pd.DataFrame([vars(one) for one in found])
    if rows.empty:
        return [], rows, ""
    parts = rows.groupby(["place", "T"], sort=False)
    panels = [Panel(" · ".join(filter(None, (str(place), f"T = {T}"))), part) for (place, T), part in parts]
    shown = thinned(panels, MOST_PANELS_NARROW if narrow else MOST_PANELS)
    return shown, rows, f" · {len(shown)} of {len(panels)} settings" if len(shown) < len(panels) else ""


def _paying(ax: Axes, y: int, row: dict[str, Any], look: Look) -> None:
    """A point and what compiling took; in words where there is nothing to win."""
    spent = f"{units.seconds(row['compile_s'])} {row['cache']}".strip()
    text = "no difference shown" if row["tied"] else spent if row["pays_after"] > 0 else f"never, {spent}"
    won = not row["tied"] and row["pays_after"] > 0
    at = row["pays_after"] if won else ax.get_xlim()[0]
    if won:
        ax.plot([at], [y], look.marker, ms=5, color=look.colour, mfc=look.fill, mew=1.2)
    ax.annotate(text, (at, y), (6, 0), textcoords="offset points", va="center", size=6.5, color=INK[0])


def _calls(value: float) -> str:
    return f"{value:,.0f}"


def _lines(source: Source, x: str, measure: Measure, narrow: bool) -> Figure | None:
    """A line per implementation over `x`; None when no panel has two points to join."""
    rows = measure.known(source.frame).dropna(subset=[x])
    if x != "T":  # one number of heads or threads shows no growth; one T shows at least who stops there
        rows = _growing(rows, x)
    panels, dropped = _panels(rows, narrow, without=(x,), needs=lambda part: part[x].nunique() > 1)
    if not panels:
        return None
    shown = pd.concat([panel.rows for panel in panels])
    dashes = " · dashed: compiled" if any(source.palette[name].compiled for name in shown["impl"]) else ""
    note = f"{_constants(rows)} · {measure.note}{dashes}{dropped}"
    page = _line_sheet(panels, shown, f"{measure.title} by {_WORDS[x][0]}", note, narrow)
    for index, (ax, panel) in enumerate(zip(page.axes, panels, strict=True)):
        exact_ticks(ax, sorted(shown[x].unique()))
        inside = _inside(pd.concat([panel.rows for panel in panels[page.beside(index)]]), x, measure)
        log_scale(ax.yaxis, inside, measure.tick, measure.base)
        far = [name for name, part in panel.rows.groupby("impl") if part[measure.column].min() > max(inside)]
        near = [(str(name), part.sort_values(x)) for name, part in panel.rows.groupby("impl") if name not in far]
        ends = [_line(ax, part, x, measure, source, name) for name, part in near]
        last = max((at for _, at, _ in ends), default=0.0)
        _name_ends(ax, [end for end in ends if end[1] == last], source)
        _name_stopped(ax, [end for end in ends if end[1] < last], source)
        _name_far(ax, panel.rows[panel.rows["impl"].isin(far)], x, measure, source)
        _finish_lines(page, index, _WORDS[x][1], measure.title.lower())
    return page.figure


def _points(source: Source, measure: Measure, narrow: bool) -> Figure | None:
    """A point per implementation, with a bar from q1 to q3; a panel for every case."""
    rows = measure.known(source.frame)
    panels, dropped = _panels(rows, narrow, last="T")
    if not panels:
        return None
    page, names = _names_down(source, panels, rows, measure.title, f"{measure.note}{dropped}", narrow)
    for index, (ax, panel) in enumerate(zip(page.axes, panels, strict=True)):
        inside = fr.within(panel.rows[measure.column])
        for row in fr.records(panel.rows):
            look, level, value = source.palette[row["impl"]], names.index(row["impl"]), row[measure.column]
            if value > inside[-1]:
                _off_the_chart(ax, level, measure.text(value))
                continue
            if measure.band:
                ends = [row[measure.band[0]], row[measure.band[1]]]
                ax.plot(ends, [level, level], color=look.colour, lw=4, alpha=0.3, solid_capstyle="butt")
            ax.plot([value], [level], look.marker, ms=5, color=look.colour, mfc=look.fill, mew=1.2)
        log_scale(ax.xaxis, inside, measure.tick, measure.base)
        _finish_names_down(page, index, measure.title.lower())
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


def _name_ends(ax: Axes, ends: list[End], source: Source) -> None:
    """Every name beside the panel behind its marker, level with its line's end or as near as the others allow, tied to it
    by grey dots."""
    width, _ = inches(ax)
    at = _in_panel(ax, ends)
    for (name, _, _), (x, y), level in zip(ends, at, _levels(ax, at), strict=True):
        look = source.palette[name]
        bend, end = 1 + 0.06 / width, 1 + 0.12 / width
        leader = Line2D([x, bend, end], [y, level, level], transform=ax.transAxes, color=MUTED[0], lw=0.7, ls=":")
        leader.set_clip_on(False)
        ax.add_line(leader)
        ax.scatter(
            [1 + 0.19 / width], [level], 22, marker=look.marker, facecolors=look.fill, edgecolors=look.colour,
            linewidths=0.9, transform=ax.transAxes, clip_on=False,
        )  # fmt: skip
        ax.text(
            1 + 0.27 / width, level, source.name(name), transform=ax.transAxes, va="center", color=INK[0],
            size=LABEL_SIZE,
        )  # fmt: skip


def _name_stopped(ax: Axes, ends: list[End], source: Source) -> None:
    """The names of lines that end before the others do, each beside its last point."""
    for stop in sorted({x for _, x, _ in ends}):
        here = [end for end in ends if end[1] == stop]
        at = _in_panel(ax, here)
        for (name, _, _), (x, _), level in zip(here, at, _levels(ax, at), strict=True):
            ax.annotate(
                source.name(name), (x, level), (6, 0), xycoords="axes fraction", textcoords="offset points",
                va="center", color=INK[0], bbox={"facecolor": SURFACE[0], "edgecolor": "none", "alpha": 0.8, "pad": 0.6},
                zorder=5,
            )  # fmt: skip


def _in_panel(ax: Axes, ends: list[End]) -> list[tuple[float, float]]:
    """Ends as shares of the panel's width and height."""
    to_panel = ax.transData + ax.transAxes.inverted()
    return [(float(x), float(y)) for x, y in (to_panel.transform((x, y)) for _, x, y in ends)]


def _levels(ax: Axes, at: list[tuple[float, float]]) -> list[float]:
    """Heights for names at these points, none over another."""
    return spread([y for _, y in at], LABEL_SIZE * 1.16 / 72 / inches(ax)[1], 0.0, 1.0)


def _several_dtypes(part: pd.DataFrame) -> bool:
    return bool(part["dtype"].nunique() > 1)


def _bar(ax: Axes, y: int, row: dict[str, Any], look: Look) -> None:
    """A bar from 1 to the speed-up, its interval as a whisker, and the number beyond both."""
    value, low, high = row["speedup"], 1 / row["ratio_high"], 1 / row["ratio_low"]
    cut = value < SLOWEST_BAR
    end, faster = max(value, ax.get_xlim()[0]) if cut else value, value >= 1
    ax.barh(y, end - 1, left=1, height=0.66, color=look.fill, edgecolor=look.colour, lw=1.0, ls=look.line)
    if low > 0 and not cut:
        start, end = ax.get_xlim()
        ax.plot([max(low, start), min(high, end)], [y, y], color=INK[0], lw=1.1, solid_capstyle="butt", label=WHISKER)
    text = units.significant(value, 2)
    tip = max(value, min(high, ax.get_xlim()[1])) if faster and low > 0 else min(value, low) if low > 0 else value
    ax.annotate(
        f"◂ {text}" if cut else text, (1 if cut else tip, y), (3 if faster or cut else -3, 0), textcoords="offset points",
        va="center", ha="left" if faster or cut else "right", size=6.5, color=INK[0],
    )  # fmt: skip


def _ratio(value: float) -> str:
    """0.25 -> '1/4×', 4.0 -> '4×', 0.75 -> '0.75×'."""
    return f"1/{1 / value:g}×" if value < 1 and (1 / value).is_integer() else f"{value:g}×"


def _off_the_chart(ax: Axes, y: int, text: str) -> None:
    """The value in words at the right edge, for a point that the axis does not reach."""
    at = ax.get_yaxis_transform()
    ax.text(0.99, y, f"{text} ▸", transform=at, ha="right", va="center", color=INK[0], size=6.5)


def _panels(
    rows: pd.DataFrame,
    narrow: bool,
    without: tuple[str, ...] = (),
    last: str = "dtype",
    needs: Callable[[pd.DataFrame], bool] = lambda part: True,
) -> tuple[list[Panel], str]:
    """A panel for each combination of the axes that vary, less `without`, `last` changing fastest; and a word on
    those left out."""
    axes = sorted((axis for axis in fr.varying(rows) if axis not in without), key=lambda axis: axis == last)
    panels = [Panel(words.title(values), part) for values, part in fr.groups(rows, axes) if needs(part)]
    shown = thinned(panels, MOST_PANELS_NARROW if narrow else MOST_PANELS)
    return shown, f" · {len(shown)} of {len(panels)} settings" if len(shown) < len(panels) else ""


def _line_sheet(panels: list[Panel], rows: pd.DataFrame, title: str, note: str, narrow: bool) -> Sheet:
    columns, right = 1 if narrow else 2, label_width(list(rows["impl"])) + 0.37
    height = 2.9 if rows["impl"].nunique() > 6 else 2.3
    width = NARROW if narrow else WIDE if len(panels) > 1 else ALONE
    return sheet(panels, title, note, width=width, columns=columns, height=height, left=0.78, right=right)


def _names_down(
    source: Source, panels: list[Panel], rows: pd.DataFrame, title: str, note: str, narrow: bool
) -> tuple[Sheet, list[str]]:
    """A sheet with implementations from top to bottom; returns it and the names, by their y."""
    names = source.palette.sorted(set(rows["impl"]))
    constants = _constants(rows)
    width = NARROW if narrow else WIDE if len(panels) > 1 else ALONE
    page = sheet(
        panels, title, f"{constants} · {note}" if constants else note, width=width,
        columns=1 if narrow else _columns(panels), height=0.24 + 0.155 * len(names),
        left=label_width(names) + 0.12, right=0.32,
    )  # fmt: skip
    for index, ax in enumerate(page.axes):
        ax.set_ylim(len(names) - 0.4, -0.6)
        ax.set_yticks([])
        for y, name in enumerate(names if page.left(index) else []):
            ax.annotate(
                source.name(name), (0, y), (-5, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
                ha="right", va="center", color=INK[0],
            )  # fmt: skip
    return page, names


def _columns(panels: list[Panel]) -> int:
    """As many as T has values, if they fit side by side."""
    points = pd.concat([panel.rows for panel in panels])["T"].nunique()
    return points if 2 <= points <= 4 else min(3, len(panels))


def _finish_lines(page: Sheet, index: int, x: str, y: str) -> None:
    ax = page.axes[index]
    ax.grid(True)
    ax.set_xlabel(x if page.bottom(index) else "")
    ax.set_ylabel("")
    if page.left(index):
        ax.set_ylabel(y, labelpad=6)
    else:
        ax.tick_params(labelleft=False)


def _finish_names_down(page: Sheet, index: int, x: str) -> None:
    ax = page.axes[index]
    ax.grid(True, axis="x")
    ax.spines["left"].set_visible(False)
    if page.bottom(index):
        ax.set_xlabel(x)


def _constants(rows: pd.DataFrame) -> str:
    values = fr.settings(rows)
    said = words.place(values, always=("B", "H", "D_h", "T", "dtype", "mask", "device") if values else ())
    return said


def _largest(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["T"] == rows["T"].max()] if rows["T"].notna().any() else rows
