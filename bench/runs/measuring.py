"""Runs all measurements: cells are checked, timed interleaved in worker processes, and journalled.

This process runs no implementation code. If a worker process is lost, only its current cell is lost. Two pools of workers
(`pool.py`) check in parallel; then one times at a time. In a run of one process, a case is timed by the pool that
checked it; in a run of several, every pool times all cases.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from itertools import cycle
from subprocess import CalledProcessError
from time import monotonic
from typing import Any
from urllib.parse import quote

from stats import ratios
from stats.estimate import grouped, half_width
from stats.shares import percent

from ..cases.cells import Cell, Key
from ..cases.counting import held_bytes
from ..cases.outcome import Skip, Wrong
from ..selection.errors import UsageError
from ..selection.options import clock_text
from ..timing.devices import free_bytes_elsewhere
from ..timing.malloc import MAPPED
from ..timing.schedule import VISITS, need
from ..workers.client import Script, WorkerClient, checking, run_concurrently
from .pool import Ready, WorkerPool, request
from .remaining import remaining
from .rows import Results, samples_of
from .run import Run

SIDE_BY_SIDE = 2
"""Pools alive at the same time. On a GPU one, since autotuning beside other work would tune for a busy device."""

PREPARATIONS = 2
"""How often a case that doesn't fit in memory with the others is prepared in a process, for several visits each."""

PROCESS = 1 << 30
"""Approximate bytes of a process that has checked cells, beside those: libraries, expected outputs, and gaps in its heap."""

SILENT = 20.0
"""Seconds after which the time left is printed again."""

WORTH_A_POOL = 8
"""Cells of a run of one process that justify starting one more pool: importing torch takes as long as checking a few."""


