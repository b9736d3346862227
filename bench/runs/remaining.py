"""Estimates the duration of a run before it begins, and the time left during it."""

from __future__ import annotations

import os
from collections.abc import Callable
from time import monotonic

from ..cases.case import Case
from ..cases.cells import Cell
from ..cases.counting import flops
from ..timing.engine import VISITS, Visits, block_of
from .run import Run

OF_A_CORE, OF_A_GPU = 2.5e10, 2e13
"""Rough estimates of the formula's operations per second."""

CHECKED, READIED = 6, 4
"""Approximate number of calls in a check, and in preparing a cell for timing in one process."""

CALLS = 0.5
"""Seconds of calls by which the estimates of calls are weighted."""

END = 1.5
"""Approximate seconds from the last visit to the end of the run."""

USUAL, PRIOR = 1.3, 0.05
"""Typical ratio of actual to planned seconds; and the share of the plan by which this prior is weighted."""


def seconds_of_cell(cell: Cell, cell_time: float, processes: int) -> float:
    """Estimate the seconds of a cell in all processes, from its check to its last block."""
    check, visits = seconds_of_parts(cell, cell_time, processes)
    return check + processes * sum(visits)


def seconds_of_parts(
    cell: Cell, cell_time: float, processes: int, call: float | None = None
) -> tuple[float, list[float]]:
    """Estimate the seconds of a cell's check, and of each of its visits in one process, preparation included. `call`:
    seconds of one call, if known.
    """
    case, limits = cell.case, cell.impl.limits
    pairs = case.B * case.H * case.T * case.T_kv
    loops = 6 * pairs / limits.max_pairs if limits.max_pairs else 0.0  # a limit on pairs marks a Python loop
    call = call or seconds_of_call(case)
    visits, block = Visits(cell_time, processes), block_of(call)
    blocks = [visits.counts({"": block}, visit, {}).get("", 0) for visit in range(VISITS)]
    once = 0.15 + CHECKED * call + loops + (1.5 if cell.impl.compiled else 0.0)
    each = 1.2 * block.seconds + (0.1 + READIED * call) / sum(blocks)
    return once, [count * each for count in blocks]


def seconds_of_call(case: Case) -> float:
    """Estimate the seconds of a call."""
    return flops(case) / (OF_A_GPU if case.device == "cuda" else OF_A_CORE * (case.threads or os.cpu_count() or 1))


def remaining(run: Run) -> Callable[..., float]:
    """Return a function that estimates the seconds left of a run, from the rate since this call with `USUAL` as a prior
    of weight `PRIOR`. Its argument, the seconds that a failed cell took, is excluded from the rate.
    """

    def planned() -> tuple[float, float]:
        """Return the planned seconds of what is done, and of the whole run; calls not yet made take as much longer than
        estimated as those that were made.
        """
        done = whole = 0.0
        known = {key: it["seconds"] for key, it in run.checked.items() if not run.cell(key).impl.limits.max_pairs}
        longer = (CALLS + sum(known.values())) / (CALLS + sum(seconds_of_call(run.cell(key).case) for key in known))
        for key in (run.planned or set()) - run.skipped.keys():
            cell = run.cell(key)
            call = run.checked[key]["seconds"] if key in run.checked else longer * seconds_of_call(cell.case)
            check, visits = seconds_of_parts(cell, run.timing["cell_time"], run.processes, call)
            whole += check + run.processes * sum(visits)
            done += check * run.settled(key) + sum(visits[visit] for visit in run.visits(key[1]))
        return done, whole

    began, before = monotonic(), planned()[0]

    def left(failed: float = 0.0) -> float:
        nonlocal began
        began = min(monotonic(), began + failed)
        done, whole = planned()
        weight = PRIOR * whole
        rate = (monotonic() - began + USUAL * weight) / (max(0.0, done - before) + weight) if weight else USUAL
        return rate * (whole - done + END)

    return left
