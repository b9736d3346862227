"""Merges the results from one type of node into one run file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median, quantiles
from typing import Any

from stats.verdict import STILL

from .driver import Answer, Driver, Job

APART = 1000
"""Offset between the process numbers of two cases, since a ratio between cases would compare two nodes."""


def merged(driver: Driver, kind: str) -> dict[str, Any]:
    """Return the run file of a type of node."""
    cases: dict[str, list[str]] = driver.answers[Job(kind, None)]["cells"]
    answers = [it for case in cases if (it := driver.answers.get(Job(kind, case)))]
    runs: list[dict[str, Any]] = [it["run"] for it in answers]
    lost = [
        {"impl": impl, "id": case, "reason": "error", "detail": why}
        for case, impls in cases.items()
        if (why := driver.given_up.get(Job(kind, case)))
        for impl in impls
    ]
    workloads = [run["controls"] for run in runs]
    samples = {name: [sample for it in workloads for sample in it["looks"][name]] for name in workloads[0]["looks"]}
    rooflines = sorted(_all("roofs", runs), key=lambda ceiling: float([*ceiling.values()][-1]))
    return runs[0] | {
        "asked": {name: value for name, value in runs[0]["asked"].items() if name != "case"},
        "benchmarks": [_row(row, i, it["node"]) for i, it in enumerate(answers) for row in it["run"]["benchmarks"]],
        "skipped": _all("skipped", runs) + lost,
        "published": _all("published", runs),
        "roofs": [
            *{(*ceiling, *[*ceiling.values()][:-1]): ceiling for ceiling in rooflines}.values()
        ],  # highest of each
        "controls": {"drift": max(it["drift"] for it in workloads), "looks": samples},
        "seconds": sum((Counter(run["seconds"]) for run in runs), Counter()),
        "nodes": Counter(it["node"] for it in answers),
        "notes": [*disagreements(answers)],
    }


def _all(name: str, runs: Sequence[dict[str, Any]]) -> list[Any]:
    return [it for run in runs for it in run[name]]


def _row(row: dict[str, Any], number: int, node: str) -> dict[str, Any]:
    """Return a row of the case with this number, from a node."""
    columns = row["extra_info"]
    processes = [APART * number + process for process in columns["sample_processes"]]
    moved = {"sample_processes": processes, "process_nodes": [node] * columns["processes"]}
    return row | {"extra_info": columns | moved}


def disagreements(answers: Sequence[Answer]) -> Iterator[str]:
    """Yield a sentence for every node whose time for a reference workload differs from the median node's by more than
    `STILL` in three of four samples.
    """
    seen: dict[str, dict[str, list[float]]] = {}
    for answer in answers:
        for name, samples in answer["run"]["controls"]["looks"].items():
            seen.setdefault(name, {}).setdefault(answer["node"], []).extend(sample["seconds"] for sample in samples)
    for name, by_node in seen.items():
        middle = median(median(seconds) for seconds in by_node.values())
        for node, seconds in by_node.items():
            low, _, high = quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
            if low > middle * (1 + STILL) or high < middle / (1 + STILL):
                longer = median(seconds) / middle - 1
                yield f"nodes differ: {node} takes {longer:+.1%} for the reference workload {name!r}, beside the median node"
