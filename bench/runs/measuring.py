"""Runs all measurements: cells are checked, timed interleaved in worker processes, and journalled.

This process runs no implementation code. If a worker process is lost, only its current cell is. Two pools of workers
(`pool.py`) check in parallel; then one times at a time. In a run of one process, a case is timed by the pool that
checked it; in a run of several, every pool times all cases.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate
from statistics import median
from time import monotonic

from stats import ratios
from stats.estimate import half_width

from ..cases.accounting import accounted
from ..cases.case import Case
from ..cases.cells import Cell, Key
from ..cases.counting import held_bytes, least_memory
from ..cases.outcome import FAILURES, Skip
from ..selection.options import clock_text
from ..timing.devices import free_bytes_elsewhere, measures_more
from ..timing.engine import VISITS, Visits, need
from ..workers.client import Script, WorkerClient, checking, run_concurrently
from .pool import Tell, WorkerPool, request
from .remaining import remaining
from .rows import samples_of
from .run import Run
from .visit import Visit

SIDE_BY_SIDE = 2
"""Pools alive at the same time. On a GPU one, since autotuning beside other work would tune for a busy device."""

PREPARATIONS = 2
"""How often a case that doesn't fit in memory with the others is prepared in a process, for several visits each."""

SILENT = 60.0
"""Seconds after which the time left is printed again."""

WORTH_A_POOL = 8
"""Cells that justify starting one more pool: importing torch takes as long as checking a few."""


