"""Command line: selects implementations and cases. Usage errors are one line that gives the correct usage."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from impls import Impl
from stats.arguments import nearest, refuse_misused

from .. import CHECKOUT
from ..cases.case import AXES, Case
from ..cases.cells import Cell
from ..cases.decoders import BLOCKS
from ..cases.models import config_of, layers_of, notes_of
from ..cases.modes import Point
from ..cases.sweep import SWEEPS, Sweep, of_points
from ..checks.impl_hash import sources_hash
from ..terminal import warn
from ..timing.devices import default_device
from ..timing.machine import crowded
from . import workloads
from .allocator import ALLOCATORS
from .choice import impls_named, listed, refuse_absent
from .errors import UsageError, count, positive, share


@dataclass(frozen=True)
class Selection:
    """The user's selection, with every name resolved."""

    sweep: Sweep
    device: str
    impls: tuple[Impl, ...]
    cells: tuple[Cell, ...]
    models: Mapping[str, str]
    """Models that have the layer of a case, by the case's id."""

    @property
    def sources(self) -> str:
        """Return a digest of all code that affects its measurements, and of its cases."""
        return sources_hash(self.impls, dict.fromkeys(cell.case for cell in self.cells))


TIMING: dict[str, tuple[float, str, str]] = {
    "cell_time": (0.1, "SECONDS", "approximate time for which a cell is timed in each process"),
    "processes": (1, "K", "number of fresh processes that time each cell"),
    "precision": (
        0.02,
        "SHARE",
        "stop timing a case when every ratio is known to plus or minus this, not counting variation between processes",
    ),
    "cell_timeout": (
        300.0,
        "SECONDS",
        "give up a cell whose check, compiling included, or one block of calls takes longer",
    ),
}
"""Timing options: default, unit, meaning. A resumed run keeps its original values."""


UNUSED = re.compile(r"--benchmark-(?!(save|autosave|storage)(=|$))")
"""pytest-benchmark's options that have no effect here, since the suite has its own timing and reports."""


OPTIONS = tuple(name for name in AXES if name != "model")
"""Axes that are options; those of a model are implied by `--model`."""

CELLS: dict[str, tuple[str, str]] = {
    "sweep": ("NAME", f"which cases: {', '.join(SWEEPS)} (default: quick); the axes below replace its values"),
    "model": ("NAMES", "the attention layers of these models (`list` shows them), or of a config.json of transformers"),
    "cases": ("FILE", "the cases in this file: JSON or CSV of axes, flashinfer-bench workloads, vLLM batches, or lengths of "
                       "requests"),
    "impl": ("NAMES", "which implementations, as NAME,NAME: NAME+compile, NAME+max-autotune or NAME+reduce-overhead (on a "
                      "GPU) for a compiled form; NAME=package.module:attr for a kernel or layer of your own, "
                      "NAME=kernels:PATH#FUNCTION for one in a kernel repository of Hugging Face"),
    **{name: ("VALUES", AXES[name].about) for name in OPTIONS},
    "case": ("IDS", "only the cases with these ids, as --dry-run of a run shows them"),
}  # fmt: skip
"""Options that select cells, of runs and comparisons: metavariable and description."""


def spelt(name: str) -> str:
    """Return an option by its name in a namespace: `base_impl` -> `--base-impl`."""
    return f"--{name if name in AXES else name.replace('_', '-')}"


