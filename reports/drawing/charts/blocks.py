"""Every timed block of a cell beside the cell's median: whether it is one heap, two, or has a long tail."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from stats import shares
from stats.ratios import Samples

from ...judging import frame as fr
from ...reading import units, words
from .. import interactive
from ..chart import NUMBERS, Chart, Source, Spec
from ..palette import INK, MUTED

MOST = 200
"""Blocks of a cell that are drawn; of more, evenly spaced ones."""

REACH = (-0.5, 1.0)
"""Shares of the median at which the axis ends: what lies beyond is drawn at the end."""

CELL = 0
"""Stands where a block has its process: the point of the cell itself, at its median."""

SAID = ("blocks", "processes", "median", "slowest tenth", "page faults", "context switches")
"""What is said of a cell's blocks."""


def spec(source: Source) -> Spec | None:
    """A panel a length, a strip an implementation, a mark a block; processes stand below each other in their strip."""
    rows = _timed(source)
    if rows.empty:
        return None
    at, lengths = interactive.standing_but(interactive.LENGTHS, source.frame), interactive.lengths(rows)
    values = [_strips(row, list(at)) for row in fr.records(rows)]
    strips = max(len(value["strips"]) for value in values) - 1
    layers, data = _layers(rows, source, strips), alt.InlineData(values)
    chart = interactive.panels(layers, max(24, 7 * strips + 10), rows, data, "length", lengths, at)
    low, high = REACH
    # before there are panels: what a layer flattens itself, Vega-Lite 6.4 draws into all of them
    chart = chart.transform_flatten(["strips", "process"]).transform_flatten(["strips"]).transform_calculate(
        length=interactive.LENGTH, label=f"datum.shown + ', ' + {interactive.LENGTH} + ', ' + join(datum.said, ', ')",
        beside=f"clamp(datum.strips / 1000, {low}, {high})",
        block=interactive.LATENCY.text("(datum.median * (1 + datum.strips / 1000))", ",.3r"),
    )  # fmt: skip
    if lengths:
        chart = chart.transform_filter(f"indexof({lengths}, datum.length) >= 0")
    return interactive.finished(chart, None)


def _timed(source: Source) -> pd.DataFrame:
    return source.frame[source.frame["samples"].map(lambda samples: samples is not None and len(samples.seconds) > 1)]


def _layers(rows: pd.DataFrame, source: Source, strips: int) -> list[alt.Chart]:
    """The medians, all at 0; the blocks beside them; and a point at each median, which has what is said of its blocks."""
    looks = interactive.without_legend(interactive.looks(rows, source.palette))
    low, high = REACH
    on: dict[str, Any] = {
        "title": None, "scale": alt.Scale(domain=list(REACH), nice=False),
        "axis": alt.Axis(
            values=[low, 0, high / 2, high], labelExpr="datum.value ? format(100 * datum.value, '+.0f') + ' %' : 'median'"
        ),
    }  # fmt: skip
    y = interactive.down(rows, source.palette)
    each, cell = (alt.Chart().transform_filter(f"datum.process {kind} {CELL}") for kind in ("!=", "=="))
    ticks = each.mark_tick(thickness=1.2, size=14 / strips + 2, aria=False).encode(
        alt.X("beside:Q", **on), y, color=looks["color"], tooltip=_tip({"block": "block", "process": "process"}),
        opacity=alt.condition(interactive.SINGLED, alt.value(0.45), alt.value(0.06)),
        **({"yOffset": alt.YOffset("process:O", sort=None)} if strips > 1 else {}),
    )  # fmt: skip
    points = cell.mark_point(size=46, strokeWidth=1.6).encode(
        alt.X("beside:Q", **on), y, shape=looks["shape"], stroke=alt.value(INK[0]), fill=looks["color"],
        fillOpacity=looks["fillOpacity"],
        description="label:N", tooltip=_tip({fact: f"said[{i}]" for i, fact in enumerate(SAID)}),
        opacity=alt.condition(interactive.SINGLED, alt.value(1.0), alt.value(0.15)),
    )  # fmt: skip
    return [cell.mark_rule(color=MUTED[0], aria=False).encode(alt.X(datum=0)), ticks, points]


def _tip(fields: Mapping[str, str]) -> Any:
    """What is said of a mark: its implementation, its length, and these fields by their titles."""
    lines = [
        f"'{title}': datum.{field}" for title, field in {"implementation": "shown", "at": "length", **fields}.items()
    ]
    return alt.value(alt.expr(f"{{{', '.join(lines)}}}"))


def _strips(row: Mapping[str, Any], axes: list[str]) -> dict[str, Any]:
    """A cell: its blocks by process, in thousandths of its median beyond it, and what is said of them."""
    samples, median = row["samples"], row["median"]
    found = by_process(samples, median)
    tenth = float(np.quantile(samples.seconds, 0.9)) / median - 1
    said = [
        words.number(len(samples.seconds)), words.number(len(found)), units.seconds(median), f"+{units.percent(tenth)} or more",
        _a_call(row["page_faults"]), _a_call(row["switches_involuntary"]),
    ]  # fmt: skip
    at = {axis: fr.plain(row[axis]) for axis in dict.fromkeys([*axes, "T", "T_kv"])}
    strips = {"strips": [[0], *found.values()], "process": [CELL, *range(1, len(found) + 1)]}
    return {
        "impl": row["impl"],
        "shown": interactive.name_of(row),
        "median": median,
        "said": said,
        **at,
        **strips,
    }


def by_process(samples: Samples, median: float) -> dict[int, list[int]]:
    """Thousandths of the median by which each block lies beyond it, by process, in the order in which they were timed."""
    step = -(-len(samples.seconds) // MOST)
    beside = [round(1000 * (seconds / median - 1)) for seconds in samples.seconds]
    ordered = sorted(zip(samples.processes, beside, strict=True), key=lambda it: it[0])
    found = {process: [share for _, share in of] for process, of in groupby(ordered, key=lambda it: it[0])}
    return {process: shares[::step] for process, shares in found.items()}


def _a_call(count: float) -> str:
    return f"{shares.significant(count, 2)} a call" if count == count else units.MISSING


def finding(source: Source) -> str:
    return (
        "Each mark is a timed block of calls, relative to its cell's median; each row of marks is a process. Two clusters are "
        "two states of the machine or of the implementation, and the median lies in one of them. At the edges: half of the "
        f"median and less, twice and more.{interactive.left_out(_timed(source))}"
    )


CHARTS = (Chart("blocks", "Every block", NUMBERS, spec=spec, finding=finding, holds=True, order=9),)