class Measuring:
    """Measures the cells of a run that have no result yet.

    `start` starts a worker process; `fail_fast` stops checking after the first failure.
    """

    def __init__(
        self,
        run: Run,
        cells: Sequence[Cell],
        start: Callable[[], WorkerClient],
        seed: int | None,
        fail_fast: bool,
        tell: Tell,
    ):
        self._run, self._tell, self._start, self._fail_fast = run, tell, start, fail_fast
        self._rng = random.Random(seed)
        self._visits = Visits(run.timing["cell_time"], run.processes)
        self._cells = cells
        self._cases: dict[str, list[Cell]] = {}
        for cell in cells:
            self._cases.setdefault(cell.case.id, []).append(cell)
        self._free = free_bytes_elsewhere(run.selection.device)
        self._side_by_side = SIDE_BY_SIDE if run.selection.device == "cpu" else 1
        largest = max((least_memory(cell.impl, cell.case) for cell in cells), default=0)
        fit = self._side_by_side if 4 * largest < self._free else 1
        self._checkers = min(fit, len(self._cases), math.ceil(len(cells) / WORTH_A_POOL))
        alive = self._checkers if run.processes == 1 else self._side_by_side
        self._held = self._that_fit(self._free // alive - largest)
        self._told = monotonic()
        """When the time left was printed."""
        self._left: Callable[[], float] | None = None
        """Estimates the seconds left of timing, from the rate of all processes."""
        self._owner: dict[str, WorkerPool] = {}
        """Pool that times each case, in a run of one process."""

    def _that_fit(self, free: int) -> set[str]:
        """Return the cases whose cells stay ready between visits: smallest first, in a third of a pool's free bytes."""
        sizes = sorted((held_bytes(group[0].case) * len(group), case) for case, group in self._cases.items())
        sums = accumulate(size for size, _ in sizes)
        return {case for (_, case), whole in zip(sizes, sums, strict=True) if whole < free / 3}

    def check(self) -> None:
        """Check every cell without timing. Raises `UsageError` if worker processes can't start."""
        with self._pools([0] * self._checkers) as pools:
            self._check(pools)

    def measure(self) -> None:
        """Measure all remaining cells. Raises `UsageError` if worker processes can't start."""
        self._run.sample_machine()
        for processes in self._batches():
            last = self._run.processes - 1 in processes
            to_time = self._unchecked() or any(map(self._open, processes))
            if to_time or (last and any(map(self._lacks, self._cells))):
                with self._pools(processes) as pools:
                    self._check(pools[: self._checkers])
                    self._time(pools)
                    if last:
                        self._tell_precision()
                        self._finish(pools)
        self._run.sample_machine()

    def _batches(self) -> list[list[int]]:
        """Group the run's processes that live at the same time: two pools share the cases of a single process."""
        if self._run.processes == 1:
            return [[0] * self._checkers]
        processes = list(range(self._run.processes))
        return [processes[first : first + self._side_by_side] for first in processes[:: self._side_by_side]]

    @contextmanager
    def _pools(self, processes: Sequence[int]) -> Iterator[list[WorkerPool]]:
        """Start pools, which live as long as the block; raises `UsageError` if one can't import the implementations."""
        left = (cell.impl for cell in self._cells if cell.key not in self._run.skipped)
        alone = dict.fromkeys(impl.name for impl in left if impl.limits.alone)
        with ExitStack() as stack:
            pools = [
                stack.enter_context(closing(WorkerPool(self._run, process, self._start, self._tell, tuple(alone))))
                for process in processes
            ]
            for pool in pools:
                pool.wait_until_ready()
            yield pools

    def _unchecked(self) -> list[Cell]:
        return [cell for cell in self._cells if not self._run.settled(cell.key)]

    def _check(self, pools: Sequence[WorkerPool]) -> None:
        """Check cells: each pool takes cases that share probes; those that ended a process come last, alone."""
        unchecked = self._unchecked()
        suspects = [cell for cell in unchecked if cell.key in self._run.suspects]
        queue = shared_probes([cell for cell in unchecked if cell not in suspects], len(pools))
        left = remaining(self._run)
        with accounted("check"):
            run_concurrently(
                [self._checking(pool, queue, lambda failed=0.0: left(failed / len(pools))) for pool in pools]
            )
            run_concurrently([self._checking(pools[0], [suspects], left)])

    def _checking(self, pool: WorkerPool, queue: list[list[Cell]], left: Callable[..., float]) -> Script:
        while queue:
            for cell in queue.pop(0):
                self._owner.setdefault(cell.case.id, pool)
                self._run.add("begin", cell)
                held = cell.case.id in self._held
                threaded = cell.case.threads != 1 and cell.impl.limits.max_pairs is None  # a Python loop is one thread
                began = monotonic()
                try:
                    reply = yield from checking(pool.client(cell), **request(cell), threaded=threaded, keep=held)
                except Skip as outcome:
                    pool.skip(cell, outcome)
                    left(monotonic() - began)
                    if self._fail_fast and outcome.reason in FAILURES:
                        queue.clear()
                        return
                else:
                    self._run.add("checked", cell, **reply)
                    self._tell(self._run.line(cell, "checked"))
                    if held:
                        pool.seconds[cell.key] = reply["seconds"]
                planned = self._run.planned or ()
                checked = self._run.settled_cells
                another_fifth = 5 * checked // max(1, len(planned)) > 5 * (checked - 1) // max(1, len(planned))
                if checked < len(planned) and (another_fifth or self._silent()):
                    self._tell_left(f"checking: {checked} of {len(planned)} cells", left, ", timing included")

    def _time(self, pools: Sequence[WorkerPool]) -> None:
        """Make all visits of these processes, spread over their lifetime."""
        if not any(self._open(pool.process) for pool in pools):
            return
        of_pools = [(pool, self._cases_of(pool, pools)) for pool in pools]
        with accounted("preparing"):
            run_concurrently([
                pool.preparing([it for it in self._open(pool.process) if it.case.id in self._held.intersection(cases)])
                for pool, cases in of_pools
            ])  # fmt: skip
        left = self._left = self._left or remaining(self._run)
        for visit in range(VISITS):
            number = VISITS * (pools[0].process // self._side_by_side) + visit + 1
            part = f"timing: visit {number} of {VISITS * len(self._batches())}"
            self._tell_left(part, left)
            for pool, cases in self._rng.sample(of_pools, len(of_pools)):
                for case in self._rng.sample(cases, len(cases)):
                    if self._silent():
                        self._tell_left(part, left)
                    with accounted("timing"):
                        self._visit(pool, case, visit)
                    if self._run.workload.due():
                        self._run.sample_machine(self._gpu_workloads(pool, self._cases[case][0]))

    def _silent(self) -> bool:
        return monotonic() - self._told > SILENT

    def _tell_left(self, part: str, left: Callable[[], float], more: str = "") -> None:
        """Print which part of the run is running, and the time left."""
        self._told = monotonic()
        self._tell(f"{part}, {clock_text(left())} left{more}")

    def _gpu_workloads(self, pool: WorkerPool, cell: Cell) -> dict[str, float]:
        """Return the seconds of GPU workloads, timed by a cell's process; empty on a CPU or if the process is lost."""
        with suppress(Skip):
            if cell.case.device != "cpu":
                return pool.client(cell).ask("gpu_workloads")
        return {}

    def _due_visits(self, case: str, visit: int) -> range:
        """Return the visits of a case that are due at the `visit`-th pass over all cases: this one. A case that doesn't
        stay ready makes several visits at once, at the last of their passes.
        """
        size = 1 if case in self._held else VISITS // PREPARATIONS
        return range(visit + 1 - size, visit + 1) if (visit + 1) % size == 0 else range(0)

    def _cases_of(self, pool: WorkerPool, pools: Sequence[WorkerPool]) -> list[str]:
        """Return the cases that a pool times: all, or in a run of one process those that it checked."""
        if self._run.processes > 1:
            return list(self._cases)
        for i, case in enumerate(self._cases):
            self._owner.setdefault(case, pools[i % len(pools)])
        return [case for case in self._cases if self._owner[case] is pool]

    def _open(self, process: int) -> list[Cell]:
        """Return the checked cells that a process has still to time."""
        return [
            cell
            for case in self._cases
            if any(not self._run.visited(process, visit, case) for visit in range(VISITS))
            for cell in self._checked(case)
        ]

    def _checked(self, case: str) -> list[Cell]:
        """Return the cells of a case that can be timed."""
        return [it for it in self._cases[case] if it.key in self._run.checked and it.key not in self._run.skipped]

    def _visit(self, pool: WorkerPool, case: str, at: int) -> None:
        """Make the visits of a case that are due at a pass and not yet made."""
        numbers = [it for it in self._due_visits(case, at) if not self._run.visited(pool.process, it, case)]
        tested = set[Key]()
        made = [Visit(self._run, pool, case, number, self._rng, tested) for number in numbers]
        for group in self._groups(case) if made else ():
            for visit in made:
                visit.time(group, self._visits, self._needs(group) if visit.index >= VISITS // 2 else {})
                visit.check_caching(group)
            if case not in self._held:
                pool.drop(group)
        for visit in made:
            visit.write()

    def _needs(self, group: Sequence[Cell]) -> dict[Key, float]:
        """Return the share of the usual time for each cell; the baseline gets the largest share of all."""
        needs = need(self._half_widths(group), self._run.timing["precision"])
        return needs | {group[0].key: max(needs.values(), default=1.0)}

    def _groups(self, case: str) -> Iterator[list[Cell]]:
        """Yield groups of a case's cells that fit in memory together, each with the baseline implementation first."""
        cells = self._checked(case)
        base = [cell for cell in cells if cell.impl.name == self._run.baseline_impl]
        others = [cell for cell in cells if cell not in base]
        most = max(2, int(self._free / 3 / held_bytes(self._cases[case][0].case))) - len(base)
        for first in range(0, len(others) or len(base), most):
            yield base + others[first : first + most]

    def _half_widths(self, cells: Sequence[Cell]) -> dict[Key, float]:
        """Return the half-width of each cell's ratio to the first, from the visits so far."""
        base, *others = (samples_of(self._run.samples(cell.key)) for cell in cells)
        logs = (ratios.paired(other, base) for other in others)
        return {cell.key: half_width(it) for cell, it in zip(cells[1:], logs, strict=True)}

    def _tell_precision(self) -> None:
        """Print for every case why its timing ended: the precision was reached, or the time was used up."""
        precision = self._run.timing["precision"]
        for case in self._cases:
            widths = [
                (width, key[0]) for group in self._groups(case) for key, width in self._half_widths(group).items()
            ]
            if widths:
                width, widest = max(widths)
                ended = "" if width <= precision else f"out of time: {widest} "
                self._tell(f"{case}  {ended}\N{PLUS-MINUS SIGN}{width:.1%} from its visits")

    def _lacks(self, cell: Cell) -> set[str]:
        """Return which of the columns measured after the timing, `cold_s` and `trace`, a timed cell still lacks."""
        if cell.key in self._run.skipped or not self._run.samples(cell.key):
            return set()
        wants_more = measures_more(cell.case.device) or "model" in self._run.asked  # hot beside cold
        wanted = [*["cold_s"] * wants_more, *["trace"] * (self._run.traces is not None)]
        return {*wanted} - self._run.timed[cell.key].columns.keys()

    def _finish(self, pools: Sequence[WorkerPool]) -> None:
        """Take further measurements: single cold calls, graphs, energy, and traces."""
        lacking = {cell: lacks for cell in self._cells if (lacks := self._lacks(cell))}
        if lacking:
            self._tell_left(
                f"finishing: {len(lacking)} of {len(self._cells)} cells under further conditions",
                self._left or remaining(self._run),
            )
        for cell, lacks in lacking.items():
            pool = pools[0] if self._run.processes > 1 else self._owner.get(cell.case.id, pools[0])
            pool.prepare([cell])
            if cell.key in self._run.skipped:
                continue
            try:
                if "cold_s" in lacks:
                    hot = median(it.seconds for it in self._run.samples(cell.key))
                    more = pool.ask("more", cell, hot_s=hot)
                    self._run.rooflines.restore(more.pop("roofs", []))
                    self._run.add("columns", cell, columns=more)
                if self._run.traces and "trace" in lacks:
                    operators = self._run.checked[cell.key]["columns"]["operators"]
                    trace = self._run.traces.save(cell, operators, partial(pool.ask, "trace", cell))
                    self._run.add("columns", cell, columns=trace)
            except Skip as outcome:
                pool.skip(cell, outcome)
            if cell.case.id not in self._held:
                pool.drop([cell])


def shared_probes(cells: Sequence[Cell], pools: int) -> list[list[Cell]]:
    """Group cells that share probes: by all axes but sizes, else by all but lengths, else by case. Python loops and
    compiled forms, whose checks use one thread for seconds, come first: later, another pool would wait for them.
    """
    cells = sorted(cells, key=lambda cell: (cell.impl.limits.max_pairs is None, not cell.impl.compiled))

    def parts(of: Callable[[Case], object]) -> list[list[Cell]]:
        found: dict[object, list[Cell]] = {}
        for cell in cells:
            found.setdefault(of(cell.case), []).append(cell)
        return list(found.values())

    ways: list[Callable[[Case], object]] = [
        lambda case: replace(case, B=1, T=1, T_kv=1, H=1, H_kv=1, D_h=1, D_v=1, d_model=1),
        lambda case: replace(case, B=1, T=1, T_kv=1),
        lambda case: case,
    ]
    return next((found for way in ways if len(found := parts(way)) >= pools), parts(ways[-1]))
