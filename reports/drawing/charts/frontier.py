"""Time against memory."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.figure import Figure

from ...judging import frame as fr
from ..canvas import log_scale
from ..chart import Chart, Source
from ..palette import GRID
from ..panels import LATENCY, MEMORY, constants, finish_lines, largest, line_sheet, name_ends, panels_of


def latency_against_memory(source: Source, narrow: bool = False) -> Figure | None:
    """Time against memory at the largest T; the line joins those that nobody beats in both."""
    rows = source.frame.dropna(subset=["median", "peak_bytes"])
    rows = largest(rows[rows["peak_bytes"] > 0])
    panels, dropped = panels_of(rows, narrow)
    if not panels:
        return None
    note = f"{constants(rows)} · down and left is better; the line joins those that nobody beats in both, by medians{dropped}"
    page = line_sheet(panels, rows, "Latency against memory", note, narrow)
    for index, (ax, panel) in enumerate(zip(page.axes, panels, strict=True)):
        beside = pd.concat([panel.rows for panel in panels[page.beside(index)]])
        log_scale(ax.xaxis, list(beside["peak_bytes"]), MEMORY.tick, 2, most=3 if narrow else 5)
        log_scale(ax.yaxis, list(beside["median"]), LATENCY.tick, 10)
        best = panel.rows.sort_values(["median", "peak_bytes"])
        best = best[best["peak_bytes"] < best["peak_bytes"].cummin().shift(fill_value=math.inf)]
        ax.plot(best["peak_bytes"], best["median"], color=GRID[0], lw=5, solid_capstyle="round", zorder=1)
        ends = []
        for row in fr.records(panel.rows):
            look = source.palette[row["impl"]]
            ax.plot(
                [row["peak_bytes"]], [row["median"]], look.marker, ms=5.5, color=look.colour, mfc=look.fill, mew=1.3
            )
            ends.append((row["impl"], row["peak_bytes"], row["median"]))
        name_ends(ax, ends, source)
        finish_lines(page, index, "peak memory", "latency")
    return page.figure


CHARTS = (Chart("latency-against-memory", "Latency against memory", draw=latency_against_memory),)
