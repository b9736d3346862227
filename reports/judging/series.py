"""Time series of every cell over many runs, oldest first, broken where the benchmark itself changed; and the interleaved
comparisons of the commits around their steps: which to make, and the known verdicts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stats.axes import Values
from stats.effects import Key
from stats.estimate import grouped
from stats.steps import Step, of_history
from stats.verdict import INCONCLUSIVE, Verdict

from ..reading import fingerprint
from ..reading.axes import AXIS_NAMES, without_defaults
from ..reading.runs import COMPARISONS, Run, RunError
from .comparison import of_file, without_threads
from .rows import key_of

Compared = tuple[Any, ...]
"""What a comparison compares: implementation, case without its threads, the two commits, and threads."""

Options = Mapping[str, Any]
"""Options of `python -m bench ab` by name; `cases` are the axes of each case, for a file."""

Known = dict[Compared | None, Verdict]
"""Verdicts by implementation, case and commits."""


class Point(NamedTuple):
    """One cell in one run: columns of its row, the first three in seconds."""

    median: float
    q1: float
    q3: float
    case_hash: str | None
    impl_hash: str | None
    ratio: float | None = None
    """Ratio to the baseline implementation of its run, in the same rounds."""


class Saved(NamedTuple):
    """A run without its rows, the data kept from them, and of its skipped cells the wrong ones."""

    run: Run
    cells: Mapping[Key, Point]
    """Cells that have a time."""
    axes: Mapping[Key, Values]


@dataclass(frozen=True)
class Series:
    """One implementation in one case. Runs are named by their positions among all runs."""

    impl: str
    id: str
    axes: Values
    points: Mapping[int, Point]
    """By run, oldest first."""
    steps: Sequence[Step]
    """Level changes, relative to the case's others or in seconds, oldest first; never across a break."""
    smallest: float
    """Smallest step that would show after the last break, as a share; NaN if there are too few runs."""

    @cached_property
    def before(self) -> Mapping[int, int]:
        """The run before each one but the first, of those that have the cell."""
        return {b: a for a, b in pairwise(self.points)}

    @cached_property
    def pieces(self) -> Sequence[Sequence[int]]:
        """Runs of each unbroken line, in which the benchmark has one meaning."""
        return [[*of] for _, of in groupby(self.points, lambda run: self.points[run].case_hash)]

    @property
    def breaks(self) -> Sequence[int]:
        """Runs from which on the benchmark has another meaning."""
        return [first for first, *_ in self.pieces[1:]]

    @property
    def open_step(self) -> Step | None:
        """The last regression that has not recovered, since the last break."""
        open_ = (it for it in self.steps[::-1] if it.slower and it.recovered is None and it.at in self.pieces[-1])
        return next(open_, None)


def oldest_first(found: Iterable[Run]) -> list[Saved]:
    """Return the data kept of runs that are read one at a time, by their date. Files of one name, date and machine, such as
    those of a copied folder, are one run.
    """
    kept = {}
    axes: dict[Key, Values] = {}  # one of each for all runs: a year of them would fill the memory
    for run in found:
        cells = {}
        for row in run.rows:
            facts: Any = {**row["stats"], **row["extra_info"]}
            key = key_of(facts)
            cells[key] = Point(*map(facts.get, Point._fields))
            axes.setdefault(key, {axis: facts[axis] for axis in AXIS_NAMES if axis in facts})
        wrong = [it for it in run.skipped if it["reason"] == "wrong"]
        kept[run.date, run.name, str(run.machine)] = Saved(replace(run, rows=[], skipped=wrong), cells, axes)
    return [kept[when] for when in sorted(kept)]


def of_one_machine(ordered: Sequence[Saved]) -> tuple[list[Saved], str]:
    """Return the runs whose machine and environment equal the last one's (versions of software may differ), and what
    differs in the latest of the others.
    """
    newest = ordered[-1].run
    found = [
        (one, fingerprint.differing(one.run, newest) or fingerprint.environment(one.run, newest)) for one in ordered
    ]
    others = [differs for _, differs in found if differs]
    return [one for one, differs in found if not differs], others[-1] if others else ""


