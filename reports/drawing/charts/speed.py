"""How many times as fast each implementation is as one of them, with intervals: a point filled where the judge can tell."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...judging import frame as fr
from ...judging import processes
from ...reading import units
from .. import interactive
from ..canvas import label, log_scale
from ..chart import FIRST, Chart, Source, Spec
from ..palette import INK, MUTED, SURFACE, Look
from ..panels import finish_names_down, names_down, panels_of

SLOWEST = 1 / 8
"""What is slower still is written out where the others end, so that these stay readable."""

#: Pixels that an octave of the axis has, and its marks where it has as many: 1 is one of them wherever there is room for two.
TICKS = {
    100: [1 / 8, 1 / 4, 1 / 2, 2 / 3, 4 / 5, 1, 1.25, 1.5, 2, 3, 4, 8], 34: [1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8],
    17: [1 / 4, 1, 4], 0: [1 / 8, 1, 8],
}  # fmt: skip

#: An underscore keeps an artist out of legends.
WHISKER = "_interval"


def draw(source: Source, narrow: bool = False) -> Figure | None:
    """Points to the left of 1 where slower than the baseline implementation, to the right where faster; a panel a case."""
    rows = source.frame[source.frame["speedup"] > 0]
    rows = rows[rows["impl"] != source.baseline_impl]
    panels, dropped = panels_of(rows, narrow, last="T")
    if not panels:
        return None
    known = rows[rows["ratio_low"] > 0]
    name = processes.interval_name(known)
    what = f"95 % intervals, {name} · hollow: not distinguished" if len(known) else "no interval is known"
    title = f"Speed-up over {label(str(source.baseline_impl))}"
    page, names = names_down(source, panels, rows, title, f"right of the line: faster · {what}{dropped}", narrow)
    for index, (ax, panel) in enumerate(zip(page.axes, panels, strict=True)):
        shown = [max(value, SLOWEST) for value in rows["speedup"]]
        low, high = min(*shown, 0.7), max(*shown, 1.4)
        room = (high / low) ** 0.1
        log_scale(ax.xaxis, [low / room, high * room], _ratio, 2, most=5)
        ax.axvline(1, color=MUTED[0], lw=0.9)
        for row in fr.records(panel.rows):
            _point(ax, names.index(row["impl"]), row, source.palette[row["impl"]])
        finish_names_down(page, index, "speed-up")
    return page.figure


def spec(source: Source) -> Spec | None:
    """From the page's pairs: a panel a length, relative to the parameter `over`."""
    rows = source.frame[source.frame["over"].map(bool).astype(bool)]
    if rows["impl"].nunique() < 2 or not rows["leads"].any():
        return None
    lengths, at = interactive.lengths(rows), interactive.standing_but(interactive.LENGTHS, source.frame)
    chart = interactive.panels(_layers(rows, source), 21, rows, alt.NamedData(interactive.PAIRS), "length", lengths, at)
    chart = chart.transform_filter("datum.over == over && datum.impl != over")
    chart = chart.transform_calculate(length=interactive.LENGTH)
    if lengths:
        chart = chart.transform_filter(f"indexof({lengths}, datum.length) >= 0")
    chart = chart.transform_calculate(
        slow=f"datum.speed < {SLOWEST} ? format(datum.speed, '.1~r') + '×' : ''",
        label="datum.shown + ', ' + datum.length + ', ' + datum.text", apart="datum.low > 1 || datum.high < 1 ? 1 : 0",
        reach=f"datum.slow ? 1 : clamp(datum.low, {SLOWEST}, 1)",
    ).transform_joinaggregate(edge="min(reach)").transform_calculate(
        at=_held("speed"), from_=_held("low"), to=_held("high"),
    )  # fmt: skip
    return interactive.finished(chart.add_params(alt.param(name="over", value=interactive.baselines(source)[0])), None)


