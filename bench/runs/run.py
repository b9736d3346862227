"""A run: its plan, its results so far, where it is saved, and how it is resumed."""

from __future__ import annotations

import math
import os
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from statistics import median
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest
import torch
from pytest_benchmark.utils import get_machine_id

import impls

from .. import CHECKOUT
from ..cases.accounting import add_spent, spent
from ..cases.axes import nearest
from ..cases.case import AXES
from ..cases.cells import Cell, Key
from ..cases.outcome import FAILURES, Skip
from ..cases.published import published_of
from ..selection import allocator
from ..selection.errors import UsageError
from ..selection.options import Selection, asked, select, settle_timing
from ..timing.controls import Controls
from ..timing.devices import meter_for
from ..timing.engine import VISITS
from ..timing.machine import fingerprint, state
from ..timing.roofs import Roofs
from . import journal as journals
from .journal import Journal, Line
from .rows import Row, Sample, Timed, row
from .saving import load, obstacle, results_root, run_files, run_names, shortage

if TYPE_CHECKING:
    from .traces import Traces

SCHEMA = 2

TRIES = 3
"""Number of processes that may end while checking a cell before the cell is skipped."""

NOT_READ = dict.fromkeys(
    ("energy_j", "cold_s", "cold_low", "cold_high", "device_s", "graph_s", "kept_pages_s", "fresh_pages_s", "sm_mhz", "power_w",
     "temperature_c", "throttled")
)  # fmt: skip
"""Columns that some devices lack."""


