"""Runs a sweep on many machines: hands out its cases, writes each result into the journal at once, and saves the runs."""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from statistics import median
from time import sleep
from typing import Any, NamedTuple, Protocol

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
from .node import SUITE

APART = 1000
"""Offset between the process numbers of two cases, since a ratio between cases would compare two nodes."""

MOST_LOSSES = 3
"""Number of losses after which a job is skipped."""

POLL = 0.5
"""Seconds between two polls of nodes and jobs."""

Reply = dict[str, Any]
"""Return value of `node.do`; of a job that was lost too often, why it `failed`."""


class Engine(Protocol):
    """A cluster: nodes of several types, each running one task at a time."""

    def nodes(self, refused: Collection[str]) -> Mapping[str, int]:
        """Return the current number of nodes of each type, except refused ones, which get no task from now on."""

    def submit(self, kind: str, task: dict[str, Any]) -> Future[Reply]:
        """Submit a task (see `node.do`) to a node of a type; returns an object with a future's `done` and `result`."""

    def close(self) -> None:
        """End all running tasks."""


class Job(NamedTuple):
    """A case with all its implementations, in all its processes, on one node."""

    kind: str
    """Type of node."""
    case: str | None
    """Case id; None lists the cases."""

    def __str__(self) -> str:
        return f"{self.kind}  {self.case or 'list of cases'}"


Replies = dict[Job, Reply]


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
    files = {
        f"{SUITE}/{path.relative_to(CHECKOUT).as_posix()}": path for path in (*packages, CHECKOUT / "pyproject.toml")
    }
    installed = CHECKOUT / "__init__.py"
    files[f"{SUITE}/attention_bench.py"] = installed if installed.exists() else CHECKOUT / "attention_bench.py"
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
        try:
            replies = drive(engine, journal, header["arguments"], header["kinds"])
        except KeyboardInterrupt:
            tell(f"unfinished; `--resume {name}` continues")
            raise
        except UsageError as error:
            if any("run" in line["reply"] for line in journal.lines):
                return complain(f"{error}; `--resume {name}` continues", UNFINISHED)
            journal.delete()
            raise
    code = _save(results, name, header, journal.path.name, replies)
    journal.delete()
    return code


def drive(engine: Engine, journal: Journal, arguments: list[str], kinds: Mapping[str, int | None]) -> Replies:
    """Measure until every job has a reply; returns them, those in the journal included. Raises `UsageError` if a job has no
    node left.

    `kinds`: types of nodes that measure, and the number of nodes used at a time; None for all.
    """
    replies: Replies = {Job(*line["job"]): line["reply"] for line in journal.lines}
    begun: dict[Job, Future[Reply]] = {}
    losses, refused = Counter[Job](), set[str]()
    while left := _without_reply(kinds, replies):
        there = engine.nodes(refused)
        if not any(job.kind in there for job in left):
            others = f"; there is {', '.join(there)}" if there else ""
            raise UsageError(f"no node of type {left[0].kind} is left{others}")
        busy = Counter(job.kind for job in begun)
        for job in left:
            nodes = there.get(job.kind, 0)
            if job not in begun and busy[job.kind] < min(kinds[job.kind] or nodes, nodes):
                busy[job.kind] += 1
                begun[job] = engine.submit(job.kind, {"arguments": arguments, "case": job.case})
        ended = [job for job, future in begun.items() if future.done()]
        for job in ended:
            reply = _reply(begun.pop(job))
            if why := reply.get("failed"):
                if "node" in reply and not job.case:
                    raise UsageError(f"{reply['node']}: {why}")
                tell(f"{job} is lost: {why}")
                losses[job] += 1
                if losses[job] == MOST_LOSSES:
                    replies[job] = {"failed": f"failed {MOST_LOSSES} times, lastly: {why}"}
            elif job.case and (why := _differing(job.kind, reply["run"]["machine_info"], replies)):
                refused.add(reply["node"])  # which differs from the first of its type
                tell(f"{reply['node']} is refused: {job.kind} has {why}")
            else:
                journal.add({"job": job, "reply": reply})
                replies[job] = reply
                tell(f"{job}: {reply['node']}; {len(_without_reply([job.kind], replies))} left")
        if not ended:
            sleep(POLL)
    return replies


def _without_reply(kinds: Iterable[str], replies: Replies) -> list[Job]:
    """Return the jobs that are left on these types of nodes; the cases of a type are known once they are listed."""
    listed = ((kind, replies.get(Job(kind, None), {}).get("cells", ())) for kind in kinds)
    return [job for kind, cases in listed for case in (None, *cases) if (job := Job(kind, case)) not in replies]


def _reply(future: Future[Reply]) -> Reply:
    """Return the reply to a job that ended, or why it failed."""
    try:
        return future.result()
    except Exception as error:  # each engine has its own
        *_, last = str(error).strip().split("\n")
        return {"failed": f"{type(error).__name__}: {last}"}


def _differing(kind: str, machine: Mapping[str, Any], replies: Replies) -> str:
    """Describe how a node differs from the first of its type: `cores 2, not 4`; empty if they are equal."""
    known = (it["run"]["machine_info"] for job, it in replies.items() if job.kind == kind and "run" in it)
    first = next(known, machine)
    parts = [key for key in {**first, **machine} if first.get(key) != machine.get(key)]
    return ", ".join(f"{key} {first.get(key)}, not {machine.get(key)}" for key in parts)


def tell(line: str) -> None:
    print(line, flush=True)


def _save(results: Path, name: str, header: Line, journal: str, replies: Replies) -> int:
    """Save a run file for each type of node; returns the exit code."""
    of_all = {"commit_info": get_commit_info(), "command": header["command"], "journal": journal}
    code, files = 0, list[Path]()
    for kind in header["kinds"]:
        of_kind = {job.case: reply for job, reply in replies.items() if job.kind == kind}
        if not any("run" in reply for reply in of_kind.values()):
            code = complain(f"{kind}: nothing was measured: {[*of_kind.values()][-1]['failed']}", 1)
            continue
        data = merged(of_kind) | of_all
        folder = results / re.sub(r"[^\w.+-]+", "_", kind)
        folder.mkdir(parents=True, exist_ok=True)
        saved = [path for path in run_files(folder, name) if load(path).get("journal") == journal]  # and then killed
        files += saved or [save(folder, name, data, indent=None)]
        for line in (*data["notes"], *skips(data["skipped"]), f"saved: {files[-1]}"):
            print(f"{kind}: {line}")
        code = max(code, any(entry["reason"] in FAILURES for entry in data["skipped"]))
    if len(files) > 1:
        print(as_typed(f"side by side: python -m reports {' '.join(map(str, files))}"))
    return code


def merged(replies: Mapping[str | None, Reply]) -> dict[str, Any]:
    """Return the run file of a type of node, from the replies by case."""
    cells: dict[str, list[str]] = replies[None]["cells"]
    measured = [replies[case] for case in cells if "run" in replies[case]]
    runs: list[dict[str, Any]] = [reply["run"] for reply in measured]
    skipped = [entry for run in runs for entry in run["skipped"]]
    for case, impls in cells.items():
        if why := replies[case].get("failed"):
            skipped += [{"impl": impl, "id": case, "reason": "error", "detail": why} for impl in impls]
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
            ratios = sorted(it / middle for it in seconds)
            quarter = len(ratios) // 4
            if ratios[quarter] > 1 + MAX_DRIFT or ratios[-1 - quarter] < 1 / (1 + MAX_DRIFT):
                longer = median(ratios) - 1
                yield f"nodes differ: {node} takes {longer:+.1%} for the reference workload {name!r}, beside the median node"
