"""How long a run takes: a guess before it begins, and what is left of its timing."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..cases.cells import Cell
from ..cases.counting import flops
from ..timing.engine import VISITS, Visits, block_of

OF_A_CORE, OF_A_GPU = 2.5e10, 2e13
"""Operations of the formula in a second, by a guess."""

PROVED, READIED = 15, 5
"""Calls, about, that a proof takes as long as, and making a cell ready to be timed in one process."""


def guessed(cell: Cell, cell_time: float, processes: int) -> float:
    """Seconds that a cell takes, about, proof and memory included."""
    return sum(parts(cell, cell_time, processes))


def parts(cell: Cell, cell_time: float, processes: int, call: float | None = None) -> tuple[float, float]:
    """Seconds, about, of a cell's correctness check with its memory, and of its timing; `call`: seconds of one, if known."""
    case, limits = cell.case, cell.impl.limits
    pairs = case.B * case.H * case.T * case.T_kv
    loops = 6 * pairs / limits.max_pairs if limits.max_pairs else 0.0  # a limit on pairs marks a Python loop
    if call is None:
        call = flops(case) / (OF_A_GPU if case.device == "cuda" else OF_A_CORE * (case.threads or os.cpu_count() or 1))
    visits, block = Visits(cell_time, processes), block_of(call)
    blocks = sum(visits.turns({"": block}, visit, {}).get("", 0) for visit in range(VISITS))
    once = 0.1 + PROVED * call + loops + (1.5 if cell.impl.compiled else 0.0)
    return once, processes * (0.1 + READIED * call + 1.2 * blocks * block.seconds)


def remaining(planned: Sequence[float], passed: float, visits: int, later_batches: int) -> float:
    """Seconds, from what the visits of a batch of processes are planned to take, each, and what the first ones took together.

    Calls that are long are timed in some of them, so the first ones don't tell what is left; what the plan lacks (caches that
    are filled, answers that are compared) is the same in each, and twice as much in the first, where calls on fresh inputs
    are timed as well.
    """
    lacking = max(0.0, passed - sum(planned[:visits])) / (visits + 1)
    return (
        sum(planned[visits:])
        + lacking * (len(planned) - visits)
        + later_batches * (sum(planned) + lacking * (len(planned) + 1))
    )