@dataclass
class Run:
    """The requested cells and their results, from this process or from the run that it resumes."""

    asked: dict[str, Any]
    selection: Selection
    folder: Path
    """Folder of run files and journals: results/<machine>."""
    name: str | None = None
    """Name of the run; None if it is not saved."""
    command: str = ""
    timing: dict[str, float] = field(default_factory=dict)
    """Timing options, as in `TIMING`."""
    traced: bool = False
    """Whether a trace of every measured cell is saved."""
    traces: Traces | None = None
    journal: Journal | None = None
    replaced: Journal | None = None
    """Journal of the run that this one redoes: deleted once this run's journal is on disk."""
    planned: set[Key] | None = None
    """All cells of the run; None until pytest has collected."""
    saved: Path | None = None
    unsaved: str | None = None
    """Why the run can't be saved."""
    unwritten: bool = False
    """Whether writing the journal has failed, which was then reported."""
    ended: bool = False
    """Whether everything was measured. An interrupted run has rows of what was timed so far, and can be resumed."""
    checked: dict[Key, dict[str, Any]] = field(default_factory=dict)
    """{"columns": of the row, "seconds": of a call, "first_s": of the checked call}"""
    skipped: dict[Key, dict[str, str]] = field(default_factory=dict)
    timed: dict[Key, Timed] = field(default_factory=dict)
    finished: dict[Key, Row] = field(default_factory=dict)
    """Complete rows: of a resumed run without remaining cells, and of cells finished by this process."""
    roofs: Roofs = field(default_factory=Roofs)
    controls: Controls = field(default_factory=Controls)
    suspects: frozenset[Key] = frozenset()
    """Cells that were being checked when an earlier process ended: they are tried again, last."""
    _visited: set[tuple[int, int, str]] = field(default_factory=set)
    _begun: Counter[Key] = field(default_factory=Counter)
    _numbers: Counter[str] = field(default_factory=Counter)
    _began: float = field(default_factory=monotonic)

    def cell(self, key: Key) -> Cell:
        """Return the cell of an implementation's name and a case id."""
        return self._cells[key]

    @cached_property
    def _cells(self) -> dict[Key, Cell]:
        return {cell.key: cell for cell in self.selection.cells}

    @property
    def processes(self) -> int:
        """Number of processes in which every cell is timed."""
        return int(self.timing["processes"])

    @property
    def known(self) -> set[Key]:
        """Cells that have a row, or a reason for having none."""
        return {*self.skipped, *self.finished}

    @property
    def rows(self) -> list[Row]:
        """Benchmarks in pytest-benchmark's format, in the order of the plan."""
        return [self.finished[key] for key in self._cells if key in self.finished]

    @property
    def skips(self) -> list[dict[str, str]]:
        """Return the skipped cells for the run file, in the order of the plan."""
        return [self.skipped[key] for key in self._cells if key in self.skipped]

    @property
    def failed(self) -> bool:
        return any(entry["reason"] in FAILURES for entry in self.skipped.values())

    @property
    def baseline_impl(self) -> str | None:
        """Baseline implementation of speed-ups: by default `sdpa` if it is measured beside the user's own."""
        chosen = self.selection.impls
        own = any(not impl.owner.startswith("impls.") for impl in chosen)
        usual = [impl.name for impl in chosen if own and impl.name == "sdpa"]
        registered = [impl.name for impl in impls.registered() if impl.baseline]
        return next(iter([*filter(None, [self.asked.get("baseline")]), *usual, *registered]), None)

    @property
    def complete(self) -> bool:
        return self.ended and self.planned is not None and self.planned <= self.known

    @property
    def progress(self) -> str:
        """Progress of the checks: ` 2/16`, counting cells without a row as checked."""
        planned = self.planned or set()
        return f"{sum(map(self.settled, planned)):>3}/{len(planned)}"

    @property
    def kept(self) -> str:
        """Describe the state of an unfinished run: `24 of 24 cells checked, 37% of the timing done`."""
        planned, cases = self.planned or set(), {case for _, case in self.checked}
        share = len(self._visited) / max(1, self.processes * VISITS * len(cases))
        checked = f"{sum(map(self.settled, planned))} of {len(planned)} cells checked"
        return f"{checked}, {min(1.0, share):.0%} of the timing done"

    def samples(self, key: Key) -> Sequence[Sample]:
        """Return the timed blocks of a cell so far."""
        return self.timed[key].samples if key in self.timed else ()

    def settled(self, key: Key) -> bool:
        """Whether a cell needs no further check."""
        return key in self.checked or key in self.known

    def visited(self, slot: int, visit: int, case: str) -> bool:
        """Whether a process has made a given visit of a case."""
        return (slot, visit, case) in self._visited

    def plan(self, keys: Iterable[Key]) -> None:
        """Fix the cells of the run after pytest has deselected some, and open the journal.

        Raises `UsageError` if the results can't be written.
        """
        if self.planned is not None:
            return
        self.planned = set(keys)
        if self.name is None or not self.planned:
            return
        header = {"schema": SCHEMA, "asked": self.asked, "timing": self.timing, "planned": sorted(self.planned)}
        header |= {"traced": self.traced, "machine": fingerprint(), "sources": self.selection.sources}
        try:
            self.journal = Journal.start(self.folder, self.name, header)
        except OSError as error:
            raise UsageError(f"results can't be written to {self.folder}: {error.strerror}") from None
        if short := shortage(self.folder, len(self.planned)):
            self.journal.delete()
            self.journal = None  # nothing to resume
            raise UsageError(f"results don't fit in {self.folder}: {short}")
        if self.replaced:
            self.replaced.delete()

    def elapsed(self) -> float:
        """Seconds since the run began, excluding gaps between a process and the one that resumed it."""
        return monotonic() - self._began

    def new_process(self) -> int:
        """Return a number for a worker process, unique within this run."""
        return self._new("process")

    def new_visit(self) -> int:
        return self._new("visit")

    def new_round(self, case: str) -> int:
        return self._new(case)

    def _new(self, what: str) -> int:
        self._numbers[what] += 1
        return self._numbers[what] - 1

    def begin(self, cell: Cell) -> None:
        """Record in the journal that a cell's check begins, in case it ends this process."""
        self._write({"begin": cell.key})

    def add_checked(self, cell: Cell, answer: dict[str, Any]) -> None:
        """Store a worker's answer to `check`."""
        add_spent(answer.get("spent", {}))
        self._add({"checked": {"key": cell.key, **{name: answer[name] for name in ("columns", "seconds", "first_s")}}})

    def add_skipped(self, cell: Cell, outcome: Skip) -> None:
        impl, case_id = cell.key
        self._add({"skipped": {"impl": impl, "id": case_id, "reason": outcome.reason, "detail": str(outcome)}})

    def add_visit(self, slot: int, visit: int, case: str, timed: Mapping[str, Timed]) -> None:
        """Store the samples of one visit of a case, by implementation."""
        cells = {impl: it.written() for impl, it in timed.items()}
        now = {"numbers": dict(self._numbers), "elapsed": self.elapsed()}
        self._add({"visit": {"slot": slot, "visit": visit, "id": case, "cells": cells, **now}})

    def add_columns(self, cell: Cell, columns: dict[str, Any]) -> None:
        self._add({"columns": {"key": cell.key, "columns": columns}})

    def finish(self) -> None:
        """Build the rows of all timed cells; a row above the roofline is rejected."""
        for key, timed in self.timed.items():
            if key in self.known or not timed.samples:
                continue
            cell = self.cell(key)
            base = (self.baseline_impl or "", key[1])
            over = () if base in self.skipped else self.samples(base)
            try:
                more: Row = {"repeats": None if cell.case.drops else True}
                more["calls_compared"] = 0 if cell.case.drops else len(timed.samples) + timed.compared
                more |= timed.columns
                if "roof" not in more:
                    more["roof"] = self._roof(cell, timed.samples)
            except Skip as outcome:
                self.add_skipped(cell, outcome)
                continue
            more.pop("throttled_by", None)
            self.finished[key] = finite(row(cell, self.checked[key]["columns"], timed.samples, over, NOT_READ | more))

    def _roof(self, cell: Cell, found: Sequence[Sample]) -> float:
        threads = torch.get_num_threads()
        torch.set_num_threads(cell.case.threads or threads)
        try:
            return self.roofs.share(cell.case, meter_for(cell.case.device), median(it.seconds for it in found))
        finally:
            torch.set_num_threads(threads)

    def _add(self, line: Line) -> None:
        self._take(line)
        self._write(line)

    def _take(self, line: Line) -> None:
        """Apply a line of the journal."""
        match line:
            case {"begin": [impl, case]}:
                self._begun[impl, case] += 1
            case {"checked": checked}:
                self.checked[tuple(checked["key"])] = checked
            case {"skipped": entry}:
                self.skipped[entry["impl"], entry["id"]] = entry
            case {"visit": seen}:
                self._visited.add((seen["slot"], seen["visit"], seen["id"]))
                for impl, cell in seen["cells"].items():
                    self.timed.setdefault((impl, seen["id"]), Timed()).add(Timed.read(cell))
            case {"columns": found}:
                self.timed[tuple(found["key"])].columns |= found["columns"]

    def _write(self, line: Line) -> None:
        """Write a line to the journal; on a full disk, end the run with one message and without loss."""
        if self.journal is None:
            return
        try:
            self.journal.add(line)
        except OSError as error:
            self.unwritten = True
            pytest.exit(f"{self.journal.path}: {error.strerror}; `--resume {self.name}` goes on when that is mended", 1)

    def top_level(self) -> dict[str, Any]:
        """Return the keys that the run file has beside pytest-benchmark's own."""
        return {
            "schema": SCHEMA,
            "sweep": self.selection.sweep.name,
            "command": self.command,
            "asked": self.asked,
            "timing": self.timing,
            "complete": self.complete,
            "journal": self.journal.path.name if self.journal else None,
            "sources": self.journal.header["sources"] if self.journal else None,
            # excluding what --impl adds
            "registry": [it.name for it in impls.registered() if it.owner.startswith("impls.")],
            "baseline_impl": self.baseline_impl,
            "axes": [axis.described() for axis in AXES.values()],
            "published": published_of({cell.case.id for cell in self.selection.cells}),
            "skipped": self.skips,
            **self.seen(),
            "state": state(),
        }

    def seen(self) -> dict[str, Any]:
        """Return the observations of the machine so far, including earlier processes of a resumed run."""
        return {"roofs": self.roofs.table(), "controls": self.controls.table(), "seconds": spent()}

    def look(self, elsewhere: Mapping[str, float] = {}) -> None:
        """Time the reference workload and record the machine's state, including measurements from a worker."""
        self.controls.look(elsewhere)
        self._write({"machine": self.seen()})

    def restore(self, journal: Journal) -> None:
        """Load the results of earlier processes of this run."""
        for line in journal.lines:
            self._take(line)
        if seen := _last(journal.lines, "machine"):
            self.roofs.restore(seen["roofs"])
            self.controls.restore(seen["controls"])
            add_spent(seen["seconds"])
        if last := _last(journal.lines, "visit"):
            self._numbers.update(last["numbers"])
            self._began -= last["elapsed"]
        self._judge_begun()

    def _judge_begun(self) -> None:
        """Skip cells whose checks repeatedly ended a process; others in progress at such an end are tried last."""
        begun = {key: times for key, times in self._begun.items() if not self.settled(key)}
        for key, times in begun.items():
            if times >= TRIES:
                self.add_skipped(self.cell(key), Skip(f"the run ended {times} times while this was checked"))
        self.suspects = frozenset(begun.keys() - self.skipped.keys())

    def trace(self, cell: Cell, worker: Any) -> dict[str, str]:
        """Have a trace written; returns the row's column with its path."""
        assert self.traces
        return self.traces.save(
            cell, self.checked[cell.key]["columns"]["operators"], partial(worker.ask, "trace", cell)
        )

    def close(self) -> None:
        """Delete the journal of a complete and saved run, and the file written when it was interrupted."""
        if self.journal is None:
            return
        if not (self.saved and self.complete):
            return self.journal.close()
        for path in run_files(self.folder, self.name or ""):
            if path != self.saved and load(path).get("journal") == self.journal.path.name:
                path.unlink()
        self.journal.delete()


