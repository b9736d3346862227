"""What the time of an implementation is divided by, so that two runs can be compared whatever the machine did between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean, median

from stats import ratios
from stats.estimate import Logs
from stats.ratios import Samples

from ..reading.runs import Run
from . import processes

Key = tuple[str, str]
"""An implementation, and the id of a case."""

BASELINE, OTHERS, MIDDLE = "the baseline implementation", "the mean of the others", "the median of the others"
CANDIDATES = (BASELINE, OTHERS, MIDDLE)

CHOSEN = MIDDLE
"""By the replay in `tests/experiments/denominator.py` of seven runs of unchanged code (docs/measured.md): it repeats best, and
found most of what was made slower. In a noise model whose baseline implementation is four times as noisy as the others it finds
68 % of what is made 10 % slower, and the baseline implementation 10 % of it."""

SENTENCE = (
    "a time is divided by the median time of the case's other implementations whose code is the same in both runs. Where none "
    "of them was measured in both, the times themselves are compared"
)


class Timed:
    """A run's samples by cell, and the log ratios within its cases, computed once."""

    def __init__(self, run: Run) -> None:
        self.baseline_impl = run.baseline_impl
        self.hashes = {_key(row): row["extra_info"].get("impl_hash") for row in run.rows}
        found = {_key(row): processes.samples(row) for row in run.rows if processes.took_turns(row)}
        self.samples: dict[Key, Samples] = {key: samples for key, samples in found.items() if samples}
        self._known: dict[tuple[Key, str], Logs] = {}

    def logs(self, cell: Key, over: str) -> Logs:
        """Of a cell over another implementation of its case."""
        if (cell, over) not in self._known:
            self._known[cell, over] = ratios.log_ratios(self.samples[cell], self.samples[over, cell[1]])
        return self._known[cell, over]


def unchanged(base: Timed, head: Timed) -> frozenset[Key]:
    """Cells with one hash in both runs of all that they call."""
    both = base.samples.keys() & head.samples.keys()
    return frozenset(key for key in both if base.hashes[key] is not None and base.hashes[key] == head.hashes[key])


def sides(
    base: Timed, head: Timed, steady: Iterable[Key], cells: Iterable[Key], kind: str = CHOSEN
) -> dict[Key, tuple[Logs, Logs]]:
    """The log ratios of both runs for each of the cells that has a denominator among the steady ones."""
    by_case: dict[str, list[str]] = {}
    for impl, case in sorted(steady):
        by_case.setdefault(case, []).append(impl)
    found = {}
    for cell in cells:
        if cell in base.samples and cell in head.samples:
            others = [impl for impl in by_case.get(cell[1], []) if impl != cell[0]]
            others = [impl for impl in others if kind != BASELINE or impl == head.baseline_impl]
            both = _both(base, head, cell, others, _TYPICAL[kind])
            if all(both):
                found[cell] = both
    return found


_TYPICAL: dict[str, Callable[[Sequence[float]], float]] = {BASELINE: mean, OTHERS: mean, MIDDLE: median}


def _both(
    base: Timed, head: Timed, cell: Key, others: Sequence[str], typical: Callable[[Sequence[float]], float]
) -> tuple[Logs, Logs]:
    """Over the same others in both runs: those that took part in every visit of the cell, if there are any."""
    logs = {impl: (base.logs(cell, impl), head.logs(cell, impl)) for impl in others}
    logs = {impl: both for impl, both in logs.items() if all(both)}
    whole = {impl: both for impl, both in logs.items() if _shapes(both) == _largest(logs)}
    return _typical(whole, 0, typical), _typical(whole, 1, typical)


def _typical(
    logs: Mapping[str, tuple[Logs, Logs]], side: int, typical: Callable[[Sequence[float]], float]
) -> dict[int, list[float]]:
    """Over many: the middle over the denominators, visit by visit, each less its own level in base: what counts is what
    changed, and a median of levels would be that of a single implementation."""
    if not logs:
        return {}
    first, *rest = (_less(both[side], _level(both[0])) for both in logs.values())
    return {
        process: [typical(visit) for visit in zip(visits, *(other[process] for other in rest), strict=True)]
        for process, visits in first.items()
    }


def _level(logs: Logs) -> float:
    return mean(log for visits in logs.values() for log in visits)


def _less(logs: Logs, level: float) -> Logs:
    return {process: [log - level for log in visits] for process, visits in logs.items()}


_Shape = tuple[tuple[tuple[int, int], ...], ...]


def _shapes(both: tuple[Logs, Logs]) -> _Shape:
    return tuple(tuple((process, len(visits)) for process, visits in logs.items()) for logs in both)


def _largest(logs: Mapping[str, tuple[Logs, Logs]]) -> _Shape:
    """Of the processes and visits in which denominators took part, the most: slow ones sit out some."""
    counts = {shape: sum(count for side in shape for _, count in side) for shape in map(_shapes, logs.values())}
    return max(counts, key=lambda shape: counts[shape], default=())


def _key(row: Mapping[str, Mapping[str, object]]) -> Key:
    return str(row["extra_info"]["impl"]), str(row["extra_info"]["id"])
