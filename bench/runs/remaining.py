"""Estimates the duration of a run before it begins, and the time left during it."""

from __future__ import annotations

import os

from stats.estimate import grouped

from ..cases.case import Case
from ..cases.cells import Cell
from ..cases.counting import bytes_of_reference, flops, least_bytes
from ..timing.schedule import VISITS, block_of
from .run import Run

CORE_FLOPS, GPU_FLOPS = 6e10, 2e13
"""Rough estimates of the formula's operations per second."""

BANDWIDTH, GPU_BANDWIDTH = 1e10, 1e12
"""Rough estimates of the bytes that are read per second."""

REFERENCE_BANDWIDTH = 1.2e8
"""Rough estimate of the bytes per second at which a model is built and compared with its reference."""

PAIR_SECONDS = 5e-5
"""Rough estimate of the seconds in which a Python loop is checked, by pair of a query and a key."""

CALLS_OF_CHECK, CALLS_BEFORE_TIMING, EXTRA_CALLS = 4, 3, 4
"""Approximate number of calls in a check, in a process's first visit before timing, and of extra calls."""

CALLS = 0.5
"""Seconds of calls by which the estimates of calls are weighted."""

VISIT_OVERHEAD = 1.2
"""Approximate seconds in visits per second of timed blocks."""

END = 1.5
"""Approximate seconds from the last visit to the end of the run."""


def remaining(run: Run) -> float:
    """Estimate the seconds left of a run, if no case ends early. Calls not yet made take as much longer than estimated as
    those that were made.
    """
    made = {key: it.usual for key, it in run.found.items()}
    known = [key for key in made if not run.cells[key].impl.limits.loops]
    estimated = sum(seconds_of_call(run.cells[key].case) for key in known)
    longer = (CALLS + sum(made[key] for key in known)) / (CALLS + estimated)
    left = END
    planned = (run.cells[key] for key in run.planned - run.skipped.keys())
    for case, cells in grouped((cell.case.id, cell) for cell in planned).items():
        calls = {it.key: made.get(it.key, longer * seconds_of_call(it.case)) for it in cells}
        blocks = {key: block_of(call) for key, call in calls.items()}
        for process in range(run.processes):
            for visit in range(run.visited[process, case], VISITS):
                rounds = run.counts(blocks, visit)
                left += VISIT_OVERHEAD * sum(count * blocks[key].seconds for key, count in rounds.items())
                left += (visit == 0) * sum(0.1 + CALLS_BEFORE_TIMING * call for call in calls.values())
        left += sum(seconds_of_check(it, calls[it.key]) for it in cells if it.key not in made)
        left += sum(0.1 + EXTRA_CALLS * calls[it.key] for it in cells if run.lacks(it))
    return left


def seconds_of_check(cell: Cell, call: float) -> float:
    """Estimate the seconds of a cell's check, memory included; `call`: of one call."""
    case = cell.case
    loops = PAIR_SECONDS * case.pairs if cell.impl.limits.loops else 0.0
    model = bytes_of_reference(case) / REFERENCE_BANDWIDTH if case.in_model else 0.0
    return 0.1 + CALLS_OF_CHECK * call + loops + model + 0.5 * cell.impl.compiled


def seconds_of_call(case: Case) -> float:
    """Estimate the seconds of a call."""
    of_cores = CORE_FLOPS * (case.threads or os.cpu_count() or 1)
    operations, memory = (of_cores, BANDWIDTH) if case.device == "cpu" else (GPU_FLOPS, GPU_BANDWIDTH)
    return max(flops(case) / operations, least_bytes(case) / memory)
