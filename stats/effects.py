"""Effects of interleaved comparisons: estimates of log(head / base) for cells and implementations.

The unit is a replicate, two fresh processes: rounds within a process share its memory layout and machine conditions, so
that a replicate yields one datum per cell. Intervals are valid at every interim analysis simultaneously, so that an
established result is never retracted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import fdtri

from . import estimate
from .estimate import Array, Estimate, K, Variance, grouped

Key = tuple[str, str]
"""Implementation and case id."""

FIRST_ANALYSIS = 3
"""Replicates before the first interim analysis."""

LEAST_SPREAD = 1e-5
"""Smallest spread in logarithms: closer agreement is chance, or the clock's resolution."""

WEIGHT = 4
"""Degrees of freedom of the prior, which is the median spread. Measured spreads differed from cell to cell as
much as 2 to 7 degrees of freedom imply.
"""

NOISY = 0.99
"""Quantile of the expected spreads above which a cell keeps its own spread."""

WORKLOAD = "control"
"""Stands for the implementation in data of the reference workload, in saved comparisons too."""

Logs = dict[K, list[float]]
"""log(head / base) of every replicate, NaN where it was not measured."""


def of_saved(replicates: Sequence[Mapping[str, Any]]) -> tuple[Logs[Key], Logs[str], list[int]]:
    """Return the data of saved replicates by cell and by part of the reference workload, and the numbers of replicates with
    which a comparison's time ended.
    """
    logs: Logs[Key] = {}
    for i, replicate in enumerate(replicates):
        for impl, case, log in replicate["logs"]:
            logs.setdefault((impl, case), [math.nan] * len(replicates))[i] = log
    workloads = {key[1]: logs.pop(key) for key in [*logs] if key[0] == WORKLOAD}
    ends = [count for count, replicate in enumerate(replicates, 1) if replicate.get("last")]
    return logs, workloads, ends


def of_replicates(
    logs: Mapping[Key, ArrayLike], ends: Collection[int] = ()
) -> tuple[dict[Key, Estimate], dict[str, Estimate]]:
    """Return effects of cells, and of implementations: the mean over the cells of each.

    Each cell has log(head / base) of every replicate, NaN if it was not measured in it. Replicates that lack some cells
    of an implementation count for the others. `ends`: numbers of replicates with which a comparison's time ended.
    """
    arrays = {key: np.array([of], float) for key, of in logs.items()}
    wholes = {impl: np.vstack(of) for impl, of in grouped((key[0], of) for key, of in arrays.items()).items()}
    return _sequential(arrays, ends), _sequential(wholes, ends)


def _sequential(groups: Mapping[K, Array], ends: Collection[int]) -> dict[K, Estimate]:
    """Estimate groups of cells, (cells, replicates) each; at every interim analysis, spreads are moderated by those of
    all groups.
    """
    most = max((cells.shape[1] for cells in groups.values()), default=0)
    found = {key: replace(_of_cells(cells), error=math.nan) for key, cells in groups.items()}
    for count in range(FIRST_ANALYSIS, most + 1):
        known = {key: it for key, of in groups.items() if (it := _of_cells(of[:, :count])).count >= FIRST_ANALYSIS}
        for key, it in moderated(known).items():
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
    """Moderate each spread by the median spread, with WEIGHT degrees of freedom, or fewer if there are few.

    Smyth, Linear models and empirical Bayes methods (2004), with a given instead of an estimated weight.
    """
    n, found = len(estimates), dict(estimates)
    if n < 2:
        return found
    weight = WEIGHT * (n - 1) / (n + 1)
    spreads = {key: Variance(max(it.error**2 * it.count, LEAST_SPREAD**2), it.df) for key, it in found.items()}
    usual = Variance(median(own.value / fdtri(own.df, weight, 0.5) for own in spreads.values()), weight)
    for key, own in spreads.items():
        if own.value <= usual.value * fdtri(own.df, weight, NOISY):
            mixed, it = own.moderated(usual), found[key]
            found[key] = replace(it, error=math.sqrt(mixed.value / it.count), df=mixed.df)
    return found