def _layers(rows: pd.DataFrame, source: Source) -> list[alt.Chart]:
    """A line at 1; of each implementation its interval, its point, and the number where it is too slow for the axis."""
    on: dict[str, Any] = {
        "title": None, "scale": alt.Scale(type="log", nice=False, padding=12), "axis": alt.Axis(
            values=alt.expr(_ticks()), labelExpr=f"({_FRACTION} : format(datum.value, '.2~f')) + '×'",
            labelOverlap="greedy", labelSeparation=8,
        ),
    }  # fmt: skip
    point, x, y = alt.Chart(), alt.X("at:Q", **on), interactive.down(rows, source.palette)
    looks = interactive.without_legend(interactive.looks(rows, source.palette))
    tip = "{'implementation': datum.shown, 'at': datum.length, 'over': datum.over, 'speed-up': datum.text}"
    return [
        point.mark_rule(color=MUTED[0], aria=False).encode(alt.X(datum=1)),
        point.mark_rule(strokeWidth=6, opacity=0.35, aria=False).encode(
            alt.X("from_:Q", **on), y, alt.X2("to:Q"), color=looks["color"]
        ),
        interactive.judged(point, looks, "datum.apart").encode(x, y, tooltip=alt.value(alt.expr(tip))),
        point.mark_text(align="left", dx=9, color=INK[0], aria=False).encode(x, y, text="slow:N"),
    ]


_FRACTION = "datum.value < .6 ? '1/' + 1 / datum.value : datum.value < .7 ? '2/3'"


def _ticks() -> str:
    """An expression for the marks that a panel has room for."""
    octave = "(child_width * LN2 / log(domain('x')[1] / domain('x')[0]))"
    *wide, (_, least) = TICKS.items()
    return "".join(f"{octave} > {pixels} ? {marks} : " for pixels, marks in wide) + str(least)


def _held(column: str) -> str:
    """No further out than the axis should reach; what is slower still stands where the others end."""
    return f"(datum.slow ? datum.edge : clamp(datum.{column}, {SLOWEST}, {1 / SLOWEST}))"


def _point(ax: Axes, y: int, row: dict[str, Any], look: Look) -> None:
    """The speed-up and its interval, filled where it was shown to differ from 1; the number beyond both."""
    value, low, high = row["speedup"], 1 / row["ratio_high"], 1 / row["ratio_low"]
    cut, known = value < SLOWEST, low > 0
    start, end = ax.get_xlim()
    if known and not cut:
        ax.plot(
            [max(low, start), min(high, end)],
            [y, y],
            color=look.colour,
            lw=3.4,
            alpha=0.4,
            solid_capstyle="butt",
            label=WHISKER,
        )
    apart = known and (low > 1 or high < 1)
    at = min(max(value, SLOWEST), end)
    ax.plot([at], [y], look.marker, color=look.colour, mfc=look.colour if apart else SURFACE[0], ms=5, mew=1.2)
    text, beyond = units.ratio(value), min(high, end) if known and not cut else at
    style: dict[str, Any] = {"textcoords": "offset points", "va": "center", "size": 6.5, "color": INK[0]}
    ax.annotate(f"◂ {text}" if cut else text, (max(at, beyond), y), (6, 0), **style)


def _ratio(value: float) -> str:
    """0.25 -> '1/4×', 4.0 -> '4×', 0.75 -> '0.75×'."""
    return f"1/{1 / value:g}×" if value < 1 and (1 / value).is_integer() else f"{value:g}×"


def finding(source: Source) -> str:
    name = processes.interval_name(source.frame)
    left_out = interactive.left_out(source.frame[source.frame["over"].map(bool).astype(bool)])
    return f"Bars: 95 % intervals, {name}. Filled: a difference is shown; hollow: not. Right is faster.{left_out}"


CHARTS = (Chart("speedup", "Speed-up", FIRST, draw, spec, finding, holds=True, order=2),)
