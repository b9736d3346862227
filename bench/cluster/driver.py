"""Submits the cases of a sweep to a cluster and writes every result into the journal at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import sleep
from typing import Any, NamedTuple, Protocol

from ..runs.journal import Journal
from ..selection.errors import UsageError

MOST_LOSSES = 3
"""Number of losses after which a job is skipped."""

POLL = 0.5
"""Seconds between two polls of nodes and jobs."""

Reply = dict[str, Any]
"""Return value of `node.do`."""


class Engine(Protocol):
    """A cluster: nodes of several types, each running one task at a time."""

    def nodes(self, refused: Collection[str]) -> Mapping[str, int]:
        """Return the current number of nodes of each type, except refused ones."""

    def submit(self, kind: str, task: dict[str, Any], refused: Collection[str]) -> Future[Reply]:
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


@dataclass
class Driver:
    """State of a sweep, derived from its journal."""

    engine: Engine
    journal: Journal
    arguments: list[str]
    """Options of `bench sweep` for all tasks."""
    kinds: Mapping[str, int | None]
    """Types of nodes that measure, and the number of nodes used at a time; None for all."""
    replies: dict[Job, Reply] = field(default_factory=dict)
    """Replies to finished jobs; of jobs that were lost too often, why they `failed`."""
    refused: set[str] = field(default_factory=set)
    """Nodes that differ from the first of their type."""
    _open: dict[Job, int] = field(default_factory=dict)
    """Jobs without a result, each with its number of losses."""
    _begun: dict[Job, Future[Reply]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._open = {Job(kind, None): 0 for kind in self.kinds}
        for line in self.journal.lines:
            self._take(Job(*line["job"]), line["reply"])

    def run(self) -> None:
        """Measure until every job has a result or is skipped; raises `UsageError` if a job has no node left."""
        while self._open:
            there = self.engine.nodes(self.refused)
            if not any(job.kind in there for job in self._open):
                missing = f"no node of type {next(iter(self._open)).kind} is left"
                raise UsageError("; ".join([missing, *(f"there is {kind}" for kind in there)]))
            for kind, most in self.kinds.items():
                nodes = there.get(kind, 0)
                free = min(most or nodes, nodes) - sum(job.kind == kind for job in self._begun)
                jobs = [job for job in self._open if job.kind == kind and job not in self._begun]
                for job in jobs[: max(0, free)]:
                    task = {"arguments": self.arguments, "case": job.case}
                    self._begun[job] = self.engine.submit(kind, task, self.refused)
            ended = [job for job, future in self._begun.items() if future.done()]
            for job in ended:
                self._end(job, self._begun.pop(job))
            if not ended:
                sleep(POLL)

    def _end(self, job: Job, future: Future[Reply]) -> None:
        try:
            reply = future.result()
        except Exception as error:  # each engine has its own
            *_, last = str(error).strip().split("\n")
            reply = {"failed": f"{type(error).__name__}: {last}"}
        if why := reply.get("failed"):
            if "node" in reply and not job.case:
                raise UsageError(f"{reply['node']}: {why}")
            tell(f"{job} is lost: {why}")
            self._open[job] += 1
            if self._open[job] == MOST_LOSSES:
                self._take(job, {"failed": f"failed {MOST_LOSSES} times, lastly: {why}"})
        elif job.case and (why := self._differing(job.kind, reply["run"]["machine_info"])):
            self.refused.add(reply["node"])
            tell(f"{reply['node']} is refused: {job.kind} has {why}")
        else:
            self.journal.add({"job": job, "reply": reply})
            self._take(job, reply)
            left = sum(it.kind == job.kind for it in self._open)
            tell(f"{job}: {reply['node']}; {left} left")

    def _take(self, job: Job, reply: Reply) -> None:
        del self._open[job]
        self.replies[job] = reply
        self._open |= {Job(job.kind, case): 0 for case in reply.get("cells", ())}

    def _differing(self, kind: str, machine: Mapping[str, Any]) -> str:
        """Describe how a node differs from the first of its type: `cores 2, not 4`; empty if they are equal."""
        known = (it["run"]["machine_info"] for job, it in self.replies.items() if job.kind == kind and "run" in it)
        first = next(known, machine)
        parts = [key for key in {**first, **machine} if first.get(key) != machine.get(key)]
        return ", ".join(f"{key} {first.get(key)}, not {machine.get(key)}" for key in parts)


def tell(line: str) -> None:
    print(line, flush=True)
