"""Runs all measurements: cells are checked, timed interleaved in worker processes, and journalled.

This process runs no implementation code. If a worker process is lost, only its current cell is. Two pools of workers
(`pool.py`) check in parallel; then one times at a time. In a run of one process, a case is timed by the pool that
checked it; in a run of several, every pool times all cases.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate
from time import monotonic
from typing import Any

from stats import ratios
from stats.estimate import half_width

from ..cases.accounting import accounted
from ..cases.cells import Cell, Key, grouped
from ..cases.counting import held_bytes, least_memory
from ..cases.outcome import FAILURES, Skip
from ..selection.options import clock_text
from ..timing.devices import free_bytes_elsewhere
from ..timing.engine import VISITS, Visits, need
from ..workers.client import Script, WorkerClient, checking, run_concurrently
from .pool import Tell, WorkerPool, request
from .remaining import remaining
from .rows import Found, samples_of
from .run import Run
from .traces import save_trace
from .visit import Visit

SIDE_BY_SIDE = 2
"""Pools alive at the same time. On a GPU one, since autotuning beside other work would tune for a busy device."""

PREPARATIONS = 2
"""How often a case that doesn't fit in memory with the others is prepared in a process, for several visits each."""

SILENT = 20.0
"""Seconds after which the time left is printed again."""