def _last(lines: Sequence[Line], kind: str) -> dict[str, Any]:
    """Return the newest line of a kind; empty if there is none."""
    return next((line[kind] for line in reversed(lines) if kind in line), {})


def begin(config: pytest.Config) -> Run:
    """Build a run, new or resumed, from the command line; raises `UsageError`."""
    if os.environ.get("PYTEST_XDIST_WORKER") or config.getoption("dist", "no") != "no":
        raise UsageError("nothing can be timed under pytest-xdist: leave out -n")
    folder = results_folder(config) / str(get_machine_id())  # pytest-benchmark's name for it
    resume, save = config.getoption("resume"), config.getoption("benchmark_save")
    given = [str(it) for it in config.invocation_params.args]
    installed = given[:1] == ["-c"] and given[3:4] == [str(CHECKOUT / "bench")]  # started by `attention-bench run`
    command = shlex.join(["attention-bench", "run", *given[4:]] if installed else ["pytest", *given])
    if resume == "":
        raise UsageError("--resume is empty: name the run that is to be finished")
    if config.getoption("redo") and not resume:
        raise UsageError("--redo says how to resume: with --resume NAME")
    if not resume:
        run = _new(config, folder, save or config.getoption("benchmark_autosave"))
    elif save and save != resume:
        raise UsageError(f"--resume {resume} keeps that name; leave out --benchmark-save={save}")
    else:
        run = (
            _from_journal(config, folder, resume)
            or _from_file(config, folder, resume)
            or _new(config, folder, _to_begin(config, folder, resume))
        )
    config.option.benchmark_save = config.option.benchmark_autosave = None  # the suite itself saves, all or nothing
    if run.name:
        if not run.name.isprintable():
            raise UsageError(f"a run can't be called {run.name!r}: it holds what can't be printed")
        if why := obstacle(folder, run.name):
            raise UsageError(f"results can't be written to {folder}: {why}")
    run.command = command
    run.traced |= config.getoption("save_traces")
    run.timing = settle_timing(config, run.timing)
    run.roofs.seconds = min(run.roofs.seconds, run.timing["cell_time"] / 5)  # a hasty run is hasty in all things
    return run


