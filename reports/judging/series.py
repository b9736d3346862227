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

from stats import relative_steps
from stats.effects import Key
from stats.estimate import Array
from stats.relative_steps import History
from stats.steps import Step

from ..reading import fingerprint
from ..reading.axes import axis_names
from ..reading.runs import Run


class Point(NamedTuple):
    """One cell in one run, in seconds; `low` and `high` are extremes of the processes, or one process's quartiles."""

    run: int
    """Position of its run among all runs."""
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
    """One implementation in one case. Positions count its own points."""

    impl: str
    id: str
    axes: Mapping[str, Any]
    points: tuple[Point, ...]
    steps: tuple[Step, ...]
    """Level changes, relative to the case's others or in seconds, oldest first; never across a break."""
    without_drift: Mapping[int, float]
    """Seconds with drift removed, by position, if it has a step relative to its others; else empty."""

    @cached_property
    def breaks(self) -> tuple[int, ...]:
        """Positions of points at which the benchmark's meaning changed."""
        return tuple(i for i, (a, b) in enumerate(pairwise(self.points), 1) if a.case_hash != b.case_hash)

    @cached_property
    def pieces(self) -> tuple[range, ...]:
        """Positions of the points of each unbroken line."""
        edges = (0, *self.breaks, len(self.points))
        return tuple(range(a, b) for a, b in pairwise(edges))

    @property
    def open_step(self) -> Step | None:
        """The last slow-down that has not recovered, since the last break."""
        open_ = (it for it in self.steps[::-1] if it.slower and it.recovered is None and it.at in self.pieces[-1])
        return next(open_, None)


def read(found: Iterable[Run]) -> list[Saved]:
    """Return the data kept of runs that are read one at a time."""
    axes: dict[Key, Mapping[str, Any]] = {}  # one of each for all runs: a year of them would fill the memory
    return [saved(run, axes) for run in found]


def saved(run: Run, axes: dict[Key, Mapping[str, Any]]) -> Saved:
    """Return the data kept of a run; adds the axes of its cells to `axes`."""
    cells = {}
    for row in run.rows:
        extra, stats, times = row["extra_info"], row["stats"], row["extra_info"]["process_medians"]
        key = str(extra["impl"]), str(extra["id"])
        low, high = (stats["q1"], stats["q3"]) if len(times) == 1 else (min(times), max(times))
        case_hash, impl_hash = (str(extra[name]) if extra.get(name) else None for name in ("case_hash", "impl_hash"))
        cells[key] = Point(0, median(times), low, high, len(times), case_hash, impl_hash, extra.get("ratio"))
        axes.setdefault(key, {axis: extra[axis] for axis in axis_names() if axis in extra})
    return Saved(replace(run, rows=[], skipped=[]), cells, axes)


def oldest_first(found: Iterable[Saved]) -> list[Saved]:
    """Sort runs by their date. Files with equal contents, such as those of a copied folder, are one run."""
    newest = sorted(found, key=lambda one: (one.run.date, one.run.name), reverse=True)
    return [*{(one.run.date, *one.cells.items()): one for one in newest}.values()][::-1]


def of_one_machine(ordered: Sequence[Saved]) -> list[Saved]:
    """Return the runs whose machine and environment equal the last one's; torch and Python may differ."""
    apart, newest = (fingerprint.differing, fingerprint.environment), ordered[-1].run
    return [one for one in ordered if not any(of(one.run, newest) for of in apart)]


def all_series(ordered: Sequence[Saved]) -> list[Series]:
    """Return one series per cell: open slow-downs first, then other changes, then unchanged ones.

    Within these, the latest change comes first, and larger steps before smaller ones.
    """
    points: dict[Key, list[Point]] = {}
    for run, one in enumerate(ordered):
        for key, point in one.cells.items():
            points.setdefault(key, []).append(point._replace(run=run))

    def order(series: Series) -> tuple[float, ...]:
        last = ((-series.points[step.at].run, -abs(math.log(step.ratio))) for step in series.steps[-1:])
        return series.open_step is None, *next(last, (math.inf,))

    return sorted(of_points(points, ordered[-1].axes if ordered else {}), key=order)


def of_points(points: Mapping[Key, Sequence[Point]], axes: Mapping[Key, Mapping[str, Any]]) -> Iterator[Series]:
    """Yield a series of each cell's points, with steps detected relative to all others."""
    impls, cases = (list(dict.fromkeys(names)) for names in zip(*points, strict=True)) if points else ([], [])
    history = _history(points, impls, cases)
    for i, impl in enumerate(impls):
        for case, found in zip(cases, relative_steps.steps_of(history, i), strict=True):
            if of := points.get((impl, case)):
                yield _series(impl, case, axes.get((impl, case), {}), of, *found)


def _history(points: Mapping[Key, Sequence[Point]], impls: Sequence[str], cases: Sequence[str]) -> History:
    runs_ = 1 + max((of[-1].run for of in points.values()), default=-1)
    seconds, ratios = np.full((2, len(impls), len(cases), runs_), np.nan)
    renewed, redefined = np.zeros((2, len(impls), runs_), bool)
    for (impl, case), of in points.items():
        i, j, at = impls.index(impl), cases.index(case), [point.run for point in of]
        seconds[i, j, at] = np.log([point.median for point in of])
        ratios[i, j, at] = np.log(np.array([point.ratio for point in of], float))
        for a, b in pairwise(of):
            redefined[i, b.run] |= a.case_hash != b.case_hash
            renewed[i, b.run] |= b.impl_hash is None or a.impl_hash != b.impl_hash
    return History(seconds, ratios, renewed | redefined, redefined)


def _series(
    impl: str, case: str, axes: Mapping[str, Any], points: Sequence[Point], found: Sequence[Step], logs: Array
) -> Series:
    """Build a series, with positions among its own points."""
    at = {point.run: i for i, point in enumerate(points)}
    steps = tuple(replace(step, at=at[step.at], recovered=step.recovered and at[step.recovered]) for step in found)
    known = [(i, run) for run, i in at.items() if np.isfinite(logs[run]) and any(step.relative for step in found)]
    return Series(impl, case, axes, tuple(points), steps, {i: float(np.exp(logs[run])) for i, run in known})
