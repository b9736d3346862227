"""Runs a sweep on many machines, from its journal's header to its run files."""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from pytest_benchmark.utils import get_commit_info

from stats.arguments import as_typed
from stats.verdict import MAX_DRIFT

from .. import CHECKOUT
from ..cases.outcome import FAILURES
from ..interrupts import UNFINISHED
from ..runs.journal import Journal, Line
from ..runs.progress import skips
from ..runs.saving import load, run_files, save
from ..selection.choice import own_files
from ..selection.errors import UsageError
from ..terminal import complain
from ..timing.rooflines import Rooflines
from .driver import Driver, Engine, Job, Reply, tell
from .node import SUITE

APART = 1000
"""Offset between the process numbers of two cases, since a ratio between cases would compare two nodes."""


def pack(folder: Path, arguments: Sequence[str]) -> bytes:
    """Pack what nodes get, with equal bytes for equal files: the suite, and the user's files in `folder` that the
    arguments name. Raises `UsageError` for files that can't be found from there.
    """
    own = own_files(arguments, folder)
    for name, path in own.items():
        if os.path.isabs(name) or os.pardir in Path(name).parts:
            raise UsageError(f"{name} does not reach the nodes: give a path in the current folder, without {os.pardir}")
        if path.suffix == ".jsonl" and ".safetensors" in path.read_text(encoding="utf-8", errors="ignore"):
            raise UsageError(f"{name}: the safetensors files that it names do not reach the nodes")
    packages = (path for package in ("bench", "impls", "stats") for path in (CHECKOUT / package).rglob("*.py"))
    checked_out, installed = CHECKOUT / "attention_bench.py", CHECKOUT / "__init__.py"
    files = {
        f"{SUITE}/{path.relative_to(CHECKOUT).as_posix()}": path for path in (*packages, CHECKOUT / "pyproject.toml")
    }
    files[f"{SUITE}/attention_bench.py"] = checked_out if checked_out.exists() else installed
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, path in sorted((files | own).items()):
            archive.writestr(zipfile.ZipInfo(name), path.read_bytes())  # without the file's date, uncompressed
    return packed.getvalue()


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
            if any("run" in reply for reply in driver.replies.values()):
                return complain(f"{error}; `--resume {name}` continues", UNFINISHED)
            journal.delete()
            raise
    return _save(results, name, driver, header["command"])


def _save(results: Path, name: str, driver: Driver, command: str) -> int:
    """Save a run file for each type of node."""
    of_all = {"commit_info": get_commit_info(), "command": command, "journal": driver.journal.path.name}
    code, files = 0, []
    for kind in driver.kinds:
        replies = [reply for job, reply in driver.replies.items() if job.kind == kind]
        if not any("run" in reply for reply in replies):
            code = complain(f"{kind}: nothing was measured: {replies[-1]['failed']}", 1)
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
    replies = {case: driver.replies[Job(kind, case)] for case in cases}
    measured = [reply for reply in replies.values() if "run" in reply]
    runs: list[dict[str, Any]] = [reply["run"] for reply in measured]
    skipped = [entry for run in runs for entry in run["skipped"]]
    for case, reply in replies.items():
        if why := reply.get("failed"):
            skipped += [{"impl": impl, "id": case, "reason": "error", "detail": why} for impl in cases[case]]
    samples: dict[str, list[Any]] = {}
    rooflines = Rooflines()
    for run in runs:
        rooflines.restore(run["roofs"])
        for name, of_job in run["controls"]["looks"].items():  # a short job has none of a GPU
            samples.setdefault(name, []).extend(of_job)
    return runs[0] | {
        "asked": {name: value for name, value in runs[0]["asked"].items() if name != "case"},
        "benchmarks": [_row(row, i, it["node"]) for i, it in enumerate(measured) for row in it["run"]["benchmarks"]],
        "skipped": skipped,
        "published": [it for run in runs for it in run["published"]],
        "roofs": rooflines.table(),
        "controls": {"drift": max(run["controls"]["drift"] for run in runs), "looks": samples},
        "seconds": sum((Counter(run["seconds"]) for run in runs), Counter()),
        "nodes": Counter(it["node"] for it in measured),
        "notes": [*disagreements(measured)],
    }


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
