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
    folder = results_folder(config) / str(get_machine_id())  # pytest-benchmark's name for it
    resume, save = config.getoption("resume"), config.getoption("benchmark_save")
    if config.getoption("redo") and not resume:
        raise UsageError("--redo starts the run of --resume NAME again: give --resume NAME")
    if not resume:
        run = _new(config, folder, save or config.getoption("benchmark_autosave"))
    elif save and save != resume:
        raise UsageError(f"--resume {resume} keeps that name; leave out --benchmark-save={save}")
    else:
        run = (
            _from_journal(config, folder, resume)
            or _from_file(config, folder, resume)
            or _new(config, folder, _new_name(config, folder, resume))
        )
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
    run = _run(config, asked(config), folder, name)
    allocator.choose(config.getoption("allocator"), run.selection.cells)
    return run


def _run(config: pytest.Config, options: dict[str, Any], folder: Path, name: str | None = None) -> Run:
    return Run(options, select(options, str(config.invocation_params.dir)), folder, name)


def _from_journal(config: pytest.Config, folder: Path, name: str) -> Run | None:
    """Return the run of a journal left by a killed process; None if there is none."""
    path = journals.newest(folder, name)
    if path is None:
        return None
    journal = Journal(path)
    header = journal.header
    run = _run(config, _original_options(config, name, header["asked"], header["machine"]), folder, name)
    run.timing, run.command, run.traced = header["timing"], header.get("command", ""), header["traced"]
    if config.getoption("redo"):
        run.replaced = journal
        return run
    if why := differs(header["machine"], fingerprint(), name):
        raise UsageError(why)
    if header["sources"] != run.selection.sources:
        raise UsageError(f"code or cases have changed since run {name} was started; --redo starts it again")
    run.restore(journal)
    return run


def differs(begun: dict[str, Any], now: dict[str, Any], name: str) -> str:
    """Return why a run that was started on one machine can't be continued on the present one; '' if it can."""
    changed = {fact for fact in begun.keys() | now.keys() if begun.get(fact) != now.get(fact)}
    if not changed:
        return ""
    if changed <= {"cores", "threads"} and begun["cores"] == begun["threads"] == 1:
        return f"run {name} was started with --quiet-machine: `sweep --resume {name} --quiet-machine` continues"
    return f"run {name} was started on another machine, with another torch or other --quiet-machine; --redo starts it again"


def _from_file(config: pytest.Config, folder: Path, name: str) -> Run | None:
    """Return a finished run, with nothing left to measure or save; None if there is none."""
    found = (data for path in reversed(run_files(folder, name)) if (data := load(path)).get("complete"))
    if (finished := next(found, None)) is None:
        return None
    if config.getoption("redo"):
        raise UsageError(f"run {name} is finished; --benchmark-save={name} measures it once more")
    run = _run(config, _original_options(config, name, finished["asked"], finished["machine_info"]), folder)
    if finished.get("sources") not in (None, run.selection.sources):
        raise UsageError(
            f"run {name} is finished, and code or cases have changed; --benchmark-save={name} measures it once more"
        )
    run.finished = {(it["extra_info"]["impl"], it["extra_info"]["id"]): it for it in finished["benchmarks"]}
    run.skipped = {(it["impl"], it["id"]): it for it in finished["skipped"]}
    run.planned, run.ended = run.known, True
    return run


def _original_options(
    config: pytest.Config, name: str, options: dict[str, Any], machine: dict[str, Any]
) -> dict[str, Any]:
    """Return the run's original options; raises if the command line now requests others."""
    now = asked(config)
    if now and now != options:
        raise UsageError(f"run {name} was started with other options; `--resume {name}` alone finishes it")
    allocator.choose(config.getoption("allocator"), begun=machine["allocator"])
    return options


def results_folder(config: pytest.Config) -> Path:
    """Return the results folder chosen by the user, or the default; raises `UsageError`."""
    given = config.getoption("benchmark_storage")
    return results_root(config.invocation_params.dir, None if given == "file://./.benchmarks" else given)
