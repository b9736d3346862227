"""The answers of a type of node as one run file: a row has the processes of its cell, whichever nodes they were on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median, median_low, quantiles
from typing import Any

from stats.verdict import STILL

from ..cases.cells import Key
from ..cases.outcome import FAILURES
from ..runs.rows import Row, Sample, samples_in, stats_of, timed
from .driver import TRIES, Driver, Job
from .engine import Result

Part = tuple[str, Row, list[Sample]]
"""The node of one job, its row, and its samples as the merged run counts them."""


def merged(driver: Driver, kind: str) -> dict[str, Any]:
    """The run file of a type of node."""
    cells: list[Key] = [(impl, case) for impl, case in driver.plans[kind]["cells"]]
    answers = {job: it for job, it in driver.answers.items() if job.kind == kind}
    answers = dict(sorted(answers.items(), key=lambda it: float(it[1]["began"])))
    runs = [it["run"] for it in answers.values()]
    given_up = driver.given_up(kind)
    skipped = _skipped(runs, cells, {job.case for job in answers}, given_up)
    rows = dict(_rows(answers, runs[0]["baseline_impl"], skipped))
    return {name: value for name, value in runs[0].items() if name != "published"} | {
        "asked": {name: value for name, value in runs[0]["asked"].items() if name != "case"},
        "timing": runs[0]["timing"] | {"processes": driver.processes},
        "complete": all(key in rows or key in skipped for key in cells),
        "benchmarks": [rows[key] for key in cells if key in rows],
        "skipped": [skipped[key] for key in cells if key in skipped],
        "roofs": _roofs(runs),
        "controls": _controls([*answers.values()]),
        "seconds": sum((Counter(run["seconds"]) for run in runs), Counter()),
        "nodes": Counter(it["node"] for it in answers.values()),
        "notes": [
            *disagreements([*answers.values()]),
            *(
                f"{job.case}: process {job.process + 1} was given up after {TRIES} tries: {why}"
                for job, why in given_up.items()
            ),
        ],
    }


def _rows(
    answers: Mapping[Job, Result], baseline: str | None, skipped: Mapping[Key, object]
) -> Iterator[tuple[Key, Row]]:
    """Case by case, so that the samples of one alone are held beside the answers."""
    by_case: dict[str | None, list[Result]] = {}
    for job, answer in answers.items():
        by_case.setdefault(job.case, []).append(answer)
    began, used = next(iter(answers.values()))["began"], Counter[str]()
    for its in by_case.values():
        parts: dict[Key, list[Part]] = {}
        for key, part in (part for answer in its for part in _parts(answer, began, used)):
            if key not in skipped:
                parts.setdefault(key, []).append(part)
        found = {key: [sample for *_, samples in of for sample in samples] for key, of in parts.items()}
        over = next((samples for (impl, _), samples in found.items() if impl == baseline), ())
        yield from ((key, _joined(of, found[key], over)) for key, of in parts.items())


def _parts(answer: Result, began: float, used: Counter[str]) -> Iterator[tuple[Key, Part]]:
    """The rows of a job: no other has one of its rounds, visits and processes; `at` in seconds since the first job began."""
    rows = [(row, samples_in(row)) for row in answer["run"]["benchmarks"]]
    later, first = answer["began"] - began, dict(used)
    for row, samples in rows:
        numbered = []
        for it in samples:
            numbers = {name: first.get(name, 0) + getattr(it, name) for name in ("round", "visit", "process")}
            used |= Counter({name: number + 1 for name, number in numbers.items()})  # the larger of the two
            numbered.append(replace(it, at=later + it.at, **numbers))
        yield (row["extra_info"]["impl"], row["group"]), (answer["node"], row, numbered)


def _joined(parts: Sequence[Part], found: Sequence[Sample], over: Sequence[Sample]) -> Row:
    """One row of the rows that several jobs have of a cell."""
    rows = [row for _, row, _ in parts]
    each = [row["extra_info"] for row in rows]
    columns: Row = {name: _one(name, [it.get(name) for it in each]) for name in each[0]} | timed(found, over)
    stats = stats_of(found)
    columns |= {
        "tokens_per_s": columns["B"] * columns["T"] / stats["median"],
        "roof": min(row["extra_info"]["roof"] * row["stats"]["median"] for row in rows) / stats["median"],
        "throttled": ", ".join(dict.fromkeys(it["throttled"] for it in each if it["throttled"])) or None,
        "process_nodes": [node for node, _, samples in parts for _ in {it.process for it in samples}],
    }
    return rows[0] | {"extra_info": columns, "stats": stats}


def _one(name: str, values: Sequence[Any]) -> Any:
    """One value of those that several jobs have in a column, by what it is: what must hold holds in all of them, an error
    or a size is the largest, any other measured number the middle one, and words are the first job's.
    """
    known = [value for value in values if value is not None]
    if name == "calls_compared":
        return sum(known)
    if not known or not isinstance(known[0], int | float):
        return known[0] if known else None
    if isinstance(known[0], bool):
        return all(known)
    return max(known) if isinstance(known[0], int) or name.startswith("error") else median(known)


def _skipped(
    runs: Sequence[Mapping[str, Any]], cells: Sequence[Key], answered: set[str | None], given_up: Mapping[Job, str]
) -> dict[Key, dict[str, str]]:
    """Cells without a row: those that failed in any job, and those of which every job was given up."""
    found: dict[Key, dict[str, str]] = {}
    entries = [entry for run in runs for entry in run["skipped"]]
    for entry in sorted(entries, key=lambda it: it["reason"] not in FAILURES):
        found.setdefault((entry["impl"], entry["id"]), entry)
    why = {job.case: f"its node was lost {TRIES} times: {last}" for job, last in given_up.items()}
    for impl, case in cells:
        if case not in answered:
            found[impl, case] = {"impl": impl, "id": case, "reason": "error", "detail": why[case]}
    return found


def _roofs(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The highest of each."""
    best: dict[tuple[Any, ...], dict[str, Any]] = {}
    for roof in (roof for run in runs for roof in run["roofs"]):
        speed = "flops_per_s" if "flops_per_s" in roof else "bytes_per_s"
        key = tuple((name, value) for name, value in roof.items() if name != speed)
        best[key] = max(best.get(key, roof), roof, key=lambda it: float(it[speed]))
    return list(best.values())


