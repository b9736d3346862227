"""Two saved runs side by side: cells matched by implementation and case, time judged, all else compared exactly.

Where implementations took turns, their ratios are judged: what the machine did that day cancels. What changed in all of them
at once can't cancel, so the absolute time is judged beside it. Of runs without rounds the absolute time is all there is;
hours lie between them, and the verdicts are honest, and wider than those of a live comparison.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, variance
from typing import Any

from stats import shares, verdict
from stats.estimate import Logs
from stats.verdict import Verdict

from ..reading import fingerprint
from ..reading.runs import Run
from ..reading.words import plural
from . import denominators, processes
from .compared import Cell, Comparison, Key, changes, worst_first
from .denominators import Timed

BROKEN = ("wrong", "error", "timeout")
"""Reasons for which a cell without numbers is a fault of the implementation."""

DRIFT = 0.05
"""Controls that changed by more than this share, while a run was made or from one to the other, are named."""

TOUCHED_BY_PYTHON = "python"
"""The control that another Python does change."""

Row = dict[str, Any]


def compare(base: Run, head: Run, margin: float | None = None) -> Comparison:
    """All cells of either run. Runs of different machines get ratios, and no verdict.

    Without a margin, one that suits how well the ratios are known; what an alarm must exceed is then that of the smallest.

    Raises:
        ValueError: the margin is negative or not finite.
    """
    sides = _sides(base, head)
    alarm = verdict.ALARM * (verdict.MARGIN if margin is None else margin)
    again = "" if margin is None else f" --margin {margin:g}"
    margin = verdict.margin_between_runs(sides.values()) if margin is None else margin
    ratios = verdict.judge_changes(sides, margin, alarm=alarm)
    judged = _Judged(absolute=_absolute(base, head, margin), ratios=ratios)
    verdicts = _verdicts(base, head, judged)
    cells = [_cell(key, verdicts[key], judged, base, head, margin) for key in verdicts]
    took_turns = any(map(processes.took_turns, (*base.rows, *head.rows)))
    other = fingerprint.differing(base, head)
    return Comparison(
        base.name,
        head.name,
        margin,
        sorted(cells, key=worst_first),
        notes=list(dict.fromkeys([*_notes(base, head), *_notes_on_ratios(judged, took_turns)])),
        machine=head.machine,
        commands=[
            *(f"{run.command}  # {run.name}, at {run.commit_id or 'an unknown commit'}" for run in (base, head)),
            f"python -m reports compare {base.name} {head.name}{again}",
        ],
        unjudged=f"another machine: {fingerprint.described(other)}"
        if other
        else ""
        if judged.absolute
        else "no cell in common",
    )


@dataclass(frozen=True)
class _Judged:
    """Verdicts on the cells of both runs: on seconds, and on ratios of those that have a denominator."""

    absolute: dict[Key, Verdict]
    ratios: dict[Key, Verdict]

    def both(self) -> dict[Key, Verdict]:
        """The ratio's, but for what only the absolute time shows."""
        return {key: _of_both(self.ratios.get(key), absolute) for key, absolute in self.absolute.items()}


def _of_both(ratio: Verdict | None, absolute: Verdict) -> Verdict:
    if ratio is None:
        return absolute
    moved = (verdict.REGRESSED, verdict.IMPROVED)
    if ratio.word in moved or absolute.word not in moved:
        return ratio
    return replace(absolute, reason=f"{absolute.reason} in seconds; no change of its ratio is shown")


def _verdicts(base: Run, head: Run, judged: _Judged) -> dict[Key, Verdict]:
    rows = _rows(base), _rows(head)
    skipped = _skipped(base), _skipped(head)
    verdicts = judged.both()
    for key in dict.fromkeys([*rows[0], *rows[1], *skipped[0], *skipped[1]]):
        reasons = tuple(side.get(key, {}).get("reason") for side in skipped)
        if "wrong" in reasons:
            verdicts[key] = verdict.without_numbers(verdict.WRONG, _wrong(key, skipped))
        elif key in rows[0] and key not in rows[1]:
            verdicts[key] = verdict.without_numbers(verdict.GONE, _why_absent(skipped[1].get(key), "head"))
        elif key in rows[1] and key not in rows[0]:
            verdicts[key] = verdict.without_numbers(verdict.NEW, _why_absent(skipped[0].get(key), "base"))
    return verdicts


def _sides(base: Run, head: Run) -> dict[Key, tuple[Logs, Logs]]:
    """Ratios of the cells with a denominator in both runs, where the benchmark itself is the same."""
    if fingerprint.differing(base, head):
        return {}
    rows = _rows(base), _rows(head)
    same = [key for key in rows[0] if key in rows[1] and _meaning(rows[0][key]) == _meaning(rows[1][key])]
    timed = Timed(base), Timed(head)
    steady = denominators.unchanged(*timed) & set(same)
    return denominators.sides(*timed, steady, same)


