"""Runs a sweep on many machines: hands out its cases, writes each result into the journal at once, and saves the runs."""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import re
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from importlib import import_module
from pathlib import Path
from statistics import median
from time import sleep
from typing import Any, Protocol

import numpy as np
from pytest_benchmark.utils import get_commit_info

from stats.arguments import INSTALLED, UNFINISHED, wrapped
from stats.estimate import grouped
from stats.verdict import MAX_DRIFT

from .. import CHECKOUT
from ..cases.outcome import FAILURES
from ..runs.progress import skips
from ..runs.saving import Journal, Object, save
from ..selection.choice import own_files
from ..selection.errors import UsageError
from ..terminal import complain
from ..timing.rooflines import Rooflines
from . import ENGINES
from .node import SUITE

APART = 1000
"""Offset between the process numbers of two cases, since a ratio between cases would compare two nodes."""

MOST_LOSSES = 3
"""Number of losses after which a job is skipped."""

POLL = 0.5
"""Seconds between two polls of nodes and jobs."""

Reply = Object
"""Return value of `node.do`; of a job that was lost too often, why it `failed`."""

Job = tuple[str, str | None]
"""A type of node and a case; None for the list of its cases."""

Replies = dict[str | None, Reply]
"""Replies of one type of node by case; that of None lists the cases."""


class Engine(Protocol):
    """A cluster: nodes of several types, each running one task at a time."""

    def nodes(self, refused: Collection[str]) -> Mapping[Any, str]:
        """Return the type of each current node, except those with a refused name, which get no task from now on."""

    def submit(self, node: Any, task: Object) -> Future[Reply]:
        """Start a task (see `node.do`) on an idle node; returns an object with a future's `done` and `result`."""

    def close(self) -> None:
        """End all running tasks."""


def pack(folder: Path, arguments: Sequence[str]) -> bytes:
    """Pack what nodes get, with equal bytes for equal files: the suite, and the user's files in `folder` that the
    arguments name. Raises `UsageError` for files outside the folder.
    """
    own = own_files(arguments, folder)
    for name, path in own.items():
        if os.path.isabs(name) or os.pardir in Path(name).parts:
            raise UsageError(f"{name} does not reach the nodes: give a path in the current folder, without {os.pardir}")
        if path.suffix == ".jsonl" and ".safetensors" in path.read_text(encoding="utf-8", errors="ignore"):
            raise UsageError(f"{name}: the safetensors files that it names do not reach the nodes")
    packages = (
        path for package in ("bench", "commands", "impls", "stats") for path in (CHECKOUT / package).rglob("*.py")
    )
    files = {f"{SUITE}/{path.relative_to(CHECKOUT)}": path for path in (*packages, CHECKOUT / "pyproject.toml")}
    files[f"{SUITE}/attention_bench.py"] = CHECKOUT / ("__init__.py" if INSTALLED else "attention_bench.py")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, path in sorted((files | own).items()):
            archive.writestr(zipfile.ZipInfo(name), path.read_bytes())  # without the file's date, uncompressed
    return packed.getvalue()


def begin(options: argparse.Namespace, asked: Object, results: Path, name: str, unfinished: Path | None) -> int:
    """Begin a sweep, or resume the one that this journal left unfinished; returns as `measure`.

    `options`: those of the engine. `asked`: as the header of `measure`, without the digest.
    """
    journal = Journal(unfinished) if unfinished else None
    header = asked | (journal.header if journal else {}) | {"resume": asked["resume"]}
    archive = pack(Path.cwd(), header["arguments"])
    digest = hashlib.sha256(archive).hexdigest()
    if header.setdefault("digest", digest) != digest:
        raise UsageError(f"the code has changed since run {name} was started; start another one: --save NAME")
    try:
        engine = import_module(f".on_{options.cluster}", __package__)
    except ModuleNotFoundError as error:
        needed = f"{error.name}: python -m pip install {ENGINES[options.cluster]}"
        raise UsageError(f"--cluster {options.cluster} needs {needed}") from None
    cluster = engine.Cluster(options, archive, header["kinds"], results / "cluster" / name)
    return measure(cluster, results, name, header, journal)


