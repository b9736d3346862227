"""A run: its plan, its results so far, and where they are saved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import impls
from stats.shares import without_numbers

from ..cases.accounting import add_spent, spent
from ..cases.case import AXES
from ..cases.cells import Cell, Key
from ..cases.outcome import Skip
from ..cases.published import published_of
from ..selection.options import Selection
from ..timing.devices import meter_for, threads
from ..timing.engine import VISITS
from ..timing.machine import fingerprint, state
from ..timing.reference_workload import ReferenceWorkload
from ..timing.rooflines import Rooflines
from .journal import Journal, Line
from .rows import Found, Row, Sample, finite, row
from .saving import load, run_files

SCHEMA = 2

MOST_LOST_WORKERS = 3
"""Number of processes that may end while checking a cell before the cell is skipped."""


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
    journal: Journal | None = None
    replaced: Journal | None = None
    """Journal of the run that this one redoes: deleted once this run's journal is on disk."""
    planned: set[Key] = field(default_factory=set)
    """All cells of the run, once pytest has collected."""
    saved: Path | None = None
    unsaved: OSError | None = None
    """Why the run, or its journal, can't be written."""
    ended: bool = False
    """Whether everything was measured. An interrupted run has rows of what was timed so far, and can be resumed."""
    found: dict[Key, Found] = field(default_factory=dict)
    """Results of checked cells."""
    skipped: dict[Key, dict[str, str]] = field(default_factory=dict)
    finished: dict[Key, Row] = field(default_factory=dict)
    """Complete rows: of a resumed run without remaining cells, and of cells finished by this process."""
    rooflines: Rooflines = field(default_factory=Rooflines)
    workload: ReferenceWorkload = field(default_factory=ReferenceWorkload)
    begun: Counter[Key] = field(default_factory=Counter)
    """How often the check of each cell has begun; one that ended its process begins again, last."""
    visited: set[tuple[int, int, str]] = field(default_factory=set)
    """Visits that are made: process, number in the process, and case."""
    _numbers: Counter[str] = field(default_factory=Counter)
    _began: float = field(default_factory=monotonic)

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

    @property
    def known(self) -> set[Key]:
        """Cells that have a row, or a reason for having none."""
        return {*self.skipped, *self.finished}

    @property
    def rows(self) -> list[Row]:
        """Benchmarks in pytest-benchmark's format, in the order of the plan."""
        return [self.finished[key] for key in self.cells if key in self.finished]

    @property
    def skips(self) -> list[dict[str, str]]:
        """Return the skipped cells for the run file, in the order of the plan."""
        return [self.skipped[key] for key in self.cells if key in self.skipped]

    @property
    def baseline_impl(self) -> str:
        """Baseline implementation of speed-ups: by default `sdpa` if it is measured beside the user's own."""
        of = {impl.name: impl.owner for impl in self.selection.impls}
        if "sdpa" in of and not all(owner.startswith("impls.") for owner in of.values()):
            usual = "sdpa"
        else:
            (usual,) = (impl.name for impl in impls.registered() if impl.baseline)
        return str(self.asked.get("baseline", usual))

    @property
    def complete(self) -> bool:
        return self.ended and self.planned <= self.known

    def line(self, cell: Cell, outcome: str) -> str:
        """Return a line on a cell: `  2/16 B1-T16-H2  sdpa  checked`, where 2 of 16 cells need no further check."""
        return f"{self.settled_cells:>3}/{len(self.planned)} {cell.case.id}  {cell.impl.name:<20} {outcome}"

    def skip_line(self, cell: Cell, outcome: Skip) -> str:
        """Return a line on a cell without a row, with the reason unless another cell has the same one."""
        others = (it for key, it in self.skipped.items() if key != cell.key)
        known = {(it["impl"], without_numbers(it["detail"])) for it in others}
        why = "" if (cell.impl.name, without_numbers(str(outcome))) in known else f": {outcome}"
        return self.line(cell, f"{outcome.reason}{why}")

    @property
    def state_text(self) -> str:
        """Describe the state of an unfinished run: `24 of 24 cells checked, 37% of the timing done`."""
        cases = {case for _, case in self.found}
        share = sum(map(self.visits, cases)) / (self.processes * VISITS * max(1, len(cases)))
        return f"{self.settled_cells} of {len(self.planned)} cells checked, {share:.0%} of the timing done"

    def visits(self, case: str) -> int:
        """Return how many visits of a case are made, by all processes."""
        return sum(of == case for *_, of in self.visited)

    def samples(self, key: Key) -> Sequence[Sample]:
        """Return the timed blocks of a cell so far."""
        return self.found[key].samples if key in self.found else ()

    def settled(self, key: Key) -> bool:
        """Whether a cell needs no further check."""
        return key in self.found or key in self.known

    @property
    def settled_cells(self) -> int:
        """Number of planned cells that need no further check."""
        return sum(map(self.settled, self.planned))

    def plan(self, keys: Iterable[Key]) -> None:
        """Fix the cells of the run after pytest has deselected some, and open the journal.

        Raises `UsageError` if the results can't be written.
        """
        if self.planned:  # of a resumed run
            return
        self.planned = set(keys)
        if self.name is None or not self.planned:
            return
        self.journal = Journal.start(self.folder, self.name, self.head() | {"planned": sorted(self.planned)})
        if self.replaced:
            self.replaced.delete()

    def elapsed(self) -> float:
        """Seconds since the run began, excluding gaps between a process and the one that resumed it."""
        return monotonic() - self._began

    def next_number(self, what: str) -> int:
        """Return the next number in this run of a worker `process`, a `visit`, or a round of a case (its id)."""
        self._numbers[what] += 1
        return self._numbers[what] - 1

    def add_begin(self, cell: Cell) -> None:
        """Store that a cell's check begins, in case it ends this process."""
        self._add({"begin": cell.key})

    def add_found(self, cell: Cell, **found: Any) -> None:
        """Store results of a cell (arguments of `Found.add`); the first are those of its check."""
        self._add({"key": cell.key, "found": found})

    def add_skipped(self, cell: Cell, outcome: Skip) -> None:
        """Store why a cell has no row."""
        impl, case_id = cell.key
        self._add({"skipped": {"impl": impl, "id": case_id, "reason": outcome.reason, "detail": str(outcome)}})

    def add_visit(self, process: int, visit: int, case: str, found: Mapping[str, Found]) -> None:
        """Store the results of one visit of a case, by implementation."""
        cells = {impl: vars(it) for impl, it in found.items()}
        now = {"numbers": dict(self._numbers), "elapsed": self.elapsed()}
        self._add({"visit": {"process": process, "visit": visit, "id": case, "cells": cells, **now}})

    def finish(self) -> None:
        """Build the rows of all timed cells; a row above the roofline is rejected."""
        for key, found in self.found.items():
            if key in self.known or not found.samples:
                continue
            cell, base = self.cells[key], (self.baseline_impl, key[1])
            try:
                if "roof" not in found.columns:
                    with threads(cell.case.threads):
                        meter = meter_for(cell.case.device)
                        found.columns["roof"] = self.rooflines.share(cell.case, meter, found.usual)
            except Skip as outcome:
                self.add_skipped(cell, outcome)
            else:
                self.finished[key] = finite(row(cell, found, () if base in self.skipped else self.samples(base)))

    def _add(self, line: Line) -> None:
        self._take(line)
        self._write(line)

    def _take(self, line: Line) -> None:
        """Apply a line of the journal."""
        match line:
            case {"begin": key}:
                self.begun[tuple(key)] += 1
            case {"key": key, "found": found}:
                self.found.setdefault(tuple(key), Found()).add(**found)
            case {"skipped": entry}:
                self.skipped[entry["impl"], entry["id"]] = entry
            case {"visit": seen}:
                self.visited.add((seen["process"], seen["visit"], seen["id"]))
                for impl, found in seen["cells"].items():
                    self.found[impl, seen["id"]].add(**found)

    def _write(self, line: Line) -> None:
        """Write a line to the journal; on a full disk, end the run without loss."""
        if self.journal is None:
            return
        try:
            self.journal.add(line)
        except OSError as error:
            self.unsaved = error
            pytest.exit(f"{self.journal.path}: {error.strerror}", 1)

    def head(self) -> dict[str, Any]:
        """Return how the run was started, as in its journal and its file: what `--resume` continues with."""
        return {
            "asked": self.asked,
            "command": self.command,
            "timing": self.timing,
            "traced": self.traced,
            "machine_info": fingerprint(),
            "sources": self.sources,
        }

    def top_level(self) -> dict[str, Any]:
        """Return the keys that the run file has beside pytest-benchmark's own."""
        return {
            **self.head(),
            "schema": SCHEMA,
            "sweep": self.selection.sweep.name,
            "complete": self.complete,
            "journal": self.journal.path.name if self.journal else None,
            # excluding what --impl adds
            "registry": [it.name for it in impls.registered() if it.owner.startswith("impls.")],
            "baseline_impl": self.baseline_impl,
            "axes": [axis.described() for axis in AXES.values()],
            "published": published_of({cell.case.id for cell in self.selection.cells}),
            "models": self.selection.models,
            "skipped": self.skips,
            **self.observations(),
            "state": state(),
        }

    def observations(self) -> dict[str, Any]:
        """Return the measurements of the machine so far, including those of earlier processes of a resumed run.

        The keys keep the names of earlier files: `roofs` are the rooflines, `controls` the reference workload.
        """
        return {"roofs": self.rooflines.table(), "controls": self.workload.table(), "seconds": spent()}

    def sample_machine(self, elsewhere: Mapping[str, float] = {}) -> None:
        """Time the reference workload and record the machine's state, including measurements from a worker."""
        self.workload.sample(self.elapsed(), elsewhere)
        self._write({"machine": self.observations()})

    def restore(self, journal: Journal) -> None:
        """Continue with the plan, the results and the journal of earlier processes of this run."""
        self.journal = journal
        self.planned = {(impl, case) for impl, case in journal.header["planned"]}
        newest: Line = {}
        for line in journal.lines:
            self._take(line)
            newest |= line
        if seen := newest.get("machine"):
            self.rooflines.restore(seen["roofs"])
            self.workload.restore(seen["controls"])
            add_spent(seen["seconds"])
        if last := newest.get("visit"):
            self._numbers.update(last["numbers"])
            self._began -= last["elapsed"]
        for key, times in self.begun.items():
            if times >= MOST_LOST_WORKERS and not self.settled(key):
                self.add_skipped(self.cells[key], Skip(f"the run ended {times} times while this was checked"))

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
