"""Charts that a reader can turn: Vega-Lite specifications, drawn by what stands in the page itself.

Every chart reads the page's own rows, by name: they stand in it once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd

from ..judging import answer, roofline
from ..judging import frame as fr
from ..reading import units, words
from ..reading.axes import KNOWN_AXES, axis_names, labelled, length_axes
from ..reading.words import COMPILED
from .chart import Source, Spec
from .palette import GRID, INK, MUTED, SURFACE, WEAK, Palette

ROWS, PAIRS = "rows", "pairs"
"""What the page's charts read: its rows, and every two implementations of a case (`pairs`)."""

HEIGHT = 300

LENGTHS = ("T", "T_kv")

LABEL = 140
"""Room for a name beside a panel."""

#: An expression for where a row lies along its sequence; its keys are said where they are more or fewer.
LENGTH = "('T = ' + datum.T + (!isValid(datum.T_kv) || datum.T_kv == datum.T ? '' : ', T_kv = ' + datum.T_kv))"

MOST_LENGTHS = 4
MOST_OVER = 8
"""Implementations that others can be compared with."""

#: Which run is shown beside others: its place among them, or all.
ALL_RUNS = -1
RUN_DASHES = ((1, 0), (6, 4), (2, 3), (10, 3, 2, 3), (14, 5), (4, 2, 1, 2, 1, 2))
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif'

#: There is room for words within the chart.
_ROOMY = "width < 500 ? 0 : 1"

_LEGEND = alt.Legend(
    title=None, orient="bottom", columns=alt.expr("max(2, floor(width / 150))"), labelLimit=130, symbolSize=90,
    symbolOpacity=1,
)  # fmt: skip

#: Names that a reader singled out: in a legend, for all charts that have this parameter.
PICKED = "picked"
SINGLED = f"length({PICKED}) == 0 || indexof({PICKED}, datum.shown) >= 0"

_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BYTES = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))


@dataclass(frozen=True)
class Measure:
    """A column as it is drawn: how its axis is written, the base of its logarithm, and the unit of its linear axis."""

    column: str
    title: str
    units: tuple[tuple[float, str], ...]
    base: int
    linear: tuple[float, str]
    band: tuple[str, str] | None = None

    def text(self, value: str, digits: str) -> str:
        """An expression for Vega that writes an expression's value with its unit."""
        *larger, (size, unit) = self.units
        expression = f"format({value} / {size!r}, '{digits}') + ' {unit}'"
        for size, unit in reversed(larger):
            expression = (
                f"abs({value}) >= {size * 0.9995!r} ? format({value} / {size!r}, '{digits}') + ' {unit}' : {expression}"
            )
        return f"({expression})"

    def scaled(self, column: str) -> str:
        """An expression for where a column's value stands on the axis."""
        value = f"datum['{column}']"
        return f"scale == 'log' ? log({value}) / {math.log(self.base)!r} : {value} / {self.linear[0]!r}"

    def ticks(self, scale: str, values: Sequence[float]) -> str:
        """An expression for the marks of a logarithmic axis that is drawn as a linear one of logarithms."""
        span = f"span(domain('{scale}'))"
        return _ladder(self.base, values, span, lambda value: math.log(value, self.base))


