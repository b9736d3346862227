"""A cluster that is made up: its nodes answer with cases of the published run, and are lost when a test wants it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from bench.cluster.driver import Result, Task

from .conftest import CHECKOUT


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


def job(case: str) -> dict[str, Any]:
    """What a run of one case would have saved, had it been that case of the published one."""
    data = json.loads(json.dumps(published()))
    of_case = {
        "benchmarks": [row for row in data["benchmarks"] if row["group"] == case],
        "skipped": [entry for entry in data["skipped"] if entry["id"] == case],
    }
    return dict(data) | of_case | {"asked": {"case": case}}


class MadeUpCluster:
    """Nodes by type, which answer in the order in which they were asked; `fate` says what else may become of a task."""

    def __init__(
        self,
        nodes: Mapping[str, str],
        cases: tuple[str, ...],
        fate: Callable[[str, Task], Result | None] = lambda node, task: None,
    ):
        self.there = dict(nodes)
        self.asked: list[tuple[str, str | None]] = []
        """Node and case of every task."""
        self._cases, self._fate, self._answered = cases, fate, 0
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
        self._answered += 1
        known = {"node": node, "began": float(self._answered)}
        return known | ({"cells": cells(*self._cases)} if case is None else {"run": job(case)})
