"""The answers of a type of node as one run file: their rows, one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median, quantiles
from typing import Any

from stats.verdict import STILL

from ..runs.rows import Row
from .driver import TRIES, Driver, Result


def merged(driver: Driver, kind: str) -> dict[str, Any]:
    """The run file of a type of node."""
    order = {key: i for i, key in enumerate(driver.cells[kind])}
    answers = sorted((it for job, it in driver.answers.items() if job.kind == kind), key=lambda it: float(it["began"]))
    runs: list[dict[str, Any]] = [it["run"] for it in answers]
    given_up = {str(job.case): f"its node was lost {TRIES} times: {why}" for job, why in driver.given_up(kind).items()}
    skipped = [entry for run in runs for entry in run["skipped"]]
    skipped += [
        {"impl": impl, "id": case, "reason": "error", "detail": given_up[case]}
        for impl, case in order
        if case in given_up
    ]
    return runs[0] | {
        "asked": {name: value for name, value in runs[0]["asked"].items() if name != "case"},
        "benchmarks": sorted(_rows(answers), key=lambda it: order[it["extra_info"]["impl"], it["group"]]),
        "skipped": sorted(skipped, key=lambda it: order[it["impl"], it["id"]]),
        "published": [figure for run in runs for figure in run["published"]],
        "roofs": _roofs(runs),
        "controls": _controls(answers),
        "seconds": sum((Counter(run["seconds"]) for run in runs), Counter()),
        "nodes": Counter(it["node"] for it in answers),
        "notes": [*disagreements(answers), *(f"{case}: {why}" for case, why in given_up.items())],
    }


def _rows(answers: Sequence[Result]) -> Iterator[Row]:
    """All rows; no two cases share the number of a visit or a process, and times count from when the first job began."""
    used = Counter[str]()
    for answer in answers:
        before, later = dict(used), answer["began"] - answers[0]["began"]
        for row in answer["run"]["benchmarks"]:
            columns = row["extra_info"]
            moved = {"process_nodes": [answer["node"]] * columns["processes"]}
            moved["sample_times"] = [round(later + at, 4) for at in columns["sample_times"]]
            for name in ("sample_visits", "sample_processes"):
                moved[name] = [before.get(name, 0) + number for number in columns[name]]
                used |= Counter({name: max(moved[name]) + 1})  # the larger of the two
            yield row | {"extra_info": columns | moved}


def _roofs(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The highest of each roof."""
    best: dict[tuple[Any, ...], dict[str, Any]] = {}
    for roof in (roof for run in runs for roof in run["roofs"]):
        *what, speed = roof  # the speed is the last
        key = tuple(roof[name] for name in what)
        best[key] = max(best.get(key, roof), roof, key=lambda it: float(it[speed]))
    return list(best.values())


def _controls(answers: Sequence[Result]) -> dict[str, Any]:
    """What all nodes saw; the drift is that within a job, since two nodes need not be equally fast."""
    looks: dict[str, list[dict[str, float]]] = {}
    for answer in answers:
        later = answer["began"] - answers[0]["began"]
        for name, seen in answer["run"]["controls"]["looks"].items():
            looks.setdefault(name, []).extend({**look, "at": look["at"] + later} for look in seen)
    return {"drift": max(it["run"]["controls"]["drift"] for it in answers), "looks": looks}


def disagreements(answers: Sequence[Result]) -> Iterator[str]:
    """A sentence for every node that takes longer or shorter for a reference workload than the median node, by more than
    `STILL`, in three of four looks.
    """
    seen: dict[str, dict[str, list[float]]] = {}
    for answer in answers:
        for name, looks in answer["run"]["controls"]["looks"].items():
            seen.setdefault(name, {}).setdefault(answer["node"], []).extend(look["seconds"] for look in looks)
    for name, by_node in seen.items():
        middle = median(median(seconds) for seconds in by_node.values())
        for node, seconds in by_node.items():
            low, _, high = quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
            if low > middle * (1 + STILL) or high < middle / (1 + STILL):
                longer = median(seconds) / middle - 1
                yield f"nodes differ: {node} takes {longer:+.1%} for the reference workload {name!r}, beside the median node"
