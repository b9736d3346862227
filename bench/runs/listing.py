"""What there is (`--list`), and what would be measured (`--dry-run`)."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from rich.console import Console
from rich.table import Table

import impls
from impls import Limits

from ..cases.sweep import SWEEPS, Axes
from ..selection.options import clock_text, seconds_of
from .run import Run


def show_registry() -> None:
    """Implementations with what they can do, and sweeps with their cells."""
    registry = Table("implementation", "what it is", "what it can't do", title="implementations", title_justify="left")
    for impl in impls.registered():
        registry.add_row(impl.name, impl.summary, "; ".join(_declared(impl.limits)) or "-")
    registry.add_row(f"NAME{impls.COMPILE}", "any of them through torch.compile, one static graph a shape", "")
    sweeps = Table("sweep", "what it shows", "grid", "cases", title="sweeps", title_justify="left")
    for sweep in SWEEPS.values():
        grid = "\n".join(_axes(axes) for axes in sweep.grids)
        sweeps.add_row(sweep.name, sweep.about, grid, str(len(sweep.cases("cpu"))))
    console = Console()
    console.print(registry)
    console.print(sweeps)


def _axes(axes: Axes) -> str:
    return "  ".join(f"{axis}={','.join(map(str, values))}" for axis, values in axes.items())


def _declared(limits: Limits) -> list[str]:
    """The limits that differ from their defaults, as words: `max_T=256`, `no dropout`."""
    words = []
    for limit in fields(limits):
        value: Any = getattr(limits, limit.name)
        if value != limit.default:
            words.append(_words(limit.name, value))
    return words


def _words(name: str, value: Any) -> str:
    if callable(value):
        return str(value.__doc__).splitlines()[0].rstrip(".").lower()
    return f"no {name}" if value is False else f"{name}={value}"


def show_plan(run: Run) -> None:
    """The cells that would be measured, those that can't be, and about how long it would take."""
    cells = [cell for cell in run.selection.cells if cell.key not in run.known]
    possible = [cell for cell in cells if cell.impl.refusal(cell.case) is None]
    console = Console()
    for case in dict.fromkeys(cell.case for cell in cells):
        names = [cell.impl.name for cell in possible if cell.case == case]
        console.print(f"{case.id}: {', '.join(names) or 'nothing'}", highlight=False)
    for why in dict.fromkeys(why for cell in cells if (why := cell.impl.refusal(cell.case))):
        console.print(f"unsupported: {why}", highlight=False)
    guess = clock_text(sum(seconds_of(cell, run.timing["cell_time"], run.processes) for cell in possible))
    console.print(
        f"{len(possible)} cells to measure, {len(cells) - len(possible)} unsupported, {guess}", highlight=False
    )
