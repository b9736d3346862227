"""Tables of a run's grid and cases as text, for the page, Markdown and the terminal."""

from __future__ import annotations

import html
import re
import shutil
import textwrap
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stats.estimate import grouped
from stats.ratios import SLOWER
from stats.shares import significant, without_numbers

from ..judging.grid import SIGNS, Case, Column, Grid, Mark, median_text, slowdown_text
from ..judging.rows import Row
from ..reading import units, words

WIDTH, PARAGRAPH = 80, 100
"""Columns of a paragraph in the terminal, and in Markdown."""


LEFT = (
    "implementation", "case", "fastest", "next best", "95 % interval", "verdict", "why", "reason", "detail", "result", "notes",
    "file", "published", "nearest here", "when", "commit", "torch", "kernel",
)  # fmt: skip
"""Headings of columns of text, which are aligned left."""


@dataclass(frozen=True)
class Table:
    """A table with its title; on a page it may be folded, and have a drawing."""

    title: str
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    note: str = ""
    left: Collection[str] = LEFT
    """Headings of left-aligned columns; the first always is."""
    by_case: bool = False
    """Whether the case, the second column, is shown once above the rows of its implementations, except in Markdown."""
    drawing: str = ""
    """SVG."""


def columns(mark: Mark) -> dict[str, str]:
    """Return the texts of an implementation in a case, by heading; only its state if it has no valid number."""
    row = mark.row
    if not mark.counts:
        return {"implementation": mark.impl, "slowdown": mark.state}
    is_first, is_alone = mark.low == mark.high == 1, len(row["over"]) == 1
    interval = "" if is_first else units.interval(mark.low, mark.high)
    state = units.MISSING if is_alone else mark.state if is_first or mark.state not in (SLOWER, interval) else ""
    return {
        "implementation": mark.impl,
        "slowdown": units.MISSING if is_alone else f"{slowdown_text(mark.slowdown)}×",
        "95 % interval": f"{interval} {state}".strip(),
        "median": median_text(row),
        "tokens/s": f"{row['B'] * row['T'] / row['median']:,.0f}" if row["mode"] == "decode" else units.MISSING,
        "peak memory": units.memory(row["peak_bytes"]),
        "of tolerance": units.percent(row["error"] / row["error_bound"]) if row["error_bound"] > 0 else units.MISSING,
        "kernel": str(row.get("kernel") or units.MISSING),
        "TFLOP/s": significant(row["tflops_per_s"], 3)
        if row["device"] == "cuda" and row["flops"] > 0
        else units.MISSING,
        "of peak": units.percent(row["of_peak"]),
        "device only": units.seconds(row["device_s"]),
        "launches": units.percent(row["launch_share"]),
        "of roofline": units.percent(row["roof"]),
    }


def filled(lines: Iterable[Mapping[str, str]]) -> list[str]:
    """Return the headings of all columns that aren't empty."""
    texts = grouped((heading, text) for line in lines for heading, text in line.items())
    return [heading for heading in texts if not {*texts[heading]} <= {"", units.MISSING}]


def headings(grid: Grid) -> list[str]:
    """Return the headings of `of_case`, for any case of a run."""
    return filled(columns(mark) for case in grid.cases for mark in case.marks.values())


def _rows(grid: Grid, columns: Sequence[Column]) -> list[list[str]]:
    """Return a row per implementation: mean slowdown, and each column; best after '*', open after '~'."""
    rows = []
    for impl in grid.impls:
        entries = [grid.entry(impl, column) for column in columns]
        rows.append([impl, grid.mean_text(impl), *(f"{'*' if it.best else '~' * it.open}{it.text}" for it in entries)])
    return rows


def key(grid: Grid) -> str:
    """Explain the numbers and signs of a grid."""
    signs = f"; {grid.signs}" if grid.signs else ""
    return f"Slowdown over the fastest (mean: geometric): 1 is the fastest; * fastest or tied; ~ not resolved{signs}."


