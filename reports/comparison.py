"""Two saved runs side by side: cells matched by implementation and case, time judged, memory, error and kernel held equal.

Processes of two runs are not paired, and hours lie between them: the verdicts are honest, and wider than those of a
live comparison.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import mean, variance
from typing import Any

from . import fingerprint, processes, verdict
from .command import FINE, NOT_JUDGED, REGRESSED
from .runs import Run
from .verdict import Verdict

EXACT = ("peak_bytes", "kernel", "error")
"""What every call of a cell repeats to the last digit, so that any difference is told."""

BROKEN = ("wrong", "error", "timeout")
"""Reasons for which a cell without numbers is a fault of the implementation."""

DRIFT = 0.05
"""A run whose controls moved by more than this share while it was made is named."""

TOUCHED_BY_PYTHON = "python"
"""The control that another Python does change."""

Key = tuple[str, str]
Row = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """A fact that should be equal and isn't. `worse` when it counts as a regression: memory beyond the margin."""

    what: str
    base: Any
    head: Any
    worse: bool


@dataclass(frozen=True)
class Cell:
    """One implementation in one case. Seconds are geometric means over processes, NaN where there are none."""

    impl: str
    id: str
    verdict: Verdict
    base: float
    head: float
    processes: tuple[int, int]
    """How many each side has."""
    changes: tuple[Change, ...] = ()
    broken: bool = False
    """Head gives a wrong answer, fails or hangs."""

    @property
    def regressed(self) -> bool:
        """In time, in memory, or altogether."""
        return self.broken or self.verdict.word == verdict.REGRESSED or any(change.worse for change in self.changes)


@dataclass(frozen=True)
class Comparison:
    """Cells with the worst first, and what to know before believing them."""

    base: Run
    head: Run
    margin: float
    cells: list[Cell]
    notes: list[str]

    @cached_property
    def other_machine(self) -> dict[str, tuple[Any, Any]]:
        """Parts of the machine that differ: no verdict holds then."""
        return fingerprint.differing(self.base, self.head)

    @property
    def regressed(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.regressed]

    @property
    def counts(self) -> dict[str, int]:
        """How many cells have each word, in the words' order; only words that occur."""
        counted = Counter(cell.verdict.word for cell in self.cells)
        return {word: counted[word] for word in verdict.WORDS if counted[word]}

    @property
    def code(self) -> int:
        """Of the command: 0 nothing regressed, 1 something did, 2 nothing could be judged."""
        if self.other_machine:
            return NOT_JUDGED
        if self.regressed:
            return REGRESSED
        return FINE if any(cell.verdict.word in verdict.JUDGED for cell in self.cells) else NOT_JUDGED


def compare(base: Run, head: Run, margin: float = verdict.MARGIN) -> Comparison:
    """All cells of either run. Runs of different machines get ratios, and no verdict.

    Raises:
        ValueError: the margin is negative or not finite.
    """
    verdicts = _verdicts(base, head, margin)
    cells = [_cell(key, verdicts[key], base, head, margin) for key in verdicts]
    return Comparison(base, head, margin, sorted(cells, key=_worst_first), list(_notes(base, head)))


def _verdicts(base: Run, head: Run, margin: float) -> dict[Key, Verdict]:
    rows = _rows(base), _rows(head)
    skipped = _skipped(base), _skipped(head)
    verdicts = _judged(base, head, margin)
    for key in dict.fromkeys([*rows[0], *rows[1], *skipped[0], *skipped[1]]):
        reasons = tuple(side.get(key, {}).get("reason") for side in skipped)
        if "wrong" in reasons:
            verdicts[key] = verdict.without_numbers(verdict.WRONG, _wrong(key, skipped))
        elif key in rows[0] and key not in rows[1]:
            verdicts[key] = verdict.without_numbers(verdict.GONE, _why_absent(skipped[1].get(key), "head"))
        elif key in rows[1] and key not in rows[0]:
            verdicts[key] = verdict.without_numbers(verdict.NEW, _why_absent(skipped[0].get(key), "base"))
    return verdicts


def _judged(base: Run, head: Run, margin: float) -> dict[Key, Verdict]:
    rows = _rows(base), _rows(head)
    both = [key for key in rows[0] if key in rows[1]]
    sides = {key: (processes.logs(rows[0][key]), processes.logs(rows[1][key])) for key in both}
    if different := fingerprint.differing(base, head):
        return _unjudged(sides, f"another machine: {fingerprint.told(different)}")
    renewed = [key for key in both if _meaning(rows[0][key]) != _meaning(rows[1][key])]
    verdicts = _unjudged({key: sides.pop(key) for key in renewed}, "the benchmark itself was changed")
    controls = _shared_controls(base, head)
    shift, shift_error = _shift(controls)
    one_cause = len({impl for impl, _ in sides}) == 1 or bool(fingerprint.software(base, head))
    moved = {name: [mean(after) - mean(before)] for name, (before, after) in controls.items()}
    together = not (controls and one_cause)  # where all cells share a cause, only controls can tell it from the machine
    judged = verdict.judge_unpaired(sides, margin, moved, together, shift, shift_error)
    return {**judged, **verdicts}