LATENCY = Measure("median", "latency", _SECONDS, 10, (1e-3, "ms"), ("q1", "q3"))
MEMORY = Measure("peak_bytes", "peak memory", _BYTES, 2, (2.0**20, "MiB"))
RATE = Measure(
    "rate", "operations per second", ((1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s")), 10, (1e9, "GFLOP/s")
)
ROOF = Measure("roof", "share of the roof", ((0.01, "%"),), 10, (0.01, "%"))
_OWN_TEXTS = {"memory": MEMORY, "achieved": RATE, "reached": ROOF}
"""By the name of a row's text in the page."""


@dataclass(frozen=True)
class Control:
    """One thing that a reader of the page chooses: its name in the page's address, and (value, words) of each choice."""

    name: str
    label: str
    options: list[tuple[Any, str]]
    value: Any


def turned(measure: Measure, runs: Sequence[str] = ()) -> Callable[[Source], Spec | None]:
    """A chart of one measure that a reader can turn: lines along an axis where one varies, else a point each."""

    def spec(source: Source) -> Spec | None:
        frame = measured(source.frame)
        if measure.column not in frame or not (frame[measure.column] > 0).any():
            return None
        draw = explorer if along(frame[frame["median"] > 0]) else dots
        return draw(frame, source.palette, measure, runs)

    return spec


def measured(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with `rate`, operations per second, and `roof` as a number."""
    roof = pd.to_numeric(frame["roof"], errors="coerce") if "roof" in frame else math.nan
    return frame.assign(rate=frame["flops"] / frame["median"], roof=roof)


def picker(source: Source, runs: Sequence[str] = ()) -> list[Control]:
    """What can be chosen on a page: where a case stands on every axis that varies, what charts run along, and their scale."""
    rows = timed(source.frame)
    if rows.empty:
        return []
    axes, over = along(rows), [] if runs else baselines(source)
    at = start(rows, axes[0] if axes else None)
    controls = [
        *([Control("at_run", "run", [(ALL_RUNS, "all"), *enumerate(runs)], ALL_RUNS)] if runs else []),
        *(Control(f"at_{axis}", axis, _options(rows, axis), fr.plain(value)) for axis, value in at.items()),
        Control("over", "relative to", [(name, name) for name in over], over[0] if over else ""),
        Control("x_axis", "along", [(axis, labelled(axis)) for axis in axes], axes[0] if axes else ""),
        Control("scale", "scale", [("log", "log"), ("linear", "linear")], "log"),
    ]
    return [control for control in controls if len(control.options) > 1]


def baselines(source: Source) -> list[str]:
    """Whom others can be compared with: the best over all cases, the baseline implementation, the next best."""
    if not source.frame["leads"].any():
        return []
    ranked = [rank.impl for rank in answer.ranking(source.frame)]
    there = set(source.frame["impl"])
    chosen = dict.fromkeys([*ranked[:1], *filter(there.__contains__, [source.baseline_impl]), *ranked])
    return [name for name in chosen if name][:MOST_OVER]


def pairs(source: Source) -> dict[str, Any]:
    """For the page: the ratios of every row to each of `baselines`, as [row, baseline, speed-up, low, high, words]."""
    over = baselines(source)
    found = []
    for row, each in enumerate(source.frame["over"]):
        for at, name in enumerate(over):
            if (ratio := each.get(name)) and ratio.known:
                speed = ratio.inverse
                ratio_text = units.bounded_times(speed.value, speed.low, speed.high)
                found.append(
                    [row, at, *(float(f"{v:.5g}") for v in (speed.value, speed.low, min(speed.high, 1e9))), ratio_text]
                )
    return {"over": over, "rows": found}


def lengths(frame: pd.DataFrame) -> list[str]:
    """The lengths in the frame, as LENGTH tells them; of many at one setting of the other axes, some; none where they
    don't vary by themselves."""
    drawn = {length for part in _settings(frame) for length in _thinned(_lengths(part))}
    return [length for length in _lengths(frame) if length in drawn] if len(drawn) > 1 else []


def _thinned(every: list[str]) -> list[str]:
    step = (len(every) - 1) / (MOST_LENGTHS - 1)
    return every if len(every) <= MOST_LENGTHS else [every[round(i * step)] for i in range(MOST_LENGTHS)]


def _settings(frame: pd.DataFrame) -> list[pd.DataFrame]:
    """The frame by the settings of all axes that vary but lengths."""
    return [part for _, part in fr.groups(frame, [axis for axis in fr.varying(frame) if axis not in LENGTHS])]


def left_out(frame: pd.DataFrame) -> str:
    """' 4 of 6 lengths are drawn.', where `lengths` leaves some out."""
    drawn, every = len(lengths(frame)), len(_lengths(frame))
    return f" {drawn} of {every} lengths are drawn." if 1 < drawn < every else ""


def _lengths(frame: pd.DataFrame) -> list[str]:
    both = sorted({(T, T if pd.isna(T_kv) else T_kv) for T, T_kv in zip(frame["T"], frame["T_kv"], strict=True)})
    return [f"T = {words.number(T)}" + ("" if T_kv == T else f", T_kv = {words.number(T_kv)}") for T, T_kv in both]


def timed(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows whose axes a page lets choose from: a chart that has only some of them is filtered by all axes, too."""
    return frame[frame["median"] > 0]


def standing_but(axes: Sequence[str], frame: pd.DataFrame) -> dict[str, Any]:
    """Where every axis that varies stands at first, but for those that have a panel a value."""
    return {axis: value for axis, value in start(timed(frame), None).items() if axis not in axes}


def panels(
    layers: Sequence[alt.Chart], height: int, frame: pd.DataFrame, data: Any, by: str, order: Sequence[str],
    at: Mapping[str, Any], columns: int | None = None,
) -> alt.FacetChart:  # fmt: skip
    """Panels side by side, one for each value of a field, with a line of some `height` for each implementation; of the rows
    that stand as is chosen."""
    panel = alt.layer(*layers).properties(height=height * frame["impl"].nunique())
    facet = alt.Facet(f"{by}:N", title=None, sort=list(order), header=alt.Header(labelColor=INK[0], labelFontSize=12))
    chart = panel.facet(data=data, facet=facet, columns=columns or max(1, len(order)))
    for axis in at:
        chart = chart.transform_filter(f"datum['{axis}'] == at_{axis}")
    return chart.add_params(*standing(at), *picks())


def down(frame: pd.DataFrame, palette: Palette) -> alt.Y:
    """Implementations below each other."""
    return alt.Y("shown:N", title=None, sort=names(frame, palette), axis=alt.Axis(labelLimit=LABEL, grid=False))


def judged(chart: alt.Chart, looks: Mapping[str, Any], shown: str) -> alt.Chart:
    """Points that are filled where an expression says that something was shown."""
    points: alt.Chart = chart.mark_point(size=80, strokeWidth=1.8, fillOpacity=1, filled=True).encode(
        shape=looks["shape"], stroke=looks["stroke"], description="label:N",
        fill=alt.condition(shown, looks["color"], alt.value(SURFACE[0])),
        opacity=alt.condition(SINGLED, alt.value(1.0), alt.value(0.15)),
    )  # fmt: skip
    return points


def standing(at: Mapping[str, Any]) -> list[alt.Parameter]:
    """Where every axis that varies stands."""
    return [alt.param(name=f"at_{axis}", value=fr.plain(value)) for axis, value in at.items()]


def along(frame: pd.DataFrame) -> list[str]:
    """The axes that lines can run along in this frame: all else being equal, such an axis has two values somewhere. The one
    with the most first."""
    varying = fr.varying(frame)
    points = {
        axis: max(part[axis].nunique() for part in _parts(frame, axis)) for axis in length_axes() if axis in varying
    }
    return sorted((axis for axis in points if points[axis] > 1), key=points.__getitem__, reverse=True)


def _parts(frame: pd.DataFrame, x: str | None) -> list[pd.DataFrame]:
    """The frame by the settings of all axes that vary but one."""
    unsaid = fr.own_keys_unsaid(frame)
    return [part for _, part in fr.groups(unsaid, [axis for axis in fr.varying(unsaid) if axis != x])]


def explorer(frame: pd.DataFrame, palette: Palette, measure: Measure, runs: Sequence[str] = ()) -> Spec | None:
    """One measure against any axis that varies, a line for each implementation; None without two points to join.

    Its parameters: `x_axis`, `scale`, and `at_AXIS` for every axis that varies. Of several `runs`, the values of a column
    `run`, every implementation has a line each, dashed by run; a parameter `at_run` shows one alone.
    """
    rows = frame[frame[measure.column] > 0]
    if not (axes := along(rows)):
        return None
    at = start(timed(frame), axes[0])
    params = [alt.param(name="x_axis", value=axes[0]), *_scale(runs), *standing(at)]
    x = alt.X(
        "x:Q", title=None, scale=alt.Scale(zero=False, nice=False, padding=14), axis=_x_axis(sorted(_known(rows, axes)))
    )
    y = alt.Y(
        "y:Q",
        title=None,
        scale=alt.Scale(zero=alt.expr("scale == 'linear'"), nice=False, padding=8),
        axis=_y_axis(measure, "y", list(rows[measure.column])),
    )
    # A chart's own transforms: x, y and the band in what the axes are drawn in; texts for the tooltip.
    drawn = alt.Chart(alt.NamedData(ROWS)).transform_filter(f"datum['{measure.column}'] > 0 && datum[x_axis] > 0")
    for condition in [*map(_filter, at), *_run_filter(runs)]:
        drawn = drawn.transform_filter(condition)
    drawn = drawn.transform_calculate(
        x="scale == 'log' ? log(datum[x_axis]) / LN2 : datum[x_axis]", y=measure.scaled(measure.column), **_texts(),
        **_band(measure, runs),
    )  # fmt: skip
    layers = _along_lines(drawn, x, y, rows, palette, measure, runs)
    return _with_legend(finished(alt.layer(*layers).add_params(*params, *picks())), rows, palette)


def _along_lines(
    drawn: alt.Chart, x: alt.X, y: alt.Y, rows: pd.DataFrame, palette: Palette, measure: Measure, runs: Sequence[str]
) -> list[alt.Chart]:
    """Bands where the measure has them, room beside every point, lines, and the points, of which the nearest is larger."""
    near = alt.selection_point(name="near", nearest=True, on="pointerover", clear="pointerout", empty=False)
    faded = alt.condition(SINGLED, alt.value(1.0), alt.value(0.08))
    room = drawn.transform_calculate(**_near(measure)).mark_rule(opacity=0).encode(
        alt.X("left:Q", title=None), alt.X2("right:Q"), alt.Y("below:Q", title=None), alt.Y2("above:Q")
    )  # fmt: skip
    lines = drawn.mark_line().encode(
        x, y, opacity=faded, order="x:Q", color=_colours(rows, palette), strokeWidth=_widths(rows, palette),
        strokeDash=_run_dashes(runs) if runs else _dashes(rows, palette), **_run_detail(runs),
    )  # fmt: skip
    points = drawn.mark_point(filled=True, strokeWidth=1.6).encode(
        x, y, opacity=faded, tooltip=_tooltip(rows, *_own(measure)), description="label:N",
        size=alt.condition(near, alt.value(150), alt.value(52)), **looks(rows, palette),
    )  # fmt: skip
    bands = drawn.mark_area().encode(
        x, alt.Y("low:Q", title=None), alt.Y2("high:Q"), color=_colours(rows, palette),
        opacity=alt.condition(SINGLED, alt.value(0.16), alt.value(0.02)), **_run_detail(runs),
    )  # fmt: skip
    return [*([bands] if measure.band else []), room, lines, points.add_params(near)]


def dots(frame: pd.DataFrame, palette: Palette, measure: Measure, runs: Sequence[str] = ()) -> Spec | None:
    """One measure of every implementation where no axis varies that a line could run along; None without a number.
    Of several `runs`, all stand one below the other, or one alone."""
    rows = frame[frame[measure.column] > 0]
    if rows.empty:
        return None
    at = start(timed(frame), None)
    params = [*_scale(runs), *standing(at)]
    drawn = alt.Chart(alt.NamedData(ROWS)).transform_filter(f"datum['{measure.column}'] > 0")
    for condition in [*(f"datum['{axis}'] == at_{axis}" for axis in at), *_run_filter(runs)]:
        drawn = drawn.transform_filter(condition)
    drawn = drawn.transform_calculate(y=measure.scaled(measure.column), **_texts())
    zero = alt.Scale(zero=alt.expr("scale == 'linear'"), nice=False, padding=20)
    x = alt.X("y:Q", title=None, scale=zero, axis=_y_axis(measure, "x", list(rows[measure.column])))
    apart = alt.Scale(paddingInner=0.4) if runs else alt.Undefined
    down = alt.Y("shown:N", title=None, sort=names(rows, palette), axis=alt.Axis(labelLimit=150), scale=apart)
    beside = {"yOffset": alt.YOffset("run:N", sort=list(runs))} if runs else {}
    points = drawn.mark_point(filled=True, size=90, strokeWidth=1.6).encode(
        x,
        down,
        opacity=alt.condition(SINGLED, alt.value(1.0), alt.value(0.08)),
        **beside,
        tooltip=_tooltip(rows, *_own(measure)),
        description="label:N",
        **without_legend(looks(rows, palette)),
    )
    bands = drawn.transform_calculate(**_band(measure, ())).mark_rule(strokeWidth=6).encode(
        alt.X("low:Q", title=None), alt.X2("high:Q"), down, color=_colours(rows, palette).legend(None), **beside,
        opacity=alt.condition(SINGLED, alt.value(0.3), alt.value(0.04)),
    )  # fmt: skip
    sides = {side: text for side, text in _near(measure).items() if side in ("below", "above")}
    room = drawn.transform_calculate(**sides).mark_rule(opacity=0).encode(
        alt.X("below:Q", title=None), alt.X2("above:Q"), down
    )  # fmt: skip
    height = (26 + 9 * max(len(runs) - 1, 0)) * rows["impl"].nunique() + 12
    return finished(alt.layer(*([bands] if measure.band else []), room, points).add_params(*params, *picks()), height)


def roofs(frame: pd.DataFrame, palette: Palette, measured: Sequence[dict[str, Any]]) -> Spec | None:
    """Operations per second against operations per byte, under the measured roofs; None without a countable cell."""
    rows = roofline.points(frame)
    if rows.empty:
        return None
    axes = [axis for axis in fr.varying(timed(frame)) if axis in (*roofline.AXES, "mode", "scope")]
    params = standing({axis: fr.records(rows)[0][axis] for axis in axes})
    corners = roofline.lines(measured, rows)
    wide = [*rows["intensity"], *(corner["intensity"] for corner in corners)]
    high = [*rows["rate"], *(corner["rate"] for corner in corners)]
    x = alt.X("intensity:Q", title="operations per byte", scale=_log(), axis=_powers("x", 2, wide, ",~r"))
    y = alt.Y("rate:Q", title="operations per second", scale=_log(), axis=_powers("y", 10, high, "~s"))
    cells = alt.Chart(alt.NamedData(ROWS))
    for axis in axes:
        cells = cells.transform_filter(f"datum['{axis}'] == at_{axis}")
    cells = cells.transform_filter("datum.flops > 0 && datum.bytes > 0 && datum.median > 0").transform_calculate(
        intensity="datum.flops / datum.bytes", rate="datum.flops / datum.median", **_texts(),
    )  # fmt: skip
    tooltip = _tooltip(rows, *_own(RATE), *_own(ROOF))
    layers = [
        cells.mark_point(filled=True, size=70, strokeWidth=1.6).encode(
            x, y, tooltip=tooltip, description="label:N", **looks(rows, palette),
            opacity=alt.condition(SINGLED, alt.value(0.9), alt.value(0.06)),
        )
    ]  # fmt: skip
    if corners:
        layers = [
            *_roof_lines(corners, [axis for axis in axes if axis in roofline.AXES], x, y),
            *layers,
        ]
    return _with_legend(finished(alt.layer(*layers).add_params(*params, *picks())), rows, palette)


def drift(looks: dict[str, list[dict[str, float]]]) -> Spec | None:
    """By how much the time of the control workload differed from its own median over the run; None with fewer than two
    looks. As `shares.varied` says it: '+11 %', and of what took twice as long somewhere, '19×'."""
    values: list[dict[str, Any]] = [
        {"control": name, "at": look["at"], "times": look["seconds"] / middle}
        for name, seen in looks.items()
        if len(seen) > 1 and (middle := float(pd.Series([look["seconds"] for look in seen]).median())) > 0
        for look in seen
    ]
    if not values:
        return None
    legend = alt.Legend(
        orient="bottom", symbolType="stroke", symbolStrokeColor=INK[0], symbolSize=500, symbolStrokeWidth=2,
    )  # fmt: skip
    far = max(value["times"] for value in values) >= 2
    field = "times" if far else "share"
    values = [{**value, "share": value["times"] - 1} for value in values]
    tip = f"{{'control': datum.control, 'at': format(datum.at, '.0f') + ' s', 'beside its median': {_varied(field, far)}}}"
    base = alt.Chart(alt.InlineData(values)).encode(
        alt.X("at:Q", title="seconds since the run began"),
        alt.Y(
            f"{field}:Q", title="beside its median", scale=alt.Scale(zero=False, padding=10),
            axis=alt.Axis(labelExpr=_varied("value", far)),
        ),
        detail="control:N", tooltip=alt.value(alt.expr(tip)),
    )  # fmt: skip
    lines = base.mark_line(color=INK[0]).encode(alt.StrokeDash("control:N", title=None, legend=legend))
    return finished(alt.layer(lines, base.mark_point(color=INK[0], filled=True, opacity=1, size=36)), height=180)


def _varied(field: str, far: bool) -> str:
    percent = f"format(100 * datum.{field}, '+.2~r') + ' %'"
    return f"format(datum.{field}, '.2~r') + '×'" if far else f"(datum.{field} ? {percent} : 'median')"


def rows(frame: pd.DataFrame) -> dict[str, Any]:
    """The frame for the page: its columns, and its rows as lists. `shown` is the name, marked if it was wrong."""
    table = measured(frame).drop(columns=["process_medians", "process_nodes"], errors="ignore")
    table = table.assign(shown=list(map(name_of, fr.records(frame))))
    return {
        "columns": list(table.columns),
        "rows": [list(map(fr.plain, line)) for line in table.itertuples(index=False)],
    }


def name_of(row: Mapping[str, Any]) -> str:
    """The name of a row's implementation as `names` has it."""
    return words.marked(row["impl"], [row["impl"]] if row["wrong"] else [])


def start(frame: pd.DataFrame, x: str | None) -> dict[str, Any]:
    """Where every axis that varies stands at first: where most points lie along `x`, with most heads and implementations, at
    the largest x."""
    axes = fr.varying(frame)
    parts = _parts(frame, x)
    parts.sort(key=lambda part: (-(part[x].nunique() if x else 0), -part["H"].max(), -part["impl"].nunique()))
    first = frame.loc[parts[0].sort_values(x or "T").index[-1]]
    return {axis: first[axis] for axis in axis_names() if axis in axes}


def _near(measure: Measure) -> dict[str, str]:
    """A little beside every point: no axis is so short that its marks fall together."""
    y = 0.05 if measure.base == 10 else 0.17
    return {
        "left": "scale == 'log' ? datum.x - 0.06 : datum.x * 0.99",
        "right": "scale == 'log' ? datum.x + 0.06 : datum.x * 1.01",
        "below": f"scale == 'log' ? datum.y - {y} : datum.y * 0.97",
        "above": f"scale == 'log' ? datum.y + {y} : datum.y * 1.03",
    }


def _filter(axis: str) -> str:
    """Rows where an axis stands as chosen; unless the chart runs along it, or along what it follows from."""
    free = [f"x_axis == '{axis}'"]
    sources = KNOWN_AXES[axis].follows
    if axis == "T":  # a cache is decoded from by one token, whatever its length
        free.append("(x_axis == 'T_kv' && (datum.T == datum.T_kv || datum.T == 1))")
    free += [f"(x_axis == '{source}' && datum['{axis}'] == {_product(sources)})" for source in sources]
    return " || ".join([*free, f"datum['{axis}'] == at_{axis}"])


def _band(measure: Measure, runs: Sequence[str]) -> dict[str, str]:
    """Where a line's band ends, below and above; of all runs at once bands would hide the lines, and have no height."""
    ends = {side: measure.scaled(column) for side, column in zip(("low", "high"), measure.band or (), strict=False)}
    return {side: f"at_run == {ALL_RUNS} ? datum.y : {end}" for side, end in ends.items()} if runs else ends


def _scale(runs: Sequence[str]) -> list[alt.Parameter]:
    return [alt.param(name="scale", value="log"), *([alt.param(name="at_run", value=ALL_RUNS)] if runs else [])]


def _run_filter(runs: Sequence[str]) -> list[str]:
    """Rows of the run that was chosen: by its place, since a name may hold any letter."""
    return [f"at_run == {ALL_RUNS} || datum.run_at == at_run"] if runs else []


def _run_detail(runs: Sequence[str]) -> dict[str, Any]:
    return {"detail": "run:N"} if runs else {}


def _run_dashes(runs: Sequence[str]) -> alt.StrokeDash:
    dashes = [list(RUN_DASHES[i % len(RUN_DASHES)]) for i in range(len(runs))]
    legend = alt.Legend(
        title=None, orient="top", symbolType="stroke", symbolStrokeColor=INK[0], symbolSize=500, symbolStrokeWidth=2,
        columns=alt.expr("max(1, floor(width / 260))"), labelLimit=240,
    )  # fmt: skip
    return alt.StrokeDash("run:N", scale=alt.Scale(domain=list(runs), range=dashes), legend=legend)


def _product(axes: Sequence[str]) -> str:
    return " * ".join(f"datum['{axis}']" for axis in axes)


def _options(frame: pd.DataFrame, axis: str) -> list[tuple[Any, str]]:
    found = [fr.plain(v) for v in frame[axis].dropna().unique()]
    values = found if any(isinstance(v, str) for v in found) else sorted(found)
    known = [(v, _option(axis, v)) for v in values]
    return [*([(None, "none")] if frame[axis].isna().any() else []), *known]


def _option(axis: str, value: Any) -> str:
    """A value beside its axis' name: 'bf16', 'on', '8'."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return words.value(axis, value).removeprefix(f"{axis}=") if isinstance(value, str) else words.number(value)


def _known(frame: pd.DataFrame, axes: list[str]) -> set[float]:
    return {float(v) for axis in axes for v in frame[axis].dropna() if v > 0}


def _x_axis(measured: list[float]) -> alt.Axis:
    """Marked at what was measured."""
    logs = [math.log2(v) for v in measured]
    return alt.Axis(
        values=alt.expr(f"scale == 'log' ? {logs} : {measured}"), labelOverlap="greedy", labelSeparation=6,
        labelExpr="format(scale == 'log' ? pow(2, datum.value) : datum.value, ',.0f')",
    )  # fmt: skip


def _y_axis(measure: Measure, scale: str, values: Sequence[float]) -> alt.Axis:
    log = measure.text(f"pow({measure.base}, datum.value)", ".5~r")
    linear = f"format(datum.value, ',~r') + ' {measure.linear[1]}'"
    return alt.Axis(
        values=alt.expr(f"scale == 'log' ? {measure.ticks(scale, values)} : null"), labelOverlap="greedy",
        labelExpr=f"scale == 'log' ? {log} : {linear}", tickCount=alt.expr("scale == 'log' ? 16 : 6"),
        labelSeparation=4,
    )  # fmt: skip


def _log() -> alt.Scale:
    return alt.Scale(type="log", nice=False, padding=14)


def _powers(scale: str, base: int, values: Sequence[float], digits: str) -> alt.Axis:
    """A logarithmic axis that is marked at round values."""
    ends = f"domain('{scale}')"
    ticks = _ladder(base, values, f"(log({ends}[1] / {ends}[0]) / {math.log(base)!r})", float)
    return alt.Axis(values=alt.expr(ticks), format=digits, tickCount=12, labelOverlap="greedy", labelSeparation=4)


#: Of an axis that spans more decades, or octaves, than this: the marks that it has. See units.DECIMAL_STEPS.
_WIDE_ENOUGH = {10: (3.5, 1.2, 0.5, 0.25), 2: (2.5, 1.2, 0.7, 0.45)}


def _ladder(base: int, values: Sequence[float], span: str, drawn: Callable[[float], float]) -> str:
    """An expression for the marks of an axis, the finer the less it spans: what is shown changes as a reader chooses."""
    low, high = min(values) / 1.5, max(values) * 1.5
    exponents = range(math.floor(math.log(low, base)), math.ceil(math.log(high, base)) + 1)
    rungs = units.DECIMAL_STEPS if base == 10 else units.BINARY_STEPS
    marks = [[step * float(base) ** e for e in exponents for step in steps] for steps in rungs]
    ladder = [json.dumps([float(f"{drawn(m):.7g}") for m in rung if low <= m <= high]) for rung in marks]
    expression = ladder[-1]
    for enough, wider in zip(_WIDE_ENOUGH[base][::-1], ladder[-2::-1], strict=True):
        expression = f"{span} > {enough} ? {wider} : {expression}"
    return f"({expression})"


def _texts() -> dict[str, str]:
    """What tooltips say, with three digits."""
    return {
        "label": "datum.shown + ', ' + " + LATENCY.text("datum.median", ",.3r"),
        "time": LATENCY.text("datum.median", ",.3r"),
        "quartiles": f"{LATENCY.text('datum.q1', ',.3r')} + ' to ' + {LATENCY.text('datum.q3', ',.3r')}",
        **{name: _or_none(measure) for name, measure in _OWN_TEXTS.items()},
    }


def _or_none(measure: Measure) -> str:
    value = f"datum['{measure.column}']"
    return f"isValid({value}) ? {measure.text(value, ',.3r')} : '–'"


def _own(measure: Measure) -> list[tuple[str, str]]:
    """What a tooltip says of a measure beside time and memory, which every one has."""
    return [(name, one.title) for name, one in _OWN_TEXTS.items() if one == measure != MEMORY]


def _tooltip(frame: pd.DataFrame, *more: tuple[str, str]) -> Any:
    """All that is said of a point, as one expression. A nearest mark stands for the point's own, and has it as its `datum`;
    whether Vega-Lite reaches through to it depends on its version."""
    axes = [(axis, axis) for axis in ["run"] * ("run" in frame) + fr.varying(frame)]
    facts = [("time", "median"), ("quartiles", "q1 to q3"), ("memory", "peak memory"), ("kernel", "kernel"), *more]
    fields = {title: f"(datum.datum || datum)['{key}']" for key, title in [("shown", "implementation"), *axes, *facts]}
    lines = [f"'{title}': isValid({field}) ? '' + {field} : '–'" for title, field in fields.items()]
    return alt.value(alt.expr(f"{{{', '.join([*lines, 'x: (datum.datum || datum).x'])}}}"))


def names(frame: pd.DataFrame, palette: Palette) -> list[str]:
    wrong = set(frame.loc[frame["wrong"].astype(bool), "impl"])
    return [words.marked(name, wrong) for name in palette.sorted(frame["impl"])]


def looks(frame: pd.DataFrame, palette: Palette) -> dict[str, Any]:
    """How points are distinguished: colour and shape by implementation, in one legend; hollow where compiled."""
    shown, shapes = names(frame, palette), [palette[name].path for name in palette.sorted(frame["impl"])]
    return {
        "color": _colours(frame, palette),
        "stroke": _colours(frame, palette, alt.Stroke),
        "shape": alt.Shape("shown:N", scale=alt.Scale(domain=shown, range=shapes), legend=_LEGEND),
        "fillOpacity": alt.condition(f"indexof(datum.impl, '{COMPILED}') > 0", alt.value(0), alt.value(1)),
    }


def _colours(frame: pd.DataFrame, palette: Palette, channel: Any = alt.Color) -> Any:
    """One colour for an implementation, and for its compiled form. What is grey is as dark as ink where it is picked."""
    shown = names(frame, palette)
    looks = [palette[name] for name in palette.sorted(frame["impl"])]
    colours = [
        alt.expr(f"indexof({PICKED}, {json.dumps(name)}) < 0 ? weak : ink") if look.weak else look.colour
        for name, look in zip(shown, looks, strict=True)
    ]
    return channel("shown:N", scale=alt.Scale(domain=shown, range=colours), legend=_LEGEND)


def _widths(frame: pd.DataFrame, palette: Palette) -> Any:
    """A line's width, by name: the reader's own is the strongest."""
    widths = [palette[name].width for name in palette.sorted(frame["impl"])]
    return alt.value(alt.expr(f"{widths}[indexof({json.dumps(names(frame, palette))}, datum.shown)]"))


def picks() -> list[alt.Parameter]:
    return [
        alt.param(name=PICKED, value=[]),
        alt.param(name="weak", value=WEAK[0]),
        alt.param(name="ink", value=INK[0]),
    ]


def _with_legend(spec: Spec, frame: pd.DataFrame, palette: Palette) -> Spec:
    """The specification with what the page's own legend shows: name, marker, place of its colour, whether compiled."""
    looks = [palette[name] for name in palette.sorted(frame["impl"])]
    named = zip(names(frame, palette), looks, strict=True)
    entries = [[name, look.path, look.slot, look.compiled] for name, look in named]
    return {**spec, "usermeta": {"legend": entries}}


def _dashes(frame: pd.DataFrame, palette: Palette) -> alt.StrokeDash:
    """How lines are distinguished beside their colour: dashed where compiled."""
    dashes = [[5, 4] if palette[name].compiled else [1, 0] for name in palette.sorted(frame["impl"])]
    return alt.StrokeDash("shown:N", scale=alt.Scale(domain=names(frame, palette), range=dashes), legend=_LEGEND)


def without_legend(look: dict[str, Any]) -> dict[str, Any]:
    return {channel: one.legend(None) if hasattr(one, "legend") else one for channel, one in look.items()}


def _roof_lines(corners: list[dict[str, Any]], axes: list[str], x: alt.X, y: alt.Y) -> list[alt.Chart]:
    base = alt.Chart(alt.InlineData(corners))
    for axis in axes:
        base = base.transform_filter(f"datum['{axis}'] == at_{axis}")
    line = base.mark_line(color=MUTED[0], strokeWidth=1.6).encode(
        x, y, detail="label:N", order="intensity:Q", tooltip=["label:N", "product:N"]
    )
    peak = base.transform_joinaggregate(top="max(rate)", end="max(intensity)").transform_filter(
        "datum.rate == datum.top && datum.intensity == datum.end"
    ).transform_joinaggregate(one="min(label)").transform_filter("datum.label == datum.one")  # fmt: skip
    named = peak.mark_text(align="right", dy=-8, color=INK[0]).encode(x, y, text="product:N")
    foot = base.transform_joinaggregate(start="min(intensity)", groupby=["label"]).transform_filter(
        "datum.intensity == datum.start"
    )
    lower = "indexof(datum.label, 'fastest') == 0 ? 11 : 25"  # both slopes begin at one height
    copies = foot.mark_text(
        align="left", dy=alt.expr(lower), color=INK[0], opacity=alt.expr(_ROOMY),
    ).encode(x, y, text="label:N")  # fmt: skip
    return [line, named, copies]


def finished(chart: Any, height: int | None = HEIGHT) -> Spec:
    """As wide as the page, in its colours; a dictionary without outside addresses. Without a height: several panels, which
    the page lays out."""
    sized = chart.properties(width="container", height=height) if height else chart
    styled = sized.configure(background="transparent", font=FONT)
    styled = styled.configure_view(stroke=None).configure_axis(
        labelColor=MUTED[0], titleColor=MUTED[0], gridColor=GRID[0], domainColor=GRID[0], tickColor=GRID[0],
        labelFontSize=12, titleFontSize=12, titleFontWeight="normal", titlePadding=10,
    ).configure_legend(labelColor=INK[0], labelFontSize=12, rowPadding=4, columnPadding=14, offset=14)  # fmt: skip
    spec: Spec = styled.configure_text(fontSize=12).to_dict()
    spec.pop("$schema", None)
    return spec