def _to_begin(config: pytest.Config, folder: Path, name: str) -> str:
    """Return the name of a new run for `--resume`; refuses a lone unknown name, which would measure all of `quick`."""
    if asked(config):
        return name
    known = sorted({*journals.names(folder), *run_names(folder)})
    there = f"known: {', '.join(known)}{nearest(name, known)}" if known else "none is there yet"
    raise UsageError(f"no run {name!r} to resume in {folder} ({there}); --benchmark-save={name} begins one")


def _new(config: pytest.Config, folder: Path, name: str | None) -> Run:
    options = asked(config)
    selection = _select(config, options)
    allocator.choose(config.getoption("allocator"), selection.cells)
    return Run(options, selection, folder, name)


def _select(config: pytest.Config, options: dict[str, Any]) -> Selection:
    return select(options, str(config.invocation_params.dir))


def _from_journal(config: pytest.Config, folder: Path, name: str) -> Run | None:
    """Return the run of a journal left by a killed process; None if there is none."""
    path = journals.newest(folder, name)
    if path is None:
        return None
    journals.refuse_written(path)
    journal = Journal.reopen(path)
    options = _same(config, name, journal.header["asked"], journal.header["machine"])
    selection = _select(config, options)
    how = {key: journal.header[key] for key in ("timing", "traced") if key in journal.header}
    if config.getoption("redo"):
        return Run(options, selection, folder, name, replaced=journal, **how)
    if journal.header["machine"] != fingerprint():
        raise UsageError(f"run {name} was begun on another machine or with another torch; --redo begins it anew")
    if journal.header.get("sources") != selection.sources:
        raise UsageError(f"the code has changed since run {name} was begun; --redo begins it anew")
    planned = {(impl, case) for impl, case in journal.header["planned"]}
    run = Run(options, selection, folder, name, journal=journal, planned=planned, **how)
    run.restore(journal)
    return run


