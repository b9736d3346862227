"""Builds a run from the command line: a new one, or one that resumes the journal of a killed process."""

from __future__ import annotations

import shlex
from pathlib import Path
from random import SystemRandom

import pytest
import torch
from pytest_benchmark.utils import get_machine_id

from .. import CHECKOUT
from ..launch import OPTIONS
from ..selection import allocator
from ..selection.errors import UsageError
from ..selection.options import asked, select, settle_timing, warn_of_threads
from ..timing.machine import fingerprint, state
from .run import Run
from .saving import Journal, Object, load, newest_journal, results_root, run_files, valid_name


class Finished(Exception):
    """Nothing is left to measure of the run to be resumed, whose file has these skipped cells."""

    def __init__(self, name: str, skipped: list[dict[str, str]]):
        super().__init__(f"run {name} is finished: nothing is left to measure")
        self.skipped = skipped


def begin(config: pytest.Config) -> Run:
    """Build a run, new or resumed, from the command line; raises `UsageError` and `Finished`."""
    if config.getoption("numprocesses", 0) or config.getoption("dist", "no") != "no":
        raise UsageError("nothing can be timed under pytest-xdist: leave out -n and --dist")
    if not config.pluginmanager.has_plugin("benchmark"):
        raise UsageError(
            "pytest-benchmark isn't loaded: leave out -p no:benchmark, and unset PYTEST_DISABLE_PLUGIN_AUTOLOAD"
        )
    storage, here = config.getoption("benchmark_storage"), config.invocation_params.dir
    results = results_root(here, None if storage == "file://./.benchmarks" else storage)
    folder = results / str(get_machine_id())  # pytest-benchmark's name for it
    resume, save = map(config.getoption, ("resume", "benchmark_save"))
    if resume and save not in (None, resume):
        raise UsageError(f"--resume {resume} keeps that name; leave out --benchmark-save={save}")
    if name := resume or save or config.getoption("benchmark_autosave"):
        valid_name(name, "--resume" if resume else "--benchmark-save")
    config.option.benchmark_save = config.option.benchmark_autosave = None  # the suite itself saves, all or nothing
    journal, begun = _begun(folder, resume) if resume else (None, {})
    options, timing = asked(config) or begun.get("asked", {}), settle_timing(config, begun.get("timing", {}))
    if (seed := config.getoption("shuffle")) is None:
        seed = begun.get("seed", SystemRandom().randrange(1 << 32))
    if begun:
        original = begun["timing"] | {"cell_timeout": timing["cell_timeout"]}  # which changes no result
        if (options, timing, seed) != (begun["asked"], original, begun.get("seed")):
            raise UsageError(f"run {name} was started with other options; `--resume {name}` alone finishes it")
    if resume and not (begun or options):  # which would measure all of `quick`
        raise UsageError(f"no run {resume!r} to resume in {folder}; --benchmark-save={resume} starts one")
    run = Run(
        options,
        select(options),
        folder,
        name,
        command=begun.get("command") or _command([*map(str, config.invocation_params.args)], here),
        timing=timing,
        seed=seed,
        traced=begun.get("traced", False) or config.getoption("save_traces"),
    )
    cases = (cell.case for cell in run.selection.cells if cell.case.device == "cpu")
    warn_of_threads(max((case.threads or torch.get_num_threads() for case in cases), default=0))
    machine = begun.get("machine_info", {})
    if begun and begun.get("sources") != run.sources:
        raise UsageError(
            f"code or cases have changed since run {name} was started; start another one: --benchmark-save=NAME"
        )
    allocator.choose(config.getoption("allocator"), run.selection.cells, machine.get("allocator"))
    if journal:
        refuse_other_conditions(machine | begun["state"]["environment"], name)
        run.restore(journal)
    elif begun:
        raise Finished(name, begun["skipped"])
    return run


def _begun(folder: Path, name: str) -> tuple[Journal | None, Object]:
    """Return the journal that a killed process left of a run, if any, and how the run was started, by its journal or its
    finished file; {} if there is neither.
    """
    if path := newest_journal(folder, name):
        journal = Journal(path)
        return journal, journal.header
    files = map(load, reversed(run_files(folder, name)))
    return None, next((data for data in files if data.get("complete")), {})


def _command(given: list[str], folder: Path) -> str:
    """Return the command line as in the checkout: `pytest bench/ ...`, without what `attention-bench run` adds."""
    added = len(OPTIONS)
    own = given[added:] if given[:added] == [*OPTIONS] else given
    return shlex.join(["pytest", "bench/", *(it for it in own if (folder / it).resolve() != CHECKOUT / "bench")])


def refuse_other_conditions(begun: Object, name: str) -> None:
    """Raise `UsageError` if a run was started on another machine, or with another torch, number of threads or environment."""
    both = begun, fingerprint() | state()["environment"]
    begun, now = ({**it, **it["allocator"], "allocator": None} for it in both)
    if changed := [f"{it} {begun.get(it, 'unset')}" for it in begun | now if begun.get(it) != now.get(it)]:
        raise UsageError(
            f"run {name} was started with {', '.join(changed)}: continue it on that machine, with that torch and "
            "environment and the same --quiet-machine, or start another one: --benchmark-save=NAME"
        )