class Measuring:
    """Measures the cells of a run that have no result yet. `start` starts a worker process. Raises `UsageError` if the device
    can't be used.
    """

    def __init__(self, run: Run, cells: Sequence[Cell], start: Callable[[], WorkerClient]):
        self._run, self._start = run, start
        self._rng = random.Random(run.seed)
        self._cells, self._cases = cells, grouped((cell.case.id, cell) for cell in cells)
        try:
            free = free_bytes_elsewhere(run.selection.device)
        except CalledProcessError as error:  # as where another process has a GPU for itself
            why = error.stderr.decode().partition("Error: ")[2].partition("\n")[0]
            raise UsageError(f"--device {run.selection.device} can't be used: {why}") from None
        processes = 1 + len({cell.impl.name for cell in cells if cell.impl.limits.alone})
        used = processes * (PROCESS + max(cell.least_memory for cell in cells))
        self._alive = SIDE_BY_SIDE if run.selection.device == "cpu" and 4 * used < free else 1
        """Number of pools that are alive at the same time."""
        if run.processes == 1:
            self._alive = min(self._alive, len(self._cases), math.ceil(len(cells) / WORTH_A_POOL))
        self._room = (free // self._alive - used) / 3
        """Bytes of a pool for cells that stay ready, and for the others of a case."""
        self._held = self._that_fit()
        """Cases whose cells stay ready between visits."""
        self._told = monotonic()
        """When the time left was printed."""
        self._passed = defaultdict[str, set[str]](set)
        """Checks that each implementation has passed on probes, in any pool."""
        self._pools: list[WorkerPool] = []
        """Pools that are alive."""
        self._owner: dict[str, WorkerPool] = {}
        """Pool to which each case belongs, the one that checked it if any did: it times the case in a run of one process, and
        finishes it.
        """

    def _that_fit(self) -> set[str]:
        """Return the cases whose cells stay ready between visits, smallest first."""
        found, whole = set[str](), 0
        for size, case in sorted((held_bytes(group[0].case) * len(group), case) for case, group in self._cases.items()):
            whole += size
            if whole < self._room:
                found.add(case)
        return found

    def measure(self) -> None:
        """Measure all remaining cells. Raises `UsageError` if worker processes can't start, and `FirstFailure`."""
        self._run.sample_machine()
        for processes in self._batches():
            last = self._run.processes - 1 in processes
            if any(map(self._open, processes)) or (last and self._lacking()):
                self._run.account("start")
                with ExitStack() as stack:
                    self._pools = [
                        stack.enter_context(closing(WorkerPool(self._run, process, self._start, self._rng)))
                        for process in processes
                    ]
                    for pool in self._pools:
                        pool.wait_until_ready()
                    self._check()
                    self._time()
                    if last:
                        self._finish()
        self._tell_precision()
        self._run.sample_machine()
        self._run.ended = True

    def _batches(self) -> list[list[int]]:
        """Group the run's processes that live at the same time: two pools share the cases of a single process."""
        processes = [0] * self._alive if self._run.processes == 1 else [*range(self._run.processes)]
        return [processes[at : at + self._alive] for at in range(0, len(processes), self._alive)]

    def _check(self) -> None:
        """Check cells: each pool takes cases that share probes. Cells whose check ended an earlier run come last, alone."""
        settled, self._owner = self._run.settled, {}
        left = [cell for cell in self._cells if cell.key not in settled]
        suspects = [cell for cell in left if self._run.begun[cell.key]]
        queue = shared_probes([cell for cell in left if cell not in suspects], len(self._pools))
        self._run.account("check")
        run_concurrently([
            self._checking(pool, queue, step) for pool, step in zip(self._pools, (1, -1), strict=False)
        ])  # fmt: skip
        run_concurrently([self._checking(self._pools[0], [suspects])])
        for case, pool in zip(self._cases, cycle(self._pools), strict=False):  # of a resumed run
            self._owner.setdefault(case, pool)

    def _checking(self, pool: WorkerPool, queue: list[list[Cell]], step: int = 1) -> Script:
        """Check groups of cells, each in reverse order if `step` is -1: probes that the other pool has passed by then are not
        repeated.
        """
        while queue:
            for cell in _long_first(queue.pop(0)[::step]):
                client, passed = pool.client(cell), self._passed[cell.impl.name]
                held = self._owner.setdefault(cell.case.id, pool) is pool and cell.case.id in self._held
                self._run.add({"begin": cell.key})
                with self._run.skipping(cell):
                    reply = yield from checking(client, request(cell), cell.checked_alone, passed, keep=held)
                    self._run.add({"key": cell.key, "found": reply})
                    self._run.tell_of(cell, "checked")
                    if held:
                        client.ready[cell.key] = Ready(reply["seconds"])
                self._tell_left("checking and timing")

    def _time(self) -> None:
        """Make all visits of these processes, spread over their lifetime."""
        of_pools = [
            (pool, [it for it in self._open(pool.process) if self._run.processes > 1 or self._owner[it] is pool])
            for pool in self._pools
        ]
        self._run.account("preparing")
        run_concurrently([
            pool.preparing([cell for case in cases if case in self._held for cell in self._checked(case)])
            for pool, cases in of_pools
        ])  # fmt: skip
        for visit in range(VISITS):
            self._told = -math.inf
            number = VISITS * (self._pools[0].process // self._alive) + visit + 1
            for pool, cases in self._rng.sample(of_pools, len(of_pools)):
                for case in self._rng.sample(cases, len(cases)):
                    if self._checked(case):
                        self._tell_left(f"timing: visit {number} of {VISITS * len(self._batches())}")
                    self._run.account("timing")
                    self._visit(pool, case, visit)
                    if self._run.workload.due(self._run.elapsed()):
                        self._run.sample_machine(self._gpu_workloads(pool, case))

    def _tell_left(self, part: str) -> None:
        """Print which part of the run is running, and the time left, unless that was printed lately."""
        if monotonic() - self._told > SILENT:
            self._told = monotonic()
            self._run.tell(f"{part}, {clock_text(remaining(self._run))} left")

    def _gpu_workloads(self, pool: WorkerPool, case: str) -> dict[str, float]:
        """Return the seconds of GPU workloads, timed by a process that has timed the case; empty on a CPU, if there is no such
        process, or if it is lost.
        """
        with suppress(Skip):
            for cell in self._checked(case):
                if cell.case.device != "cpu":
                    return pool.client(cell).ask("gpu_workloads")
        return {}

    def _open(self, process: int) -> list[str]:
        """Return the cases whose last visit a process has still to make."""
        return [case for case in self._cases if self._run.visited[process, case] < VISITS]

    def _checked(self, case: str) -> list[Cell]:
        """Return the cells of a case that can be timed, the baseline implementation first."""
        cells = [it for it in self._cases[case] if it.key in self._run.found and it.key not in self._run.skipped]
        return sorted(cells, key=lambda cell: cell.impl.name != self._run.baseline_impl)

    def _visit(self, pool: WorkerPool, case: str, last: int) -> None:
        """Make the visits of a case that are due, up to that with the index `last`. A case that doesn't stay ready skips
        passes over all cases, and then makes the visits of several passes at once.
        """
        size = 1 if case in self._held else VISITS // PREPARATIONS
        due = range(self._run.visited[pool.process, case], last + 1) if (last + 1) % size == 0 else ()
        found = {visit: defaultdict[str, Results](Results) for visit in due}
        for group in self._groups(case) if found else ():
            for index, of_visit in found.items():
                pool.time(group, index, self._needs(group) if index >= VISITS // 2 else {}, of_visit)
            if VISITS - 1 in found and pool.process == 0:
                self._time_other_pages(pool, group)
            if case not in self._held:
                pool.drop(group)
        for index, of_visit in found.items():
            self._run.add_visit(pool.process, index, case, of_visit)

    def _time_other_pages(self, pool: WorkerPool, group: Sequence[Cell]) -> None:
        """Time large cells with other settings of malloc, after all visits: their heaps would have to grow again."""
        for cell in group:
            checked = self._run.found[cell.key]
            is_large = (checked.columns.get("peak_bytes") or 0) >= MAPPED
            if is_large and cell.case.device == "cpu" and cell.key not in self._run.skipped:
                seconds = cell.checked_alone * checked.seconds
                self._add_columns(pool, cell, "other_pages", "time with other pages", checked=seconds)

    def _groups(self, case: str) -> Iterator[list[Cell]]:
        """Yield groups of a case's cells that fit in memory together, the first cell in each."""
        if cells := self._checked(case):
            others = max(1, int(self._room / held_bytes(cells[0].case)) - 1)
            for at in range(1, max(2, len(cells)), others):
                yield [cells[0], *cells[at : at + others]]

    def _half_widths(self, cells: Sequence[Cell]) -> dict[Key, float]:
        """Return the half-width of each cell's ratio to the first, from the visits so far."""
        (_, base), *others = ((cell.key, samples_of(self._run.samples(cell.key))) for cell in cells)
        return {key: half_width(ratios.paired(other, base)) for key, other in others}

    def _needs(self, group: Sequence[Cell]) -> dict[Key, float]:
        """Return the share of the usual time for each cell; the first gets the largest share of all."""
        needs = need(self._half_widths(group), self._run.timing["precision"])
        return needs | {group[0].key: max(needs.values(), default=1.0)}

    def _tell_precision(self) -> None:
        """Print for every case why its timing ended, at its precision or its time limit, and its least certain
        ratio.
        """
        lines = ["least certain ratios, not counting variation between processes:"]
        for case in self._cases:
            if len(cells := self._checked(case)) > 1:
                (impl, _), width = max(self._half_widths(cells).items(), key=lambda it: it[1])
                ended = "precise" if width <= self._run.timing["precision"] else "time limit"
                known = f"± {percent(width) if width < 1 else '> 100 %'}"
                known = known if width < math.inf else "(one visit in each process)"
                lines.append(f"{case}  {ended}: {impl} {known}")
        for line in lines * (len(lines) > 1):
            self._run.tell(line)

    def _lacking(self) -> list[Cell]:
        """Return the selected cells that were timed, and lack columns that are measured after the timing."""
        return [cell for cell in self._run.timed if cell in self._cells and self._run.lacks(cell)]

    def _finish(self) -> None:
        """Take further measurements: single cold calls and graphs, then traces: a GPU's profiler would slow later calls."""
        self._run.account("extra calls")
        lacking = self._lacking()
        for column in ("cold_s", "trace"):
            for cell in lacking:
                if column not in self._run.lacks(cell) or cell.key in self._run.skipped:
                    continue
                self._tell_left(f"finishing: {len(lacking)} of {len(self._cells)} cells in extra calls")
                pool = self._owner[cell.case.id]
                if column == "cold_s":
                    hot_s = self._run.found[cell.key].usual
                    self._add_columns(pool, cell, "more", "extra calls", hot_s=hot_s)
                else:
                    folder, path = str(self._run.folder.parent), trace_path(self._run, cell)
                    self._add_columns(pool, cell, "trace", "trace", folder=folder, path=path)
                if cell.case.id not in self._held:
                    pool.drop([cell])

    def _add_columns(self, pool: WorkerPool, cell: Cell, do: str, what: str, **details: Any) -> None:
        """Add the columns in a reply to a request. A cell keeps its row if the request fails, unless its call is wrong."""
        try:
            columns = pool.ask(do, cell, **details)
        except Skip as outcome:
            if outcome.reason == Wrong.reason:
                self._run.add_skipped(cell, outcome)
            else:
                self._run.tell_of(cell, f"no {what}: {outcome}")
        else:
            self._run.rooflines.restore(columns.pop("rooflines", []))
            self._run.add({"key": cell.key, "found": {"columns": columns}})


def trace_path(run: Run, cell: Cell) -> str:
    """Return the path of a cell's trace below the folder of results. TensorBoard's plugin recognises traces by their ending,
    and shows the part before it as name. The run's folder is named like its journal: unique, and reused by resumed runs.
    """
    assert run.journal, "only a run that is saved has traces"
    names = run.journal.path.stem, cell.case.id, cell.impl.name
    return "/".join(("traces", *(quote(name, safe="+=") for name in names))) + ".pt.trace.json.gz"


def shared_probes(cells: Sequence[Cell], pools: int) -> list[list[Cell]]:
    """Group cells that share probes, by all axes but sizes; by case if there are more pools than such groups."""
    cells = _long_first(cells)
    sizes: dict[str, Any] = dict.fromkeys(("B", "T", "T_kv", "H", "H_kv", "D_h", "D_v", "d_model"), 1)
    groups = grouped((replace(cell.case, **sizes), cell) for cell in cells)
    return [*(groups if len(groups) >= pools else grouped((cell.case, cell) for cell in cells)).values()]


def _long_first(cells: Iterable[Cell]) -> list[Cell]:
    """Return cells with Python loops and compiled forms, whose checks use one thread for seconds, first: later, another
    pool would wait for them.
    """
    return sorted(cells, key=lambda cell: (not cell.impl.limits.loops, not cell.impl.compiled))
