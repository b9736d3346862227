"""Mask efficiency: how much of the work that a mask hides is skipped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stats import shares

from ...judging import frame as fr
from ...judging import masking
from ...reading import units, words
from .. import interactive
from ..chart import NUMBERS, Chart, Source, Spec
from ..palette import INK, MUTED, SURFACE, Look
from ..panels import finish_names_down, names_down, off_the_chart, panels_of

END = 1.3
"""Of the axis: what is beyond is written out."""

MOST_PANELS = 3
"""Of the page, side by side."""


def draw(source: Source, narrow: bool = False) -> Figure | None:
    """A point for each implementation between two lines: all hidden work is skipped, and none; a panel a case."""
    rows = _known(source)
    panels, dropped = panels_of(rows, narrow, last="T")
    if not panels:
        return None
    note = f"solid line: all hidden work is skipped · dotted: none · filled: some is shown to be skipped{dropped}"
    page, names = names_down(source, panels, rows, "Mask efficiency", note, narrow)
    for index, (ax, panel) in enumerate(zip(page.axes, panels, strict=True)):
        ax.set_xlim(0, END)
        ax.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
        ax.axvline(1, color=MUTED[0], lw=0.9)
        ax.axvline(panel.rows["work_share"].iloc[0], color=MUTED[0], lw=1.2, ls=":")
        for row in fr.records(panel.rows):
            _point(ax, names.index(row["impl"]), row, source.palette[row["impl"]])
        finish_names_down(page, index, "mask efficiency")
    return page.figure


def spec(source: Source) -> Spec | None:
    """A panel for each mask, at what is chosen of the other axes."""
    rows = _known(source)
    if rows.empty:
        return None
    hiding = masking.hiding_axes()
    at = interactive.standing_but(hiding, source.frame)
    values = [_told(row, list(at), hiding) for row in fr.records(rows)]
    masks = list(dict.fromkeys(value["mask"] for value in values))
    data = alt.InlineData(values)
    chart = interactive.panels(_layers(rows, source), 21, rows, data, "mask", masks, at, min(MOST_PANELS, len(masks)))
    return interactive.finished(chart, None)


def _told(row: dict[str, Any], axes: Sequence[str], hiding: Sequence[str]) -> dict[str, Any]:
    """A row as the page has it: no further out than the axis reaches."""
    mask, shown, text = words.place({axis: row[axis] for axis in hiding}), interactive.name_of(row), _text(row)
    return {
        **{axis: fr.plain(row[axis]) for axis in axes}, "impl": row["impl"], "shown": shown, "mask": mask,
        "share": row["work_share"], "at": min(row["mask_efficiency"], END), "low": min(_low(row), END),
        "high": min(_high(row), END), "skips": masking.skips(row), "text": text, "none": f"{row['work_share']:.2f}",
        "label": f"{shown}, {mask}, {text}",
    }  # fmt: skip


def _layers(rows: pd.DataFrame, source: Source) -> list[alt.Chart]:
    """Lines where all hidden work is skipped, and where none is; of each implementation its interval and its point."""
    on: dict[str, Any] = {"title": None, "scale": alt.Scale(domain=[0, END], nice=False), "axis": alt.Axis(tickCount=5)}
    point, x, y = alt.Chart(), alt.X("at:Q", **on), interactive.down(rows, source.palette)
    looks = interactive.without_legend(interactive.looks(rows, source.palette))
    fields = {"implementation": "shown", "mask": "mask", "mask efficiency": "text", "where none is skipped": "none"}
    tip = ", ".join(f"'{title}': datum['{key}']" for title, key in fields.items())
    return [
        point.mark_rule(color=MUTED[0], aria=False).encode(alt.X(datum=1)),
        point.mark_rule(color=MUTED[0], strokeDash=[2, 3], aria=False).encode(alt.X("share:Q", **on)),
        point.mark_rule(strokeWidth=6, opacity=0.35, aria=False).encode(
            alt.X("low:Q", **on), y, alt.X2("high:Q"), color=looks["color"]
        ),
        interactive.judged(point, looks, "datum.skips").encode(x, y, tooltip=alt.value(alt.expr(f"{{{tip}}}"))),
    ]


def finding(source: Source) -> str:
    """'sdpa skips hidden work in every masked case. Shown to skip it in none: fused.'"""
    shown, known = masking.skippers(fr.records(_known(source)))
    always = [name for name in known if shown[name] == known[name]]
    never = [name for name in known if not shown[name]]
    parts = []
    if always:
        parts.append(
            f"{words.listing(always)} {'skips' if len(always) == 1 else 'skip'} hidden work in every masked case."
        )
    if never:
        what = "it" if always else "hidden work"
        parts.append(f"Shown to skip {what} in none: {words.listing(never)}.")
    return f"{' '.join(parts)} Solid line: all of it is skipped; dotted: none." if parts else ""


def _known(source: Source) -> pd.DataFrame:
    return source.frame[source.frame["mask_efficiency"] > 0]


def _point(ax: Axes, y: int, row: dict[str, Any], look: Look) -> None:
    """The number and its interval, filled where hidden work is shown to be skipped."""
    at, low, high = row["mask_efficiency"], _low(row), min(_high(row), END)
    if at > END:
        off_the_chart(ax, y, shares.significant(at, 2))
        return
    ax.plot([low, high], [y, y], color=look.colour, lw=3.4, alpha=0.4, solid_capstyle="butt")
    fill = look.colour if masking.skips(row) else SURFACE[0]
    ax.plot([at], [y], look.marker, color=look.colour, mfc=fill, ms=5, mew=1.2)
    style: dict[str, Any] = {"textcoords": "offset points", "va": "center", "size": 6.5, "color": INK[0]}
    ax.annotate(shares.significant(at, 2), (max(at, high), y), (6, 0), **style)


def _text(row: dict[str, Any]) -> str:
    return units.bounded(row["mask_efficiency"], row["mask_efficiency_low"], row["mask_efficiency_high"])


def _low(row: dict[str, Any]) -> float:
    """Of the interval; the number itself where there is none."""
    return float(row["mask_efficiency_low"] if row["mask_efficiency_low"] > 0 else row["mask_efficiency"])


def _high(row: dict[str, Any]) -> float:
    return float(row["mask_efficiency_high"] if row["mask_efficiency_high"] > 0 else row["mask_efficiency"])


CHARTS = (Chart("masks", "Mask efficiency", NUMBERS, draw, spec, finding, holds=True, order=7),)