def terminal(grid: Grid) -> str:
    """Return what all cases have in common, and the grid in as many blocks of columns as fit into the terminal. Longer names
    and headings are not cut.
    """
    columns = grid.columns(grid.views[0])
    for count in range(1, len(columns) + 1):
        size = -(-len(columns) // count)
        lines = [line for i in range(0, len(columns), size) for line in _lines(grid, columns[i : i + size])]
        if max(map(len, lines)) <= _width():
            break
    if grid.views[0]:
        lines += ["", "Columns are means over their cases, with * if fastest or tied in all of them."]
    return "\n".join([*textwrap.wrap(grid.shared, WIDTH), *lines])


def printed(grid: Grid, every: bool = False) -> str:
    """Return a run's terminal output: the grid with its key, if there is anything to compare; else, and with `every`, each
    case's table above.
    """
    several = min(len(grid.cases), len(grid.impls)) > 1
    parts = [detailed(grid)] if every or not several else []
    parts += [terminal(grid), textwrap.fill(key(grid), WIDTH)] if several else []
    return "\n\n".join(parts)


def _lines(grid: Grid, columns: Sequence[Column]) -> list[str]:
    rows = [row for row in _rows(grid, columns) if any(text != SIGNS["unsupported"] for text in row[2:])]
    texts = zip(*(column.heading for column in columns), strict=True)
    heads = [["", "", *line] for line in texts] or [["", "", *["slowdown"] * len(columns)]]
    heads[-1][:2] = ["implementation", "mean"]
    return aligned([*heads, *rows], " ")


def aligned(rows: Sequence[Sequence[str]], between: str, left: Container[int] = (0,)) -> list[str]:
    """Align columns: those in `left` to the left, the others to the right."""
    columns = []
    for i, texts in enumerate(zip(*rows, strict=True)):
        width = max(map(len, texts))
        columns.append([text.ljust(width) if i in left else text.rjust(width) for text in texts])
    return [between.join(row).rstrip() for row in zip(*columns, strict=True)]


def _left(table: Table) -> list[int]:
    return [i for i, heading in enumerate(table.headings) if i == 0 or heading in table.left]


def _width() -> int:
    """Return the terminal's columns; 80 for a pipe."""
    return shutil.get_terminal_size().columns


def plain(table: Table) -> str:
    """Return a table with its title and its note, for the terminal."""
    return "\n".join([table.title, *_blocks(table), *textwrap.wrap(table.note, WIDTH)])


def _blocks(table: Table) -> list[str]:
    """Return lines, in blocks of the columns that fit into the terminal, each with the first column."""
    keys, count = 1 + table.by_case, len(table.headings)
    for end in range(count, keys, -1):
        lines = _aligned(_columns(table, range(end)))
        if max(map(len, lines)) <= _width():
            break
    return lines + (_blocks(_columns(table, [*range(keys), *range(end, count)])) if end < count else [])


def _columns(table: Table, kept: Sequence[int]) -> Table:
    rows = [[row[i] for i in kept] for row in table.rows]
    return replace(table, headings=[table.headings[i] for i in kept], rows=rows)


def _aligned(table: Table) -> list[str]:
    """Return lines; with `by_case` each case once above its implementations."""
    shown = _columns(table, [0, *range(1 + table.by_case, len(table.headings))])
    heads, *lines = aligned([shown.headings, *shown.rows], "  ", _left(shown))
    parts = grouped((row[1] * table.by_case, line) for row, line in zip(table.rows, lines, strict=True))
    return [heads, *(line for case, of in parts.items() for line in (*[case] * bool(case), *of))]


def of_lines(title: str, lines: Iterable[Mapping[str, str]], headings: Sequence[str]) -> Table:
    """Return the table of lines that have texts by heading."""
    return Table(title, headings, [[line.get(heading, "") for heading in headings] for line in lines])


def of_case(case: Case, headings: Sequence[str]) -> Table:
    """Return a row for each implementation that was tried, fastest first."""
    tried = (mark for mark in case.marks.values() if mark.state != "unsupported")
    return of_lines(case.title, map(columns, tried), headings)


def detailed(grid: Grid) -> str:
    """Return every case's table for the terminal, each with the columns that fit."""
    return "\n\n".join(
        plain(_narrowed(of_case(case, filled(map(columns, case.marks.values()))))) for case in grid.cases
    )


def _narrowed(table: Table) -> Table:
    while len(table.headings) > 2 and max(map(len, _aligned(table))) > _width():
        table = _columns(table, range(len(table.headings) - 1))
    return table


def of_runs(grid: Grid) -> str:
    """Return the grid in its default view, as Markdown."""
    columns = grid.columns(grid.views[0])
    headings = ["implementation", "mean", *(" ".join(column.heading) or "slowdown" for column in columns)]
    return in_markdown(Table("", headings, _rows(grid, columns)))


def skipped_table(skipped: Iterable[Row]) -> Table:
    """Return skipped cells, merged if implementation, reason and detail are equal up to numbers, worst first."""
    parts = grouped(
        ((cell["impl"], cell["reason"].replace("_", " "), without_numbers(cell["detail"])), cell["detail"])
        for cell in skipped
    )
    rows = [
        (impl, reason, str(len(of)), of[0])
        for (impl, reason, _), of in sorted(parts.items(), key=lambda it: [*SIGNS, it[0][1]].index(it[0][1]))
    ]
    return Table("Skipped", ("implementation", "reason", "cells", "detail"), rows)


def paragraph(text: str) -> str:
    """Wrap a paragraph of Markdown."""
    return textwrap.fill(text, PARAGRAPH, break_long_words=False, break_on_hyphens=False)


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]], left: Container[int] = (0,)) -> str:
    """Return a pipe table, columns in `left` left-aligned and others right-aligned, padded to be readable as plain text."""
    widths = [max(len(row[i]) for row in (headings, *rows)) for i in range(len(headings))]
    rule = f"|{'|'.join('-' * (w + 2) if i in left else '-' * (w + 1) + ':' for i, w in enumerate(widths))}|"
    first, *others = (
        f"| {line.ljust(sum(widths) + 3 * len(widths) - 3)} |" for line in aligned([headings, *rows], " | ", left)
    )
    return "\n".join([first, rule, *others])


def in_markdown(table: Table) -> str:
    """Return a table with its note below, whose texts may contain markup; the title is left out."""
    rows = [[*map(escape, row)] for row in table.rows]
    return f"{markdown([*map(escape, table.headings)], rows, _left(table))}\n\n{paragraph(escape(table.note))}".rstrip()


def escape(text: str) -> str:
    """Escape Markdown, mentions of users, line breaks and column separators."""
    escaped = re.sub(r"([\\`*_|\[\]])", r"\\\1", words.one_line(text))
    return html.escape(escaped, quote=False).replace("@", "@&#8203;")


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Flatten nested dictionaries to ('outer inner', text) pairs, in order, without unknown values."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key} ")
        elif isinstance(value, list) and all(isinstance(it, Mapping) for it in value):
            yield from ((f"{prefix}{key} {i}", ", ".join(map(" ".join, flat(it)))) for i, it in enumerate(value))
        elif value not in (None, "", []):
            yield f"{prefix}{key}", ", ".join(map(str, value)) if isinstance(value, list) else str(value)
