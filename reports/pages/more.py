"""Optional, folded sections of a run's page: roofline, compilation, parts of a layer or a step, masks, traces."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from stats.estimate import grouped

from ..drawing import svg
from ..drawing.palette import Palette
from ..judging import roofline
from ..judging.grid import median_text
from ..judging.model_steps import ModelStep, model_steps, nearer
from ..judging.rows import MASKED, Row, ratio, varying
from ..reading import units, words
from ..reading.axes import setting
from ..reading.runs import Run
from . import tables
from .report import Report
from .tables import Table


def tables_of(this: Report) -> list[Table]:
    """Return all tables for which this run has data."""
    rows = this.rows
    found = [
        _roofline(this.run, rows, this.palette), _compiling(rows),
        _shares(rows, "The kernel as a share of its layer", "scope", "core", "layer", ("kernel", "layer", "share")),
        _shares(rows, "Forward as a share of forward and backward", "mode", "forward", "backward",
                ("forward", "with backward", "share")),
        _masks(rows), published(this), _traces(rows),
    ]  # fmt: skip
    return [it for it in found if it.rows or it.drawing]


def _roofline(run: Run, rows: Sequence[Row], palette: Palette) -> Table:
    points, axes = [row for row in rows if row["flops"] > 0 and row["bytes"] > 0], varying(rows)
    dots = [
        (roofline.intensity(row), row["tflops_per_s"] * 1e12, palette[row["impl"]],
         f"{row['impl']}, {_place(row, axes)}: {units.rate(row['tflops_per_s'] * 1e12)}FLOP/s")
        for row in points
    ]  # fmt: skip
    ceilings = roofline.ceilings(run.rooflines, points)
    measured = "; ".join(dict.fromkeys(part for name in ceilings for part in name.split("; ")))
    note = (
        "FLOP per second against FLOP per byte, one point per cell. Lines: ceilings measured on this machine, sloped for "
        f"copies and level for products ({measured})."
    )
    drawing = svg.roofline(dots, ceilings) if ceilings else ""
    return Table("Roofline", note=note, drawing=drawing)


def _compiling(measured: Sequence[Row]) -> Table:
    """Return the break-even point of compilation for each compiled cell whose eager form was measured too."""
    axes, rows = varying(measured), []
    known = {(row["impl"], row["id"]): row for row in measured}
    for (impl, id_), row in known.items():
        eager, spent = known.get((words.base(impl), id_)), row["compile_s"]
        if impl.endswith(words.COMPILED) and eager and spent > 0:
            over = ratio(row, eager)
            pays = "never" if over.slower else "not significant"
            if over.faster:
                calls = math.ceil(spent / (eager["median"] * (1 - over.value)))
                pays = f"{float(f'{calls:.1e}'):,.0f} calls"
            took = f"{units.seconds(spent)} {row.get('compile_cache') or ''}".rstrip()
            if (graphs := row["compile_graphs"]) > 1:
                took += f", {graphs:.0f} graphs"
            rows.append((impl, _place(row, axes), pays, took, median_text(eager), median_text(row)))
    heads = ("implementation", "case", "pays after", "compile time", "eager", "compiled")
    return Table("Compile break-even", heads, rows)


def _shares(measured: Sequence[Row], title: str, axis: str, one: str, other: str, heads: Sequence[str]) -> Table:
    """Return the time at one value of an axis as a share of that at another, all else being equal; not of a cluster, whose
    nodes may differ.
    """
    both = [row for row in measured if row[axis] in (one, other) and not row.get("process_nodes")]
    axes, rows = [it for it in varying(both) if it != axis], []
    for of in grouped(((row["impl"], setting(row, [axis])), row) for row in both).values():
        known = {row[axis]: row for row in of}
        if len(known) == 2:
            part, whole = known[one], known[other]
            share = units.percent(part["median"] / whole["median"])
            rows.append((part["impl"], _place(part, axes), median_text(part), median_text(whole), share))
    return Table(title, ("implementation", "case", *heads), rows)


def _place(row: Mapping[str, Any], axes: Sequence[str]) -> str:
    """Return a row's values of these axes, and its T."""
    return words.setting({axis: row[axis] for axis in [*axes, "T"]}, always={*axes, "T"} - {"T_kv"})


def of_steps(this: Report) -> list[Table]:
    """Return tables of blocks and models: the core's share of a step, effects of other kernels, and parts."""
    baseline = this.run.baseline_impl
    found = list(model_steps(this.rows, baseline))
    tables_ = _step(found, baseline), _parts(found), _inside_and_alone(found)
    return [it for it in tables_ if it.rows]


