"""What only some runs have, folded on the page: roofline, compiling, parts of a layer, growth, masks, blocks, operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from ..drawing import anatomy, inside, svg
from ..drawing.palette import Palette
from ..judging import frame as fr
from ..judging import masking, published, roofline, scaling
from ..judging.grid import Grid
from ..judging.steps import Bounds, Step, steps
from ..reading import units, words
from ..reading.runs import Run
from . import tables
from .report import Report
from .tables import Table

MOST_BLOCKS, MOST_CELLS = 100, 250
"""Blocks of a cell that are drawn, and cells of a run up to which they are."""


def tables_of(run: Run, frame: pd.DataFrame, grid: Grid, palette: Palette, keys: Mapping[str, str]) -> list[Table]:
    """All that this run has something to show of. `keys` are those of its cases, by id."""
    found = [
        _roofline(run, frame, palette), _compiling(frame),
        _shares("The kernel as a share of its layer", anatomy.cores(frame), ("kernel", "layer", "share")),
        _shares("Forward as a share of forward and backward", anatomy.passes(frame), ("forward", "with backward", "share")),
        *of_steps(run, frame), _growth(frame), _masks(frame), _published(run, frame),
        *(_blocks(grid, keys) if len(frame) <= MOST_CELLS else ()), *_inside(run, frame, palette, keys),
    ]  # fmt: skip
    return [it for it in found if it and (it.rows or it.drawings or it.note)]


def _roofline(run: Run, frame: pd.DataFrame, palette: Palette) -> Table | None:
    points = roofline.points(frame)
    if points.empty or not run.roofs:
        return None
    said = fr.varying(frame)
    dots = [(row["intensity"], row["rate"], palette[row["impl"]], _rate(row, said)) for row in fr.records(points)]
    note = "FLOP per second against FLOP per byte, a point a cell. Lines: ceilings measured on this machine."
    return Table("Roofline", note=note, drawings=[svg.roofline(dots, roofline.ceilings(run.roofs, points))])


def _rate(row: Mapping[str, Any], said: list[str]) -> str:
    return f"{row['impl']}, {words.place(row, always=said)}: {row['rate'] / 1e9:.3g} GFLOP/s"


def _compiling(frame: pd.DataFrame) -> Table:
    rows = [
        (it.impl, _where(it), _calls(it), f"{units.seconds(it.compile_s)} {it.cache}".rstrip(), units.seconds(it.eager),
         units.seconds(it.compiled))
        for it in anatomy.compilings(frame)
    ]  # fmt: skip
    heads = ("implementation", "case", "pays after", "compile time", "eager", "compiled")
    return Table("Compile break-even", heads, rows, of_impls=True, left=(1,))


def _calls(it: anatomy.Compiling) -> str:
    return "not significant" if it.tied else f"{it.pays_after:,} calls" if it.pays_after else "never"


def _shares(title: str, pairs: list[anatomy.Pair], heads: tuple[str, ...]) -> Table:
    rows = [
        (it.impl, _where(it), units.seconds(it.one), units.seconds(it.other), units.percent(it.share)) for it in pairs
    ]
    return Table(title, ("implementation", "case", *heads), rows, of_impls=True, left=(1,))


def _where(it: anatomy.Pair | anatomy.Compiling) -> str:
    return f"{it.place} T={it.T}".strip()


def of_steps(run: Run, frame: pd.DataFrame) -> list[Table]:
    """Of blocks and models: the core's share of a step, what another kernel does to the step, and the parts of it."""
    found = steps(frame, run.baseline_impl)
    return [_step(found, run.baseline_impl or ""), _parts(found), _inside_and_alone(found)] if found else []


def _step(found: list[Step], baseline: str) -> Table:
    rows = [
        (it.impl, it.place, units.seconds(it.seconds), _part(it.share), _times(it.predicted), _times(it.measured),
         it.disagreement)
        for it in found
    ]  # fmt: skip
    note = f"Over the step with {baseline}; predicted by its core's share and the ratio of cores called alone (--scope core)."
    heads = ("implementation", "case", "step", "core's share", "predicted", "measured", "likely reason")
    return Table("Attention in a model's step", heads, rows, note, True, (1, 6))


PARTS = ("projections", "core", "mlp", "block", "embedding", "head", "around")
"""Of a step; `block` is what else is in a block, `around` what is in none."""


def _parts(found: list[Step]) -> Table:
    rows = [
        (it.impl, it.place, *(units.percent(it.parts.get(name, 0.0) / sum(it.parts.values())) for name in PARTS),
         f"{it.depth} blocks: {units.seconds(it.whole)}, {units.percent(it.whole_share)}")
        for it in found
    ]  # fmt: skip
    note = "The last column adds blocks as long as those measured: seconds of a step, and the cores' share of it."
    drawn = [(f"{it.impl}, {it.place}", {name: it.parts[name] for name in PARTS if name in it.parts}) for it in found]
    heads = ("implementation", "case", *PARTS, "whole model")
    return Table("Parts of a step", heads, rows, note, True, (1, 9), [svg.bars(drawn)])


