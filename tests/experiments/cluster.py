"""`python -m tests.experiments.cluster`: sweeps on 1,000 simulated nodes, through the real driver, at growing sizes.

A job's rows are those of a real run, parsed anew for every result, as if they came over a network. Every size runs
in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.cluster.sweep import Reply, drive, merged
from bench.runs.saving import Journal, save

from ..conftest import CHECKOUT
from ..simulated_cluster import job

PATTERN = "B1-T64-H8-D_h64-float32-cpu"


class Crowd:
    """Nodes of one type that return results immediately."""

    def __init__(self, nodes: int, cases: int):
        self._nodes = {str(node): "a" for node in range(nodes)}
        self._cases = [PATTERN.replace("B1", f"B{i + 1}") for i in range(cases)]
        self._job = json.dumps(job(PATTERN))

    def nodes(self, refused: Collection[str]) -> Mapping[str, int]:
        return self._nodes

    def submit(self, node: str, task: dict[str, Any]) -> Any:
        return SimpleNamespace(done=lambda: True, result=partial(self._answer, task["case"]))

    def close(self) -> None:
        pass

    def _answer(self, case: str | None) -> Reply:
        if case:
            return {"node": "n", "run": json.loads(self._job.replace(PATTERN, case))}
        names = [row["extra_info"]["impl"] for row in json.loads(self._job)["benchmarks"]]
        return {"node": "n", "cells": dict.fromkeys(self._cases, names)}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--nodes", type=int, default=1000)
    options.add_argument("--cases", default="20,200,1000", help="how many, size by size")
    options.add_argument("--one", type=int, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.one:
        return _measure(given.nodes, given.one)
    print(
        f"{'rows':>8}{'jobs':>8}{'a result':>11}{'memory':>10}{'merging':>9}{'memory':>10}{'journal':>10}{'run file':>10}",
        flush=True,
    )
    for cases in given.cases.split(","):
        command = [sys.executable, "-m", "tests.experiments.cluster", "--nodes", str(given.nodes), "--one", cases]
        subprocess.run(command, cwd=CHECKOUT, check=True)


def _measure(nodes: int, cases: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, cluster = Path(name), Crowd(nodes, cases)
        journal = Journal.start(folder, "x", {"arguments": [], "kinds": {"a": None}})
        began = time.perf_counter()
        with redirect_stdout(None):
            answers = drive(cluster, journal)
        driven, replies = time.perf_counter(), _memory()
        data = merged(answers["a"])
        file = save(folder, "x", data, indent=None)
        ended = time.perf_counter()
        rows, jobs = len(data["benchmarks"]), len(answers["a"])
        assert rows == (jobs - 1) * len(job(PATTERN)["benchmarks"]) and data["complete"]
        sizes = [path.stat().st_size / 2**20 for path in (journal.path, file)]
        print(
            f"{rows:>8,}{jobs:>8,}{1e3 * (driven - began) / jobs:>8.2f} ms{replies:>6.0f} MiB{ended - driven:>7.1f} s"
            f"{_memory():>6.0f} MiB{sizes[0]:>6.0f} MiB{sizes[1]:>6.0f} MiB"
        )


def _memory() -> float:
    """Return this process's peak memory in MiB; importing torch takes 270 of them."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


if __name__ == "__main__":
    main()