def measure(engine: Engine, results: Path, name: str, header: Object, journal: Journal | None = None) -> int:
    """Measure all remaining cases and write the run files; returns the exit code.

    `header`: `arguments` of a run; `kinds` of nodes, each with the number of nodes used at a time, None for all; `command` line
    and the one to `resume` with, `digest` of the code. `journal`: the one to resume, begun with the same header.
    """
    with closing(engine):
        header["kinds"] = header["kinds"] or dict.fromkeys(engine.nodes(()).values())
        if not header["kinds"]:
            raise UsageError("the cluster has no node")
        journal = journal or Journal.start(results / "cluster", name, header)
        try:
            replies = drive(engine, journal)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"interrupted; `{header['resume']}` continues") from None
        except UsageError as error:
            if any("run" in line["reply"] for line in journal.lines):
                return complain(f"{error}; `{header['resume']}` continues", UNFINISHED)
            journal.delete()
            raise
    code = _save(results, name, journal, replies)
    journal.delete()
    return code


def drive(engine: Engine, journal: Journal) -> dict[str, Replies]:
    """Measure until every job has a reply; returns them by type of node, those in the journal included. Raises `UsageError`
    if the remaining jobs have no node.

    A job that failed `MOST_LOSSES` times is given up. The fault may be the node's: while others of its type are busy, a node
    gets no job after two failures since its last success, and after one failure no job for its last try. The success of a
    node after several failures clears those of all nodes. A node unlike the first of its type is refused, and its run, too.
    """
    kinds: Mapping[str, int | None] = journal.header["kinds"]
    replies: dict[str, Replies] = {kind: {} for kind in kinds}
    for line in journal.lines:
        kind, case = line["job"]
        replies[kind][case] = line["reply"]
    running: dict[Any, tuple[Job, Future[Reply]]] = {}
    losses, refused = Counter[Job](), set[str]()
    failed = Counter[Any]()  # of each node, the jobs that it failed since its last success
    while left := [job for kind in kinds for job in _left(kind, replies[kind])]:
        nodes = engine.nodes(refused)
        for node, kind in sorted(nodes.items(), key=lambda it: failed[it[0]]):
            busy = [job for job, _ in running.values() if job[0] == kind]
            waiting = [job for job in left if job[0] == kind and job not in busy]
            if node not in running and waiting and len(busy) != kinds[kind]:
                job = min(waiting, key=losses.__getitem__)
                allowed = 0 if losses[job] + 1 == MOST_LOSSES else 1  # no last try, for it may be at fault
                if not busy or failed[node] <= allowed:
                    running[node] = job, engine.submit(node, {"arguments": journal.header["arguments"], "case": job[1]})
        if not running:
            there = ", ".join(dict.fromkeys(nodes.values())) or "no node"
            raise UsageError(f"no node of type {left[0][0]} is left (there is {there})")
        ended = [node for node, (_, future) in running.items() if future.done()]
        for node in ended:
            job, future = running.pop(node)
            kind, case = job
            reply, of_kind, named = _reply(future), replies[kind], f"{kind}  {case or 'list of cases'}"
            if why := reply.get("failed"):
                if "node" in reply and not case:
                    raise UsageError(f"{reply['node']}: {why}")
                tell(f"{named} is lost: {why}")
                failed[node] += 1
                losses[job] += 1
                if losses[job] == MOST_LOSSES:
                    of_kind[case] = {"failed": f"failed {MOST_LOSSES} times; last: {why}"}
            elif case and (why := _differing(reply["run"], of_kind)):
                refused.add(reply["node"])
                tell(f"{reply['node']} is refused: {kind} has {why}")
            else:
                journal.add({"job": job, "reply": reply})
                of_kind[case] = reply
                tell(f"{named}: {reply['node']}; {len(_left(kind, of_kind))} left")
                if failed.pop(node, 0) > 1:
                    failed.clear()  # it was a fault of the jobs, or has passed
        if not ended:
            sleep(POLL)
    return replies


def _left(kind: str, replies: Replies) -> list[Job]:
    """Return the jobs that are left on a type of node: its cases, but first their list, without which they are unknown."""
    return [(kind, case) for case in (None, *replies.get(None, {}).get("cells", ())) if case not in replies]


def _reply(future: Future[Reply]) -> Reply:
    """Return the reply to a job that ended, or why it failed."""
    try:
        return future.result()
    except Exception as error:  # each engine has its own
        *_, last = str(error).strip().split("\n")
        return {"failed": f"{type(error).__name__}: {last}"}


