"""One run: what was planned, what is already known, where it is saved, and how it is finished later."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.utils import get_machine_id

import impls

from . import journal as journals
from .cells import Cell, Key
from .controls import Controls
from .journal import Entry, Journal, entry_key
from .ledger import restore, spent
from .machine import fingerprint, state
from .options import Selection, asked, select, settle_timing
from .outcome import FAILURES, NoRow, TimedOut
from .roofs import Roofs
from .saving import load, run_files, shortage

SCHEMA = 1

TRIES = 3
"""How often a cell may be begun in processes that then are gone without a trace, before it is given up."""

CHECKOUT = Path(__file__).resolve().parent.parent


@dataclass
class Run:
    """The cells that were asked for, and the outcomes that are known, from this process or from the one it resumes."""

    asked: dict[str, Any]
    selection: Selection
    folder: Path
    """Where run files and journals lie: results/<machine>."""
    name: str | None = None
    """None when nothing is saved."""
    command: str = ""
    timing: dict[str, float] = field(default_factory=dict)
    """What ends the timing of a cell: options of `TIMING`."""
    traced: bool = False
    """Whether a trace is saved of every cell that is measured."""
    journal: Journal | None = None
    planned: set[Key] | None = None
    """What a whole run is; None until pytest has collected."""
    entries: list[Entry] = field(default_factory=list)
    saved: Path | None = None
    roofs: Roofs = field(default_factory=Roofs)
    controls: Controls = field(default_factory=Controls)
    given_up: list[str] = field(default_factory=list)
    """Cells that ended the process before, each with the sentence that it is skipped with."""
    suspects: frozenset[Key] = frozenset()
    """Cells that were begun in a process that is gone: they are tried again, but last."""

    def cell(self, key: Key) -> Cell:
        """The cell with this name and case id."""
        return next(cell for cell in self.selection.cells if cell.key == key)

    @property
    def known(self) -> set[Key]:
        return {entry_key(entry) for entry in self.entries}

    def entry(self, key: Key) -> Entry | None:
        """What is known of a cell."""
        return next((entry for entry in reversed(self.entries) if entry_key(entry) == key), None)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Benchmarks as pytest-benchmark writes them."""
        return [entry["row"] for entry in self._in_order() if "row" in entry]

    @property
    def skipped(self) -> list[dict[str, str]]:
        return [entry["skipped"] for entry in self._in_order() if "skipped" in entry]

    @property
    def failed(self) -> bool:
        return any(entry["reason"] in FAILURES for entry in self.skipped)

    @property
    def yardstick(self) -> str | None:
        """The implementation that speed-ups are over."""
        return next((impl.name for impl in impls.shelf() if impl.yardstick), None)

    @property
    def complete(self) -> bool:
        return self.planned is not None and self.planned <= self.known

    def _in_order(self) -> list[Entry]:
        """As planned, so that a resumed run's file reads like that of a run never interrupted."""
        order = {cell.key: i for i, cell in enumerate(self.selection.cells)}
        return sorted(self.entries, key=lambda entry: order.get(entry_key(entry), len(order)))

    def plan(self, keys: Iterable[Key]) -> None:
        """Fix what a whole run is, once pytest has deselected what it was told to, and open the journal.

        Raises `pytest.UsageError` when the results can't be written.
        """
        if self.planned is not None:
            return
        self.planned = set(keys)
        if self.name is None:
            return
        header = {"schema": SCHEMA, "asked": self.asked, "timing": self.timing, "planned": sorted(self.planned)}
        header |= {"traced": self.traced, "machine": fingerprint()}
        try:
            self.journal = Journal.start(self.folder, self.name, header)
        except OSError as error:
            raise pytest.UsageError(f"results can't be written to {self.folder}: {error.strerror}") from None
        if short := shortage(self.folder, len(self.planned)):
            self.journal.delete()
            raise pytest.UsageError(f"results don't fit in {self.folder}: {short}")

    def begin(self, cell: Cell) -> None:
        """Write down which cell comes now, in case the process doesn't survive it."""
        self._write(lambda journal: journal.begin(cell.key))

    def add_row(self, benchmark: dict[str, Any]) -> None:
        self._add({"row": finite(benchmark)})

    def add_skipped(self, cell: Cell, outcome: NoRow) -> None:
        impl, case_id = cell.key
        self._add({"skipped": {"impl": impl, "id": case_id, "reason": outcome.reason, "detail": str(outcome)}})

    def _add(self, entry: Entry) -> None:
        self.entries.append(entry)
        self._write(lambda journal: journal.add(entry))

    def _write(self, into: Callable[[Journal], None]) -> None:
        """Write into the journal; a disk that is full ends the run in one line, and loses nothing."""
        if self.journal is None:
            return
        try:
            into(self.journal)
        except OSError as error:
            pytest.exit(f"{self.journal.path}: {error.strerror}; `--resume {self.name}` goes on when that is mended", 1)

    def top_level(self) -> dict[str, Any]:
        """What the run file holds beside pytest-benchmark's own keys."""
        return {
            "schema": SCHEMA,
            "sweep": self.selection.sweep.name,
            "command": self.command,
            "asked": self.asked,
            "timing": self.timing,
            "complete": self.complete,
            "journal": self.journal.path.name if self.journal else None,
            "shelf": [impl.name for impl in impls.shelf()],
            "yardstick": self.yardstick,
            "skipped": self.skipped,
            **self.seen(),
            "state": state(),
        }

    def seen(self) -> dict[str, Any]:
        """What was seen of the machine so far, earlier processes of a resumed run included."""
        return {"roofs": self.roofs.table(), "controls": self.controls.table(), "seconds": spent()}

    def look(self) -> None:
        """Time the controls if that is due, and write down what was seen of the machine."""
        if self.controls.look_if_due():
            self._write(lambda journal: journal.note(self.seen()))

    def _restore(self, seen: dict[str, Any]) -> None:
        if seen:
            self.roofs.restore(seen["roofs"])
            self.controls.restore(seen["controls"])
            restore(seen["seconds"])

    def own_file(self) -> Path | None:
        """The file that holds this very run, as saved by this process; None when there is none."""
        files = run_files(self.folder, self.name or "")
        mine = self.journal and self.journal.path.name
        return next(
            (
                p
                for p in reversed(files)
                if (data := load(p)).get("journal") == mine and data["complete"] == self.complete
            ),
            None,
        )

    def close(self) -> None:
        """A complete and saved run needs neither its journal nor the file that it left when it was interrupted."""
        if self.journal is None:
            return
        if not (self.saved and self.complete):
            return self.journal.close()
        for path in run_files(self.folder, self.name or ""):
            if path != self.saved and load(path).get("journal") == self.journal.path.name:
                path.unlink()
        self.journal.delete()


