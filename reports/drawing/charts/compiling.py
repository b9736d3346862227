"""After how many calls compiling has paid."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...judging import frame as fr
from ...reading import units, words
from .. import anatomy
from ..canvas import log_scale
from ..chart import Chart, Source
from ..palette import INK, Look
from ..panels import finish_names_down, names_down, part_panels


def compiling(source: Source, narrow: bool = False) -> Figure | None:
    """After how many calls the time spent compiling is won back; a panel for every case."""
    found = anatomy.compilings(source.frame)
    panels, rows, dropped = part_panels(found, narrow)
    paid = [one.pays_after for one in found if one.pays_after and not one.tied]
    if not paid:
        return None
    note = f"against the eager form, by medians · beside it what compiling took{dropped}"
    page, names = names_down(source, panels, rows, "Calls after which compiling has paid", note, narrow)
    for index, (ax, panel) in enumerate(zip(page.axes, panels, strict=True)):
        log_scale(ax.xaxis, [*paid, max(paid) * 8], _calls, 10)  # with room for words behind the last point
        for row in fr.records(panel.rows):
            _paying(ax, names.index(row["impl"]), row, source.palette[row["impl"]])
        finish_names_down(page, index, "calls")
    return page.figure


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


def _paid(source: Source) -> str:
    """How often compiling pays, and how soon."""
    found = anatomy.compilings(source.frame)
    paid = sorted(one.pays_after for one in found if one.pays_after and not one.tied)
    if not paid:
        return ""
    first, last = f"{paid[0]:,}", f"{paid[-1]:,}"
    calls = first if first == last else f"{first} to {last}"
    return f"Compiling pays in {len(paid)} of {words.plural(len(found), 'compiled cell')}, after {calls} calls."


CHARTS = (Chart("compiling", "Calls after which compiling has paid", draw=compiling, finding=_paid),)