def _unjudged(sides: Mapping[Key, tuple[Sequence[float], Sequence[float]]], reason: str) -> dict[Key, Verdict]:
    """Ratios alone."""
    plain = verdict.without_numbers(verdict.INCONCLUSIVE, reason)
    return {key: replace(plain, ratio=_typical(head) / _typical(base)) for key, (base, head) in sides.items()}


def _cell(key: Key, said: Verdict, base: Run, head: Run, margin: float) -> Cell:
    before, after = _rows(base).get(key), _rows(head).get(key)
    logs = [processes.logs(row) if row else [] for row in (before, after)]
    return Cell(
        impl=key[0],
        id=key[1],
        verdict=said,
        base=_typical(logs[0]),
        head=_typical(logs[1]),
        processes=(len(logs[0]), len(logs[1])),
        changes=tuple(_changes(before["extra_info"], after["extra_info"], margin)) if before and after else (),
        broken=_skipped(head).get(key, {}).get("reason") in BROKEN,
    )


def _changes(base: Mapping[str, Any], head: Mapping[str, Any], margin: float) -> Iterator[Change]:
    for what in EXACT:
        before, after = base.get(what), head.get(what)
        if before is not None and after is not None and before != after:
            yield Change(what, before, after, worse=what == "peak_bytes" and after > before * (1 + margin))


def _rows(run: Run) -> dict[Key, Row]:
    return {(str(row["extra_info"]["impl"]), str(row["extra_info"]["id"])): row for row in run.rows}


def _skipped(run: Run) -> dict[Key, Row]:
    return {(str(cell["impl"]), str(cell["id"])): cell for cell in run.skipped}


def _meaning(row: Row) -> Any:
    """A hash of the benchmark's own source, where the run recorded it."""
    return row["extra_info"].get("case_hash")


def _typical(logs: Sequence[float]) -> float:
    return math.exp(mean(logs)) if logs else math.nan


def _wrong(key: Key, skipped: tuple[dict[Key, Row], dict[Key, Row]]) -> str:
    sides = {"base": skipped[0].get(key), "head": skipped[1].get(key)}
    told = [f"{name}: {cell['detail']}" for name, cell in sides.items() if cell and cell["reason"] == "wrong"]
    return f"wrong answer in {'; '.join(told)}"


def _why_absent(cell: Row | None, side: str) -> str:
    if cell is None:
        return f"not in {side}"
    reason = str(cell["reason"]).replace("_", " ")
    return f"{reason} in {side}: {cell['detail']}" if cell["detail"] else f"{reason} in {side}"


def _shared_controls(base: Run, head: Run) -> dict[str, tuple[list[float], list[float]]]:
    """log(seconds) of every look at the controls that both runs have and that the change can't have touched."""
    before, after = _looks(base), _looks(head)
    changed = {TOUCHED_BY_PYTHON} if "python" in fingerprint.software(base, head) else set()
    return {name: (before[name], after[name]) for name in before if name in after and name not in changed}


def _looks(run: Run) -> dict[str, list[float]]:
    seen = run.controls.get("looks") or {}
    return {name: [math.log(look["seconds"]) for look in looks] for name, looks in seen.items() if looks}


def _shift(controls: Mapping[str, tuple[list[float], list[float]]]) -> tuple[float, float]:
    """What the controls moved on average, in logarithms, and its standard error: (0, 0) where no error can be known."""
    known = [sides for sides in controls.values() if min(map(len, sides)) > 1]
    if not known:
        return 0.0, 0.0
    moved = [mean(after) - mean(before) for before, after in known]
    squares = [variance(looks) / len(looks) for sides in known for looks in sides]
    return mean(moved), math.sqrt(sum(squares)) / len(known)


def _worst_first(cell: Cell) -> tuple[bool, int, float]:
    size = abs(math.log(cell.verdict.ratio)) if cell.verdict.ratio > 0 else 0.0
    return not cell.regressed, verdict.WORDS.index(cell.verdict.word), -size


def _notes(base: Run, head: Run) -> Iterator[str]:
    if base.path.resolve() == head.path.resolve():
        yield "base and head are the same run"
    if different := fingerprint.differing(base, head):
        yield f"measured on different machines, so there is no verdict: {fingerprint.told(different)}"
    if different := fingerprint.software(base, head):
        yield f"compared across versions: {fingerprint.told(different)}"
    if different := _environment(base, head):
        yield f"the environment differs: {fingerprint.told(different)}"
    for run in (base, head):
        yield from _notes_on(run)


def _notes_on(run: Run) -> Iterator[str]:
    if not run.complete:
        yield f"{run.name} is not complete"
    drift = run.controls.get("drift")
    if isinstance(drift, float) and drift > DRIFT:
        yield f"the machine moved by up to {drift:.0%} while {run.name} was made"
    if not run.controls:
        yield f"{run.name} tells of no fixed work beside its cells: whether the machine moved can't be seen"
    if run.rows and all(len(processes.medians(row)) < 2 for row in run.rows):
        yield f"{run.name} has one process per cell; verdicts need several: python -m bench sweep --processes 5"


def _environment(base: Run, head: Run) -> dict[str, tuple[Any, Any]]:
    before, after = base.state.get("environment") or {}, head.state.get("environment") or {}
    names = dict.fromkeys([*before, *after])
    pairs = {name: (before.get(name), after.get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
