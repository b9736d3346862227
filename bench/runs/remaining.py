"""How long a run takes: a guess before it begins, and what is left of its timing."""

from __future__ import annotations

import os

from ..cases.cells import Cell
from ..cases.counting import flops
from ..timing.engine import VISITS, Visits, block_of

OF_A_CORE, OF_A_GPU = 2.5e10, 2e13
"""Operations of the formula in a second, by a guess."""

CHECKED, READIED = 15, 5
"""Calls, about, that a check takes as long as, and making a cell ready to be timed in one process."""

EACH_VISIT = 0.3
"""Seconds, about, of a visit to all cases beyond its blocks, by a guess."""

USUAL, PRIOR = 1.3, 0.15
"""Seconds that a planned second takes, usually; and the part of the plan that this counts as much as."""


def guessed(cell: Cell, cell_time: float, processes: int) -> float:
    """Seconds that a cell takes, about, check and memory included."""
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
    once = 0.1 + CHECKED * call + loops + (1.5 if cell.impl.compiled else 0.0)
    return once, processes * (0.1 + READIED * call + 1.2 * blocks * block.seconds)


def remaining(ahead: float, done: float, passed: float) -> float:
    """Seconds left of the timing: `ahead` and `done` are its planned seconds, `passed` what those done took.

    The rate of the visits so far, with `USUAL` as a prior of the weight of `PRIOR`: the first visits are short, and make ready.
    """
    weight = PRIOR * (ahead + done)
    return ahead * (passed + USUAL * weight) / (done + weight) if weight else 0.0