def all_series(ordered: Sequence[Saved]) -> list[Series]:
    """Return one series per cell: open regressions first, then other changes, then unchanged ones.

    Within these, the latest regression or change comes first, and larger steps before smaller ones.
    """
    found = grouped((key, (run, point)) for run, one in enumerate(ordered) for key, point in one.cells.items())
    points = {key: dict(of) for key, of in found.items()}
    return sorted(
        of_points(points, ordered[-1].axes),
        key=lambda one: (
            one.open_step is None,
            not one.steps,
            [(-it.at, -abs(math.log(it.ratio))) for it in (one.open_step, *one.steps[::-1]) if it][:1],
        ),
    )


def of_points(points: Mapping[Key, Mapping[int, Point]], axes: Mapping[Key, Values]) -> Iterator[Series]:
    """Yield a series of each cell's points by run, with steps detected relative to all others."""
    if not points:
        return
    impls, cases = ([*dict.fromkeys(names)] for names in zip(*points, strict=True))
    runs = 1 + max(map(max, points.values()))
    times = np.full((2, len(impls), len(cases), runs), np.nan)
    renewed, redefined = np.zeros((2, len(impls), runs), bool)
    for (impl, case), of in points.items():
        i, j = impls.index(impl), cases.index(case)
        times[:, i, j, [*of]] = np.array([(point.median, point.ratio) for point in of.values()], float).T
        for (_, a), (run, b) in pairwise(of.items()):
            redefined[i, run] |= a.case_hash != b.case_hash
            renewed[i, run] |= a.impl_hash != b.impl_hash
    seconds, ratios = np.log(times)
    whole = (np.isnan(ratios) == np.isnan(seconds)).all(axis=0)  # runs in which all implementations of a case have one
    found = of_history(seconds, np.where(whole, ratios, seconds), renewed | redefined, redefined)
    for key, changes in zip(product(impls, cases), found, strict=True):
        if its := points.get(key):
            yield Series(*key, axes.get(key, {}), its, *changes)


def commits_around(series: Series, at: int, runs: Sequence[Run]) -> Compared | None:
    """Return what identifies the comparison of the commits before and after a step; None if they are missing, equal, or the
    code was not committed.
    """
    base, head = (runs[run].committed for run in (series.before[at], at))
    case, threads = without_threads(series.id), series.axes.get("threads") or 1
    return (series.impl, case, base, head, threads) if base and head and base != head else None


def to_confirm(series: Sequence[Series], runs: Sequence[Run], known: Known) -> Iterator[Options]:
    """Yield the options of a comparison for each two commits around regressions that have not recovered and have no conclusive
    comparison, by device and number of threads.
    """
    together = grouped(
        ((*asked[2:], one.axes.get("device")), one)
        for one in series
        if one.open_step
        and (asked := commits_around(one, one.open_step.at, runs))
        and (asked not in known or known[asked].word == INCONCLUSIVE)
    )
    own = {name: given for run in runs for name, given in run.own.items()}
    for (base, head, threads, device), cells in together.items():
        impls = list(dict.fromkeys(own.get(one.impl, one.impl) for one in cells))
        cases = [*{one.id: without_defaults(one.axes) for one in cells}.values()]
        yield {"base": base, "head": head, "threads": threads, "device": device, "impl": impls, "cases": cases}


def known_verdicts(folder: Path) -> Known:
    """Return the verdicts of a machine's comparisons; of several comparisons of the same commits the newest counts."""
    found: Known = {}
    for path in sorted((folder / COMPARISONS).glob("[0-9]*.json")):
        with suppress(RunError):
            this = of_file(path)
            for cell in this.cells if all(this.interleaved) else ():
                found[cell.impl, cell.id, *this.interleaved] = cell.verdict
    return found
