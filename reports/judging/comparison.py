"""Two saved runs side by side: cells matched by implementation and case, time judged, all else compared exactly.

A time is judged relative to the implementations of its case whose code is the same in both runs (`stats.saved`), so what the
machine did between the runs cancels, as far as it did it to all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import mean, median
from typing import Any

from stats import conditions, saved, shares, verdict
from stats.estimate import Estimate
from stats.ratios import Samples
from stats.saved import Changes
from stats.verdict import Verdict

from ..reading import fingerprint, words
from ..reading.runs import Run
from . import processes
from .compared import Cell, Comparison, Key, changes, worst_first

BROKEN = ("wrong", "error", "timeout")
"""Reasons for which a cell without numbers is a fault of the implementation."""

SECONDS_BETWEEN_RUNS, DF_BETWEEN_RUNS = 0.12, 10
"""Standard deviation, in logarithms, of what two runs of unchanged code disagree about seconds beyond their controls, and the
degrees of freedom with which it is known."""

ONE_PROCESS = "one process a cell, timed without turns, tells no interval: `python -m bench sweep --processes 5`"

NOTHING_BESIDE = (
    "no other implementation of its case was timed beside it in both runs; `python -m bench ab` compares it alone"
)

Row = dict[str, Any]


def compare(base: Run, head: Run, margin: float | None = None) -> Comparison:
    """All cells of either run. Runs of different machines get ratios, and no verdict.

    Raises:
        ValueError: the margin is negative or not finite.
    """
    again = "" if margin is None else f" --margin {margin:g}"
    margin = verdict.MARGIN_OF_RUNS if margin is None else margin
    other, changed = fingerprint.differing(base, head), _changed(base, head)
    found = saved.changes(*({}, {}) if other else _timed(base, head), changed)
    judged, implementations = _judged(found, changed, margin)
    open_ = {
        name: said for name, said in implementations.items() if name in changed and said.word == verdict.INCONCLUSIVE
    }
    cells = [_cell(key, said, base, head, margin) for key, said in _verdicts(base, head, judged).items()]
    return Comparison(
        base.name,
        head.name,
        margin,
        sorted(cells, key=worst_first),
        notes=list(
            dict.fromkeys(
                [*_notes(base, head), *_notes_on(found, changed, base.name, head.name), *_open(base, head, open_)]
            )
        ),
        machine=head.machine,
        commands=[
            *(f"{run.command}  # {run.name}, at {run.commit_id or 'an unknown commit'}" for run in (base, head)),
            f"python -m reports compare {base.name} {head.name}{again}",
        ],
        implementations=implementations,
        shared=_shared(base, head, changed, margin) if not other else None,
        asked=tuple(name for name in implementations if name in changed) or tuple(implementations),
        unjudged="" if implementations else _why_unjudged(base, head, other),
    )


def _timed(base: Run, head: Run) -> tuple[dict[Key, Samples], dict[Key, Samples]]:
    """The samples of the cells that mean the same in both runs."""
    rows = _rows(base), _rows(head)
    same = [key for key in rows[0] if key in rows[1] and _meaning(rows[0][key]) == _meaning(rows[1][key])]
    found = ({key: processes.samples(of[key]) for key in same} for of in rows)
    before, after = ({key: it for key, it in of.items() if it} for of in found)
    return before, after


def _changed(base: Run, head: Run) -> set[str]:
    """Implementations that call something else than they did in a cell, or of which that isn't known."""
    before, after = (
        {key: row["extra_info"].get("impl_hash") for key, row in _rows(run).items()} for run in (base, head)
    )
    return {key[0] for key in before.keys() & after.keys() if before[key] is None or before[key] != after[key]}


def _judged(found: Changes, changed: set[str], margin: float) -> tuple[dict[Key, Verdict], dict[str, Verdict]]:
    """What changed is judged for itself, so that others beside it take nothing from what can be seen of it."""
    cells: dict[Key, Verdict] = {}
    implementations: dict[str, Verdict] = {}
    for other in (False, True):
        of_cells = {key: it for key, it in found.cells.items() if (key[0] in changed) != other}
        of_impls = {impl: it for impl, it in found.implementations.items() if (impl in changed) != other}
        said = verdict.of_effects(of_cells, of_impls, margin)
        cells |= said[0]
        implementations |= said[1]
    return cells, implementations