def _controls(answers: Sequence[Result]) -> dict[str, Any]:
    """The looks of all nodes; the drift is that within a job, since two nodes need not be equally fast."""
    looks: dict[str, list[dict[str, float]]] = {}
    for answer in answers:
        for name, seen in answer["run"]["controls"]["looks"].items():
            later = answer["began"] - answers[0]["began"]
            looks.setdefault(name, []).extend({**look, "at": look["at"] + later} for look in seen)
    return {"drift": max(it["run"]["controls"]["drift"] for it in answers), "looks": looks}


def disagreements(answers: Sequence[Result]) -> Iterator[str]:
    """A sentence for every node whose control workload takes longer or shorter than that of the middle one, by more than
    `STILL` beyond what it varies by on either."""
    seen: dict[str, dict[str, list[float]]] = {}
    for answer in answers:
        for name, looks in answer["run"]["controls"]["looks"].items():
            seen.setdefault(name, {}).setdefault(answer["node"], []).extend(look["seconds"] for look in looks)
    for name, by_node in seen.items():
        middles = {node: median(seconds) for node, seconds in by_node.items()}
        middle = median_low(middles.values())
        usual = next(node for node in middles if middles[node] == middle)
        for node, seconds in by_node.items():
            longer = middles[node] / middle - 1
            if abs(longer) > STILL + _spread(seconds) + _spread(by_node[usual]):
                how = "longer" if longer > 0 else "less"
                yield f"nodes differ: the control workload {name!r} takes {abs(longer):.1%} {how} on {node} than on {usual}"


def _spread(seconds: Sequence[float]) -> float:
    """Half the interquartile range, as a share of the median."""
    if len(seconds) < 2:
        return 0.0
    low, middle, high = quantiles(seconds, n=4, method="inclusive")
    return (high - low) / 2 / middle