def _step(found: list[ModelStep], baseline: str) -> Table:
    rows = [
        (it.impl, it.setting, units.seconds(it.seconds), "{} ({} to {})".format(*map(units.percent, it.share)),
         *_effect(it, baseline))
        for it in found
    ]  # fmt: skip
    note = (
        f"Predicted and measured: time of the step over that with {baseline}, with 95 % intervals. Predicted from the "
        f"share of {baseline}'s core and the ratio of the cores called alone."
    )
    heads = ("implementation", "case", "step", "core's share", "predicted", "measured")
    return Table("Attention in a model's step", heads, rows, note, by_case=True)


def _effect(step: ModelStep, baseline: str) -> list[str]:
    """Return the predicted and the measured ratio of a step to the baseline's."""
    if step.impl == baseline:
        return ["baseline", "baseline"]
    return [units.bounded(*it, "×") for it in (step.predicted, step.measured)]


PARTS = {
    "projections": "projections", "core": "core", "mlp": "MLP", "block": "rest of blocks", "embedding": "embedding",
    "head": "head", "around": "between parts",
}  # fmt: skip
"""Parts of a step, and their names on a page."""


def _parts(found: list[ModelStep]) -> Table:
    shares = ({name: seconds / sum(it.parts.values()) for name, seconds in it.parts.items()} for it in found)
    rows = [
        (it.impl, it.setting, *(units.percent(share.get(name, math.nan)) for name in PARTS),
         f"{it.depth}: {units.seconds(it.whole)}, {units.percent(it.whole_share)}")
        for it, share in zip(found, shares, strict=True)
    ]  # fmt: skip
    note = (
        "Shares of the medians of recorded calls. The last column has the number of blocks in the model, the estimated "
        "time of a step with all of them (in scope block without embedding and head), and the cores' share of it."
    )
    heads = ("implementation", "case", *PARTS.values(), "all blocks")
    return Table("Parts of a step", heads, rows, note, by_case=True)


def _inside_and_alone(found: list[ModelStep]) -> Table:
    rows = [
        (it.impl, it.setting, units.seconds(it.hot), units.seconds(it.cold), units.seconds(it.inside))
        for it in found if it.hot == it.hot
    ]  # fmt: skip
    note = f"Hot: repeated calls on the same inputs; cold: without cached data. {nearer(found)}"
    heads = ("implementation", "case", "alone, hot", "alone, cold", "in the model")
    return Table("Time of one core", heads, rows, note, by_case=True)


def printed(this: Report, every: bool) -> str:
    """Return a run's terminal output, including the tables of blocks and models."""
    return "\n\n".join([tables.printed(this.grid, every), *map(tables.plain, of_steps(this))])


def _masks(measured: Sequence[Row]) -> Table:
    axes = varying(measured)
    rows = [
        (row["impl"], _place(row, axes), units.bounded(*(row[it] for it in MASKED[1:])),
         f"{row['work_share']:.2f}", "yes" if row["mask_efficiency_low"] > row["work_share"] else "not shown")
        for row in measured if row["mask_efficiency"] > 0
    ]  # fmt: skip
    heads = ("implementation", "case", "mask efficiency", "if nothing is skipped", "skips masked work")
    return Table("Mask efficiency", heads, rows, "1: all masked work is skipped.")


def published(this: Report) -> Table:
    """Return published times of measured cases beside ours. Sources have numbers; the note lists them, with the machine and
    other differences.
    """
    cases = {case.id: case for case in this.grid.cases if case.ranked}
    rows, sources = [], dict[str, int]()
    for it in this.run.published:
        if case := cases.get(it["id"]):
            mark = case.mark(it["impl"])
            ours = median_text(mark.row) if mark.counts else units.MISSING
            source = f"{it['source']}; machine: {it['machine']}; {it['differs']}"
            number = sources.setdefault(source, 1 + len(sources))
            rows.append((case.title, it["kernel"], units.seconds(it["seconds"]), it["impl"], ours, str(number)))
    heads = ("case", "published", "theirs", "nearest here", "ours", "source")
    note = " ".join(f"[{number}] {source}." for source, number in sources.items())
    return Table("Published times beside ours", heads, rows, note)


def _traces(measured: Sequence[Row]) -> Table:
    """Return the path of each cell's trace."""
    rows = [(row["impl"], row["id"], row["trace"]) for row in measured if isinstance(row.get("trace"), str)]
    note = "One untimed call under the profiler. Paths are relative to the results folder; open a file with Perfetto,"
    note += " or a folder with `tensorboard --logdir`."
    return Table("Profiler traces", ("implementation", "case", "file"), rows, note)
