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
from scipy.special import stdtr, stdtrit

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
    beyond: float = 0.0
    """With a borrowed spread: the farthest that two processes were ever seen apart. Such a cell can't be UNCHANGED."""

    @property
    def testable(self) -> bool:
        return math.isfinite(self.mean) and math.isfinite(self.error)

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        half = self.error * quantile(1 - level / 2, self.df) if self.error else 0.0
        return self.mean - half, self.mean + half


@dataclass(frozen=True)
class Between:
    """How processes that ran the same code differed, over all cells: in logarithms."""

    spread: float
    df: int
    widest: float


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


def welch(base: NDArray[np.float64], head: NDArray[np.float64], seen: Between | None) -> Estimate:
    """Of two sides that are not paired; one of a single process borrows the spread that was `seen` elsewhere."""
    pairs = min(base.size, head.size)
    if pairs == 0:
        return Estimate(math.nan, pairs=0)
    mean = float(head.mean() - base.mean())
    if pairs == 1:
        return _lone(mean, base.size, head.size, seen)
    spreads = float(base.var(ddof=1)), float(head.var(ddof=1))
    parts = spreads[0] / base.size, spreads[1] / head.size
    squared = sum(parts)
    below = parts[0] ** 2 / (base.size - 1) + parts[1] ** 2 / (head.size - 1)
    df = squared**2 / below if below else base.size + head.size - 2  # Welch-Satterthwaite
    return Estimate(mean, math.sqrt(squared), df, pairs, math.sqrt(sum(spreads)))


def _lone(mean: float, in_base: int, in_head: int, seen: Between | None) -> Estimate:
    if seen is None:
        return Estimate(mean)
    error = seen.spread * math.sqrt(1 / in_base + 1 / in_head)
    return Estimate(mean, error, seen.df, 1, seen.spread * math.sqrt(2), beyond=seen.widest)


def between(sides: Sequence[NDArray[np.float64]]) -> Between | None:
    """None where no side has several processes."""
    several = [side for side in sides if side.size > 1]
    if not several:
        return None
    df = sum(side.size - 1 for side in several)
    squares = sum(float(((side - side.mean()) ** 2).sum()) for side in several)
    return Between(math.sqrt(squares / df), df, max(float(np.ptp(side)) for side in several))


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


def shifted(estimate: Estimate, shift: float, shift_error: float) -> Estimate:
    """Less a shift that is known up to an error."""
    return replace(estimate, mean=estimate.mean - shift, error=math.hypot(estimate.error, shift_error))


def difference(base: Estimate, head: Estimate) -> Estimate:
    """Welch and Satterthwaite's difference."""
    mean, pairs = head.mean - base.mean, min(base.pairs, head.pairs)
    parts = [(side.error**2, side.df) for side in (base, head)]
    squared = sum(part for part, _ in parts)
    below = sum(part**2 / df for part, df in parts)
    return Estimate(mean, math.sqrt(squared), squared**2 / below if below else math.inf, pairs)


def holds(mean: float, error: float, df: float, term: float) -> bool:
    """Whether a 95 % interval that is widened by a known standard deviation holds 0."""
    low, high = widened(Estimate(mean, error, df), term).interval()
    return low <= 0 <= high


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


def p_moved(cell: Estimate, limit: float) -> float:
    """Of the hypothesis that the ratio lies within the margin: chance of a mean this far out when it lies on its edge."""
    size = abs(cell.mean)
    return min(1.0, _p_positive(size - limit, cell) + _p_positive(size + limit, cell))


def p_same(cell: Estimate, limit: float) -> float:
    """Of the hypothesis that the ratio lies on the margin or beyond: the worse of two one-sided tests (TOST)."""
    return max(_p_positive(limit - cell.mean, cell), _p_positive(limit + cell.mean, cell))


def _p_positive(distance: float, cell: Estimate) -> float:
    """Of the hypothesis that a distance measured with the cell's error is not really positive."""
    if cell.error == 0:  # identical numbers: nothing is left to chance
        return 0.0 if distance > 0 else 1.0
    return float(stdtr(cell.df, -distance / cell.error))


def adjusted(p: Mapping[Key, float]) -> dict[Key, float]:
    """For the number of cells: Simes' test that anything changed in an implementation, adjusted for their number, and
    among the cells of each once more, both by Benjamini and Hochberg. So one that changed everywhere needn't outdo all
    cells of the others.
    """
    families: dict[Hashable, dict[Key, float]] = {}
    for key, one in p.items():
        families.setdefault(key[0] if isinstance(key, tuple) else None, {})[key] = one
    within = {name: _discoveries(of) for name, of in families.items()}
    gates = _discoveries({name: min(of.values()) for name, of in within.items()})  # the smallest of them is Simes' p
    return {key: max(one, gates[name]) for name, of in within.items() for key, one in of.items()}


def _discoveries(p: Mapping[Key, float]) -> dict[Key, float]:
    """Adjusted p, by Benjamini and Hochberg."""
    from scipy.stats import false_discovery_control  # half a second to import: of those who judge alone

    return dict(zip(p, map(float, false_discovery_control(list(p.values())) if p else ()), strict=True))


def quantile(share: float, df: float) -> float:
    """Of Student's distribution."""
    return float(stdtrit(df, share))


def exp_or_inf(log: float) -> float:
    """Of an end of an interval; so wide that it is beyond all numbers is infinitely wide."""
    return math.exp(log) if log < 700 else math.inf
