"""Estimates the duration of a run before it begins, and the time left during it."""

from __future__ import annotations

import os
from math import ceil

from ..cases.case import Case
from ..cases.cells import Cell, grouped
from ..cases.counting import bytes_of_reference, flops, least_bytes
from ..timing.engine import COMMON_ROUNDS, COMMON_SECONDS, LONG_MEMBER, MIN_VISIT_ROUNDS, VISITS, Visits
from ..timing.malloc import KEEP, MAPPED, chosen
from .rows import Found
from .run import Run

OF_A_CORE, OF_A_GPU = 2.5e10, 2e13
"""Rough estimates of the formula's operations per second."""

OF_MEMORY, OF_GPU_MEMORY = 1e10, 1e12
"""Rough estimates of the bytes that are read per second."""

OF_REFERENCE = 1.2e8
"""Rough estimate of the bytes per second at which a model is built and compared with its reference."""

OF_FAULTS = 2e9
"""Rough estimate of the bytes per second of newly mapped memory: checked calls use it, timed ones with kept pages don't."""

CHECKED, READIED, MORE = 4, 3, 4
"""Approximate number of calls in a check, in a process's first visit before timing, and under further conditions."""

CALLS = 0.5
"""Seconds of calls by which the estimates of calls are weighted."""

TIMED = 1.2
"""Approximate seconds in visits per second of timed calls."""

END = 1.5
"""Approximate seconds from the last visit to the end of the run."""


def remaining(run: Run) -> float:
    """Estimate the seconds left of a run. Calls not yet made take as much longer than estimated as those that were made."""
    checked = {key: _seconds_of_timed(it) for key, it in run.found.items()}
    made = {key: it for key, it in checked.items() if not run.cells[key].impl.limits.max_pairs}
    longer = (CALLS + sum(made.values())) / (CALLS + sum(seconds_of_call(run.cells[key].case) for key in made))
    planned = (run.cells[key] for key in run.planned - run.skipped.keys())
    time, left = TIMED * run.processes * run.timing["cell_time"], END
    all_visits, every = run.processes * VISITS, VISITS // Visits(0.0, run.processes).long
    for case, cells in grouped(planned, lambda case: case.id).items():
        calls = {it: checked.get(it.key, longer * seconds_of_call(it.case)) for it in cells}
        past = run.visits(case)
        to_begin = run.processes - past / VISITS
        common = min(COMMON_ROUNDS * sum(calls.values()), COMMON_SECONDS)
        if max(calls.values()) > LONG_MEMBER:  # all take part in its rounds
            left += (1 - past // every / (all_visits // every)) * common
        for call in calls.values():
            if call <= LONG_MEMBER:
                left += (1 - past / all_visits) * max(time, VISITS * MIN_VISIT_ROUNDS * call)
            first = every if call > LONG_MEMBER else 1  # visit in which it is timed
            left += (ceil(to_begin) if past % VISITS < first else int(to_begin)) * (0.1 + READIED * call)
        left += sum(seconds_of_check(it, call) for it, call in calls.items() if not run.settled(it.key))
        left += MORE * sum(calls.values()) if "model" in run.asked else 0.0
    return left


def seconds_of_check(cell: Cell, call: float) -> float:
    """Estimate the seconds of a cell's check, memory included; `call`: of one call."""
    case, limits = cell.case, cell.impl.limits
    loops = 6 * case.B * case.H * case.T * case.T_kv / limits.max_pairs if limits.max_pairs else 0.0  # in Python
    model = bytes_of_reference(case) / OF_REFERENCE if case.in_model else 0.0
    return 0.15 + CHECKED * call + loops + model + (1.5 if cell.impl.compiled else 0.0)


def seconds_of_call(case: Case) -> float:
    """Estimate the seconds of a call."""
    if case.device == "cuda":
        return max(flops(case) / OF_A_GPU, least_bytes(case) / OF_GPU_MEMORY)
    return max(flops(case) / (OF_A_CORE * (case.threads or os.cpu_count() or 1)), least_bytes(case) / OF_MEMORY)


def _seconds_of_timed(checked: Found) -> float:
    """Estimate the seconds of a timed call from those of a checked one."""
    seconds, peak = checked.seconds, checked.columns.get("peak_bytes") or 0
    return seconds - min(seconds / 2, peak / OF_FAULTS) if peak >= MAPPED and chosen() == KEEP else seconds
