"""Time series of every cell over many runs, oldest first, broken where the benchmark itself changed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from stats import steps
from stats.effects import Key
from stats.estimate import grouped
from stats.steps import History, Step

from ..reading import fingerprint
from ..reading.axes import axis_names
from ..reading.runs import Run
from .frame import key_of


class Point(NamedTuple):
    """One cell in one run, in seconds; `low` and `high` are extremes of the processes, or one process's quartiles."""

    median: float
    low: float
    high: float
    processes: int
    case_hash: str | None
    impl_hash: str | None
    ratio: float | None = None
    """Ratio to the baseline implementation of its run, in the same rounds."""


@dataclass(frozen=True)
class Saved:
    """A run without its rows, and the data kept of them."""

    run: Run
    cells: Mapping[Key, Point]
    """Cells that have a time."""
    axes: Mapping[Key, Mapping[str, Any]]


@dataclass(frozen=True)
class Series:
    """One implementation in one case. Runs are named by their positions among all runs."""

    impl: str
    id: str
    axes: Mapping[str, Any]
    points: Mapping[int, Point]
    """By run, oldest first."""
    steps: Sequence[Step]
    """Level changes, relative to the case's others or in seconds, oldest first; never across a break."""
    without_drift: Mapping[int, float]
    """Seconds with drift removed, by run, if it has a step relative to its others; else empty."""

    @cached_property
    def before(self) -> Mapping[int, int]:
        """The run before each one but the first, of those that have the cell."""
        return {b: a for a, b in pairwise(self.points)}

    @cached_property
    def breaks(self) -> Sequence[int]:
        """Runs from which on the benchmark has another meaning."""
        return [b for b, a in self.before.items() if self.points[a].case_hash != self.points[b].case_hash]

    @cached_property
    def pieces(self) -> Sequence[Sequence[int]]:
        """Runs of each unbroken line."""
        edges = [0, *self.breaks, math.inf]
        return [[run for run in self.points if a <= run < b] for a, b in pairwise(edges)]

    @property
    def open_step(self) -> Step | None:
        """The last slow-down that has not recovered, since the last break."""
        open_ = (it for it in self.steps[::-1] if it.slower and it.recovered is None and it.at in self.pieces[-1])
        return next(open_, None)


def read(found: Iterable[Run]) -> list[Saved]:
    """Return the data kept of runs that are read one at a time."""
    kept: list[Saved] = []
    axes: dict[Key, Mapping[str, Any]] = {}  # one of each for all runs: a year of them would fill the memory
    for run in found:
        cells = {}
        for row in run.rows:
            extra, stats, times = row["extra_info"], row["stats"], row["extra_info"]["process_medians"]
            key, hashes = key_of(extra), (extra.get("case_hash"), extra.get("impl_hash"))
            low, high = (stats["q1"], stats["q3"]) if len(times) == 1 else (min(times), max(times))
            cells[key] = Point(median(times), low, high, len(times), *hashes, extra.get("ratio"))
            axes.setdefault(key, {axis: extra[axis] for axis in axis_names() if axis in extra})
        kept.append(Saved(replace(run, rows=[], skipped=[]), cells, axes))
    return kept


def oldest_first(found: Iterable[Saved]) -> list[Saved]:
    """Sort runs by their date. Files with equal contents, such as those of a copied folder, are one run."""
    newest = sorted(found, key=lambda one: (one.run.date, one.run.name), reverse=True)
    return [*{(one.run.date, *one.cells.items()): one for one in newest}.values()][::-1]


def of_one_machine(ordered: Sequence[Saved]) -> list[Saved]:
    """Return the runs whose machine and environment equal the last one's; torch and Python may differ."""
    newest = ordered[-1].run
    alike = (one for one in ordered if not fingerprint.differing(one.run, newest))
    return [one for one in alike if not fingerprint.environment(one.run, newest)]


def all_series(ordered: Sequence[Saved]) -> list[Series]:
    """Return one series per cell: open slow-downs first, then other changes, then unchanged ones.

    Within these, the latest change comes first, and larger steps before smaller ones.
    """
    found = grouped((key, (run, point)) for run, one in enumerate(ordered) for key, point in one.cells.items())
    points = {key: dict(of) for key, of in found.items()}

    def order(series: Series) -> tuple[float, ...]:
        last = ((-step.at, -abs(math.log(step.ratio))) for step in series.steps[-1:])
        return series.open_step is None, *next(last, (math.inf,))

    return sorted(of_points(points, ordered[-1].axes if ordered else {}), key=order)


def of_points(points: Mapping[Key, Mapping[int, Point]], axes: Mapping[Key, Mapping[str, Any]]) -> Iterator[Series]:
    """Yield a series of each cell's points by run, with steps detected relative to all others."""
    impls, cases = (list(dict.fromkeys(names)) for names in zip(*points, strict=True)) if points else ([], [])
    history = _history(points, impls, cases)
    for i, impl in enumerate(impls):
        for case, (found, logs) in zip(cases, steps.steps_of(history, i), strict=True):
            if of := points.get((impl, case)):
                known = [run for run in of if np.isfinite(logs[run]) and any(step.relative for step in found)]
                without_drift = {run: float(np.exp(logs[run])) for run in known}
                yield Series(impl, case, axes.get((impl, case), {}), of, found, without_drift)


def _history(points: Mapping[Key, Mapping[int, Point]], impls: Sequence[str], cases: Sequence[str]) -> History:
    runs_ = 1 + max(map(max, points.values()), default=-1)
    seconds, ratios = np.full((2, len(impls), len(cases), runs_), np.nan)
    renewed, redefined = np.zeros((2, len(impls), runs_), bool)
    for (impl, case), of in points.items():
        i, j, at = impls.index(impl), cases.index(case), [*of]
        seconds[i, j, at] = np.log([point.median for point in of.values()])
        ratios[i, j, at] = np.log(np.array([point.ratio for point in of.values()], float))
        for (_, a), (run, b) in pairwise(of.items()):
            redefined[i, run] |= a.case_hash != b.case_hash
            renewed[i, run] |= a.impl_hash != b.impl_hash
    return History(seconds, ratios, renewed | redefined, redefined)