def refuse_unused(config: pytest.Config) -> None:
    """Raise `UsageError` for an argument without effect."""
    for name in config.getoption("file_or_dir", []):  # none beside --help
        path = config.invocation_params.dir / name.partition("::")[0]
        if not path.resolve().is_relative_to(CHECKOUT / "bench"):
            raise UsageError(
                f"unexpected argument {name!r}: a kernel of your own is named by --impl mine=mine.py:FUNCTION, a sweep by "
                "--sweep NAME, and several values are joined by commas, as in --T 64,128"
            )
    given = [*map(str, config.invocation_params.args)]
    refuse_misused(config._parser.optparser, given)
    for option in filter(UNUSED.match, given):
        how = "--cell-time and --processes set how cells are timed, `python -m bench check` checks without timing"
        files = "--benchmark-save=NAME saves pytest-benchmark's JSON, `python -m reports` makes pages and comparisons"
        raise UsageError(f"{option} changes nothing here: {how}, {files}")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("attention", "attention-bench")
    for name, (metavar, about) in CELLS.items():
        group.addoption(f"--{name}", action="append" if name == "impl" else "store", metavar=metavar, help=about)
    group.addoption(
        "--smoke", action="store_true", help="measure --impl (default: fused) and sdpa in three small cases"
    )
    group.addoption("--baseline", metavar="NAME",
                    help="implementation that speedups are relative to (default: sdpa if you name one of your own, else "
                         "fused, the plain formula)")  # fmt: skip
    for name, (default, metavar, about) in TIMING.items():
        read = share if metavar == "SHARE" else count if isinstance(default, int) else positive
        group.addoption(spelt(name), type=read, metavar=metavar, help=f"{about} (default: {default:g})")
    group.addoption("--allocator", choices=ALLOCATORS,
                    help="memory allocator of the worker processes: keep (glibc keeps freed memory; default if memory is "
                         "ample), system (glibc's own settings), tcmalloc, jemalloc")  # fmt: skip
    group.addoption("--list", action="store_true", dest="attention_list",
                    help="show implementations with their limits, sweeps with their cases, and models")  # fmt: skip
    group.addoption("--dry-run", action="store_true", dest="attention_dry_run",
                    help="show what would be measured and about how long")  # fmt: skip
    group.addoption(
        "--shuffle",
        type=int,
        metavar="SEED",
        help="seed of the random order of timing (default: a new one for every run)",
    )
    group.addoption("--save-traces", action="store_true",
                    help="save a profiler trace of one call of every cell, for TensorBoard and Perfetto")  # fmt: skip
    group.addoption("--report", action="store_true", help="make the page of the saved run, and print its path")
    group.addoption(
        "--resume",
        metavar="NAME",
        help="finish the interrupted run NAME; if there is none, start it with the other options",
    )


Options = dict[str, Any]
"""Options that were given, by name."""

ASKED = (*CELLS, "baseline")
"""Options that decide which cells a run has, and with what they are compared."""


def asked(config: pytest.Config) -> Options:
    """Return the options of `ASKED` that were given."""
    given = {name: value for name in ASKED if (value := config.getoption(name))}
    if config.getoption("smoke"):
        for name in given.keys() & {"sweep", "model", "cases"}:
            raise UsageError(f"--smoke is a sweep itself: leave out --{name}, or leave out --smoke")
        given |= {"sweep": "smoke", "impl": [*given.get("impl", ["fused"]), "sdpa"]}
    return given


def settle_timing(config: pytest.Config, begun: dict[str, float]) -> dict[str, float]:
    """Return every option of `TIMING`: the value given now, else that of the original run, else the default."""
    given = {name: value for name in TIMING if (value := config.getoption(name)) is not None}
    return {name: default for name, (default, *_) in TIMING.items()} | begun | given


def select(options: Options) -> Selection:
    """Resolve options (from `asked`) into cells; raises `UsageError`."""
    sweep, device, overrides = sweep_of(options)
    if "threads" in overrides:
        overrides["threads"] = tuple(None if n == torch.get_num_threads() else n for n in overrides["threads"])
    chosen = impls_named(options.get("impl", []), sweep.whole_registry, os.getcwd())
    if {*BLOCKS} & {*overrides.get("scope", ())}:
        overrides["scope"] = tuple(dict.fromkeys(("core", *overrides["scope"])))  # predicts a block's time
        if "impl" not in options:  # compilation dominates a block's duration
            chosen = tuple(impl for impl in chosen if not impl.compiled)
    names = [impl.name for impl in chosen]
    if (base := options.get("baseline", names[0])) not in names:
        raise UsageError(f"--baseline {base}: not selected; selected: {', '.join(names)}{nearest(base, names)}")
    cases = cases_of(sweep, device, overrides)
    cells = tuple(Cell(impl, case) for case in picked(cases, options.get("case")) for impl in chosen)
    return Selection(sweep, device, chosen, cells, {case.id: names for case, names in cases.items() if names})


