"""Estimates of one log ratio: mean, standard error and degrees of freedom, and significance. NumPy and scipy only.

One number per process: rounds within a process share its memory layout and machine conditions, so they are not
replicates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import chdtri, ndtr, ndtri, stdtrit

LEVEL = 0.05
"""Risk of a false `UNCHANGED`, and the complement of intervals' confidence."""

TRIM = 10
"""Of every TRIM replicates, the lowest and the highest are trimmed: a temporary disturbance affects few of them."""

BETWEEN_PROCESSES = 0.02
"""Standard deviation in logarithms of ratios between processes of unchanged code, in excess of the scatter of visits.

Calibrated on stored runs (`tests/experiments/ranking.py`): a prior, used before a run provides its own estimate.
"""

MOST_REPLICATES = 200
"""Replicates up to which intervals hold at every interim analysis."""

SHARE_OF_LAST = 2 / 3
"""Share of the unused error rate for the last analysis within a comparison's time."""

DEGREES_OF_PROCESS = 4
"""Degrees of freedom per further process in the pooled estimate: a disturbed process affects many of its cells."""

DEGREES_OF_CASE = 4
"""Degrees of freedom of the usual variance between visits of a case's pairs: of many pairs with few visits or rounds, some
scatter little by chance.
"""

RANGE_NODES = 200

K = TypeVar("K")
V = TypeVar("V")

Array = NDArray[np.float64]

ByProcess = Sequence[Sequence[float]]
"""Log ratios of each process, one per visit."""


@dataclass(frozen=True)
class Variance:
    """A variance and its degrees of freedom."""

    value: float
    df: float

    def __add__(self, other: Variance) -> Variance:
        """Return the variance of the sum of two independent estimates, with Welch-Satterthwaite degrees of freedom."""
        total = self.value + other.value
        return Variance(total, total**2 / (self.value**2 / self.df + other.value**2 / other.df))

    def moderated(self, prior: Variance) -> Variance:
        """Return the mean of two estimates of one variance, weighted by their degrees of freedom."""
        df = self.df + prior.df
        return Variance((self.df * self.value + prior.df * prior.value) / df, df)


PRIOR = Variance(BETWEEN_PROCESSES**2, 8)
"""Prior of the variance between processes. Over the cells of a stored run it varies like 3 to 20 degrees of freedom."""


@dataclass(frozen=True)
class Estimate:
    """A cell's log ratio: mean, standard error and degrees of freedom."""

    mean: float
    error: float = math.nan
    df: float = math.nan
    count: int = 1
    """Replicates that it was estimated from."""
    analyses: tuple[Estimate, ...] = ()
    """Estimates at the interim analyses, if there were any: intervals then hold at all of them at once."""
    last: bool = False
    """Whether it is the last analysis within a comparison's time."""

    @property
    def testable(self) -> bool:
        return math.isfinite(self.error)

    def levels(self, level: float) -> list[float]:
        """Return the level of each analysis, for a total error rate of `level`.

        Interim analyses use `per_analysis`. Up to one after `count` replicates, they use up about log(count) /
        log(MOST_REPLICATES) of the rate: simulated, it is 0.26 for 7, 0.42 for 13, 0.66 for 33 and 0.77 for 50. The
        last analysis within the time uses `SHARE_OF_LAST` of the rest; what is left is for the analyses of a continued
        comparison.
        """
        found = []
        for it in self.analyses:
            found.append(per_analysis(level))
            if it.last:
                rest = level * (1 - math.log(min(it.count, MOST_REPLICATES - 1)) / math.log(MOST_REPLICATES))
                found[-1] += SHARE_OF_LAST * rest
                level = (1 - SHARE_OF_LAST) * rest
        return found or [level]

    def intervals(self, level: float = LEVEL) -> list[list[float]]:
        """Return the interval after each interim analysis: the intersection of those so far, up to the first
        analysis that contradicts it. All of them hold at once with probability 1 - level.
        """
        each = self.analyses or (self,)
        means, errors, df = np.array([(it.mean, it.error, it.df) for it in each]).T
        half = errors * stdtrit(df, 1 - np.array(self.levels(level)) / 2)
        low, high = np.maximum.accumulate(means - half), np.minimum.accumulate(means + half)
        agreeing: list[list[float]] = np.array([low, high]).T[~(low > high)].tolist()
        return agreeing

    def interval(self, level: float = LEVEL) -> list[float]:
        """Return the interval that holds with probability 1 - level."""
        return self.intervals(level)[-1]


@cache
def per_analysis(level: float) -> float:
    """Return the level of each interim analysis of normal data, after 3, 4, ... 200 replicates, for a total error rate
    of `level`.

    It is level / (5 + z²), z being the quantile of the result, to 3 % from 0.1 to 0.00005
    (`tests/experiments/interim.py`).
    """
    nominal = level / 15
    for _ in range(6):
        nominal = level / (5 + float(ndtri(nominal / 2)) ** 2)
    return nominal


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of every key, both in the order of their first occurrence."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def of_replicates(logs: ArrayLike) -> Estimate:
    """Estimate from log ratios, one per replicate."""
    values = np.asarray(logs, float)
    if values.size < 2:
        return Estimate(float(values[0]) if values.size else math.nan, count=values.size)
    cut = values.size // TRIM
    values = trimmed(values, cut)
    error = float(values.std(ddof=1)) / math.sqrt(values.size)
    return Estimate(float(values.mean()), error, values.size - 2 * cut - 1, values.size)


