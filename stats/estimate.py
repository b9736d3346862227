"""What is known of one log ratio: its mean, its error and their degrees of freedom, and what they show. NumPy and scipy only.

One number a process: rounds within a process share its memory layout and the machine's conditions, so they are no replicates.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import chdtri, ndtr, stdtrit

LEVEL = 0.05
"""Risk of a false `UNCHANGED`; what an interval leaves out."""

TRIM = 10
"""Of so many pairs the lowest and the highest don't count: a neighbour that came and went is in few."""

BETWEEN_PROCESSES = 0.02
"""Standard deviation, in logarithms, of what two processes of unchanged code disagree about a ratio beyond their visits.

Calibrated on stored runs (`tests/experiments/ranking.py`): what is assumed before a run shows its own.
"""

ENOUGH_PROCESSES = 3
"""Processes from which on their own disagreement is the interval."""

OF_A_PROCESS = 4
"""Degrees of freedom of what one more process tells of all: what disturbs a process disturbs many of its cells."""

RANGE_NODES = 200

Array = NDArray[np.float64]

Key = TypeVar("Key", bound=Hashable)

Logs = Mapping[int, Sequence[float]]
"""Log ratios by process, one a visit."""


@dataclass(frozen=True)
class Variance:
    """A variance, and the degrees of freedom with which it is known."""

    value: float
    df: float

    def __add__(self, other: Variance) -> Variance:
        """Of the sum of two that are independent; its degrees of freedom are those of Welch and Satterthwaite."""
        total = self.value + other.value
        return Variance(total, total**2 / (self.value**2 / self.df + other.value**2 / other.df))

    def moderated(self, prior: Variance) -> Variance:
        """The mean of two estimates of one variance, weighted by their degrees of freedom."""
        df = self.df + prior.df
        return Variance((self.df * self.value + prior.df * prior.value) / df, df)


PRIOR = Variance(BETWEEN_PROCESSES**2, 8)
"""Between processes. Over the cells of a stored run it varies like a variance of 3 to 20 degrees of freedom."""


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

    @property
    def states(self) -> Sequence[Estimate]:
        """What was known after each look at it."""
        return [self]

    def reach(self, level: float) -> float:
        """Half of the interval, in errors."""
        return quantile(1 - level / 2, self.df)

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        half = self.error * self.reach(level) if self.error else 0.0
        return self.mean - half, self.mean + half

    @property
    def contradiction(self) -> tuple[float, float] | None:
        """The interval of all pairs, where a look excluded what those before it have shown, which stays; else None."""
        return None


def finite(logs: ArrayLike) -> Array:
    """Those that were measured."""
    values = np.atleast_1d(np.asarray(logs, float))
    finite: Array = values[np.isfinite(values)]
    return finite


def paired(logs: ArrayLike) -> Estimate:
    """Of log ratios, one a pair of processes."""
    values = finite(logs)
    if values.size < 2:
        return Estimate(float(values[0]) if values.size else math.nan, pairs=values.size)
    cut = values.size // TRIM
    values = trimmed(values, cut)
    spread = float(values.std(ddof=1))
    error = spread / math.sqrt(values.size)
    return Estimate(float(values.mean()), error, values.size - 2 * cut - 1, values.size, spread)


def trimmed(values: ArrayLike, cut: int) -> Array:
    """As many numbers, whose mean is the mean without the `cut` lowest and highest, and whose standard error is that of this
    trimmed mean (Yuen 1974)."""
    ordered = np.sort(values)
    kept = ordered[cut : ordered.size - cut]
    winsorized = ordered.clip(kept[0], kept[-1])
    wider = math.sqrt(ordered.size * (ordered.size - 1) / (kept.size * (kept.size - 1))) if kept.size > 1 else 1.0
    found: Array = kept.mean() + wider * (winsorized - winsorized.mean())
    return found


def of_processes(logs: Logs, between: Variance = PRIOR) -> Estimate:
    """Of log ratios by process, one a visit: `pairs` are the visits.

    What a process should scatter by follows from its visits and from `between`; it is moderated by what the processes do
    (Smyth 2004). Where each of them has one visit, the parts can't be told apart, and the error is Student's.
    """
    if not logs:
        return Estimate(math.nan, df=0, pairs=0)
    seen, within = _parts(logs)
    if within.df:
        seen = seen.moderated(within + between)
    mean = float(np.mean([np.mean(visits) for visits in logs.values()]))
    error = math.sqrt(seen.value / len(logs)) if seen.df else math.nan
    return Estimate(mean, error, seen.df, sum(map(len, logs.values())))


def _parts(logs: Logs) -> tuple[Variance, Variance]:
    """Of the means of processes: what is seen of them, and what the visits of each alone would make it."""
    means = [float(np.mean(visits)) for visits in logs.values()]
    K, visits = len(means), sum(map(len, logs.values()))
    squares = sum(float(((np.array(v) - mean) ** 2).sum()) for v, mean in zip(logs.values(), means, strict=True))
    seen = Variance(float(np.var(means, ddof=1)) if K > 1 else 0.0, K - 1)
    return seen, Variance(squares / max(1, visits - K) * K / max(1, visits), visits - K)


def between_processes(pairs: Iterable[Logs]) -> Variance:
    """Estimates, from all pairs of implementations of a run, how much its processes differ beyond their visits.

    `PRIOR` alone for a run of one process. Medians over the pairs: a few of them scatter a hundred times as much as the others.
    """
    several = [(seen, within) for seen, within in map(_parts, pairs) if seen.df > 0 and within.df]
    if not several:
        return PRIOR
    df = int(np.median([seen.df for seen, _ in several]))
    means, visits = np.median([[seen.value, within.value] for seen, within in several], axis=0)
    beyond = float(means / (chdtri(df, 0.5) / df) - visits)  # the median of chi-squared lies below its mean
    return replace(Variance(max(0.0, beyond), OF_A_PROCESS * df).moderated(PRIOR), df=PRIOR.df)


def half_width(logs: Logs) -> float:
    """Half of the 95 % interval that visits alone give: what more time could make narrower. Infinite where they are too few."""
    _, within = _parts(logs)
    return math.sqrt(within.value / len(logs)) * quantile(1 - LEVEL / 2, within.df) if within.df else math.inf


def quantile(share: float, df: float) -> float:
    """Of Student's distribution."""
    return float(stdtrit(df, share))


def simultaneous(among: int, df: float) -> float:
    """How many standard errors a difference among so many may reach: 95 % for all their pairs at once (Tukey's range)."""
    return quantile(1 - LEVEL / 2, df) if among < 3 else _range(among, max(1, int(min(df, 1000)))) / math.sqrt(2)


@cache
def _range(among: int, df: int) -> float:
    """The quantile of the studentized range, within 0.5 %; scipy's takes a tenth of a second, and as much again to import."""
    z, w = np.linspace(-8, 8, RANGE_NODES), np.linspace(0, 16, RANGE_NODES)
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    below = among * (density * (ndtr(z) - ndtr(z - w[:, None])) ** (among - 1)).sum(axis=1)  # of the range in errors
    spread = np.sqrt(chdtri(df, (np.arange(RANGE_NODES) + 0.5) / RANGE_NODES) / df)
    reach = np.geomspace(1, 300, RANGE_NODES)
    return float(np.interp(1 - LEVEL, np.interp(reach[:, None] * spread, w, below, right=1).mean(axis=1), reach))


def exp_or_inf(log: float) -> float:
    """Of an end of an interval; so wide that it is beyond all numbers is infinitely wide."""
    return math.inf if log > 700 else math.exp(log)
