"""Who is best over all cases: time over the best of each, its mean and its worst."""

from __future__ import annotations

import math
from typing import Any

import altair as alt
from matplotlib.figure import Figure

from stats import shares

from ...judging import answer
from ...judging.answer import Rank
from ...judging.frame import OFF_THE_CHART, within
from ...reading import words
from .. import interactive
from ..canvas import ALONE, NARROW, Panel, label_width, log_scale, sheet
from ..chart import FIRST, Chart, Source, Spec
from ..palette import INK, MUTED

TICKS = (1, 1.25, 1.5, 2, 3, 5, 8, 12, 20, 40, 80)

MOST = 0.75
"""Share of the implementations that the axis holds, however far apart they are."""


def draw(source: Source, narrow: bool = False) -> Figure | None:
    """A point at the geometric mean over the cases, and a line to the worst of them."""
    ranks = answer.ranking(source.frame)
    if len(ranks) < 2:
        return None
    names = [source.name(rank.impl) for rank in ranks]
    page = sheet(
        [Panel("", ranks)], _title(ranks), _note(ranks), width=NARROW if narrow else ALONE, columns=1,
        height=0.3 + 0.2 * len(ranks), left=label_width(names) + 0.12, right=0.5,
    )  # fmt: skip
    [ax] = page.axes
    limit = _limit(ranks)
    log_scale(ax.xaxis, [1, limit], lambda value: f"{value:g}×", 10, most=5)
    ax.set_ylim(len(ranks) - 0.4, -0.6)
    ax.set_yticks(range(len(ranks)), names, color=INK[0])
    ax.grid(axis="x")
    for y, rank in enumerate(ranks):
        look = source.palette[rank.impl]
        mean, worst = min(rank.mean, limit), min(rank.worst, limit)
        ax.plot([mean, worst], [y, y], color=look.colour, lw=1.2)
        ax.plot([worst], [y], "|", color=look.colour, ms=7)
        ax.plot([mean], [y], look.marker, color=look.colour, mfc=look.fill, ms=5.5)
        ax.annotate(
            _span(rank, limit),
            (worst, y),
            (5, 0),
            textcoords="offset points",
            va="center",
            size=6.5,
            color=MUTED[0],
        )
    return page.figure


def spec(source: Source) -> Spec | None:
    ranks = answer.ranking(source.frame)
    if len(ranks) < 2:
        return None
    limit = _limit(ranks)
    values: list[dict[str, Any]] = [
        {"shown": source.name(rank.impl), "mean": min(rank.mean, limit), "worst": min(rank.worst, limit),
         "span": _span(rank, limit), "text": f"{rank.mean:.2f}×", "cases": f"{rank.cases} of {rank.of}",
         "impl": rank.impl, "label": f"{rank.impl}, {rank.mean:.2f}×", "least": f"{rank.worst:.3g}×"}
        for rank in ranks
    ]  # fmt: skip
    rows = source.frame[source.frame["impl"].isin([rank.impl for rank in ranks])]
    base = alt.Chart(alt.InlineData(values))
    longest = max(len(value["span"]) for value in values)
    room = 1.15 + 0.055 * longest  # behind the last point, on a phone
    on: dict[str, Any] = {
        "title": None, "scale": alt.Scale(type="log", nice=False, domain=[0.97, limit**room * 1.1]),
        "axis": alt.Axis(
            values=[at for at in TICKS if at <= limit], labelExpr="datum.value == 1 ? 'best' : datum.value + '×'",
            labelOverlap="greedy", labelSeparation=8,
        ),
    }  # fmt: skip
    x = alt.X("mean:Q", **on)
    y = alt.Y("shown:N", title=None, sort=None, axis=alt.Axis(labelLimit=140, grid=False))
    looks = interactive.without_legend(interactive.looks(rows, source.palette))
    fields = {"implementation": "shown", "geometric mean": "text", "worst case": "least", "cases": "cases"}
    tip = ", ".join(f"'{title}': datum['{key}']" for title, key in fields.items())
    layers = [
        base.mark_rule(strokeWidth=2, aria=False).encode(x, y, alt.X2("worst:Q"), color=looks["color"]),
        base.mark_tick(thickness=2, size=11, aria=False).encode(alt.X("worst:Q", **on), y, color=looks["color"]),
        base.mark_text(align="left", dx=10, color=MUTED[0], aria=False).encode(
            alt.X("worst:Q", **on), y, text="span:N"
        ),
        base.mark_point(filled=True, size=90, strokeWidth=1.6).encode(
            x, y, tooltip=alt.value(alt.expr(f"{{{tip}}}")), description="label:N", **looks
        ),
    ]
    return interactive.finished(alt.layer(*layers).add_params(*interactive.picks()), 24 * len(ranks) + 8)


def finding(source: Source) -> str:
    ranks = answer.ranking(source.frame)
    few = sorted(rank.impl for rank in ranks if not rank.everywhere)
    rest = f" Last, since they lack cases: {words.listing(few)}." if few else ""
    medians = "" if source.frame["leads"].any() else " By medians: no difference is shown."
    beyond = " →: beyond the axis." if _beyond(ranks) else ""
    return f"Point: geometric mean over the cases. Line: to the worst case. Left is better.{beyond}{rest}{medians}"


def _title(ranks: list[Rank]) -> str:
    return f"Time over the best, {words.plural(ranks[0].of, 'case')}"


def _note(ranks: list[Rank]) -> str:
    return "point: geometric mean · line: to the worst case · left is better" + " · →: beyond the axis" * _beyond(ranks)


def _beyond(ranks: list[Rank]) -> bool:
    """Whether anything lies beyond the axis."""
    return any(rank.worst > _limit(ranks) for rank in ranks)


def _limit(ranks: list[Rank]) -> float:
    """Where the axis ends: what would squeeze all others is written out, where that is few."""
    worst = sorted(rank.worst for rank in ranks)
    most = worst[math.ceil(MOST * len(worst)) - 1]
    return float(max(1.3, most, min(within(worst)[-1], OFF_THE_CHART * ranks[0].worst)))


def _span(rank: Rank, limit: float) -> str:
    """'2.1×', '2.1× (3/4)' where cases are missing, '→ 60×' where it lies beyond the axis."""
    worst = f"{'→ ' * (rank.worst > limit)}{shares.significant(rank.worst, 2)}×"
    return worst if rank.everywhere else f"{worst} ({rank.cases}/{rank.of})"


CHARTS = (Chart("ranking", "Time over the best of each case", FIRST, draw, spec, finding, order=1),)
