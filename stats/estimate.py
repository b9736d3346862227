"""What is known of one log ratio: its mean, its error and their degrees of freedom, and what they show. NumPy and scipy only.

One number a process: rounds within a process share its memory layout and the machine's mood, so they are no replicates.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

LEVEL = 0.05
"""Risk of a false `UNCHANGED`; what an interval leaves out."""

TRIM = 10
"""Of so many pairs the lowest and the highest don't count: a neighbour that came and went is in few."""

BETWEEN_PROCESSES = 0.02
"""Standard deviation, in logarithms, of what two processes of unchanged code disagree about a ratio beyond their visits.

Calibrated on stored runs (`tests/experiments/ranking.py`); it counts where a run has too few processes to show its own.
"""

ENOUGH_PROCESSES = 3
"""Processes from which on their own disagreement is the interval."""

Key = TypeVar("Key", bound=Hashable)

Logs = Mapping[int, Sequence[float]]
"""Log ratios by process, one a visit."""


@dataclass(frozen=True)
class Estimate:
    """A cell's log ratio: its mean, standard error and degrees of freedom; and the spread of a single pair."""

    mean: float
    error: float = math.nan
    df: float = math.nan
    pairs: int = 1
    spread: float = math.nan

    @property
    def testable(self) -> bool:
        return math.isfinite(self.mean) and math.isfinite(self.error)

    def reach(self, level: float) -> float:
        """Half of the interval, in errors."""
        return quantile(1 - level / 2, self.df)

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        half = self.error * self.reach(level) if self.error else 0.0
        return self.mean - half, self.mean + half


def finite(logs: ArrayLike) -> NDArray[np.float64]:
    """Those that were measured."""
    values = np.atleast_1d(np.asarray(logs, float))
    finite: NDArray[np.float64] = values[np.isfinite(values)]
    return finite


def paired(logs: ArrayLike) -> Estimate:
    """Of log ratios, one a pair of processes."""
    values = finite(logs)
    if values.size < 2:
        return Estimate(float(values[0]) if values.size else math.nan, pairs=values.size)
    cut = values.size // TRIM
    kept = np.sort(values)[cut : values.size - cut]
    winsorized = values.clip(kept[0], kept[-1])
    error = float(winsorized.std(ddof=1)) * math.sqrt((values.size - 1) / (kept.size * (kept.size - 1)))  # Yuen 1974
    return Estimate(float(kept.mean()), error, kept.size - 1, values.size, error * math.sqrt(values.size))


def of_processes(logs: Mapping[int, Sequence[float]]) -> Estimate:
    """Of log ratios by process, one a visit: `pairs` are the visits."""
    means = [float(np.mean(visits)) for visits in logs.values()]
    K, visits = len(means), sum(map(len, logs.values()))
    if not K:
        return Estimate(math.nan, pairs=0)
    middle = float(np.mean(means))
    if K >= ENOUGH_PROCESSES:
        return Estimate(middle, float(np.std(means, ddof=1)) / math.sqrt(K), K - 1, visits)
    if visits == K:
        return Estimate(middle, pairs=visits)
    squares = sum(float(((np.array(v) - np.mean(v)) ** 2).sum()) for v in logs.values())
    within = squares / (visits - K) / visits
    return widened(Estimate(middle, math.sqrt(within), visits - K, visits), BETWEEN_PROCESSES / math.sqrt(K))


def widened(estimate: Estimate, term: float) -> Estimate:
    """With the error of something more that is known, and so has degrees of freedom without end (Satterthwaite's)."""
    squared = estimate.error**2 + term**2
    df = estimate.df * (squared / estimate.error**2) ** 2 if estimate.error else math.inf
    return replace(estimate, error=math.sqrt(squared), df=df)


def interval(medians: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the geometric mean of positive numbers, one a process (Student's, of their logarithms).

    None of fewer than two.
    """
    if len(medians) < 2:
        return None
    logs = np.log(medians)
    half = quantile(1 - LEVEL / 2, len(logs) - 1) * np.std(logs, ddof=1) / math.sqrt(len(logs))
    low, high = np.exp([np.mean(logs) - half, np.mean(logs) + half])
    return float(low), float(high)


def quantile(share: float, df: float) -> float:
    """Of Student's distribution."""
    return float(stdtrit(df, share))


def exp_or_inf(log: float) -> float:
    """Of an end of an interval; so wide that it is beyond all numbers is infinitely wide."""
    return math.exp(log) if log < 700 else math.inf
