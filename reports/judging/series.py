"""Every cell's numbers over many runs, oldest first: one series each, broken where the benchmark itself was changed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import pairwise
from typing import Any

from stats import steps as stepping
from stats.days import Case, Point
from stats.steps import MIN_RUNS, Step

from ..reading import fingerprint
from ..reading.runs import Run
from . import cache
from .cache import Kept


@dataclass(frozen=True)
class Series:
    """One implementation in one case. Positions in steps count its own points."""

    impl: str
    id: str
    axes: dict[str, Any]
    points: tuple[Point, ...]
    case: Case
    """All implementations of its case."""

    @cached_property
    def breaks(self) -> tuple[int, ...]:
        """Positions of points from which on the benchmark means something else."""
        return tuple(i for i, (a, b) in enumerate(pairwise(self.points), 1) if a.case_hash != b.case_hash)

    @cached_property
    def pieces(self) -> tuple[range, ...]:
        """Positions of the points of each unbroken line."""
        edges = (0, *self.breaks, len(self.points))
        return tuple(range(a, b) for a, b in pairwise(edges))

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """Where the level changed, relative to the case's others or in seconds, oldest first; never across a break."""
        return tuple(step for piece in self.pieces for step in self._steps(piece))

    @cached_property
    def usual(self) -> dict[int, float]:
        """By position, seconds as on a usual day of the case, around the last step relative to its others; else empty."""
        last = max((step.at for step in self.steps if step.relative), default=-1)
        around = (one for piece in self.pieces if last in piece for one in self._stretches(piece) if _within(last, one))
        return next(around, {})

    @property
    def standing(self) -> Step | None:
        """The last slow-down that has not recovered, as far as that can be known: since the last break."""
        open_ = [step for step in self.steps if step.slower and step.recovered is None and step.at in self.pieces[-1]]
        return open_[-1] if open_ else None

    @property
    def changed_last(self) -> int:
        """Position among all runs of the last step; -1 without one."""
        return self.points[self.steps[-1].at].run if self.steps else -1

    def _steps(self, piece: range) -> list[Step]:
        """Of steps that are too near to be two, the one relative to the others. A step in seconds alone counts where the others
        are not known: where they are, it is the machine's."""
        found: list[Step] = []
        stretches = self._stretches(piece)
        for one in stretches:
            found += [step for step in _found(one, relative=True) if not _near(step, found)]
        for step in _found({at: self.points[at].median for at in piece}):
            if not (_near(step, found) or any(_within(step.at, one) for one in stretches)):
                found.append(step)
        return stepping.with_recoveries(sorted(found, key=lambda step: step.at))

    def _stretches(self, piece: range) -> list[dict[int, float]]:
        """By position, seconds as on a usual day of the case, where that is known; the longest stretch first."""
        at = {self.points[position].run: position for position in piece}
        usual = self.case.as_usual(self.impl, min(at), max(at) + 1)
        stretches = [{at[run]: seconds for run, seconds in one.items() if run in at} for one in usual]
        return sorted(stretches, key=len, reverse=True)


def _found(seconds: Mapping[int, float], relative: bool = False) -> list[Step]:
    """Steps of a stretch, at its own positions."""
    smallest = stepping.SMALLEST_RELATIVE if relative else stepping.SMALLEST
    positions, found = [*seconds], stepping.steps([*seconds.values()], smallest=smallest)
    return [replace(step, at=positions[step.at], relative=relative) for step in found]


def _near(step: Step, found: Iterable[Step]) -> bool:
    return any(abs(step.at - other.at) < MIN_RUNS for other in found)


def _within(at: int, stretch: Mapping[int, float]) -> bool:
    """Whether a stretch has what is before and after a step."""
    return bool(stretch) and min(stretch) < at <= max(stretch)


def oldest_first(kept: Iterable[Kept]) -> list[Kept]:
    """By when they were made, as the files say; a file that doesn't say counts as made when it was written.

    A file with the contents of another, such as one of a folder that was copied, is the same run and counts once.
    """
    found: list[Kept] = []
    for one in sorted(kept, key=lambda one: (_when(one.run), one.run.name)):
        if not any(_same(one, other) for other in found if other.run.date == one.run.date):
            found.append(one)
    return found


def of_one_machine(ordered: Sequence[Kept]) -> list[Kept]:
    """The runs whose machine and environment are those of the last one; torch and Python may differ."""
    newest = ordered[-1].run
    return [
        one
        for one in ordered
        if not (fingerprint.differing(one.run, newest) or fingerprint.environment(one.run, newest))
    ]


def all_series(ordered: Sequence[Kept]) -> list[Series]:
    """One series per cell: what is slower and has not recovered, then what changed otherwise, then what never did.

    Among these what changed last comes first, and the larger step before the smaller.
    """
    points: dict[tuple[str, str], list[Point]] = {}
    last: dict[tuple[str, str], tuple[int, int]] = {}
    for position, one in enumerate(ordered):
        columns = (one.cells[name].to_pylist() for name in cache.COLUMNS if name != "axes")
        for row, (impl, id_, *numbers) in enumerate(zip(*columns, strict=True)):
            points.setdefault((impl, id_), []).append(Point(position, *numbers))
            last[impl, id_] = position, row
    axes = {key: json.loads(ordered[at].cells["axes"][row].as_py()) for key, (at, row) in last.items()}
    cases: dict[str, dict[str, list[Point]]] = {}
    for (impl, id_), found in points.items():
        cases.setdefault(id_, {})[impl] = found
    of_id = {id_: Case(impls) for id_, impls in cases.items()}
    series = [Series(*key, axes[key], tuple(found), of_id[key[1]]) for key, found in points.items()]
    return sorted(series, key=lambda one: (one.standing is None, -one.changed_last, -_last_size(one)))


def _last_size(series: Series) -> float:
    return max(series.steps[-1].ratio, 1 / series.steps[-1].ratio) if series.steps else 0.0


def _same(one: Kept, other: Kept) -> bool:
    return replace(one.run, path=other.run.path) == other.run and one.cells.equals(other.cells)


def _when(run: Run) -> datetime:
    try:
        when = datetime.fromisoformat(run.date)
    except ValueError:
        return datetime.fromtimestamp(run.path.stat().st_mtime, UTC)
    return when if when.tzinfo else when.replace(tzinfo=UTC)
