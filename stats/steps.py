"""When a level changed: steps in a series of runs. They say when; whether is for the verdicts to say.

Runs are looked at as they came, one more at a time, so that what was shown stays shown. At every position Student's t of a step
there, in a model in which each run resembles the one before it by an unknown share (AR(1), generalized least squares): the
chance of such a t is the mean over the shares, each weighted by how likely it makes the runs. `tests/experiments/history.py`
prints what is found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.ndimage import median_filter
from scipy.special import stdtr

MIN_RUNS = 3
"""Runs that a level needs on either side: a step shows from the third run on."""

FALSE_STEPS = 20
"""At most so many of 100 series without a step show one within a year of daily runs: independent ones, long-tailed ones
(Student's, 3 degrees), and those in which each run resembles the one before by 0.6."""

LEVEL = FALSE_STEPS / 100 / 100
"""Of one look at a series, for all positions. A year of daily looks errs at most as often as 100 independent
ones (simulated)."""

ALIKE = np.array([[0.0], [0.2], [0.4], [0.6], [0.8]])
"""Shares by which a run may resemble the one before it."""

ODD = 3.0
"""Times the noise: a run farther from the median of the five around it counts as this far."""

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

Array = NDArray[np.float64]


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


def steps(seconds: ArrayLike, smallest: float = SMALLEST) -> list[Step]:
    """Where the level of one unbroken series changed, oldest first; none in fewer than twice MIN_RUNS numbers."""
    logs = np.log(np.atleast_1d(np.asarray(seconds, float)))
    at = [*places(logs)]
    levels = [math.exp(float(np.median(part))) for part in np.split(logs, at)] if at else []
    found = [Step(*each) for each in zip(at, levels, levels[1:], strict=False)]
    return with_recoveries([step for step in found if abs(math.log(step.ratio)) >= math.log1p(smallest)])


def with_recoveries(found: Sequence[Step]) -> list[Step]:
    """Steps, oldest first, each with the one after which the level was back where it had been before it."""
    return [replace(step, recovered=_recovered(step, found[i:])) for i, step in enumerate(found, 1)]


def _recovered(step: Step, later: Sequence[Step]) -> int | None:
    levels = accumulate((one.ratio for one in later), mul, initial=step.ratio)
    back = (one.at for one, level in zip(later, [*levels][1:], strict=True) if level <= 1 + RECOVERED_WITHIN)
    return next(back, None) if step.slower else None


def places(logs: Array) -> Iterator[int]:
    """Positions of steps. Two runs after a step showed, it is better known where it is."""
    if logs.size < 2 * MIN_RUNS:
        return
    logs = _tamed(logs)
    start, end = 0, 2 * MIN_RUNS
    while end <= logs.size:
        if _likeliest(logs[start:end])[1] <= LEVEL:
            start += _likeliest(logs[start : end + MIN_RUNS - 1])[0]
            end = start + 2 * MIN_RUNS
            yield start
        else:
            end += 1


def _tamed(logs: Array) -> Array:
    """Without runs that are farther from those around them than ODD."""
    around = median_filter(logs, 5, mode="mirror")
    noise = float(np.median(np.abs(np.diff(logs)))) / _NORMAL / math.sqrt(2)
    reach = ODD * max(noise, LEAST_NOISE)
    return np.clip(logs, around - reach, around + reach)


def _likeliest(logs: Array) -> tuple[int, float]:
    """Where a step is likeliest, and the chance of such a t at any position where there is none."""
    at = np.arange(MIN_RUNS, logs.size - MIN_RUNS + 1)
    df, after, apart = logs.size - 3, logs.size - 1 - at, 1 - ALIKE
    fresh = (
        logs[1:] - ALIKE * logs[:-1]
    )  # what is new in each run; in it a step is 1 at its place, and `apart` after it
    fresh -= fresh.mean(axis=1, keepdims=True)
    sums = fresh[:, at - 1] + apart * (fresh[:, ::-1].cumsum(axis=1)[:, ::-1] - fresh)[:, at - 1]
    squares = 1 + apart**2 * after - (1 + apart * after) ** 2 / (logs.size - 1)
    rest = np.maximum((fresh**2).sum(axis=1, keepdims=True) - sums**2 / squares, df * LEAST_NOISE**2)
    t = np.abs(sums) * np.sqrt(df / squares / rest)
    weights = (1 - ALIKE**2) * (rest / rest.min(axis=0)) ** (-df / 2)
    weights /= weights.sum(axis=0)
    best = int((weights * t).sum(axis=0).argmax())
    return int(at[best]), 2 * at.size * float(weights[:, best] @ stdtr(df, -t[:, best]))