def _inside_and_alone(found: list[Step]) -> Table:
    rows = [
        (it.impl, it.place, units.seconds(it.hot), units.seconds(it.cold), units.seconds(it.inside))
        for it in found if it.hot == it.hot
    ]  # fmt: skip
    note = "Hot: the same inputs again and again; cold: none of its data in the caches." if rows else ""
    heads = ("implementation", "case", "alone, hot", "alone, cold", "in the model")
    return Table("Time of one core", heads, rows, note, True, (1,))


def _part(share: Bounds) -> str:
    return f"{share.value:.1%} ({share.low:.1%} to {share.high:.1%})"


def _times(ratio: Any) -> str:
    return units.MISSING if ratio is None else units.bounded(ratio.value, ratio.low, ratio.high, "×")


def printed(this: Report, every: bool) -> str:
    """A run as the terminal shows it, with the tables of its blocks and models."""
    texts = (tables.plain(it) for it in of_steps(this.run, this.frame) if it.rows)
    return "\n\n".join([tables.printed(this.grid, every), *texts])


def _growth(frame: pd.DataFrame) -> Table:
    found = scaling.growths(frame)
    rows = [
        (it.impl, words.place(it.setting, always=it.setting), tables.power(it.time), tables.power(it.memory))
        for it in found if it.time or it.memory
    ]  # fmt: skip
    silent = dict.fromkeys(it.impl for it in found if not (it.time or it.memory))
    note = "Exponents of T, fitted to the longer half of the lengths, with 95 % intervals."
    note += f" Not resolved for some settings: {', '.join(silent)}." if silent else ""
    heads = ("implementation", "setting", "time", "memory")
    return Table("Growth with T", heads, rows, note if rows else "", True, (1,))


def _masks(frame: pd.DataFrame) -> Table:
    said = fr.varying(frame)
    rows = [
        (row["impl"], words.place(row, always=said), units.bounded(*(row[it] for it in masking.COLUMNS[1:])),
         f"{row['work_share']:.2f}", "yes" if masking.skips(row) else "not shown")
        for row in fr.records(frame[frame["mask_efficiency"] > 0])
    ]  # fmt: skip
    heads = ("implementation", "case", "mask efficiency", "if nothing is skipped", "skips masked work")
    return Table("Mask efficiency", heads, rows, "1: all masked work is skipped." if rows else "", True, (1,))


def _published(run: Run, frame: pd.DataFrame) -> Table:
    note = " ".join(f"[{i}] {source}." for i, source in enumerate(published.sources(frame, run.published), 1))
    return Table(
        "Published times beside ours", published.COLUMNS, published.table(frame, run.published), note, left=range(1, 8)
    )


def _blocks(grid: Grid, keys: Mapping[str, str]) -> Iterator[Table]:
    """Of each case, a strip an implementation."""
    for case in grid.cases:
        rows = []
        for mark in case.ranked:
            samples = mark.row["samples"]
            if samples is not None and len(samples.seconds) > 1:
                shares = [seconds / mark.row["median"] for seconds in samples.seconds]
                rows.append((mark.impl, svg.strips(shares[:: -(-len(shares) // MOST_BLOCKS)]), str(len(shares))))
        note = "Each tick is a timed block, from half of the median (left) to twice (right). Two clusters: two states."
        yield Table(
            "Timed blocks", ("implementation", "blocks", "number"), rows, note if rows else "", True, of=keys[case.id]
        )


def _inside(run: Run, frame: pd.DataFrame, palette: Palette, keys: Mapping[str, str]) -> Iterator[Table]:
    """The operators of each traced call, and its memory."""
    found, unread = inside.cells(frame, run.path.resolve().parent.parent)
    for why, cells in unread.items():
        yield Table(
            f"No trace of {words.plural(len(cells), 'cell')}", note=f"It {why} ({words.listing(cells, most=3)})."
        )
    curves = inside.drawn(found)
    for one in found:
        heads = ("operator", "share", *(["on the device"] * one.on_device), "own time", "calls", "shapes")
        rows = [
            (it.name, it.share, *([it.device] * one.on_device), it.host, str(it.calls), it.shapes)
            for it in one.operators
        ]
        note = (
            f"One call under the profiler: shares, not latencies. {one.more} more operators, each with less."
            if one.more
            else ""
        )
        label, held = f"Memory during the call: {one.description}", one.trace.memory
        drawn = [svg.curve(list(held["at"]), list(held["bytes"]), palette[one.impl], label)] * (
            (one.impl, one.case) in curves
        )
        yield Table(
            f"Operators of {one.impl}", heads, rows, note, left=(len(heads) - 1,), drawings=drawn, of=keys[one.case]
        )
