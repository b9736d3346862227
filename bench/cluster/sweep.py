"""Runs a sweep on many machines, from its journal's header to its run files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from pytest_benchmark.utils import get_commit_info

from stats.arguments import as_typed
from stats.verdict import MAX_DRIFT

from ..cases.outcome import FAILURES
from ..interrupts import UNFINISHED
from ..runs.journal import Journal, Line
from ..runs.progress import skips
from ..runs.saving import load, run_files, save
from ..selection.command import complain
from ..selection.errors import UsageError
from ..timing.rooflines import Rooflines
from .driver import Driver, Engine, Job, Reply, tell

APART = 1000
"""Offset between the process numbers of two cases, since a ratio between cases would compare two nodes."""


def measure(engine: Engine, results: Path, name: str, header: Line, journal: Journal | None = None) -> int:
    """Measure all remaining cases and write the run files; returns the exit code.

    `header`: `arguments` of a run, `kinds` of nodes, `command` line, `digest` of the code. `journal`: the one to
    resume.
    """
    with closing(engine):
        header["kinds"] = header["kinds"] or dict.fromkeys(engine.nodes(()))
        if not header["kinds"]:
            raise UsageError("the cluster has no node")
        journal = journal or Journal.start(results / "cluster", name, header)
        driver = Driver(engine, journal, header["arguments"], header["kinds"])
        try:
            driver.run()
        except KeyboardInterrupt:
            tell(f"unfinished; `--resume {name}` continues")
            raise
        except UsageError as error:
            if any(job.case for job in driver.replies):
                return complain(f"{error}; `--resume {name}` continues", UNFINISHED)
            journal.delete()
            raise
    return _save(results, name, driver, header["command"])


def _save(results: Path, name: str, driver: Driver, command: str) -> int:
    """Save a run file for each type of node."""
    of_all = {"commit_info": get_commit_info(), "command": command, "journal": driver.journal.path.name}
    code, files = 0, []
    for kind in driver.kinds:
        if not any(job.case for job in driver.replies if job.kind == kind):
            why = next(why for job, why in driver.given_up.items() if job.kind == kind)
            code = complain(f"{kind}: nothing was measured: {why}", 1)
            continue
        data = merged(driver, kind) | of_all
        files.append(_file(results / re.sub(r"[^\w.+-]+", "_", kind), name, data))
        for line in (*data["notes"], *skips(data["skipped"]), f"saved: {files[-1]}"):
            print(f"{kind}: {line}")
        code = max(code, any(entry["reason"] in FAILURES for entry in data["skipped"]))
    if len(files) > 1:
        print(as_typed(f"side by side: python -m reports {' '.join(map(str, files))}"))
    driver.journal.delete()
    return code


def _file(folder: Path, name: str, data: dict[str, Any]) -> Path:
    """Save the run of a type, unless a driver that was then killed has already saved it."""
    folder.mkdir(parents=True, exist_ok=True)
    there = [path for path in run_files(folder, name) if load(path).get("journal") == data["journal"]]
    return there[0] if there else save(folder, name, data, indent=None)


def merged(driver: Driver, kind: str) -> dict[str, Any]:
    """Return the run file of a type of node."""
    cases: dict[str, list[str]] = driver.replies[Job(kind, None)]["cells"]
    replies = [it for case in cases if (it := driver.replies.get(Job(kind, case)))]
    runs: list[dict[str, Any]] = [it["run"] for it in replies]
    lost = [
        {"impl": impl, "id": case, "reason": "error", "detail": why}
        for case, impls in cases.items()
        if (why := driver.given_up.get(Job(kind, case)))
        for impl in impls
    ]
    workloads = [run["controls"] for run in runs]
    samples: dict[str, list[Any]] = {}
    for name, of_job in (item for it in workloads for item in it["looks"].items()):  # a short job has none of a GPU
        samples.setdefault(name, []).extend(of_job)
    rooflines = Rooflines()
    rooflines.restore(_all("roofs", runs))
    return runs[0] | {
        "asked": {name: value for name, value in runs[0]["asked"].items() if name != "case"},
        "benchmarks": [_row(row, i, it["node"]) for i, it in enumerate(replies) for row in it["run"]["benchmarks"]],
        "skipped": _all("skipped", runs) + lost,
        "published": _all("published", runs),
        "roofs": rooflines.table(),
        "controls": {"drift": max(it["drift"] for it in workloads), "looks": samples},
        "seconds": sum((Counter(run["seconds"]) for run in runs), Counter()),
        "nodes": Counter(it["node"] for it in replies),
        "notes": [*disagreements(replies)],
    }


def _all(name: str, runs: Sequence[dict[str, Any]]) -> list[Any]:
    return [it for run in runs for it in run[name]]


def _row(row: dict[str, Any], number: int, node: str) -> dict[str, Any]:
    """Return a row of the case with this number, from a node."""
    columns = row["extra_info"]
    processes = [APART * number + process for process in columns["sample_processes"]]
    moved = {"sample_processes": processes, "process_nodes": [node] * columns["processes"]}
    return row | {"extra_info": columns | moved}


def disagreements(replies: Sequence[Reply]) -> Iterator[str]:
    """Yield a sentence for every node whose time for a reference workload differs from the median node's by more than
    `MAX_DRIFT` in three of four samples.
    """
    seen: dict[str, dict[str, list[float]]] = {}
    for reply in replies:
        for name, samples in reply["run"]["controls"]["looks"].items():
            seen.setdefault(name, {}).setdefault(reply["node"], []).extend(sample["seconds"] for sample in samples)
    for name, by_node in seen.items():
        middle = median(median(seconds) for seconds in by_node.values())
        for node, seconds in by_node.items():
            low, _, high = quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
            if low > middle * (1 + MAX_DRIFT) or high < middle / (1 + MAX_DRIFT):
                longer = median(seconds) / middle - 1
                yield f"nodes differ: {node} takes {longer:+.1%} for the reference workload {name!r}, beside the median node"