def sweep_of(options: Options) -> tuple[Sweep, str, dict[str, tuple[Any, ...]]]:
    """Return the sweep, the device, and the overridden axes; raises `UsageError`."""
    sweep = _sweep(options)
    overrides = {axis: _values(axis, options[axis]) for axis in OPTIONS if options.get(axis)}
    devices = overrides.get("device") or (default_device(),)
    for device in devices:
        refuse_absent(device)
    return sweep, devices[0], overrides


def _sweep(options: Options) -> Sweep:
    name = options.get("sweep", "quick")
    if name not in SWEEPS:
        raise UsageError(f"unknown sweep {name!r}; known: {', '.join(SWEEPS)}{nearest(name, SWEEPS)}")
    if not options.keys() & {"model", "cases"}:
        return SWEEPS[name]
    if "sweep" in options:
        raise UsageError("--model and --cases name cases, as --sweep does: leave out --sweep")
    places: dict[str, Point] = {"": {}}
    if "cases" in options:
        places, notes = workloads.read(Path(options["cases"]))
        for note in notes:
            warn(note)
    layers = cache(_layers)  # says once what is measured differently
    points: dict[str, Point] = {}
    for place, axes in places.items():
        models = ",".join(filter(None, axes.pop("model", ()))) or options.get("model", "")
        points |= {f"{origin}, {place}".strip(", "): layer | axes for origin, layer in layers(models).items()}
    return of_points(", ".join(options[name] for name in ("model", "cases") if name in options), points)


def _layers(models: str) -> dict[str, Point]:
    """Return the attention layers of models, by `MODEL, KIND`, or one without axes if none is named; raises
    `UsageError`.
    """
    if not models:
        return {"": {}}
    found: dict[str, Point] = {}
    for model in dict.fromkeys(listed([models]) or [models]):
        try:
            config = config_of(model)
            found |= {
                f"{model}, {kind}": layer | {"of_model": True, "model": model}
                for kind, layer in layers_of(config).items()
            }
            for note in [*notes_of(config)]:
                warn(f"--model {model}: {note}")
        except ValueError as error:
            raise UsageError(f"--model {model}: {error}") from None
    return found


def cases_of(sweep: Sweep, device: str, overrides: dict[str, tuple[Any, ...]]) -> dict[Case, str]:
    """Return every case once, and the models that have its layer; raises `UsageError` for incompatible sizes."""
    unfit: list[str] = []
    try:
        cases = sweep.cases(device, overrides, unfit)
    except ValueError as error:
        raise UsageError(str(error)) from None
    for why in dict.fromkeys(unfit):
        warn(f"left out: {why}")
    return cases


def picked(cases: Iterable[Case], ids: str | None) -> list[Case]:
    """Return the cases named by `--case`, in sweep order; raises `UsageError` for unknown ones."""
    there = {case.id: case for case in cases}
    if ids is None:
        return [*there.values()]
    wanted = [name.strip() for name in ids.split(",")]
    for name in wanted:
        if name not in there:
            raise UsageError(
                f"--case {ids}: no case of this sweep has the id {name!r}{nearest(name, there)} (--dry-run of a run shows all)"
            )
    return [case for name, case in there.items() if name in wanted]


def _values(axis: str, text: str) -> tuple[Any, ...]:
    try:
        return AXES[axis].read_each(map(str.strip, text.split(",")))
    except ValueError as error:
        raise UsageError(f"--{axis} {text}: {error}") from None


def clock_text(seconds: float) -> str:
    """Format a duration: `about 40 s`, `about 3 min`."""
    length, unit = (1, "s") if seconds < 90 else (60, "min") if seconds < 7200 else (3600, "h")
    return f"about {max(1, round(seconds / length)):,} {unit}"


def warn_of_threads(threads: int) -> None:
    """Warn of more threads than cores."""
    if advice := crowded(threads):
        warn(advice)
