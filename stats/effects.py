"""Effects of interleaved comparisons: estimates of log(head / base) for cells and implementations.

The unit is a replicate, a pair of processes: rounds within a process share its memory layout and machine conditions, so
that a replicate yields one datum per cell. Intervals are valid at every interim analysis simultaneously, so that an
established result is never retracted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import digamma, fdtri, ndtri

from .estimate import LEVEL, Array, Estimate, paired

Key = tuple[str, str]
"""Implementation and case id."""

FIRST_LOOK = 3
"""Replicates before the first interim analysis."""

LEAST_SPREAD = 1e-5
"""Smallest spread in logarithms: closer agreement is chance, or the clock's resolution."""

WEIGHT = 4
"""Degrees of freedom of the prior spread estimated from other cells. Real spreads were as unlike as with 2 to 7
(docs/measured.md).
"""

NOISY = 0.99
"""Quantile of the expected spreads above which a cell keeps its own spread."""

MOVED = 0.01
"""Level at which a reference workload is shown to have changed."""

K = TypeVar("K")


@dataclass(frozen=True)
class Watched(Estimate):
    """Estimate after each interim analysis; its interval is the intersection of the intervals of all analyses."""

    looks: tuple[Estimate, ...] = ()

    @property
    def states(self) -> Sequence[Estimate]:
        return [replace(self, looks=self.looks[:i]) for i in range(1, len(self.looks) + 1)]

    def reach(self, level: float) -> float:
        return super().reach(per_look(level))

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Return the interval that holds at all interim analyses with probability 1 - level."""
        low, high, _ = self._overlap(level)
        return low, high

    @property
    def contradiction(self) -> tuple[float, float] | None:
        return None if self._overlap(LEVEL)[2] else super().interval()

    def _overlap(self, level: float) -> tuple[float, float, bool]:
        """Intersect the intervals of all interim analyses, or of those before the first contradiction."""
        low, high, nominal = -math.inf, math.inf, per_look(level)
        for look in self.looks:
            a, b = look.interval(nominal)
            if max(low, a) > min(high, b):
                return low, high, False
            low, high = max(low, a), min(high, b)
        return low, high, True


def per_look(level: float) -> float:
    """Return the level of each interim analysis of normal data, after 3, 4, ... 200 replicates, for a total error rate
    of `level`.

    It is level / (5 + z²), z being the quantile of the result, to 3 % from 0.1 to 0.00005
    (`tests/experiments/looks.py`).
    """
    nominal = level / 15
    for _ in range(6):
        nominal = level / (5 + float(ndtri(nominal / 2)) ** 2)
    return nominal


def of_pairs(
    logs: Mapping[Key, ArrayLike], controls: Mapping[str, ArrayLike]
) -> tuple[dict[Key, Watched], dict[str, Watched]]:
    """Return effects of cells, and of implementations: the mean over the cells of each.

    Each cell has log(head / base) of every replicate, NaN if it was not measured in it. Replicates that lack some cells
    of an implementation count for the others. Interleaved variants share machine conditions, so that the mean of the
    `controls` is subtracted only from the interim analysis on at which one of them is shown to have changed.
    """
    shift, since = _shift({name: np.asarray(of, float) for name, of in controls.items()})
    arrays = {key: np.asarray(of, float) for key, of in logs.items()}
    by_impl: dict[str, list[Array]] = {}
    for (impl, _), of in arrays.items():
        if np.isfinite(of).any():
            by_impl.setdefault(impl, []).append(of)
    together = {impl: np.array(cells) for impl, cells in by_impl.items()}
    return _watched({key: of[None] for key, of in arrays.items()}, shift, since), _watched(together, shift, since)


def _shift(controls: Mapping[str, Array]) -> tuple[Array, float]:
    """Return the reference workloads' mean per replicate, and the replicates after which one has changed, or infinity."""
    since = math.inf
    for it in _watched({name: of[None] for name, of in controls.items()}).values():
        ends = (state.interval(MOVED) for state in it.states)
        since = min([since, *(FIRST_LOOK + i for i, (low, high) in enumerate(ends) if low > 0 or high < 0)])
    return np.array([*controls.values()]).mean(axis=0) if controls else np.empty(0), since


def _watched(groups: Mapping[K, Array], shift: Array | None = None, since: float = math.inf) -> dict[K, Watched]:
    """Estimate groups of cells, (cells, replicates) each; at every interim analysis, spreads are moderated by those of
    all groups.

    From `since` replicates on, each replicate's `shift` is subtracted.
    """
    most = max((cells.shape[1] for cells in groups.values()), default=0)
    looks: dict[K, list[Estimate]] = {key: [] for key in groups}
    for count in range(FIRST_LOOK, most + 1):
        less = 0.0 if shift is None or count < since else shift[:count]
        known = {key: paired(_by_pair(cells[:, :count] - less)) for key, cells in groups.items()}
        for key, found in moderated({key: it for key, it in known.items() if it.pairs >= FIRST_LOOK}).items():
            if np.isfinite(groups[key][:, count - 1]).any():
                looks[key].append(found)
    return {
        key: Watched(**vars(of[-1] if of else replace(paired(_by_pair(groups[key])), error=math.nan)), looks=tuple(of))
        for key, of in looks.items()
    }


def _by_pair(cells: Array) -> Array:
    """Return each replicate's estimate of the mean over cells, (cells, pairs) -> (pairs,), plain if none is missing."""
    there = np.isfinite(cells)
    cells, there = cells[there.any(axis=1)], there[there.any(axis=1)]
    if not len(cells):
        return np.empty(0)
    counts = there.sum(axis=1, keepdims=True)
    means = np.where(there, cells, 0).sum(axis=1, keepdims=True) / counts
    apart = np.where(there, (cells - means) / counts, 0).mean(axis=0) * counts.max()
    said: Array = (means.mean() + apart)[there.any(axis=0)]
    return said


def moderated(estimates: Mapping[K, Estimate]) -> dict[K, Estimate]:
    """Moderate each spread by the typical spread of the others, with WEIGHT degrees of freedom, or fewer if the others
    are few.

    Smyth, Linear models and empirical Bayes methods (2004), with a given instead of an estimated weight.
    """
    n = len(estimates)
    if n < 2:
        return dict(estimates)
    own = np.maximum([it.spread for it in estimates.values()], LEAST_SPREAD) ** 2
    df, weight = np.array([it.df for it in estimates.values()]), WEIGHT * (n - 1) / (n + 1)
    logs = np.log(own) - _expected_log(df)
    ordered, rank = np.sort(logs), logs.argsort().argsort()
    of_others = np.mean([ordered[at + (rank <= at)] for at in ((n - 2) // 2, (n - 1) // 2)], axis=0)  # medians
    usual = np.exp(of_others + _expected_log(weight))
    mixed, degrees = (weight * usual + df * own) / (weight + df), df + weight
    odd = own > usual * fdtri(df, weight, NOISY)
    spreads, degrees = np.sqrt(np.where(odd, own, mixed)), np.where(odd, df, degrees)
    return {
        key: replace(it, error=spread / max(it.spread, LEAST_SPREAD) * it.error or spread / math.sqrt(it.pairs),
                     df=degree, spread=spread)
        for (key, it), spread, degree in zip(estimates.items(), spreads.tolist(), degrees.tolist(), strict=True)
    }  # fmt: skip


def _expected_log(df: ArrayLike) -> Array:
    """Return the expected logarithm of the estimate of a variance of 1."""
    half = np.asarray(df, float) / 2
    expected: Array = digamma(half) - np.log(half)
    return expected
