"""Prints available names (`--list`) and the plan of a run (`--dry-run`)."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import impls
from impls import Limits
from stats.estimate import grouped

from ..cases.models import MODELS, layers_of
from ..cases.sweep import SWEEPS, Axes
from ..selection.choice import unsupported
from ..selection.options import clock_text
from ..selection.workloads import as_option
from ..timing.devices import default_device
from .remaining import remaining
from .run import Run


def show_registry() -> None:
    """Print implementations with their limits, sweeps with their cells, and models with their layers."""
    device, columns = default_device(), shutil.get_terminal_size().columns
    forms = "any of them through torch.compile, one static graph per shape"
    registry = {impl.name: [impl.summary.split(". ")[0].replace("`", "").rstrip("."), *_limits(impl.limits)]
                for impl in impls.registered()}  # fmt: skip
    registry |= {f"NAME{form}": [f"{forms}, mode {of['mode']}" if of else forms] for form, of in impls.FORMS.items()}
    sweeps = {
        it.name: [f"{it.about}: {len(it.cases(device))} cases", *map(_axes, it.grids_on(device))]
        for it in SWEEPS.values()
    }
    models = {
        model: [
            source,
            *(f"{kind}: {_axes({axis: (it,) for axis, it in of.items()})}" for kind, of in layers_of(config).items()),
        ]
        for model, (source, config) in MODELS.items()
    }
    for title, rows in (("implementation", registry), ("sweep", sweeps), ("model", models)):
        print(title)
        indent = 2 + max(map(len, rows))
        for name, lines in rows.items():
            for first, line in zip_longest([name], lines, fillvalue=""):
                print(textwrap.fill(line, columns, initial_indent=first.ljust(indent), subsequent_indent=" " * indent))


def _axes(axes: Axes) -> str:
    """Format axes in command-line syntax."""
    return "  ".join(f"{axis}={', '.join(map(as_option, values))}" for axis, values in axes.items())


def _limits(limits: Limits) -> Iterator[str]:
    """Yield a line of the declared limits that differ from their defaults: `limits: max_T=256; dropout=False`."""
    hidden = ("install", "beyond", "returns_lse")
    texts = [
        _limit_text(name, value)
        for name, value in vars(limits).items()
        if name not in hidden and value != getattr(Limits, name)
    ]
    if texts := [*texts, *(f"no {rule}" for rule in limits.without)]:
        yield f"limits: {'; '.join(texts)}"


def _limit_text(name: str, value: Any) -> str:
    if callable(value):
        sentence = str(value.__doc__).splitlines()[0].rstrip(".")
        return f"{sentence[0].lower()}{sentence[1:]}"
    return f"{name}={'/'.join(value) if isinstance(value, tuple) else value}"


def show_plan(run: Run) -> None:
    """Print the cells to be measured, those that can't be, and the approximate duration."""
    cells = [cell for cell in run.selection.cells if cell.key not in run.skipped]
    refused = {cell.key: why for cell in cells if (why := unsupported(cell))}
    run.planned = {cell.key for cell in cells} - refused.keys()
    for case, of_case in grouped((cell.case.id, cell) for cell in cells).items():
        print(f"{case}: {', '.join(it.impl.name for it in of_case if it.key in run.planned) or 'nothing'}")
    for why in dict.fromkeys(refused.values()):
        print(f"unsupported: {why}")
    count = len(run.planned)
    parts = [f"{count} cell{'s' if count != 1 else ''} to measure", f"{len(refused)} unsupported"]
    parts += [clock_text(remaining(run))] if count else []
    print(", ".join(parts))
