"""The answers of a type of node as one run file: a row has the processes of its cell, whichever nodes they were on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from ..cases.cells import Key
from ..cases.outcome import FAILURES
from ..runs.rows import Row, Sample, samples_in, stats_of, timed
from .agreement import disagreements
from .state import TRIES, Answer, State

Part = tuple[Row, list[Sample]]
"""A row of one job, and its samples as the merged run counts them."""

AS_IN_THE_FIRST = (
    "datetime",
    "version",
    "schema",
    "sweep",
    "registry",
    "baseline_impl",
    "axes",
    "machine_info",
    "state",
)
"""What the run files of all jobs have in common, or nearly so."""

COUNTED = ("calls_compared",)
"""Columns of which every job has a part."""


def merged(state: State, kind: str) -> dict[str, Any]:
    """The run file of a type of node."""
    plan = state.plans[kind]
    answers = sorted((it for job, it in state.answers.items() if job.kind == kind), key=lambda it: it.began)
    skipped = _skipped(state, kind, answers)
    rows = _rows(answers, skipped)
    first = answers[0].run
    asked = {name: value for name, value in first["asked"].items() if name != "case"}
    return {name: first[name] for name in AS_IN_THE_FIRST} | {
        "asked": asked,
        "timing": first["timing"] | {"processes": state.processes},
        "complete": all(key in rows or key in skipped for key in plan.cells),
        "benchmarks": [rows[key] for key in plan.cells if key in rows],
        "skipped": [skipped[key] for key in plan.cells if key in skipped],
        "roofs": _roofs(answers),
        "controls": _controls(answers),
        "seconds": sum((Counter(answer.run["seconds"]) for answer in answers), Counter()),
        "nodes": Counter(answer.node for answer in answers),
        "notes": [*disagreements(answers), *_lost(state, kind)],
    }


def _rows(answers: Sequence[Answer], skipped: Collection[Key]) -> dict[Key, Row]:
    """Case by case, so that the samples of one alone are held beside the answers."""
    numbers = _Numbers(answers[0].began)
    by_case: dict[str, list[Answer]] = {}
    for answer in answers:
        by_case.setdefault(answer.job.case, []).append(answer)
    rows: dict[Key, Row] = {}
    for its in by_case.values():
        parts: dict[Key, list[Part]] = {}
        for key, part in (part for answer in its for part in numbers.parts(answer)):
            if key not in skipped:
                parts.setdefault(key, []).append(part)
        rows |= _joined_rows(parts, answers[0].run["baseline_impl"], numbers.nodes)
    return rows


def _joined_rows(parts: Mapping[Key, Sequence[Part]], baseline: str | None, nodes: Sequence[str]) -> dict[Key, Row]:
    """Of one case."""
    found = {key: [sample for _, samples in its for sample in samples] for key, its in parts.items()}
    over = next((samples for (impl, _), samples in found.items() if impl == baseline), ())
    return {key: _joined(its, found[key], over, nodes) for key, its in parts.items()}


@dataclass
class _Numbers:
    """Rounds, visits and processes of all jobs, each with a number of its own; `at` in seconds since the first one began."""

    began: float
    nodes: list[str] = field(default_factory=list)
    """Of each process, by its number."""
    visits: int = 0
    rounds: int = 0

    def parts(self, answer: Answer) -> Iterator[tuple[Key, Part]]:
        """The rows of a job."""
        later, process, visit, round_ = answer.began - self.began, len(self.nodes), self.visits, self.rounds
        for row in answer.run["benchmarks"]:
            samples = [
                replace(
                    it, process=process + it.process, visit=visit + it.visit, round=round_ + it.round, at=later + it.at
                )
                for it in samples_in(row)
            ]
            self.nodes += [answer.node] * (1 + max(it.process for it in samples) - len(self.nodes))
            self.visits = max(self.visits, 1 + max(it.visit for it in samples))
            self.rounds = max(self.rounds, 1 + max(it.round for it in samples))
            yield (row["extra_info"]["impl"], answer.job.case), (row, samples)


def _joined(parts: Sequence[Part], found: Sequence[Sample], over: Sequence[Sample], nodes: Sequence[str]) -> Row:
    """One row of the rows that several jobs have of a cell."""
    first, each = parts[0][0], [row["extra_info"] for row, _ in parts]
    columns: Row = {name: _one(name, [it.get(name) for it in each]) for name in each[0]} | timed(found, over)
    stats = stats_of(found)
    at_the_roof = min(it["roof"] * row["stats"]["median"] for (row, _), it in zip(parts, each, strict=True))
    columns |= {
        "tokens_per_s": columns["B"] * columns["T"] / stats["median"],
        "roof": at_the_roof / stats["median"],
        "throttled": ", ".join(dict.fromkeys(it["throttled"] for it in each if it["throttled"])) or None,
        "process_nodes": [nodes[number] for number in sorted({it.process for it in found})],
    }
    return first | {"extra_info": columns, "stats": stats}


def _one(name: str, values: Sequence[Any]) -> Any:
    """One value of those that several jobs have in a column, by what it is: what must hold holds in all of them, an error
    or a size is the largest, any other measured number the middle one, and words are the first job's.
    """
    known = [value for value in values if value is not None]
    if name in COUNTED:
        return sum(known)
    if not known or known.count(known[0]) == len(known) or not isinstance(known[0], int | float):
        return known[0] if known else None
    if isinstance(known[0], bool):
        return all(known)
    if isinstance(known[0], int) or name.startswith("error"):
        return max(known)
    return median(known)


def _skipped(state: State, kind: str, answers: Sequence[Answer]) -> dict[Key, dict[str, str]]:
    """Cells without a row: those that failed in any job, and those of which every job was given up."""
    found: dict[Key, dict[str, str]] = {}
    for answer in answers:
        for entry in answer.run["skipped"]:
            key = entry["impl"], entry["id"]
            if key not in found or (entry["reason"] in FAILURES and found[key]["reason"] not in FAILURES):
                found[key] = entry
    answered = {answer.job.case for answer in answers}
    why = {job.case: its[-1] for job, its in state.losses.items() if job.kind == kind}
    for impl, case in state.plans[kind].cells:
        if case not in answered:
            detail = f"its node was lost {TRIES} times: {why[case]}"
            found[impl, case] = {"impl": impl, "id": case, "reason": "error", "detail": detail}
    return found


def _roofs(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """The highest of each."""
    best: dict[tuple[Any, ...], dict[str, Any]] = {}
    for roof in (roof for answer in answers for roof in answer.run["roofs"]):
        speed = "flops_per_s" if "flops_per_s" in roof else "bytes_per_s"
        key = tuple((name, value) for name, value in roof.items() if name != speed)
        best[key] = max(best.get(key, roof), roof, key=lambda it: float(it[speed]))
    return list(best.values())


def _controls(answers: Sequence[Answer]) -> dict[str, Any]:
    """The looks of all nodes; the drift is that within a job, since two nodes need not be equally fast."""
    looks: dict[str, list[dict[str, float]]] = {}
    for answer in answers:
        for name, seen in answer.run["controls"]["looks"].items():
            later = answer.began - answers[0].began
            looks.setdefault(name, []).extend({**look, "at": look["at"] + later} for look in seen)
    return {"drift": max(answer.run["controls"]["drift"] for answer in answers), "looks": looks}


def _lost(state: State, kind: str) -> Iterator[str]:
    """What was lost and not measured again."""
    for job, its in state.losses.items():
        if job.kind == kind and state.given_up(job):
            yield f"{job.case}: process {job.process + 1} was given up after {len(its)} tries: {its[-1]}"
