"""A cluster that is made up: its nodes answer with processes of the published run, and are lost when a test wants it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from bench.cluster.engine import Result, Task

from .conftest import CHECKOUT

EACH = ("sample_rounds", "sample_visits", "sample_processes", "sample_times", "sample_fastest")


@cache
def published() -> dict[str, Any]:
    """A run of five processes, with what a published one leaves out (reports/pages/publish.py): taken from its blocks."""
    data: dict[str, Any] = json.loads((CHECKOUT / "results" / "published" / "0001_quick.json").read_text())
    for row in data["benchmarks"]:
        blocks = row["stats"]["data"]
        row["extra_info"] |= {"sample_times": list(range(len(blocks))), "sample_fastest": blocks}
    return data


def cells(*cases: str) -> list[tuple[str, str]]:
    """Of these cases, those that the published run has a row or a reason for."""
    rows = [(row["extra_info"]["impl"], row["group"]) for row in published()["benchmarks"]]
    skipped = [(entry["impl"], entry["id"]) for entry in published()["skipped"]]
    return [key for key in (*rows, *skipped) if key[1] in cases]


def job(case: str, process: int) -> dict[str, Any]:
    """What a run of one case in one process would have saved, had it been that process of the published one."""
    data = published()
    rows = [_of_process(row, process) for row in data["benchmarks"] if row["group"] == case]
    for name in ("sample_rounds", "sample_visits"):
        first = min(min(row["extra_info"][name]) for row in rows)
        for row in rows:
            row["extra_info"][name] = [number - first for number in row["extra_info"][name]]
    skipped = [entry for entry in data["skipped"] if entry["id"] == case]
    timing = data["timing"] | {"processes": 1}
    return data | {"benchmarks": rows, "skipped": skipped, "timing": timing, "asked": {"case": case}}


def _of_process(row: dict[str, Any], process: int) -> dict[str, Any]:
    """The row with the samples of one process, which is the only one."""
    columns, seconds = dict(row["extra_info"]), row["stats"]["data"]
    mine = [i for i, of in enumerate(columns["sample_processes"]) if of == process]
    columns |= {name: [columns[name][i] for i in mine] for name in EACH}
    columns |= {"sample_processes": [0] * len(mine), "process_medians": [columns["process_medians"][process]]}
    (middle,) = columns["process_medians"]
    columns |= {"processes": 1, "roof": columns["roof"] * row["stats"]["median"] / middle}
    return row | {
        "extra_info": columns,
        "stats": row["stats"] | {"data": [seconds[i] for i in mine], "median": middle},
    }


class MadeUpCluster:
    """Nodes by type, which answer in the order in which they were asked; `fate` says what else may become of a task."""

    def __init__(
        self,
        nodes: Mapping[str, str],
        cases: tuple[str, ...],
        fate: Callable[[str, Task], Result | None] = lambda node, task: None,
        measured: Counter[tuple[str, str]] | None = None,
    ):
        self.there = dict(nodes)
        self.asked: list[tuple[str, str | None]] = []
        """Node and case of every task."""
        self._cases, self._fate = cases, fate
        self._measured = measured or Counter()
        self._tasks: dict[str, Task] = {}

    def nodes(self) -> Mapping[str, str]:
        return self.there

    def start(self, node: str, task: Task) -> None:
        assert node in self.there and node not in self._tasks
        self.asked.append((node, task["case"]))
        self._tasks[node] = task

    def ended(self, seconds: float) -> list[tuple[str, Result]]:
        for node, task in self._tasks.items():
            del self._tasks[node]
            return [(node, self._fate(node, task) or self._answer(node, task))]
        return []

    def close(self) -> None:
        self._tasks.clear()

    def _answer(self, node: str, task: Task) -> Result:
        case = task["case"]
        known = {"node": node, "began": float(len(self.asked))}
        if case is None:
            return known | {"plan": {"cells": cells(*self._cases), "machine": published()["machine_info"]}}
        kind = self.there.get(node, "")
        self._measured[kind, case] += 1
        return known | {"run": job(case, (self._measured[kind, case] - 1) % 5)}