def begin(config: pytest.Config) -> Run:
    """Resolve the command line into a run, new or resumed; raises `pytest.UsageError`."""
    if os.environ.get("PYTEST_XDIST_WORKER") or config.getoption("dist", "no") != "no":
        raise pytest.UsageError("nothing can be timed under pytest-xdist: leave out -n")
    folder = results_folder(config) / str(get_machine_id())  # as pytest-benchmark names it
    resume, save = config.getoption("resume"), config.getoption("benchmark_save")
    command = shlex.join(["pytest", *map(str, config.invocation_params.args)])
    if not resume:
        run = _new(config, folder, save or config.getoption("benchmark_autosave"))
    elif save and save != resume:
        raise pytest.UsageError(f"--resume {resume} keeps that name; leave out --benchmark-save={save}")
    else:
        run = (
            _from_journal(config, folder, resume) or _from_file(config, folder, resume) or _new(config, folder, resume)
        )
        config.option.benchmark_save = run.name
    run.command = command
    run.traced = bool(config.getoption("save_traces") or (run.journal and run.journal.header.get("traced")))
    run.timing = settle_timing(config, run.journal.header.get("timing", {}) if run.journal else {})
    return run


def _new(config: pytest.Config, folder: Path, name: str | None) -> Run:
    options = asked(config)
    return Run(options, select(config, options), folder, name)


def _from_journal(config: pytest.Config, folder: Path, name: str) -> Run | None:
    """The run that was killed; None when there is none."""
    path = journals.newest(folder, name)
    if path is None:
        return None
    if (pid := journals.writer(path)) is not None:
        raise pytest.UsageError(f"run {name} is being measured right now, by process {pid}")
    journal = Journal.reopen(path)
    if journal.header["machine"] != fingerprint():
        raise pytest.UsageError(f"run {name} was begun on another machine or with another torch; begin a new one")
    options = _same(config, name, journal.header["asked"])
    planned = {(impl, case) for impl, case in journal.header["planned"]}
    run = Run(options, select(config, options), folder, name, journal=journal, planned=planned)
    run.entries = list(journal.entries)
    run._restore(journal.machine)
    _judge_begun(run, journal)
    return run


def _judge_begun(run: Run, journal: Journal) -> None:
    """What becomes of cells that were begun and have no outcome: skipped where they are known to end the process, else last.

    A fatal signal leaves its trace, so one is enough; who was killed from outside leaves none, so that takes `TRIES`.
    """
    fault = journal.fault()
    for key, times in journal.begun.items():
        if fault and key == journal.last:
            reason: NoRow = (TimedOut if fault.startswith("Timeout") else NoRow)(f"ended the process: {fault}")
        elif times >= TRIES:
            reason = NoRow(f"ended the process, or was killed with it, {times} times")
        else:
            continue
        run.add_skipped(run.cell(key), reason)
        run.given_up.append(f"{' '.join(key)}: {reason}")
    run.suspects = frozenset(journal.begun.keys() - run.known)


def _from_file(config: pytest.Config, folder: Path, name: str) -> Run | None:
    """The run that was finished, so that nothing is left to do and nothing is saved again; None when there is none."""
    finished = [data for path in run_files(folder, name) if (data := load(path)).get("complete")]
    if not finished:
        return None
    entries = [{"row": row} for row in finished[-1]["benchmarks"]] + [{"skipped": it} for it in finished[-1]["skipped"]]
    options = _same(config, name, finished[-1]["asked"])
    return Run(options, select(config, options), folder, planned={entry_key(e) for e in entries}, entries=entries)


def _same(config: pytest.Config, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """What the run was begun with; raises when the command line now asks for something else."""
    now = asked(config)
    if now and now != options:
        raise pytest.UsageError(f"run {name} was begun with other options; `--resume {name}` alone finishes it")
    return options


def results_folder(config: pytest.Config) -> Path:
    """Where pytest was told to keep results, or where they lie by default."""
    given = config.getoption("benchmark_storage")
    return results_root(config.invocation_params.dir, None if given == "file://./.benchmarks" else given)


def results_root(start: Path, storage: str | None) -> Path:
    """The checkout's own results/ from anywhere inside it, ./results from elsewhere; or the storage that was asked for."""
    if storage:
        return Path(storage.removeprefix("file://")).resolve()
    start = start.resolve()
    return (CHECKOUT if start.is_relative_to(CHECKOUT) else start) / "results"


def finite(value: Any) -> Any:
    """The same with null for numbers that are not finite: NaN and Infinity are not JSON."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