def _absolute(base: Run, head: Run, margin: float) -> dict[Key, Verdict]:
    rows = _rows(base), _rows(head)
    both = [key for key in rows[0] if key in rows[1]]
    sides = {key: (processes.logs(rows[0][key]), processes.logs(rows[1][key])) for key in both}
    if different := fingerprint.differing(base, head):
        return _unjudged(sides, f"another machine: {fingerprint.described(different)}")
    renewed = [key for key in both if _meaning(rows[0][key]) != _meaning(rows[1][key])]
    verdicts = _unjudged({key: sides.pop(key) for key in renewed}, "the benchmark itself was changed")
    controls = _shared_controls(base, head)
    shift, shift_error = _shift(controls)
    one_cause = (
        len({impl for impl, _ in sides}) == 1 or bool(fingerprint.software(base, head)) or _all_changed(base, head)
    )
    moved = {name: [mean(after) - mean(before)] for name, (before, after) in controls.items()}
    together = not (controls and one_cause)  # where all cells share a cause, only controls can tell it from the machine
    if any(map(processes.took_turns, (*rows[0].values(), *rows[1].values()))):
        shift_error = math.hypot(shift_error, verdict.BETWEEN_RUNS_SECONDS)
    judged = verdict.judge_unpaired(sides, margin, moved, together, shift, shift_error)
    return {**judged, **verdicts}


def _all_changed(base: Run, head: Run) -> bool:
    """Whether every cell of both calls something else than it did: a layer that all share, or what they are built on."""
    before, after = (
        {key: row["extra_info"].get("impl_hash") for key, row in _rows(run).items()} for run in (base, head)
    )
    both = before.keys() & after.keys()
    return bool(both) and all(None not in (before[key], after[key]) and before[key] != after[key] for key in both)


def _unjudged(sides: Mapping[Key, tuple[Sequence[float], Sequence[float]]], reason: str) -> dict[Key, Verdict]:
    """Ratios alone."""
    plain = verdict.without_numbers(verdict.INCONCLUSIVE, reason)
    return {key: replace(plain, ratio=_typical(head) / _typical(base)) for key, (base, head) in sides.items()}


def _cell(key: Key, said: Verdict, judged: _Judged, base: Run, head: Run, margin: float) -> Cell:
    before, after = _rows(base).get(key), _rows(head).get(key)
    logs = [processes.logs(row) if row else [] for row in (before, after)]
    return Cell(
        impl=key[0],
        id=key[1],
        verdict=said,
        base=_typical(logs[0]),
        head=_typical(logs[1]),
        processes=(len(logs[0]), len(logs[1])),
        changes=tuple(changes(before["extra_info"], after["extra_info"], margin)) if before and after else (),
        ratio=judged.ratios.get(key),
        absolute=judged.absolute.get(key),
        broken=_skipped(head).get(key, {}).get("reason") in BROKEN,
    )


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
    reasons = [f"{name}: {cell['detail']}" for name, cell in sides.items() if cell and cell["reason"] == "wrong"]
    return f"wrong answer in {'; '.join(reasons)}"


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
    """By how much the controls changed on average, in logarithms, and its standard error: (0, 0) where none can be known."""
    known = [sides for sides in controls.values() if min(map(len, sides)) > 1]
    if not known:
        return 0.0, 0.0
    moved = [mean(after) - mean(before) for before, after in known]
    squares = [variance(looks) / len(looks) for sides in known for looks in sides]
    return mean(moved), math.sqrt(sum(squares)) / len(known)


def _notes(base: Run, head: Run) -> Iterator[str]:
    if base.path.resolve() == head.path.resolve():
        yield "base and head are the same run"
    if different := fingerprint.differing(base, head):
        yield f"measured on different machines, so there is no verdict: {fingerprint.described(different)}"
    if different := fingerprint.software(base, head):
        yield f"compared across versions: {fingerprint.described(different)}"
    if different := fingerprint.environment(base, head):
        yield f"the environment differs: {fingerprint.described(different)}"
    shift, _ = _shift(_shared_controls(base, head))
    if abs(math.expm1(shift)) > DRIFT and not fingerprint.differing(base, head):
        moved = f"the controls changed by {shares.signed(shift)} from {base.name} to {head.name}"
        yield f"{moved}: changes in seconds are what goes beyond that"
    for run in (base, head):
        yield from _notes_on(run)


def _notes_on_ratios(judged: _Judged, took_turns: bool) -> Iterator[str]:
    if took_turns:
        alone = len(judged.absolute) - len(judged.ratios)
        yield f"{denominators.SENTENCE}: {alone} of {plural(len(judged.absolute), 'cell')} here"


def _notes_on(run: Run) -> Iterator[str]:
    if not run.complete:
        yield f"{run.name} is not complete"
    drift = run.controls.get("drift")
    if isinstance(drift, float) and drift > DRIFT:
        yield f"machine drift: the control workload's time varied by up to {shares.varied(drift)} while {run.name} was made"
    if not run.controls:
        yield f"{run.name} has no control workload: machine drift can't be seen"
    if run.rows and all(len(processes.medians(row)) < 2 and not processes.took_turns(row) for row in run.rows):
        yield f"{run.name} has one process per cell; verdicts need several: python -m bench sweep --processes 5"
