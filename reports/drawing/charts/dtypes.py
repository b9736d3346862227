"""Latency by dtype."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from ...judging import frame as fr
from ...reading import units, words
from ..canvas import log_scale
from ..chart import Chart, Source
from ..panels import LATENCY, finish_names_down, names_down, off_the_chart, panels_of

_DTYPE_MARKERS = ("o", "D", "s", "^", "v")


def latency_by_dtype(source: Source, narrow: bool = False) -> Figure | None:
    """One line per implementation from its fastest to its slowest dtype; a panel for every case."""
    rows = source.frame.dropna(subset=["median", "dtype"])
    kinds = list(dict.fromkeys(rows["dtype"]))
    panels, dropped = panels_of(rows, narrow, without=("dtype",), last="T", needs=_several_dtypes)
    if not panels:
        return None
    key = ", ".join(f"{'●◆■▲▼'[i % 5]} {words.value('dtype', kind)}" for i, kind in enumerate(kinds))
    page, names = names_down(source, panels, rows, "Latency by dtype", f"{key} · median{dropped}", narrow)
    for index, (ax, panel) in enumerate(zip(page.axes, panels, strict=True)):
        fastest = panel.rows.groupby("impl")["median"].transform("min")
        near = fastest <= fr.within(fastest)[-1]  # by the fastest dtype: a slow one of the same is what the chart shows
        inside = sorted(panel.rows.loc[near, "median"])
        for y, name in enumerate(names):
            look, mine = source.palette[name], panel.rows[panel.rows["impl"] == name]
            if mine.empty:
                continue
            if mine["median"].max() > inside[-1]:
                off_the_chart(ax, y, " to ".join(units.seconds(v) for v in sorted(mine["median"])))
                continue
            ends = [mine["median"].min(), mine["median"].max()]
            ax.plot(ends, [y, y], look.line, color=look.colour, lw=1.4, alpha=0.6)
            for row in fr.records(mine):
                marker = _DTYPE_MARKERS[kinds.index(row["dtype"]) % len(_DTYPE_MARKERS)]
                ax.plot([row["median"]], [y], marker, ms=4.6, color=look.colour, mfc=look.fill, mew=1.2)
        log_scale(ax.xaxis, inside, LATENCY.tick, 10, apart=0.18)
        finish_names_down(page, index, "latency")
    return page.figure


def _several_dtypes(part: pd.DataFrame) -> bool:
    return bool(part["dtype"].nunique() > 1)


CHARTS = (Chart("dtype", "Latency by dtype", draw=latency_by_dtype),)
