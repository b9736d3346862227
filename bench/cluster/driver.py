"""Hands out the cases of a sweep to the nodes of a cluster and writes every answer into the journal at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple, Protocol

from ..cases.cells import Key
from ..runs.journal import Journal
from ..selection.mistake import Mistake

TRIES = 3
"""How often a job may be lost, before it is given up."""

WAIT = 2.0
"""Seconds for which the driver waits for a task to end, before it counts the nodes again."""

REST = 10.0
"""Seconds for which a node that lost a task gets none: a cluster takes a while to notice that a node is gone."""

Task = dict[str, Any]
"""What a node is to do; see `node.do`."""

Result = dict[str, Any]
"""What a node answered, with its `node` and when it `began`; or `lost`: why there is no answer."""


class Engine(Protocol):
    """A cluster: nodes, each of some type, and one task at a time on each of them."""

    def nodes(self) -> Mapping[str, str]:
        """Every node that is there now, with its type."""

    def start(self, node: str, task: Task) -> None:
        """Begin a task on a node that has none."""

    def ended(self, seconds: float) -> list[tuple[str, Result]]:
        """The nodes whose tasks have ended, with the results; waits at most so many seconds for the first."""

    def close(self) -> None:
        """End what is still running."""


class Job(NamedTuple):
    """A case with all its implementations, in all its processes, on one node."""

    kind: str
    """The type of node."""
    case: str | None
    """None: list the cases."""


@dataclass
class Driver:
    """The state of a sweep, which follows from its journal."""

    engine: Engine
    journal: Journal
    arguments: list[str]
    """Options of `bench sweep` for all tasks."""
    kinds: Mapping[str, int | None]
    """The types of nodes that measure, and how many nodes of each at a time; None for all."""
    rest: float = REST
    cells: dict[str, list[Key]] = field(default_factory=dict)
    """By type of node."""
    answers: dict[Job, Result] = field(default_factory=dict)
    """By job, the `run` file that its node wrote."""
    losses: dict[Job, list[str]] = field(default_factory=dict)
    """By job, why each try failed."""
    refused: dict[str, str] = field(default_factory=dict)
    """Nodes that may not measure, and why."""
    _machines: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By type, the fingerprint that all of its nodes have."""
    _open: dict[Job, None] = field(default_factory=dict)
    _busy: dict[str, Job] = field(default_factory=dict)
    """By node."""
    _resting: dict[str, float] = field(default_factory=dict)
    """By node, until when."""

    def __post_init__(self) -> None:
        self._open = {Job(kind, None): None for kind in self.kinds}
        for line in self.journal.lines:
            self._take(Job(*line["job"]), line["answer"])

    def run(self) -> None:
        """Measure until every job has an answer or is given up; raises `Mistake` where no node is left for one."""
        while self._open:
            there = self.engine.nodes()
            self._start(there)
            if not self._busy and not self._resting.keys() & there.keys():
                self._stop(there)
            for node, result in self.engine.ended(WAIT):
                self._end(node, self._busy.pop(node), result)

    def given_up(self, kind: str) -> dict[Job, str]:
        """The jobs of a type that were lost too often, each with the last reason."""
        return {job: why[-1] for job, why in self.losses.items() if job.kind == kind and len(why) == TRIES}

    def _start(self, there: Mapping[str, str]) -> None:
        """Give every free node a job, if there is one for it."""
        self._resting = {node: until for node, until in self._resting.items() if until > monotonic()}
        begun = {*self._busy.values()}
        for kind, most in self.kinds.items():
            nodes = [node for node, its in there.items() if its == kind and node not in self.refused][:most]
            free = [node for node in nodes if node not in self._busy and node not in self._resting]
            jobs = (job for job in self._open if job.kind == kind and job not in begun)
            for node, job in zip(free, jobs, strict=False):
                self._busy[node] = job
                self.engine.start(node, {"arguments": self.arguments, "case": job.case})

    def _stop(self, there: Mapping[str, str]) -> None:
        left = dict.fromkeys(job.kind for job in self._open)
        refused = [f"{node}: {why}" for node, why in self.refused.items()]
        others = [f"there is {kind}" for kind in sorted({*there.values()} - self.kinds.keys())]
        raise Mistake("; ".join([f"no node of type {' or '.join(left)} is left", *refused, *others]))

    def _end(self, node: str, job: Job, result: Result) -> None:
        match result:
            case {"failed": why} if job.case is None:
                raise Mistake(f"{node}: {why}")
            case {"cells": []}:
                raise Mistake(f"{job.kind}: no cell is selected")
            case {"failed": why} | {"lost": why}:
                self._lose(node, job, why)
            case {"run": {"complete": False}}:
                self._lose(node, job, "interrupted")
            case {"run": run} if other := self._differing(job.kind, run["machine_info"]):
                self.refused[node] = f"{job.kind} has {other}"
                tell(f"{node} is refused: {self.refused[node]}")
            case _:
                self.journal.add({"job": job, "answer": result})
                self._take(job, result)
                left = sum(it.kind == job.kind for it in self._open)
                tell(f"{job.kind}  {job.case or 'what there is'}: {result['node']}; {left} left")

    def _take(self, job: Job, answer: Result) -> None:
        """Record a job's answer."""
        self._open.pop(job, None)
        if job.case is None:
            self.cells[job.kind] = [(impl, case) for impl, case in answer["cells"]]
            self._open |= {Job(job.kind, case): None for _, case in self.cells[job.kind]}
        else:
            self._machines.setdefault(job.kind, answer["run"]["machine_info"])
            self.answers[job] = answer

    def _lose(self, node: str, job: Job, why: str) -> None:
        self._resting[node] = monotonic() + self.rest
        self.losses.setdefault(job, []).append(why)
        if len(self.losses[job]) == TRIES:
            del self._open[job]
        tell(f"{node} is lost: {why}")

    def _differing(self, kind: str, machine: Mapping[str, Any]) -> str:
        """`cores 2, not 4`: how a node differs from the first of its type that answered; empty where it doesn't."""
        first = self._machines.get(kind, machine)
        parts = [key for key in {**first, **machine} if first.get(key) != machine.get(key)]
        return ", ".join(f"{key} {first.get(key)}, not {machine.get(key)}" for key in parts)


def tell(line: str) -> None:
    print(line, flush=True)
