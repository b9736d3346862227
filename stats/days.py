"""A cell's time as on a usual day of its case: what the machine did to all implementations of the case is taken out.

They take turns, so a slow day is slow for all of them. By how much is the median over the others of how far each is from its
own usual time: one that changed is outvoted. One whose `impl_hash` changed (sources, torch, kernel) is another one from there
on, and where fewer than MIN_OTHERS stay the same nothing is known of the day.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MIN_OTHERS = 3
"""Of two, one that changed would move the median by half of what it changed by."""


class Point(NamedTuple):
    """One cell in one run. Seconds; `low` and `high` are the extremes of the processes, or one process's quartiles."""

    run: int
    """Position of its run among all runs."""
    median: float
    low: float
    high: float
    processes: int
    case_hash: str | None
    impl_hash: str | None
    ratio: float | None = None
    """Over the baseline implementation of its run, in the same rounds."""


class Case:
    """The times of a case: a row for each implementation, a column for each run."""

    def __init__(self, points: Mapping[str, Sequence[Point]]) -> None:
        shape = len(points), 1 + max(found[-1].run for found in points.values())
        self._impls = [*points]
        self._seconds, ratios = np.full((2, *shape), np.nan)
        self._until = np.zeros(shape, int)  # the run behind the last one of the same code; 0 where that isn't known
        for row, found in enumerate(points.values()):
            runs = [point.run for point in found]
            self._seconds[row, runs] = np.log([point.median for point in found])
            ratios[row, runs] = np.log(np.array([point.ratio for point in found], float))
            known = (point for point in found if point.impl_hash is not None)
            for _, same in groupby(known, key=lambda point: (point.impl_hash, point.case_hash)):
                alike = [point.run for point in same]
                self._until[row, alike[0] : alike[-1] + 1] = alike[-1] + 1
        whole = (np.isnan(ratios) == np.isnan(self._seconds)).all(axis=0)
        self._logs = np.where(whole, ratios, self._seconds)  # what all of a run have in common doesn't matter

    def as_usual(self, impl: str, start: int, stop: int) -> Iterator[dict[int, float]]:
        """Seconds by run, for each longest stretch through which the same MIN_OTHERS or more kept their code."""
        own = self._impls.index(impl)
        logs, until = np.delete(self._logs, own, axis=0), np.delete(self._until, own, axis=0)
        if len(logs) < MIN_OTHERS:
            return
        until = np.minimum(until[:, start:stop], stop)
        ends = np.sort(until, axis=0)[-MIN_OTHERS]
        for i in np.flatnonzero(np.diff(ends, prepend=0) > 0):
            there = slice(start + i, ends[i])
            usual = self._logs[own, there] - _days(logs[until[:, i] >= ends[i], there])
            known = np.flatnonzero(~np.isnan(usual))
            level = np.median((self._seconds[own, there] - usual)[known]) if known.size else 0.0
            yield dict(zip((start + i + known).tolist(), np.exp(usual[known] + level).tolist(), strict=True))


def _days(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """By how much each run was slower than usual; NaN where too few were measured."""
    days = np.full(logs.shape[1], np.nan)
    enough = (~np.isnan(logs)).sum(axis=0) >= MIN_OTHERS
    if enough.any():
        logs = logs[:, enough]
        logs = logs[~np.isnan(logs).all(axis=1)]
        median = np.nanmedian if np.isnan(logs).any() else np.median
        days[enough] = 0.0
        for _ in range(2):  # what is usual for one that missed some days is better known once these are
            days[enough] = median(logs - median(logs - days[enough], axis=1, keepdims=True), axis=0)
    return days