def trimmed(values: Array, cut: int) -> Array:
    """Return as many numbers, in the same order, whose mean and standard error are those of the trimmed mean, without the
    `cut` lowest and the `cut` highest (Yuen 1974).
    """
    kept = np.sort(values)[cut : values.size - cut]
    winsorized = values.clip(kept[0], kept[-1])
    wider = math.sqrt(values.size * (values.size - 1) / max(1, kept.size * (kept.size - 1)))
    found: Array = kept.mean() + wider * (winsorized - winsorized.mean())
    return found


def of_processes(logs: ByProcess, between: Variance, usual: Variance) -> Estimate:
    """Estimate from log ratios by process, one per visit.

    A process's expected scatter follows from its visits, moderated by that of `usual_visits` if it is smaller, and from
    `between`; it is moderated by the observed variance between processes (Smyth 2004). If each process has one visit, the
    parts can't be separated, and the error is Student's.
    """
    if not logs:
        return Estimate(math.nan, df=0)
    seen, within = _parts(logs)
    if within.df:
        within = within.moderated(usual) if within.value < usual.value else within
        seen = seen.moderated(within + between)
    mean = float(np.mean(list(map(np.mean, logs))))
    return Estimate(mean, math.sqrt(seen.value / len(logs)) if seen.df else math.nan, seen.df)


def _parts(logs: ByProcess) -> tuple[Variance, Variance]:
    """Return the observed variance of process means, and the variance expected from that between visits."""
    K, visits = len(logs), sum(map(len, logs))
    squares = sum(len(of) * float(np.var(of)) for of in logs)
    seen = Variance(float(np.var(list(map(np.mean, logs)), ddof=1)) if K > 1 else 0.0, K - 1)
    return seen, Variance(squares * K / max(1, (visits - K) * visits), visits - K)


def usual_visits(pairs: Iterable[ByProcess]) -> Variance:
    """Return the median over the pairs of a case of the variance expected from that between visits."""
    found = [within.value for _, within in map(_parts, pairs) if within.df]
    return Variance(float(np.median(found)) if found else 0.0, DEGREES_OF_CASE)


def between_processes(pairs: Iterable[ByProcess]) -> Variance:
    """Estimate from all pairs of implementations of a run the variance between its processes in excess of that of
    visits.

    Returns `PRIOR` for a run of one process. Uses medians over the pairs: some scatter a hundred times as much as the
    others.
    """
    several = [(seen.df, seen.value, within.value) for seen, within in map(_parts, pairs) if seen.df and within.df]
    if not several:
        return PRIOR
    df, means, visits = np.median(several, axis=0)
    beyond = float(means / (chdtri(df, 0.5) / df) - visits)  # the median of chi-squared lies below its mean
    return replace(Variance(max(0.0, beyond), DEGREES_OF_PROCESS * df).moderated(PRIOR), df=PRIOR.df)


def half_width(logs: ByProcess) -> float:
    """Return half of the 95 % interval of variation between visits, which more time could narrow. Infinite if too few."""
    _, within = _parts(logs)
    return math.sqrt(within.value / len(logs)) * quantile(within.df) if within.df else math.inf


def quantile(df: float, share: float = 1 - LEVEL / 2) -> float:
    """Return a quantile of Student's distribution; by default half of the 95 % interval, in standard errors."""
    return float(stdtrit(df, share))


def simultaneous(among: int, df: float) -> float:
    """Return the critical difference in standard errors for all pairs of `among` means, at 95 % (Tukey's range)."""
    return quantile(df) if among < 3 else _range(among, max(1, int(min(df, 1000)))) / math.sqrt(2)


@cache
def _range(among: int, df: int) -> float:
    """Return the quantile of the studentized range, within 0.5 %; scipy's takes 0.1 s, and as much to import."""
    z, w = np.linspace(-8, 8, RANGE_NODES), np.linspace(0, 16, RANGE_NODES)
    shares = (ndtr(z) - ndtr(z - w[:, None])) ** (among - 1)  # w: the range in errors, z: the largest
    below = among * np.average(shares, axis=1, weights=np.exp(-(z**2) / 2))
    spread = np.sqrt(chdtri(df, (np.arange(RANGE_NODES) + 0.5) / RANGE_NODES) / df)
    reach = np.geomspace(1, 300, RANGE_NODES)
    return float(np.interp(1 - LEVEL, np.interp(reach[:, None] * spread, w, below, right=1).mean(axis=1), reach))


def exp_or_inf(log: float) -> float:
    """Return exp of an interval's end; infinity on overflow."""
    return math.inf if log > 700 else math.exp(log)
