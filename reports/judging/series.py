"""Every cell's numbers over many runs, oldest first: one series each, broken where the benchmark itself was changed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from ..reading import fingerprint
from ..reading.runs import Run
from . import cache
from . import steps as stepping
from .cache import Kept
from .steps import Step


class Point(NamedTuple):
    """One cell in one run. Seconds; `low` and `high` are the extremes of the processes, or one process's quartiles."""

    run: int
    """Position of its run among all runs."""
    median: float
    low: float
    high: float
    processes: int
    case_hash: str | None


@dataclass(frozen=True)
class Series:
    """One implementation in one case. Positions in steps count its own points."""

    impl: str
    id: str
    axes: dict[str, Any]
    points: tuple[Point, ...]

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
        """Where the level changed, oldest first; never across a break."""
        return tuple(step for piece in self.pieces for step in self._steps(piece))

    @property
    def standing(self) -> Step | None:
        """The last slow-down that has not recovered, as far as that can be known: since the last break."""
        open_ = [step for step in self.steps if step.slower and step.recovered is None and step.at in self.pieces[-1]]
        return open_[-1] if open_ else None

    @property
    def changed_last(self) -> int:
        """Position among all runs of the last step; -1 without one."""
        return self.points[self.steps[-1].at].run if self.steps else -1

    def _steps(self, piece: range) -> Iterator[Step]:
        for step in stepping.steps([self.points[i].median for i in piece]):
            back = None if step.recovered is None else step.recovered + piece.start
            yield replace(step, at=step.at + piece.start, recovered=back)


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
    series = [Series(*key, axes[key], tuple(found)) for key, found in points.items()]
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
