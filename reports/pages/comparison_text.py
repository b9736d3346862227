"""A comparison as text: a table for the terminal, Markdown for a comment, JSON for a program."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..judging import verdict
from ..judging.comparison import Cell, Change, Comparison
from ..judging.verdict import Verdict
from ..reading import units
from ..reading.runs import Run
from ..reading.words import plural
from .tables import escape, markdown

HEADINGS = ("verdict", "implementation", "case", "base", "head", "ratio", "seconds", "min. detectable", "why")
"""`ratio` and `seconds` are changes with their 95 % intervals; the smallest detectable one is the verdict's."""
STYLES = {verdict.REGRESSED: "bold red", verdict.WRONG: "bold red", verdict.IMPROVED: "green", verdict.GONE: "yellow"}
MOST_LINES = 30
"""Lines of the Markdown table: a comment is read on a phone."""


def terminal(this: Comparison) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in HEADINGS:
        numeric = heading in ("base", "head", "min. detectable")
        table.add_column(heading, justify="right" if numeric else "left", no_wrap=numeric, overflow="fold")
    for cell in this.cells:
        word, *others = _line(cell)
        table.add_row(Text(word, STYLES.get(word, "")), *map(Text, others))
    notes = [Text(f"note: {_plain(note)}", "yellow") for note in this.notes]
    return Group(*([table] if this.cells else []), *notes, Text(_plain(summary(this)), "bold"))


def summary(this: Comparison) -> str:
    """'1 REGRESSED, 23 UNCHANGED; 1 cell needs more memory: 0001_a → 0002_b, margin 1 %'."""
    counts = ", ".join(f"{count} {word}" for word, count in this.counts.items()) or "no cell in either run"
    more = [f"{plural(count, 'cell')} {told}" for told, count in _exact(this).items() if count]
    sides = f"{this.base.name} → {this.head.name}, margin {this.margin * 100:g} %"
    return f"{'; '.join([counts, *more])} ({sides})"


def as_markdown(this: Comparison) -> str:
    """Counts, a short table of what moved, the machine, and how to do it again."""
    told = [cell for cell in this.cells if _worth_telling(cell)]
    parts = [f"**attention-bench:** {escape(summary(this))}"]
    if told:
        lines = [[escape(text) for text in _line(cell)] for cell in told[:MOST_LINES]]
        parts.append(markdown(HEADINGS, lines))
    if len(told) > MOST_LINES:
        parts.append(f"… and {plural(len(told) - MOST_LINES, 'cell')} more")
    parts += [f"- {escape(_plain(note))}" for note in this.notes]
    parts += [f"Machine: {escape(_plain(_machine(this.head)))}", f"How to reproduce:\n\n{_reproduce(this)}"]
    return "\n\n".join(parts) + "\n"


def as_data(this: Comparison) -> dict[str, Any]:
    """For JSON: ratios and seconds as plain numbers, `null` where there is none."""
    return {
        "base": this.base.name,
        "head": this.head.name,
        "margin": this.margin,
        "exit_code": this.code,
        "counts": this.counts,
        "notes": this.notes,
        "machine": this.head.machine,
        "cells": [_cell_data(cell) for cell in this.cells],
    }


def _cell_data(cell: Cell) -> dict[str, Any]:
    numbers = {"base_seconds": cell.base, "head_seconds": cell.head, **vars(cell.verdict)}
    return {
        "impl": cell.impl,
        "id": cell.id,
        "regressed": cell.regressed,
        **_finite(numbers),
        "of_ratio": cell.ratio and _finite(vars(cell.ratio)),
        "of_seconds": cell.absolute and _finite(vars(cell.absolute)),
        "processes": list(cell.processes),
        "changes": [vars(change) for change in cell.changes],
    }


def _finite(numbers: Mapping[str, Any]) -> dict[str, Any]:
    lost = [key for key, value in numbers.items() if isinstance(value, float) and not math.isfinite(value)]
    return {**numbers, **dict.fromkeys(lost)}


def _line(cell: Cell) -> tuple[str, ...]:
    said = cell.verdict
    line = (
        said.word,
        cell.impl,
        cell.id,
        units.seconds(cell.base),
        units.seconds(cell.head),
        _moved(cell.ratio),
        _moved(cell.absolute),
        units.detectable(said.detectable),
        "; ".join([*(_change(change) for change in cell.changes), _why(said)]),
    )
    return tuple(map(_plain, line))


def _moved(said: Verdict | None) -> str:
    """'+5.2 % (+4.1 to +6.3 %)', with as many digits as the interval warrants."""
    if said is None or not math.isfinite(said.ratio):
        return units.MISSING
    if not math.isfinite(said.low):
        return _percent(said.ratio)
    digits = 0 if said.high - said.low > 0.1 else 1
    low, high = _percent(said.low, digits).removesuffix(" %"), _percent(said.high, digits)
    return f"{_percent(said.ratio, digits)} ({low} to {high})"


def _why(said: Verdict) -> str:
    return f"{said.reason}; about {said.more_pairs} more processes a side" if said.more_pairs else said.reason


def _change(change: Change) -> str:
    if change.what == "peak_bytes":
        size = f" ({_percent(change.head / change.base)})" if change.base else ""
        return f"memory {units.memory(change.base)} → {units.memory(change.head)}{size}"
    if change.what == "error":
        return f"error {change.base:.4g} → {change.head:.4g}"
    return f"{change.what} {change.base} → {change.head}"


def _exact(this: Comparison) -> dict[str, int]:
    changes = [change for cell in this.cells for change in cell.changes]
    return {
        "with more memory": sum(change.worse for change in changes),
        "with another kernel": sum(change.what == "kernel" for change in changes),
        "with another error": sum(change.what == "error" for change in changes),
        "broken": sum(cell.broken for cell in this.cells),
    }


def _worth_telling(cell: Cell) -> bool:
    return cell.regressed or bool(cell.changes) or cell.verdict.word not in (verdict.UNCHANGED, verdict.INCONCLUSIVE)


def _machine(run: Run) -> str:
    return ", ".join(f"{key} {value}" for key, value in run.machine.items() if value not in (None, "", {}))


def _reproduce(this: Comparison) -> str:
    commands = [
        *(f"{run.command}  # {run.name}, at {run.commit_id or 'an unknown commit'}"
          for run in (this.base, this.head)),
        f"python -m reports compare {this.base.name} {this.head.name} --margin {this.margin:g}",
    ]  # fmt: skip
    return "\n".join(f"    {_plain(command)}" for command in commands)


def _percent(ratio: float, digits: int = 1) -> str:
    """1.052 → '+5.2 %'."""
    return (
        f"{(ratio - 1) * 100:+.{digits}f} %".replace("-", "\N{MINUS SIGN}") if math.isfinite(ratio) else units.MISSING
    )


def _plain(text: str) -> str:
    """One line, without what would steer a terminal."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