def _shared(base: Run, head: Run, changed: set[str], margin: float) -> Verdict | None:
    """On what the cells of both runs have in common, where all of their code changed: by how much more their seconds changed
    than the controls' did."""
    rows = _rows(base), _rows(head)
    same = [key for key in rows[0].keys() & rows[1].keys() if _meaning(rows[0][key]) == _meaning(rows[1][key])]
    if not same or {impl for impl, _ in same} - changed:
        return None
    moved = median(math.log(_typical(rows[1][key]) / _typical(rows[0][key])) for key in same) - _shift(base, head)
    known = Estimate(moved, SECONDS_BETWEEN_RUNS, DF_BETWEEN_RUNS, len(same))
    cells, _ = verdict.of_effects({("all", "all"): known}, margin=margin)
    return cells["all", "all"]


def _verdicts(base: Run, head: Run, judged: Mapping[Key, Verdict]) -> dict[Key, Verdict]:
    rows = _rows(base), _rows(head)
    skipped = _skipped(base), _skipped(head)
    verdicts = {}
    for key in dict.fromkeys([*rows[0], *rows[1], *skipped[0], *skipped[1]]):
        if "wrong" in tuple(side.get(key, {}).get("reason") for side in skipped):
            verdicts[key] = Verdict(verdict.WRONG, _wrong(key, skipped))
        elif key in rows[0] and key not in rows[1]:
            verdicts[key] = Verdict(verdict.GONE, _why_absent(skipped[1].get(key), "head"))
        elif key in rows[1] and key not in rows[0]:
            verdicts[key] = Verdict(verdict.NEW, _why_absent(skipped[0].get(key), "base"))
        elif key in rows[0]:
            before, after = rows[0][key], rows[1][key]
            verdicts[key] = judged.get(key) or _unjudged(before, after, _why_not(base, head, before, after))
    return verdicts


def _why_not(base: Run, head: Run, before: Row, after: Row) -> str:
    """Of a cell of both runs that has no verdict."""
    if other := fingerprint.differing(base, head):
        return f"another machine: {fingerprint.described(other)}"
    if _meaning(before) != _meaning(after):
        return "the benchmark itself was changed"
    return NOTHING_BESIDE if processes.samples(before) and processes.samples(after) else ONE_PROCESS


def _why_unjudged(base: Run, head: Run, other: Mapping[str, Any]) -> str:
    if other:
        return f"another machine: {fingerprint.described(dict(other))}"
    return "no cell has a verdict" if _rows(base).keys() & _rows(head).keys() else "no cell in common"


def _unjudged(before: Row, after: Row, reason: str) -> Verdict:
    """The ratio alone."""
    return replace(Verdict(verdict.INCONCLUSIVE, reason), ratio=_typical(after) / _typical(before))


def _cell(key: Key, said: Verdict, base: Run, head: Run, margin: float) -> Cell:
    before, after = _rows(base).get(key), _rows(head).get(key)
    return Cell(
        impl=key[0],
        id=key[1],
        verdict=said,
        base=_typical(before),
        head=_typical(after),
        processes=(_count(before), _count(after)),
        changes=tuple(changes(before["extra_info"], after["extra_info"], margin)) if before and after else (),
        broken=_skipped(head).get(key, {}).get("reason") in BROKEN,
    )


def _rows(run: Run) -> dict[Key, Row]:
    return {(str(row["extra_info"]["impl"]), str(row["extra_info"]["id"])): row for row in run.rows}


def _skipped(run: Run) -> dict[Key, Row]:
    return {(str(cell["impl"]), str(cell["id"])): cell for cell in run.skipped}


def _meaning(row: Row) -> Any:
    """A hash of the benchmark's own source, where the run recorded it."""
    return row["extra_info"].get("case_hash")


