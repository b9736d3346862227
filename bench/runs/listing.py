"""Prints available names (`--list`) and the plan of a run (`--dry-run`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

import impls
from impls import Limits

from ..cases.models import MODELS, layers_of
from ..cases.sweep import SWEEPS, Axes
from ..selection.choice import skip_of
from ..selection.options import clock_text
from ..timing.devices import default_device
from .remaining import remaining
from .run import Run


def show_registry() -> None:
    """Print implementations with their limits, sweeps with their cells, and models with their layers."""
    console, registry, sweeps, device = Console(), _table("implementation"), _table("sweep"), default_device()
    models = _table("model")
    for impl in impls.registered():
        about = impl.summary.split(". ")[0].replace("`", "").rstrip(".")
        limits = "; ".join(_declared(impl.limits))
        registry.add_row(impl.name, Text("\n".join([about, *([f"limits: {limits}"] if limits else [])])))
    for form, options in impls.FORMS.items():
        mode = f", mode {options['mode']}" if options else ""
        registry.add_row(f"NAME{form}", f"any of them through torch.compile, one static graph a shape{mode}")
    for sweep in SWEEPS.values():
        cases = len(sweep.cases(device))
        sweeps.add_row(
            sweep.name, Text("\n".join([f"{sweep.about}: {cases} cases", *map(_axes, sweep.grids_on(device))]))
        )
    for model, (source, config) in MODELS.items():
        layers = (
            f"{kind}: {_axes({axis: (value,) for axis, value in of.items()})}" for kind, of in layers_of(config).items()
        )
        models.add_row(model, Text("\n".join([source, *layers])))
    for table in (registry, sweeps, models):
        console.print(table)


def _table(of: str) -> Table:
    """Return a table of two columns, names and descriptions, as wide as the terminal."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column(of, no_wrap=True)
    table.add_column("")
    return table


def _axes(axes: Axes) -> str:
    return "  ".join(f"{axis}={', '.join(map(_typed, values))}" for axis, values in axes.items())


def _typed(value: Any) -> str:
    """Format a value in command-line syntax."""
    words = ((None, "none"), (True, "on"), (False, "off"))
    return next((word for it, word in words if value is it), str(value))


def _declared(limits: Limits) -> list[str]:
    """Return the declared limits that differ from their defaults: `max_T=256`, `dropout=False`."""
    named = ((limit.name, getattr(limits, limit.name), limit.default) for limit in fields(limits))
    differing = (it for it in named if it[1] != it[2] and it[0] not in ("install", "beyond", "returns_lse"))
    return [*(_limit_text(name, value) for name, value, _ in differing), *(f"no {rule}" for rule in limits.without)]


def _limit_text(name: str, value: Any) -> str:
    if callable(value):
        sentence = str(value.__doc__).splitlines()[0].rstrip(".")
        return f"{sentence[0].lower()}{sentence[1:]}"
    return f"{name}={'/'.join(value) if isinstance(value, tuple) else value}"


def show_plan(run: Run) -> None:
    """Print the cells to be measured, those that can't be, and the approximate duration."""
    cells = [cell for cell in run.selection.cells if cell.key not in run.known]
    refused = {cell.key: why for cell in cells if (why := skip_of(cell))}
    possible = [cell for cell in cells if cell.key not in refused]
    say = partial(Console().print, highlight=False, soft_wrap=True)  # users paste ids: no wrapping
    for case in dict.fromkeys(cell.case for cell in cells):
        names = [cell.impl.name for cell in possible if cell.case == case]
        say(f"{case.id}: {', '.join(names) or 'nothing'}")
    for line in dict.fromkeys(f"{why.reason}: {why}" for why in refused.values()):
        say(line, markup=False)
    run.planned = {cell.key for cell in possible}
    left = "1 cell" if len(possible) == 1 else f"{len(possible)} cells"
    reasons = Counter(why.reason for why in refused.values())
    failing = [f"{reasons['error']} that can't be called"] if reasons["error"] else []
    about = [clock_text(remaining(run))] if possible else []
    say(", ".join([f"{left} to measure", f"{reasons['unsupported']} unsupported", *failing, *about]))
