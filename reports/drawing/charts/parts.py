"""What a layer is made of, and a training step."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from ...judging import frame as fr
from ...reading import units
from .. import anatomy
from ..chart import Chart, Source
from ..palette import INK
from ..panels import finish_names_down, names_down, part_panels


def core_share(source: Source, narrow: bool = False) -> Figure | None:
    """How much of a layer is its core, q, k and v to o; the pale rest are its projections. A panel for every case."""
    note = "strong: the core, q, k and v to o · pale: the projections · share of the layer's median"
    return _shares(source, anatomy.cores(source.frame), "What a layer is made of", note, narrow)


def pass_share(source: Source, narrow: bool = False) -> Figure | None:
    """How much of forward and backward together is forward; a panel for every case."""
    note = "strong: forward · pale: backward · share of the median of both together"
    return _shares(source, anatomy.passes(source.frame), "Forward and backward", note, narrow)


def _shares(source: Source, pairs: Sequence[anatomy.Pair], title: str, note: str, narrow: bool) -> Figure | None:
    """Bars to 100 %, their first part as strong as the implementation's colour."""
    panels, rows, dropped = part_panels(pairs, narrow)
    if not panels:
        return None
    page, names = names_down(source, panels, rows, title, f"{note}{dropped}", narrow)
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
        finish_names_down(page, index, "")
    return page.figure


def _span(pairs: Sequence[anatomy.Pair], what: str, whole: str) -> str:
    """'The core is 12.0 % to 80.1 % of its layer.', of those shown to be less or more."""
    shares = [pair.share for pair in pairs if pair.shown]
    return f"{what} {units.percent(min(shares))} to {units.percent(max(shares))} {whole}." if shares else ""


CHARTS = (
    Chart(
        "core", "What a layer is made of", draw=core_share,
        finding=lambda source: _span(anatomy.cores(source.frame), "The core is", "of its layer"),
    ),
    Chart(
        "passes", "Forward and backward", draw=pass_share,
        finding=lambda source: _span(anatomy.passes(source.frame), "Forward is", "of both together"),
    ),
)  # fmt: skip