def _from_file(config: pytest.Config, folder: Path, name: str) -> Run | None:
    """Return a finished run, with nothing left to measure or save; None if there is none."""
    finished = [data for path in run_files(folder, name) if (data := load(path)).get("complete")]
    if not finished:
        return None
    if config.getoption("redo"):
        raise UsageError(f"run {name} is finished; --benchmark-save={name} measures it once more")
    options = _same(config, name, finished[-1]["asked"], finished[-1]["machine_info"])
    run = Run(options, _select(config, options), folder)
    if finished[-1].get("sources") not in (None, run.selection.sources):
        raise UsageError(
            f"run {name} is finished, and the code is another now; --benchmark-save={name} measures it once more"
        )
    run.finished = {(it["extra_info"]["impl"], it["extra_info"]["id"]): it for it in finished[-1]["benchmarks"]}
    run.skipped = {(it["impl"], it["id"]): it for it in finished[-1]["skipped"]}
    run.planned, run.ended = run.known, True
    return run


def _same(config: pytest.Config, name: str, options: dict[str, Any], machine: dict[str, Any]) -> dict[str, Any]:
    """Return the run's original options; raises if the command line now requests others."""
    now = asked(config)
    if now and now != options:
        raise UsageError(f"run {name} was begun with other options; `--resume {name}` alone finishes it")
    allocator.choose(config.getoption("allocator"), begun=machine["allocator"])
    return options


def results_folder(config: pytest.Config) -> Path:
    """Return the results folder chosen by the user, or the default; raises `UsageError`."""
    given = config.getoption("benchmark_storage")
    return results_root(config.invocation_params.dir, None if given == "file://./.benchmarks" else given)


def finite(value: Any) -> Any:
    """Replace numbers that are not finite by null, since JSON has no NaN or Infinity."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
