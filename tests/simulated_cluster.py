"""A simulated cluster: its nodes return cases of the published run, and are lost on request."""

import json
from functools import cache

from .conftest import CHECKOUT


@cache
def published():
    """Return the published run, completed by the keys that `publish` leaves out."""
    data = json.loads((CHECKOUT / "results" / "published" / "0001_quick.json").read_text())
    for row in data["benchmarks"]:
        blocks = row["stats"]["data"]
        row["extra_info"] |= {"sample_times": list(range(len(blocks))), "sample_fastest": blocks}
    return data


def cases_of(*cases):
    """Return by case the implementations for which the published run has a row or a reason."""
    rows = [(row["extra_info"]["impl"], row["group"]) for row in published()["benchmarks"]]
    skipped = [(entry["impl"], entry["id"]) for entry in published()["skipped"]]
    return {case: [impl for impl, its in (*rows, *skipped) if its == case] for case in cases}


def job(case):
    """Return a run file of one case of the published run."""
    data = json.loads(json.dumps(published()))
    of_case = {
        "benchmarks": [row for row in data["benchmarks"] if row["group"] == case],
        "skipped": [entry for entry in data["skipped"] if entry["id"] == case],
    }
    return dict(data) | of_case | {"asked": {"case": case}}


class Task:
    """A future; polling it finishes the cluster's oldest task."""

    def __init__(self, cluster, node, case):
        self._cluster, self.node, self.case = cluster, node, case

    def done(self):
        return self._cluster.running[0] is self

    def result(self):
        return self._cluster.reply(self._cluster.running.pop(0))


class SimulatedCluster:
    """Nodes by type, which return results in the order of submission; `fate` chooses other outcomes of a task."""

    def __init__(
        self,
        nodes,
        cases,
        fate=lambda node, case: None,
    ):
        self.there = dict(nodes)
        self.asked: list[tuple[str, str | None]] = []
        """Node and case of every task."""
        self.running: list[Task] = []
        self._cases, self._fate = cases, fate

    def nodes(self, refused):
        return {node: kind for node, kind in self.there.items() if node not in refused}

    def submit(self, node, task):
        assert node not in (it.node for it in self.running)
        self.asked.append((node, task["case"]))
        self.running.append(Task(self, node, task["case"]))
        return self.running[-1]

    def close(self):
        self.running.clear()

    def reply(self, task):
        usual = {"run": job(task.case)} if task.case else {"cells": cases_of(*self._cases)}
        return {"node": task.node} | (self._fate(task.node, task.case) or usual)
