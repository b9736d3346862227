"""Tables: a run's grid and its cases as text, for the page, for Markdown and for the terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from markupsafe import Markup

from ..judging import processes, published
from ..judging.grid import SIGNS, Case, Column, Grid, Mark, interval, slowdown
from ..reading import units

REASONS = ("wrong", "error", "timeout", "out_of_memory", "unsupported")
WIDTH = 80
"""Columns of a terminal."""


@dataclass(frozen=True)
class Table:
    """One table with its title; on a page it may be folded, with drawings, and belong to cases."""

    title: str
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    note: str = ""
    of_impls: bool = False
    """Whether its first column is an implementation."""
    left: Sequence[int] = ()
    """Columns of words."""
    drawings: Sequence[Markup] = ()
    of: str = ""
    """The keys of the cases that it belongs to; of all where empty."""


def headings(grid: Grid) -> tuple[str, ...]:
    """Of `cells`, of any case of a run."""
    rows = [mark.row for case in grid.cases for mark in case.ranked]
    rate = ("tokens/s",) * any(row["mode"] == "decode" for row in rows)
    roof = ("of roofline",) * any(row["roof"] > 0 for row in rows)
    gpu = ("TFLOP/s", "of peak", "device only", "launches") * any(row["device"] == "cuda" for row in rows)
    return ("slowdown", "95 % interval", "median", *rate, "peak memory", "of tolerance", "kernel", *gpu, *roof)


def cells(mark: Mark, headings: Sequence[str]) -> list[str]:
    """What is said of an implementation in a case, in the order of `headings`."""
    row = mark.row
    said = {
        "slowdown": f"{slowdown(mark.slowdown)}×",
        "95 % interval": interval(mark.low, mark.high) if mark.low != 1 or mark.high != 1 else mark.state,
        "median": units.seconds(row["median"], _digits(row)),
        "tokens/s": f"{row['B'] * row['T'] / row['median']:,.0f}" if row["mode"] == "decode" else units.MISSING,
        "peak memory": units.memory(row["peak_bytes"]),
        "of tolerance": units.percent(row["error"] / row["error_bound"]) if row["error_bound"] > 0 else units.MISSING,
        "kernel": row["kernel"] if isinstance(row["kernel"], str) else units.MISSING,
        "TFLOP/s": f"{row['tflops_per_s']:.3g}",
        "of peak": units.percent(row["of_peak"]),
        "device only": units.seconds(row["device_s"]),
        "launches": units.percent(row["launch_share"]),
        "of roofline": units.percent(row["roof"]),
    }
    return [said[heading] for heading in headings]


def why(mark: Mark) -> str:
    """'wrong: error 0.3 exceeds its tolerance'"""
    return ": ".join(filter(None, (mark.state.replace("_", " "), mark.why)))


def of_grid(grid: Grid, axis: str | None = None) -> tuple[list[str], list[list[str]]]:
    """Headings, and a row an implementation: its mean slowdown, and that of each column; best after '*', open after '~'."""
    columns = grid.columns(axis)
    return ["implementation", "mean", *(" ".join(column.heading) or "slowdown" for column in columns)], _rows(
        grid, columns
    )


def _rows(grid: Grid, columns: Sequence[Column]) -> list[list[str]]:
    rows = []
    for impl in grid.impls:
        entries = [grid.entry(impl, column) for column in columns]
        rows.append([impl, grid.mean_text(impl), *(f"{'*' if it.best else '~' * it.open}{it.text}" for it in entries)])
    return rows


def key(grid: Grid) -> str:
    """What the numbers and signs of a grid mean."""
    signs = f"; {grid.signs}" if grid.signs else ""
    return f"Slowdown over the fastest: 1 is the fastest; * fastest or tied; ~ not resolved{signs}."


def terminal(grid: Grid, wide: int = WIDTH) -> str:
    """The grid as lines of at most `wide` columns: a column a case, in two blocks where one has no room for them; else a
    column for each value of an axis."""
    whole = grid.columns()
    half = -(-len(whole) // 2)
    tried = [[whole], [whole[:half], whole[half:]], *([grid.columns(axis)] for axis in grid.views if axis)]
    for blocks in tried:
        lines = [line for block in blocks for line in _lines(grid, block)]
        if max(map(len, lines)) <= wide:
            break
    if any(len(column.cases) > 1 for block in blocks for column in block):
        lines += ["", "Each column is the mean over its cases."]
    return "\n".join(line[:wide] for line in lines)


def printed(grid: Grid, every: bool = False) -> str:
    """A run as the terminal shows it: the grid with its key; with `every`, each case's table above. One case is its table."""
    parts = [detailed(grid)] * (every or len(grid.cases) == 1)
    parts += [terminal(grid), textwrap.fill(key(grid), WIDTH)] * (len(grid.cases) > 1)
    return "\n\n".join(parts)


def _lines(grid: Grid, columns: Sequence[Column]) -> list[str]:
    rows = [row for row in _rows(grid, columns) if any(text != SIGNS["unsupported"] for text in row[2:])]
    tall = max((len(column.heading) for column in columns), default=0)
    heads = [["", "", *(column.heading[i] for column in columns)] for i in range(tall)] or [["", "", "slowdown"]]
    heads[-1][:2] = ["implementation", "mean"]
    return _aligned([*heads, *rows], " ")


