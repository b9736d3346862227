"""Estimates the duration of a run before it begins, and the time left during it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import Any

from ..cases.case import Case
from ..cases.cells import Cell, Key
from ..cases.counting import bytes_of_reference, flops, least_bytes
from ..timing.engine import VISITS, Visits, block_of
from ..timing.malloc import KEEP, MAPPED, chosen
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
"""Approximate number of calls in a check, in preparing a cell for timing in one process, and under further conditions."""

CALLS = 0.5
"""Seconds of calls by which the estimates of calls are weighted."""

END = 1.5
"""Approximate seconds from the last visit to the end of the run."""

USUAL, PRIOR = 1.3, 0.05
"""Typical ratio of actual to planned seconds; and the share of the plan by which this prior is weighted."""


def seconds_of_cells(cells: Iterable[Cell], cell_time: float, processes: int) -> float:
    """Estimate the seconds of cells, checks included."""
    found = 0.0
    for group in by_case(cells).values():
        calls = {cell.key: seconds_of_call(cell.case) for cell in group}
        found += sum(seconds_of_check(cell, calls[cell.key]) for cell in group)
        found += processes * sum(seconds_of_visits(group, cell_time, processes, calls))
    return found


def by_case(cells: Iterable[Cell]) -> dict[str, list[Cell]]:
    """Group cells by the id of their case."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.case.id, []).append(cell)
    return found


def seconds_of_check(cell: Cell, call: float) -> float:
    """Estimate the seconds of a cell's check, memory included; `call`: of one call."""
    case, limits = cell.case, cell.impl.limits
    loops = 6 * case.B * case.H * case.T * case.T_kv / limits.max_pairs if limits.max_pairs else 0.0  # in Python
    model = bytes_of_reference(case) / OF_REFERENCE if case.in_model else 0.0
    return 0.15 + CHECKED * call + loops + model + (1.5 if cell.impl.compiled else 0.0)


def seconds_of_visits(
    cells: Sequence[Cell], cell_time: float, processes: int, calls: Mapping[Key, float]
) -> list[float]:
    """Estimate the seconds of each visit of a case in one process; each cell is prepared before its first block."""
    visits, blocks = Visits(cell_time, processes), {cell.key: block_of(calls[cell.key]) for cell in cells}
    found, ready = [], set[Key]()
    for visit in range(VISITS):
        counts = visits.counts(blocks, visit, {})
        prepared = sum(0.1 + READIED * calls[key] for key in counts.keys() - ready)
        found.append(prepared + sum(1.2 * count * blocks[key].seconds for key, count in counts.items()))
        ready |= counts.keys()
    return found


def seconds_of_call(case: Case) -> float:
    """Estimate the seconds of a call."""
    if case.device == "cuda":
        return max(flops(case) / OF_A_GPU, least_bytes(case) / OF_GPU_MEMORY)
    return max(flops(case) / (OF_A_CORE * (case.threads or os.cpu_count() or 1)), least_bytes(case) / OF_MEMORY)


def _seconds_of_timed(checked: Mapping[str, Any]) -> float:
    """Estimate the seconds of a timed call from those of a checked one."""
    seconds, peak = float(checked["seconds"]), checked["columns"].get("peak_bytes") or 0
    return seconds - min(seconds / 2, peak / OF_FAULTS) if peak >= MAPPED and chosen() == KEEP else seconds


def remaining(run: Run) -> Callable[..., float]:
    """Return a function that estimates the seconds left of a run, from the rate since this call with `USUAL` as a prior
    of weight `PRIOR`. Its argument, the seconds that a failed cell took, is excluded from the rate.
    """

    def planned() -> tuple[float, float]:
        """Return the planned seconds of what is done, and of the whole run; calls not yet made take as much longer than
        estimated as those that were made.
        """
        done = whole = 0.0
        checked = {key: _seconds_of_timed(it) for key, it in run.checked.items()}
        known = {key: it for key, it in checked.items() if not run.cell(key).impl.limits.max_pairs}
        longer = (CALLS + sum(known.values())) / (CALLS + sum(seconds_of_call(run.cell(key).case) for key in known))
        left = map(run.cell, (run.planned or set()) - run.skipped.keys())
        for case, cells in by_case(left).items():
            calls = {cell.key: checked.get(cell.key, longer * seconds_of_call(cell.case)) for cell in cells}
            checks = {cell.key: seconds_of_check(cell, calls[cell.key]) for cell in cells}
            visits = seconds_of_visits(cells, run.timing["cell_time"], run.processes, calls)
            more = MORE * sum(calls.values()) if "model" in run.asked else 0.0
            whole += sum(checks.values()) + run.processes * sum(visits) + more
            done += sum(checks[key] for key in checks if run.settled(key))
            done += sum(visits[visit] for visit in run.visits(case))
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
