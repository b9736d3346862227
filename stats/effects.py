"""Effects of interleaved comparisons: estimates of log(head / base) for cells and implementations.

The unit is a replicate, a pair of processes: rounds within a process share its memory layout and machine conditions, so
that a replicate yields one datum per cell. Intervals are valid at every interim analysis simultaneously, so that an
established result is never retracted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import digamma, fdtri

from . import estimate
from .estimate import Array, Estimate, K, grouped

Key = tuple[str, str]
"""Implementation and case id."""

FIRST_ANALYSIS = 3
"""Replicates before the first interim analysis."""

LEAST_SPREAD = 1e-5
"""Smallest spread in logarithms: closer agreement is chance, or the clock's resolution."""

WEIGHT = 4
"""Degrees of freedom of the prior, which is the spread of other cells. Measured spreads differed from cell to cell as
much as 2 to 7 degrees of freedom imply.
"""

NOISY = 0.99
"""Quantile of the expected spreads above which a cell keeps its own spread."""

WORKLOAD = "control"
"""Stands for the implementation in data of the reference workload, in saved comparisons too."""

Logs = dict[K, list[float]]
"""log(head / base) of every replicate, NaN where it was not measured."""


def of_saved(replicates: Sequence[Mapping[str, Any]]) -> tuple[Logs[Key], Logs[str], list[int]]:
    """Return the data of saved replicates by cell, of the parts of the reference workload that all of them have, and the
    numbers of replicates with which a comparison's time ended.
    """
    by_key = [{(impl, case): float(log) for impl, case, log in replicate["logs"]} for replicate in replicates]
    logs = {
        key: [replicate.get(key, math.nan) for replicate in by_key]
        for key in dict.fromkeys(key for it in by_key for key in it)
    }
    workloads = {case: of for (impl, case), of in logs.items() if impl == WORKLOAD and not any(map(math.isnan, of))}
    ends = [count for count, replicate in enumerate(replicates, 1) if replicate.get("last")]
    return {key: of for key, of in logs.items() if key[0] != WORKLOAD}, workloads, ends


def of_replicates(
    logs: Mapping[Key, ArrayLike], ends: Collection[int] = ()
) -> tuple[dict[Key, Estimate], dict[str, Estimate]]:
    """Return effects of cells, and of implementations: the mean over the cells of each.

    Each cell has log(head / base) of every replicate, NaN if it was not measured in it. Replicates that lack some cells
    of an implementation count for the others. `ends`: numbers of replicates with which a comparison's time ended.
    """
    arrays = {key: np.where(np.isfinite(of), of, np.nan)[None] for key, of in logs.items()}
    by_impl = grouped((impl, of) for (impl, _), of in arrays.items())
    wholes = {impl: np.vstack(cells) for impl, cells in by_impl.items()}
    return _sequential(arrays, ends), _sequential(wholes, ends)


def _sequential(groups: Mapping[K, Array], ends: Collection[int]) -> dict[K, Estimate]:
    """Estimate groups of cells, (cells, replicates) each; at every interim analysis, spreads are moderated by those of
    all groups.
    """
    most = max((cells.shape[1] for cells in groups.values()), default=0)
    found = {key: replace(_of_cells(cells), error=math.nan) for key, cells in groups.items()}
    for count in range(FIRST_ANALYSIS, most + 1):
        known = {key: _of_cells(cells[:, :count]) for key, cells in groups.items()}
        for key, it in moderated({key: it for key, it in known.items() if it.count >= FIRST_ANALYSIS}).items():
            if np.isfinite(groups[key][:, count - 1]).any():
                found[key] = replace(it, analyses=(*found[key].analyses, replace(it, last=count in ends)))
    return found


def _of_cells(cells: Array) -> Estimate:
    """Estimate the mean over cells, (cells, replicates), from one number per replicate: a plain mean if none is missing."""
    cells = cells[np.isfinite(cells).any(axis=1)]
    if not len(cells):
        return Estimate(math.nan, count=0)
    there = np.isfinite(cells)
    counts, means = there.sum(axis=1, keepdims=True), np.nanmean(cells, axis=1, keepdims=True)
    apart = np.nansum((cells - means) / counts, axis=0) / len(cells) * counts.max()
    return estimate.of_replicates((means.mean() + apart)[there.any(axis=0)])


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
        key: replace(it, error=spread / math.sqrt(it.count), df=degree, spread=spread)
        for (key, it), spread, degree in zip(estimates.items(), spreads.tolist(), degrees.tolist(), strict=True)
    }


def _expected_log(df: ArrayLike) -> Array:
    """Return the expected logarithm of the estimate of a variance of 1."""
    half = np.asarray(df, float) / 2
    expected: Array = digamma(half) - np.log(half)
    return expected