def _aligned(rows: Sequence[Sequence[str]], between: str = "  ") -> list[str]:
    """Lines of columns, the first to the left and the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    padded = [
        [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))] for row in rows
    ]
    return [between.join(row).rstrip() for row in padded]


def plain(table: Table) -> str:
    """A table with its title and its note, for the terminal."""
    lines = _aligned([[*table.headings], *map(list, table.rows)])
    return "\n".join([table.title, *lines, *textwrap.wrap(table.note, WIDTH)])


def of_case(case: Case, headings: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Headings, and a row an implementation with a number, the fastest first."""
    return ["implementation", *headings], [[mark.impl, *cells(mark, headings)] for mark in case.ranked]


def detailed(grid: Grid) -> str:
    """Every case's table, for the terminal: the columns that have room there."""
    heads = headings(grid)
    while True:
        tables = [_aligned(_with_refused(case, *of_case(case, heads))) for case in grid.cases]
        if len(heads) == 1 or max(len(line) for lines in tables for line in lines) <= WIDTH:
            break
        heads = heads[:-1]
    return "\n\n".join("\n".join([case.title, *lines]) for case, lines in zip(grid.cases, tables, strict=True))


def _with_refused(case: Case, heads: list[str], rows: list[list[str]]) -> list[list[str]]:
    """And a row for each implementation that was tried and has no number that counts."""
    refused = [mark for mark in case.marks.values() if not mark.counts and mark.state != "unsupported"]
    rest = [""] * (len(heads) - 2)
    return [heads, *rows, *([mark.impl, mark.state.replace("_", " "), *rest] for mark in refused)]


def summary(title: str, said: Sequence[str], grid: Grid, skipped: pd.DataFrame, beside: str = "") -> str:
    """The answer, the grid, every case's table, published times beside ours (`beside`) and the skipped cells, as Markdown."""
    parts = [f"# {escape(title)}", *map(escape, said)]
    if grid.cases:
        parts += [escape(key(grid)), of_runs(grid)]
    parts += [f"## {escape(case.title)}\n\n{_markdown(*of_case(case, headings(grid)))}" for case in grid.cases]
    parts += [f"## Published times beside ours\n\n{beside}"] if beside else []
    if len(skipped):
        parts.append(f"## Skipped\n\n{_markdown(SKIPPED, skipped_rows(skipped))}")
    return "\n\n".join(parts) + "\n"


def of_runs(grid: Grid) -> str:
    """The grid in its default view, as Markdown."""
    return _markdown(*of_grid(grid, grid.views[0]))


SKIPPED = ("implementation", "reason", "cells", "detail")


def skipped_rows(skipped: pd.DataFrame) -> list[tuple[str, ...]]:
    """Skipped cells with the same implementation, reason and detail but for its numbers once; the worst reasons first."""
    known = skipped.fillna({"detail": ""})
    parts = known.groupby(["reason", "impl", known["detail"].map(_without_numbers)], sort=False)
    rows = [
        (str(impl), str(reason).replace("_", " "), str(len(part)), str(part["detail"].iloc[0]))
        for (reason, impl, _), part in parts
    ]
    order = [reason.replace("_", " ") for reason in REASONS]
    return sorted(rows, key=lambda row: order.index(row[1]) if row[1] in order else len(order))


def beside(frame: pd.DataFrame, figures: Sequence[dict[str, Any]]) -> str:
    """Published times beside ours as Markdown, and below them where they are from; '' without any."""
    lines, sources = published.table(frame, figures)
    listed = [f"{i}. {escape(source)}" for i, source in enumerate(sources, 1)]
    return "\n\n".join([_markdown(published.COLUMNS, lines), "\n".join(listed)]) if lines else ""


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A pipe table, first column to the left and the others to the right, padded so that it reads as plain text too."""
    widths = [max(len(row[i]) for row in (headings, *rows)) for i in range(len(headings))]

    rule = f"|{'|'.join('-' * (w + 2) if i == 0 else '-' * (w + 1) + ':' for i, w in enumerate(widths))}|"
    first, *others = (
        f"| {line.ljust(sum(widths) + 3 * len(widths) - 3)} |" for line in _aligned([headings, *rows], " | ")
    )
    return "\n".join([first, rule, *others])


def _markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Of texts that may hold markup."""
    return markdown([*map(escape, headings)], [[*map(escape, row)] for row in rows])


def _without_numbers(text: str) -> str:
    return re.sub(r"\d[\d.,]*(e[+-]?\d+)?", "0", text)


def _digits(row: Mapping[str, Any]) -> int:
    """Of a median: as many as its interval or, of one process, its spread warrants."""
    between = processes.interval(row["process_medians"])
    return processes.digits(between or (1, 1 + row["spread"]))


def escape(text: str) -> str:
    """Text as Markdown shows it: no markup, no new lines, no new columns."""
    flat = " ".join(text.split())
    return re.sub(r"([\\`*_|\[\]])", r"\\\1", flat).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
