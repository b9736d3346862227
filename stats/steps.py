"""When a cell's time changed: change points in a series of runs. They say when; whether is for the verdicts to say.

Two detectors must agree. Pelt (Killick and others 2012) with a Gaussian kernel, for which nothing is far away beyond a few
times the noise, so that a single odd run changes no level; on logarithms divided by the series' own noise. That noise is taken
from differences of neighbours, which a few steps hardly touch. Then Student's t-test of the runs on either side of what it
found, whose noise is what those runs spread by, and more where each resembles the one before.
`tests/experiments/history.py` prints what either finds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul

import numpy as np
import ruptures
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr

MIN_RUNS = 3
"""Runs that a level needs on either side: a step shows from the third run on."""

NEWEST = 300
"""Numbers that steps are looked for in: Pelt's time grows with the square of the length where nothing changed."""

REACH = 0.1
"""Of the kernel, exp(-REACH * distance²), distances in units of noise: at five times the noise little is left of it."""

PENALTY = 0.8
"""Times log(numbers): what a step must save of the kernel's cost. Simulated on 12 runs of independent noise: with 0.8, a step
where there is none in 1 of 100 series (normal; 1 of 160 with Student's heavy tails), and of steps of 4, 5 and 6 times the noise
in the middle 84, 96 and 100 of 100 found, in the right place. With 0.6, twice as many false steps for 89, 98 and 99; with 1, a
third of them for 73, 92 and 98. Longer series have fewer false steps; in 400 numbers, six times the noise shows after four."""

SECOND_VOTE = 0.001
"""Level of the t-test."""

LEAST_NOISE = 0.002
"""In logarithms: runs that agree by chance make no ruler for others."""

SMALLEST = 0.01
"""A step below this share is no news."""

SMALLEST_RELATIVE = 0.03
"""The same of a time relative to others: of three, one that changes with its `impl_hash` as it was moves their median by about
their noise."""

RECOVERED_WITHIN = 0.02
"""A later level this close to the one before a slow-down has recovered from it."""

_NORMAL = 0.6745  # median of the absolute value of a standard normal


@dataclass(frozen=True)
class Step:
    """The level of a series changed. `at` is the position of the first number after it; levels are in seconds."""

    at: int
    before: float
    after: float
    recovered: int | None = None
    """The position from which the level was back; None for a speed-up, or while it is not."""
    relative: bool = False
    """Whether it was found in the time relative to the case's others: levels are as on a usual day of the case."""

    @property
    def ratio(self) -> float:
        """Above 1 is slower."""
        return self.after / self.before

    @property
    def slower(self) -> bool:
        return self.ratio > 1


def steps(seconds: ArrayLike, votes: int = 2, smallest: float = SMALLEST) -> list[Step]:
    """Where the level of one unbroken series changed, oldest first; none in fewer than twice MIN_RUNS numbers.

    Only the NEWEST numbers are looked at. With one vote, what the first detector finds.
    """
    given = np.atleast_1d(np.asarray(seconds, float))
    older, logs = max(given.size - NEWEST, 0), np.log(given[-NEWEST:])
    found = [replace(step, at=step.at + older) for step in _steps(logs, votes)]
    return with_recoveries([step for step in found if abs(math.log(step.ratio)) >= math.log1p(smallest)])


def with_recoveries(found: Sequence[Step]) -> list[Step]:
    """Steps, oldest first, each with the one after which the level was back where it had been before it."""
    return [replace(step, recovered=_recovered(step, found[i:])) for i, step in enumerate(found, 1)]


def _recovered(step: Step, later: Sequence[Step]) -> int | None:
    levels = accumulate((one.ratio for one in later), mul, initial=step.ratio)
    back = (one.at for one, level in zip(later, [*levels][1:], strict=True) if level <= 1 + RECOVERED_WITHIN)
    return next(back, None) if step.slower else None


def _steps(logs: NDArray[np.float64], votes: int) -> list[Step]:
    if logs.size < 2 * MIN_RUNS:
        return []
    search = ruptures.KernelCPD(kernel="rbf", min_size=MIN_RUNS, params={"gamma": REACH})
    ends = search.fit((logs / _noise(logs))[:, None]).predict(pen=PENALTY * math.log(len(logs)))
    if votes > 1:
        ends = _seconded(logs, ends)
    starts = [0, *ends[:-1]]
    levels = [math.exp(float(np.median(logs[a:b]))) for a, b in zip(starts, ends, strict=True)]
    return [Step(at, levels[i], levels[i + 1]) for i, at in enumerate(ends[:-1])]


def _seconded(logs: NDArray[np.float64], ends: Sequence[int]) -> list[int]:
    """The ends of levels without those that the second detector doesn't find, the least likely first."""
    left = [*ends]
    while len(left) > 1:
        edges = [0, *left]
        p = [_p_of_step(logs[a:at], logs[at:b]) for a, at, b in zip(edges, left[:-1], left[1:], strict=False)]
        if max(p) <= SECOND_VOTE:
            break
        del left[p.index(max(p))]
    return left


def _p_of_step(before: NDArray[np.float64], after: NDArray[np.float64]) -> float:
    """Of Student's test that the levels are one, of runs that resemble the one before them by as much as these do."""
    rest = np.concatenate([before - before.mean(), after - after.mean()])
    df, squares = rest.size - 2, float((rest**2).sum())
    alike = max(0.0, float((rest[1:] * rest[:-1]).sum()) / squares) if squares else 0.0
    spread = max(math.sqrt(squares / df * (1 + alike) / (1 - alike)), LEAST_NOISE)
    error = spread * math.sqrt(1 / before.size + 1 / after.size)
    return 2 * float(stdtr(df, -abs(float(after.mean() - before.mean())) / error))


def _noise(logs: NDArray[np.float64]) -> float:
    """Standard deviation of one run, from the median absolute difference of neighbours."""
    neighbours = float(np.median(np.abs(np.diff(logs)))) / _NORMAL / math.sqrt(2)
    return max(neighbours, LEAST_NOISE)