WORTH_A_POOL = 8
"""Cells of a run of one process that justify starting one more pool: importing torch takes as long as checking a few."""


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
        self._cells, self._cases = cells, grouped(cells, lambda case: case.id)
        self._free = free_bytes_elsewhere(run.selection.device)
        largest = max(least_memory(cell.impl, cell.case) for cell in cells)
        self._alive = SIDE_BY_SIDE if run.selection.device == "cpu" and 4 * largest < self._free else 1
        if run.processes == 1:
            self._alive = min(self._alive, len(self._cases), math.ceil(len(cells) / WORTH_A_POOL))
        self._held = self._that_fit(self._free // self._alive - largest)
        self._told = monotonic()
        """When the time left was printed."""
        self._passed = defaultdict[str, set[str]](set)
        """Checks that each implementation has passed on probes, in any pool."""
        self._owner: dict[str, WorkerPool] = {}
        """Pool that checked each case, or would have: it times the case in a run of one process, and finishes it."""

    def _that_fit(self, free: int) -> set[str]:
        """Return the cases whose cells stay ready between visits: smallest first, in a third of a pool's free bytes."""
        sizes = sorted((held_bytes(group[0].case) * len(group), case) for case, group in self._cases.items())
        sums = accumulate(size for size, _ in sizes)
        return {case for (_, case), whole in zip(sizes, sums, strict=True) if whole < free / 3}

    def measure(self) -> None:
        """Measure all remaining cells. Raises `UsageError` if worker processes can't start."""
        self._run.sample_machine()
        for processes in self._batches():
            last = self._run.processes - 1 in processes
            open_ = self._unchecked() or any(map(self._open, processes))
            if open_ or (last and any(map(self._lacks, self._cells))):
                with self._pools(processes) as pools:
                    self._check(pools)
                    self._time(pools)
                    if last:
                        self._tell_precision()
                        self._finish()
        self._run.sample_machine()

    def _batches(self) -> list[list[int]]:
        """Group the run's processes that live at the same time: two pools share the cases of a single process."""
        if self._run.processes == 1:
            return [[0] * self._alive]
        processes = list(range(self._run.processes))
        return [processes[first : first + self._alive] for first in processes[:: self._alive]]

    @contextmanager
    def _pools(self, processes: Sequence[int]) -> Iterator[list[WorkerPool]]:
        """Start pools, which live as long as the block; raises `UsageError` if one can't import the implementations."""
        with ExitStack() as stack:
            started = (WorkerPool(self._run, process, self._start, self._tell) for process in processes)
            pools = [stack.enter_context(closing(pool)) for pool in started]
            for pool in pools:
                pool.wait_until_ready()
            yield pools

    def _unchecked(self) -> list[Cell]:
        return [cell for cell in self._cells if not self._run.settled(cell.key)]

    def _check(self, pools: Sequence[WorkerPool]) -> None:
        """Check cells: each pool takes cases that share probes. Those that ended a run come last, alone."""
        unchecked = self._unchecked()
        suspects = [cell for cell in unchecked if self._run.begun[cell.key]]
        queue = shared_probes([cell for cell in unchecked if cell not in suspects], len(pools))
        self._owner = {}
        with accounted("check"):
            run_concurrently([self._checking(pool, queue, backwards=i % 2 > 0) for i, pool in enumerate(pools)])
            run_concurrently([self._checking(pools[0], [suspects])])
        for i, case in enumerate(self._cases):  # of a resumed run
            self._owner.setdefault(case, pools[i % len(pools)])

    def _checking(self, pool: WorkerPool, queue: list[list[Cell]], backwards: bool = False) -> Script:
        """Check groups of cells; `backwards`, so that another pool has passed the probes that both need."""
        while queue:
            group = queue.pop(0)
            for cell in _long_first(reversed(group)) if backwards else group:
                self._owner.setdefault(cell.case.id, pool)
                self._run.add_begin(cell)
                held = cell.case.id in self._held
                try:
                    passed = self._passed[cell.impl.name]
                    reply = yield from checking(
                        pool.client(cell), **request(cell), threaded=cell.threaded, keep=held, passed=passed
                    )
                except Skip as outcome:
                    pool.skip(cell, outcome)
                    if self._fail_fast and outcome.reason in FAILURES:
                        queue.clear()
                        return
                else:
                    self._run.add_found(cell, **reply)
                    self._tell(self._run.line(cell, "checked"))
                    if held:
                        pool.seconds[cell.key] = reply["seconds"]
                self._tell_left("checking", ", timing included")

    def _time(self, pools: Sequence[WorkerPool]) -> None:
        """Make all visits of these processes, spread over their lifetime."""
        if not any(self._open(pool.process) for pool in pools):
            return
        of_pools = [(pool, self._cases_of(pool)) for pool in pools]
        with accounted("preparing"):
            run_concurrently([
                pool.preparing([it for it in self._open(pool.process) if it.case.id in self._held.intersection(cases)])
                for pool, cases in of_pools
            ])  # fmt: skip
        for visit in range(VISITS):
            self._told = -math.inf
            number = VISITS * (pools[0].process // self._alive) + visit + 1
            for pool, cases in self._rng.sample(of_pools, len(of_pools)):
                for case in self._rng.sample(cases, len(cases)):
                    self._tell_left(f"timing: visit {number} of {VISITS * len(self._batches())}")
                    with accounted("timing"):
                        self._visit(pool, case, visit)
                    if self._run.workload.due():
                        self._run.sample_machine(self._gpu_workloads(pool, self._cases[case][0]))

    def _tell_left(self, part: str, more: str = "") -> None:
        """Print which part of the run is running, and the time left, unless that was printed lately."""
        if monotonic() - self._told > SILENT:
            self._told = monotonic()
            self._tell(f"{part}, {clock_text(remaining(self._run))} left{more}")

    def _gpu_workloads(self, pool: WorkerPool, cell: Cell) -> dict[str, float]:
        """Return the seconds of GPU workloads, timed by a cell's process; empty on a CPU or if the process is lost."""
        with suppress(Skip):
            if cell.case.device != "cpu":
                return pool.client(cell).ask("gpu_workloads")
        return {}

    def _cases_of(self, pool: WorkerPool) -> list[str]:
        """Return the cases that a pool times: all, or in a run of one process those that it checked."""
        return [case for case in self._cases if self._run.processes > 1 or self._owner[case] is pool]

    def _open(self, process: int) -> list[Cell]:
        """Return the checked cells that a process has still to time."""
        return [
            cell
            for case in self._cases
            if any((process, visit, case) not in self._run.visited for visit in range(VISITS))
            for cell in self._checked(case)
        ]

    def _checked(self, case: str) -> list[Cell]:
        """Return the cells of a case that can be timed."""
        return [it for it in self._cases[case] if it.key in self._run.found and it.key not in self._run.skipped]

    def _visit(self, pool: WorkerPool, case: str, last: int) -> None:
        """Make the visits of a case that are due at the `last`-th pass over all cases, and not yet made: that one. A case
        that doesn't stay ready makes several visits at once, at the last of their passes.
        """
        size = 1 if case in self._held else VISITS // PREPARATIONS
        due = range(last + 1 - size, last + 1) if (last + 1) % size == 0 else ()
        left = [visit for visit in due if (pool.process, visit, case) not in self._run.visited]
        found = {visit: defaultdict[str, Found](Found) for visit in left}
        for group in self._groups(case) if found else ():
            for index, of_visit in found.items():
                visit = Visit(self._run, pool, group, index, self._rng, of_visit)
                visit.time(self._visits, self._needs(group) if index >= VISITS // 2 else {})
            if case not in self._held:
                pool.drop(group)
        for index, of_visit in found.items():
            self._run.add_visit(pool.process, index, case, of_visit)

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
        (_, base), *others = ((cell.key, samples_of(self._run.samples(cell.key))) for cell in cells)
        return {key: half_width(ratios.paired(other, base)) for key, other in others}

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
        wants_more = cell.case.device != "cpu" or "model" in self._run.asked  # hot beside cold
        wanted = [*["cold_s"] * wants_more, *["trace"] * self._run.traced]
        return {*wanted} - self._run.found[cell.key].columns.keys()

    def _finish(self) -> None:
        """Take further measurements: single cold calls, graphs, and traces."""
        run, untraced = self._run, dict[str, list[str]]()
        lacking = {cell: lacks for cell in self._cells if (lacks := self._lacks(cell))}
        self._told = -math.inf
        for cell, lacks in lacking.items():
            self._tell_left(f"finishing: {len(lacking)} of {len(self._cells)} cells under further conditions")
            pool = self._owner[cell.case.id]
            pool.prepare([cell])
            if "cold_s" in lacks and cell.key not in run.skipped:
                hot = run.found[cell.key].usual
                if (more := pool.attempt("more", cell, hot_s=hot)) is not None:
                    run.rooflines.restore(more.pop("rooflines", []))
                    run.add_found(cell, columns=more)
            if "trace" in lacks and cell.key not in run.skipped:
                try:
                    run.add_found(cell, columns=save_trace(run, cell, partial(pool.ask, "trace", cell)))
                except Skip as outcome:
                    pool.replace_lost(cell, outcome)
                    untraced.setdefault(str(outcome), []).append(cell.impl.name)
            if cell.case.id not in self._held:
                pool.drop([cell])
        for why, names in untraced.items():
            self._tell(f"no trace of {len(names)} cells ({', '.join(dict.fromkeys(names))}): {why}")


def shared_probes(cells: Sequence[Cell], pools: int) -> list[list[Cell]]:
    """Group cells that share probes: by all axes but sizes, else by all but lengths, else by case."""
    cells = _long_first(cells)
    lengths: dict[str, Any] = {"B": 1, "T": 1, "T_kv": 1}
    sizes = lengths | {"H": 1, "H_kv": 1, "D_h": 1, "D_v": 1, "d_model": 1}
    for alike in (sizes, lengths, {}):
        groups = grouped(cells, partial(replace, **alike))
        if len(groups) >= pools:
            break
    return [*groups.values()]


def _long_first(cells: Iterable[Cell]) -> list[Cell]:
    """Return cells with Python loops and compiled forms, whose checks use one thread for seconds, first: later, another
    pool would wait for them.
    """
    return sorted(cells, key=lambda cell: (cell.impl.limits.max_pairs is None, not cell.impl.compiled))