def _typical(row: Row | None) -> float:
    """Seconds."""
    return math.exp(mean(list(map(math.log, processes.medians(row))))) if row else math.nan


def _count(row: Row | None) -> int:
    return len(list(map(math.log, processes.medians(row)))) if row else 0


def _wrong(key: Key, skipped: tuple[dict[Key, Row], dict[Key, Row]]) -> str:
    sides = {"base": skipped[0].get(key), "head": skipped[1].get(key)}
    reasons = [f"{name}: {cell['detail']}" for name, cell in sides.items() if cell and cell["reason"] == "wrong"]
    return f"wrong answer in {'; '.join(reasons)}"


def _why_absent(cell: Row | None, side: str) -> str:
    if cell is None:
        return f"not in {side}"
    reason = str(cell["reason"]).replace("_", " ")
    return f"{reason} in {side}: {cell['detail']}" if cell["detail"] else f"{reason} in {side}"


def _notes(base: Run, head: Run) -> Iterator[str]:
    if base.path.resolve() == head.path.resolve():
        yield "base and head are the same run"
    if different := fingerprint.differing(base, head):
        yield f"measured on different machines, so there is no verdict: {fingerprint.described(different)}"
    if different := fingerprint.software(base, head):
        yield f"compared across versions: {fingerprint.described(different)}"
    if different := fingerprint.environment(base, head):
        yield f"the environment differs: {fingerprint.described(different)}"
    shift = _shift(base, head)
    if abs(math.expm1(shift)) > conditions.DRIFT and not fingerprint.differing(base, head):
        yield f"the controls changed by {shares.signed(shift)} from {base.name} to {head.name}, and so may seconds"
    for run in (base, head):
        if not run.complete:
            yield f"{run.name} is not complete"
        if why := conditions.disturbed(run.rows):
            yield f"{run.name}: {why}"


def _shift(base: Run, head: Run) -> float:
    """By how much the controls that both runs looked at changed on average, in logarithms."""
    before, after = _looks(base), _looks(head)
    moved = [after[name] - before[name] for name in before.keys() & after.keys()]
    return mean(moved) if moved else 0.0


def _looks(run: Run) -> dict[str, float]:
    """log(seconds) of each control in the mean over all looks at it."""
    seen = run.controls.get("looks") or {}
    return {name: mean(math.log(look["seconds"]) for look in looks) for name, looks in seen.items() if looks}


def _notes_on(found: Changes, changed: set[str], base: str, head: str) -> Iterator[str]:
    if not found.implementations:
        return
    if not found.implementations.keys() - changed:
        yield (
            "the code of all implementations changed: each is judged relative to the others, and what they share by seconds, "
            "which two runs know badly and `python -m bench ab --base REF` well"
        )
        return
    if abs(found.shift) > saved.STEADY:
        yield (
            f"seconds of unchanged code changed by {shares.signed(found.shift)} from {base} to {head}, as on another machine: "
            "only large changes can be told"
        )
    cells, impls = (shares.percent(math.expm1(spread)) for spread in (found.of_cells, found.of_implementations))
    yield (
        f"changes are relative to {words.plural(found.placebos, 'implementation')} whose code is the same in both runs. These "
        f"moved by {impls}, and a cell of theirs by {cells} (standard deviations)"
    )


def _open(base: Run, head: Run, found: Mapping[str, Verdict]) -> Iterator[str]:
    """What would tell where changed code is open."""
    if not found:
        return
    seen = shares.percent(max(said.detectable for said in found.values()))
    clean = base.commit_id and head.commit_id and not (base.commit.get("dirty") or head.commit.get("dirty"))
    sides = (
        f"--base {base.commit_id} --head {head.commit_id}"
        if clean and base.commit_id != head.commit_id
        else "--base REF"
    )
    command = f"python -m bench ab {sides} --impl {','.join(found)}"
    yield f"of {words.listing(found)} these runs would have told a change of {seen}; `{command}` tells 1 % in a few minutes"
