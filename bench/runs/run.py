"""A run: its plan, its results so far, and where they are saved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from time import monotonic

import pytest

import impls

from ..cases.cells import Cell, Key
from ..cases.outcome import FAILURES, Skip
from ..cases.published import published_of
from ..checks.settings import threads
from ..selection.options import Selection
from ..timing.machine import fingerprint, state
from ..timing.reference_workload import ReferenceWorkload
from ..timing.rooflines import Rooflines
from ..timing.schedule import Block, counts
from .rows import Results, Row, Sample, finite, row
from .saving import Journal, Object

SCHEMA = 2

MOST_OPERATORS = 10_000
"""Operators of one call above which no trace is taken: each takes about a kilobyte to write and to read."""

MOST_LOST_WORKERS = 3
"""Number of runs that may end while checking a cell before the cell is skipped."""


class FirstFailure(Exception):
    """Ends a run that is to end at its first failure."""


@dataclass
class Run:
    """The requested cells and their results, from this process or from the run that it resumes."""

    asked: Object
    selection: Selection
    folder: Path
    """Folder of run files and journals: results/<machine>."""
    name: str | None = None
    """Name of the run; None if it is not saved."""
    command: str = ""
    timing: dict[str, float] = field(default_factory=dict)
    """Timing options, as in `TIMING`."""
    seed: int = 0
    """Seed of the random order of timing."""
    traced: bool = False
    """Whether a trace of every measured cell is saved."""
    fail_fast: bool = False
    """Whether the first failure ends the run."""
    tell: Callable[[str], object] = lambda line: None
    """Prints a line of progress."""
    journal: Journal | None = None
    planned: set[Key] = field(default_factory=set)
    """All cells of the run, once pytest has collected."""
    saved: Path | None = None
    unsaved: OSError | None = None
    """Why the run, or its journal, can't be written."""
    ended: bool = False
    """Whether everything was measured. An interrupted run has rows of what was timed so far, and can be resumed."""
    found: dict[Key, Results] = field(default_factory=dict)
    """Results of checked cells."""
    skipped: dict[Key, dict[str, str]] = field(default_factory=dict)
    finished: dict[Key, Row] = field(default_factory=dict)
    """Rows of all timed cells, in the order of the plan, once measuring has ended."""
    rooflines: Rooflines = field(default_factory=Rooflines)
    workload: ReferenceWorkload = field(default_factory=ReferenceWorkload)
    begun: Counter[Key] = field(default_factory=Counter)
    """How often the check of each cell has begun since the user last interrupted the run; one that ended the run begins
    again, last.
    """
    visited: Counter[tuple[int, str]] = field(default_factory=Counter)
    """Number of visits that each process has made of each case."""
    spent: dict[str, float] = field(default_factory=dict)
    """Seconds by purpose, excluding gaps between a process and the one that resumed it."""
    _purpose: str = "start"
    _counted: float = field(default_factory=monotonic)
    """When seconds were last counted."""
    _numbers: Counter[str] = field(default_factory=Counter)

    @cached_property
    def cells(self) -> dict[Key, Cell]:
        """All cells by an implementation's name and a case id."""
        return {cell.key: cell for cell in self.selection.cells}

    @cached_property
    def sources(self) -> str:
        """Digest of the code and the cases, as of the start."""
        return self.selection.sources

    @property
    def processes(self) -> int:
        """Number of processes in which every cell is timed."""
        return int(self.timing["processes"])

    def counts(self, blocks: Mapping[Key, Block], visit: int, need: Mapping[Key, float] = {}) -> dict[Key, int]:
        """Return the number of rounds of each cell in the `visit`-th visit of a process (`schedule.counts`)."""
        return counts(blocks, visit, need, self.timing["cell_time"], self.processes)

    @property
    def settled(self) -> set[Key]:
        """Planned cells that need no further check."""
        return self.planned & (self.found.keys() | self.skipped.keys())

    @property
    def skips(self) -> list[dict[str, str]]:
        """Return the skipped cells for the run file, in the order of the plan."""
        return [self.skipped[key] for key in self.cells if key in self.skipped]

    @property
    def baseline_impl(self) -> str:
        """Baseline implementation of speedups: by default `sdpa` if it is measured beside the user's own."""
        of = {impl.name: impl.owner for impl in self.selection.impls}
        if "sdpa" in of and not all(owner.startswith("impls.") for owner in of.values()):
            usual = "sdpa"
        else:
            (usual,) = (impl.name for impl in impls.registered() if impl.baseline)
        return str(self.asked.get("baseline", usual))

    @property
    def complete(self) -> bool:
        return self.ended and self.planned <= self.finished.keys() | self.skipped.keys()

    @property
    def timed(self) -> list[Cell]:
        """Return the cells that have samples and are not skipped."""
        return [cell for key, cell in self.cells.items() if self.samples(key) and key not in self.skipped]

    def lacks(self, cell: Cell) -> list[str]:
        """Return which of the columns that are measured after the timing a cell lacks: `cold_s`, which stands for all further
        conditions (on a CPU only with `--model`), and `trace`.
        """
        columns = self.found.get(cell.key, Results()).columns
        wanted = ["cold_s"] * (cell.case.device != "cpu" or "model" in self.asked)
        loops = cell.impl.limits.loops or (columns.get("operators") or 0) > MOST_OPERATORS
        wanted += ["trace"] * (self.traced and not loops)
        return [name for name in wanted if name not in columns]

    def tell_of(self, cell: Cell, outcome: str) -> None:
        """Print a line on a cell: `  2/16 B1-T16-H2  sdpa  checked`, where 2 of 16 cells need no further check."""
        self.tell(f"{len(self.settled):>3}/{len(self.planned)} {cell.case.id}  {cell.impl.name:<20} {outcome}")

    def samples(self, key: Key) -> list[Sample]:
        """Return the timed blocks of a cell so far."""
        return self.found.get(key, Results()).samples

    def plan(self, keys: Iterable[Key]) -> None:
        """Fix the cells of the run after pytest has deselected some, and open the journal.

        Raises `UsageError` if the results can't be written.
        """
        if self.planned:  # of a resumed run
            return
        self.planned = set(keys)
        if self.name and self.planned:
            self.journal = Journal.start(self.folder, self.name, self.head() | {"planned": sorted(self.planned)})

    def account(self, purpose: str | None = None) -> None:
        """Count the seconds so far; those from now on are spent on `purpose` (default: the same one)."""
        now = monotonic()
        self.spent[self._purpose] = self.spent.get(self._purpose, 0.0) + now - self._counted
        self._purpose, self._counted = purpose or self._purpose, now

    def elapsed(self) -> float:
        """Return the seconds spent so far."""
        self.account()
        return sum(self.spent.values())

    def next_number(self, what: str) -> int:
        """Return the next number in this run of a worker `process`, a `visit`, or a round of a case (its id)."""
        self._numbers[what] += 1
        return self._numbers[what] - 1

    def add(self, line: Object) -> None:
        """Apply a line of the journal, and write it; on a full disk, end the run without loss."""
        self.account()
        self._take(line)
        if self.journal is None:
            return
        try:
            self.journal.add(line | {"seconds": self.spent})
        except OSError as error:
            self.unsaved = error
            pytest.exit(f"{self.journal.path}: {error.strerror}", 1)

    def add_skipped(self, cell: Cell, outcome: Skip) -> None:
        """Add why a cell has no row, and print it, unless the implementation declares it. Raises `FirstFailure`."""
        impl, case_id = cell.key
        self.add({"skipped": {"impl": impl, "id": case_id, "reason": outcome.reason, "detail": str(outcome)}})
        if outcome.reason != "unsupported":
            self.tell_of(cell, f"{outcome.reason}: {outcome}")
        if self.fail_fast and outcome.reason in FAILURES:
            raise FirstFailure

    @contextmanager
    def skipping(self, cell: Cell) -> Iterator[None]:
        """Context of a measurement of a cell, which is skipped if it fails."""
        try:
            yield
        except Skip as outcome:
            self.add_skipped(cell, outcome)

    def add_visit(self, process: int, visit: int, case: str, found: Mapping[str, Results]) -> None:
        """Add the results of one visit of a case, by implementation."""
        cells = {impl: vars(it) for impl, it in found.items()}
        numbers = {what: self._numbers[what] for what in ("process", "visit", case)}
        self.add({"visit": (process, visit, case), "cells": cells, "numbers": numbers})

    def finish(self) -> None:
        """Build the rows of all timed cells; a row above the roofline is rejected."""
        self.account("rooflines")
        self.fail_fast = False  # nothing is left to end
        for cell in self.timed:
            found, base = self.found[cell.key], (self.baseline_impl, cell.case.id)
            with self.skipping(cell):
                if cell.case.device == "cpu":  # a GPU's is measured by a worker
                    with threads(cell.case.threads):
                        found.columns["roof"] = self.rooflines.share(cell.case, found.usual)
                self.finished[cell.key] = finite(row(cell, found, () if base in self.skipped else self.samples(base)))
        self.account()

    def _take(self, line: Object) -> None:
        """Apply a line of the journal."""
        match line:
            case {"begin": key}:
                self.begun[tuple(key)] += 1
            case {"interrupted": _}:
                self.begun.clear()
            case {"key": key, "found": found}:
                self.found.setdefault(tuple(key), Results()).add(Results(**found))
            case {"skipped": entry}:
                self.skipped[entry["impl"], entry["id"]] = entry
            case {"visit": (process, visit, case), "cells": cells, "numbers": numbers}:
                self.visited[process, case] = visit + 1
                self._numbers |= Counter(numbers)
                for impl, found in cells.items():
                    self.found[impl, case].add(Results(**found))
            case {"machine": seen}:
                self.rooflines.restore(seen["roofs"])
                self.workload.seen = seen["controls"]["looks"]

    def head(self) -> Object:
        """Return how the run was started, as in its journal and its file: what `--resume` continues with."""
        return {
            "asked": self.asked,
            "command": self.command,
            "timing": self.timing,
            "seed": self.seed,
            "traced": self.traced,
            "machine_info": fingerprint(),
            "state": state(),
            "sources": self.sources,
        }

    def top_level(self) -> Object:
        """Return what the run file has beside pytest-benchmark's own facts: the rows, and how they were measured."""
        return {
            **self.head(),
            "schema": SCHEMA,
            "sweep": self.selection.sweep.name,
            "complete": self.complete,
            "benchmarks": [*self.finished.values()],
            "journal": self.journal.path.name if self.journal else None,
            # excluding what --impl adds
            "registry": [it.name for it in impls.registered() if it.owner.startswith("impls.")],
            "baseline_impl": self.baseline_impl,
            "published": published_of({cell.case.id for cell in self.selection.cells}),
            "models": self.selection.models,
            "skipped": self.skips,
            **self.observations(),
            "seconds": self.spent,
        }

    def observations(self) -> Object:
        """Return the measurements of the machine so far, including those of earlier processes of a resumed run.

        The keys keep the names of earlier files: `roofs` are the rooflines, `controls` the reference workload.
        """
        return {"roofs": self.rooflines.table(), "controls": self.workload.table()}

    def sample_machine(self, elsewhere: Mapping[str, float] = {}) -> None:
        """Time the reference workload and record the machine's state, including measurements from a worker."""
        self.account("reference workload")
        self.workload.sample(self.elapsed(), self.selection.device, elsewhere)
        self.add({"machine": self.observations()})

    def restore(self, journal: Journal) -> None:
        """Continue with the plan, the results and the journal of earlier processes of this run."""
        self.journal = journal
        self.planned = {(impl, case) for impl, case in journal.header["planned"]}
        for line in journal.lines:
            self._take(line)
            self.spent |= line["seconds"]
        for key, times in self.begun.items():
            if times >= MOST_LOST_WORKERS and key not in self.settled:
                self.add_skipped(self.cells[key], Skip(f"the run ended {times} times while this was checked"))

    def close(self) -> None:
        """Delete the journal of a complete and saved run."""
        if self.journal and self.saved and self.complete:
            self.journal.delete()
        elif self.journal:
            self.journal.close()
