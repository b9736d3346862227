"""Builds a run from the command line: a new one, or one that resumes a journal or a finished file."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.utils import get_machine_id

from .. import CHECKOUT
from ..cases.axes import nearest
from ..selection import allocator
from ..selection.errors import UsageError
from ..selection.options import asked, select, settle_timing
from ..timing.machine import fingerprint
from . import journal as journals
from .journal import Journal
from .run import Run
from .saving import load, results_root, run_files, run_names, valid_name


def begin(config: pytest.Config) -> Run:
    """Build a run, new or resumed, from the command line; raises `UsageError`."""
    if os.environ.get("PYTEST_XDIST_WORKER") or config.getoption("dist", "no") != "no":
        raise UsageError("nothing can be timed under pytest-xdist: leave out -n")
    storage = config.getoption("benchmark_storage")
    results = results_root(config.invocation_params.dir, None if storage == "file://./.benchmarks" else storage)
    folder = results / str(get_machine_id())  # pytest-benchmark's name for it
    resume, save = config.getoption("resume"), config.getoption("benchmark_save")
    if config.getoption("redo") and not resume:
        raise UsageError("--redo starts the run of --resume NAME again: give --resume NAME")
    if not resume:
        run = _new(config, folder, save or config.getoption("benchmark_autosave"))
    elif save and save != resume:
        raise UsageError(f"--resume {resume} keeps that name; leave out --benchmark-save={save}")
    else:
        run = _resumed(config, folder, resume) or _new(config, folder, _new_name(config, folder, resume))
    config.option.benchmark_save = config.option.benchmark_autosave = None  # the suite itself saves, all or nothing
    if run.name:
        valid_name(run.name, "--benchmark-save")
    run.command = run.command or _command([*map(str, config.invocation_params.args)], config.invocation_params.dir)
    run.traced |= config.getoption("save_traces")
    run.timing = settle_timing(config, run.timing)
    run.rooflines.seconds = min(run.rooflines.seconds, run.timing["cell_time"] / 5)
    return run


def _command(given: list[str], folder: Path) -> str:
    """Return the command line as in the checkout: `pytest bench/ ...`, without what `attention-bench run` adds."""
    suite = CHECKOUT / "bench"
    at = next((i for i, it in enumerate(given) if (folder / it).resolve() == suite), None)
    if at is None:
        return shlex.join(["pytest", *given])
    before = [] if given[0] == "-c" else given[:at]
    return shlex.join(["pytest", "bench/", *before, *given[at + 1 :]])


def _new_name(config: pytest.Config, folder: Path, name: str) -> str:
    """Return the name of the new run that `--resume NAME` begins with other options; raises `UsageError` without any,
    which would measure all of `quick`.
    """
    if asked(config):
        return name
    known = sorted({*journals.names(folder), *run_names(folder)})
    there = f"known: {', '.join(known)}{nearest(name, known)}" if known else "none is there yet"
    raise UsageError(f"no run {name!r} to resume in {folder} ({there}); --benchmark-save={name} starts one")


def _new(config: pytest.Config, folder: Path, name: str | None) -> Run:
    options = asked(config)
    run = Run(options, select(options, str(config.invocation_params.dir)), folder, name)
    allocator.choose(config.getoption("allocator"), run.selection.cells)
    return run


def _resumed(config: pytest.Config, folder: Path, name: str) -> Run | None:
    """Return the run of a journal left by a killed process, else a finished one, with nothing left to measure or save; None
    if there is none.
    """
    path, redo = journals.newest(folder, name), config.getoption("redo")
    journal = Journal(path) if path else None
    files = () if journal else map(load, reversed(run_files(folder, name)))
    begun = journal.header if journal else next((data for data in files if data.get("complete")), None)
    if begun is None:
        return None
    again = "--redo starts it again" if journal else f"--benchmark-save={name} measures it once more"
    if redo and not journal:
        raise UsageError(f"run {name} is finished; {again}")
    options = begun["asked"]
    if asked(config) not in ({}, options):
        raise UsageError(f"run {name} was started with other options; `--resume {name}` alone finishes it")
    run = Run(options, select(options, str(config.invocation_params.dir)), folder, name if journal else None)
    if not redo and begun.get("sources") != run.sources:
        raise UsageError(f"code or cases have changed since run {name} was started; {again}")
    machine = begun.get("machine_info") or begun["machine"]  # of a journal of an earlier version, for --redo
    allocator.choose(config.getoption("allocator"), begun=machine["allocator"])
    run.timing, run.command, run.traced = begun["timing"], begun["command"], begun["traced"]
    if journal is None:
        run.finished = {(it["extra_info"]["impl"], it["extra_info"]["id"]): it for it in begun["benchmarks"]}
        run.skipped = {(it["impl"], it["id"]): it for it in begun["skipped"]}
        run.planned, run.ended = run.known, True
    elif redo:
        run.replaced = journal
    else:
        refuse_other_conditions(machine, name)
        run.restore(journal)
    return run


def refuse_other_conditions(begun: dict[str, Any], name: str) -> None:
    """Raise `UsageError` if a run was started on another machine, or with another torch or number of threads."""
    now = fingerprint()
    if changed := [f"{fact} {value}" for fact, value in begun.items() if now.get(fact) != value]:
        raise UsageError(
            f"run {name} was started with {', '.join(changed)}: continue it on that machine, with that torch and the same "
            "--quiet-machine; --redo starts it again"
        )