def _differing(run: Mapping[str, Any], replies: Replies) -> str:
    """Describe how the node of a run, which has 4 cores, differs from the first of its type: `cores 2, not 4`; empty if
    they are equal.
    """
    machine = run["machine_info"]
    first = next((it["run"]["machine_info"] for it in replies.values() if "run" in it), machine)
    known = ((key, first.get(key), machine.get(key)) for key in first | machine)
    return ", ".join(f"{key} {its}, not {other}" for key, its, other in known if its != other)


def tell(line: str) -> None:
    print(line, flush=True)


def _save(results: Path, name: str, journal: Journal, replies: Mapping[str, Replies]) -> int:
    """Save a run file for each type of node; returns the exit code."""
    of_all, code = {"commit_info": get_commit_info(), "command": journal.header["command"]}, 0
    chosen = dict(it[2:].split("=", 1) for it in journal.header["arguments"] if it.startswith("--case="))
    for kind, of_kind in replies.items():
        if not any("run" in reply for reply in of_kind.values()):
            code = complain(f"{kind}: nothing was measured: {[*of_kind.values()][-1]['failed']}", 1)
            continue
        data = merged(of_kind) | of_all | {"journal": f"{journal.path.name} {kind}"}  # types may share a folder
        data["asked"] |= chosen
        folder = results / re.sub(r"[^\w.+-]+", "_", kind)
        folder.mkdir(parents=True, exist_ok=True)
        for line in (*data["notes"], *skips(data["skipped"])):
            print(wrapped(f"{kind}: {line}"))
        print(f"{kind}: saved: {save(folder, name, data, indent=None)}")
        code = max(code, any(entry["reason"] in FAILURES for entry in data["skipped"]))
    return code


def merged(replies: Replies) -> Object:
    """Return the run file of a type of node."""
    cells: dict[str, list[str]] = replies[None]["cells"]
    measured = [replies[case] for case in cells if "run" in replies[case]]
    runs: list[Object] = [reply["run"] for reply in measured]
    lists = {name: [it for run in runs for it in run[name]] for name in ("skipped", "published")}
    rooflines = Rooflines()
    for run in runs:
        rooflines.restore(run["roofs"])
    lists["skipped"] += [
        {"impl": impl, "id": case, "reason": "error", "detail": why}
        for case, its in cells.items()
        if (why := replies[case].get("failed"))
        for impl in its
    ]
    samples = grouped((name, it) for run in runs for name, its in run["controls"]["looks"].items() for it in its)
    return {
        **runs[0],
        **lists,
        "asked": {name: value for name, value in runs[0]["asked"].items() if name != "case"},
        "roofs": rooflines.table(),
        "benchmarks": [_row(row, i, it["node"]) for i, it in enumerate(measured) for row in it["run"]["benchmarks"]],
        "controls": {"drift": max(run["controls"]["drift"] for run in runs), "looks": samples},
        "seconds": sum((Counter(run["seconds"]) for run in runs), Counter()),
        "notes": [*disagreements(measured)],
    }


def _row(row: Object, number: int, node: str) -> Object:
    """Return a row of the case with this number, from a node."""
    columns = row["extra_info"]
    processes = [APART * number + process for process in columns["sample_processes"]]
    moved = {"sample_processes": processes, "process_nodes": [node] * columns["processes"]}
    return row | {"extra_info": columns | moved}


def disagreements(replies: Sequence[Reply]) -> Iterator[str]:
    """Yield a sentence for every node whose time for a reference workload differs from the median node's by more than
    `MAX_DRIFT` in three of four samples.
    """
    times = grouped(
        ((name, reply["node"]), sample["seconds"])
        for reply in replies
        for name, samples in reply["run"]["controls"]["looks"].items()
        for sample in samples
    )
    usual = grouped((name, median(seconds)) for (name, _), seconds in times.items())
    for (name, node), seconds in times.items():
        first, middle, last = np.quantile(seconds, (0.25, 0.5, 0.75)) / median(usual[name])
        if first > 1 + MAX_DRIFT or last < 1 / (1 + MAX_DRIFT):
            more = f"{middle - 1:+.1%} for the reference workload {name!r}, compared with the median node"
            yield f"nodes differ: {node} takes {more}"
