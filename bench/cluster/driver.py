"""Hands out jobs to the nodes of a cluster until all are done, and writes every answer into the journal at once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple

from ..runs.journal import Journal
from ..selection.mistake import Mistake
from .engine import Engine, Result, Task

TRIES = 3
"""How often a job may be lost with its node, before it is given up."""

WAIT = 2.0
"""Seconds for which the end of a task is waited for before nodes are counted again."""

REST = 10.0
"""Seconds for which a node that lost a task gets none: it takes a cluster a while to notice that a node is gone."""


class Job(NamedTuple):
    """All implementations of a case, in one process, on a node of one type."""

    kind: str
    """The type of node."""
    case: str | None
    """None: which cases are there?"""
    process: int
    """Which of the processes that each case is measured in."""


@dataclass
class Driver:
    """A sweep that is being measured, from where its journal is."""

    engine: Engine
    journal: Journal
    processes: int
    task: Task
    """What all tasks have in common."""
    kinds: Mapping[str, int | None]
    """The types of nodes that measure, each with how many of them at a time; None for all."""
    rest: float = REST
    plans: dict[str, Result] = field(default_factory=dict)
    """By type, its `cells`, and the `machine` that all of its nodes are."""
    answers: dict[Job, Result] = field(default_factory=dict)
    losses: dict[Job, list[str]] = field(default_factory=dict)
    """By job, why each try came to nothing."""
    refused: dict[str, str] = field(default_factory=dict)
    """Nodes that don't measure, and why."""
    held: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    """By node and case, the processes that were measured there."""
    _open: dict[str, dict[Job, None]] = field(default_factory=dict)
    """Of each type, the jobs without an answer."""
    _busy: dict[str, Job] = field(default_factory=dict)
    """By node."""
    _resting: dict[str, float] = field(default_factory=dict)
    """Nodes that lost a task, each with when it may have another."""

    def __post_init__(self) -> None:
        self._open = {kind: {Job(kind, None, 0): None} for kind in self.kinds}
        for line in self.journal.lines:
            self._take(Job(*line["job"]), line["answer"])

    def run(self) -> None:
        """Until every job has an answer or was given up; raises `Mistake` where no node is left for one."""
        while left := [kind for kind, jobs in self._open.items() if jobs]:
            nodes = self._nodes()
            self._start(nodes)
            if not self._busy and not self._resting.keys() & nodes.keys():
                raise Mistake(f"no node of type {' or '.join(left)} is left{self._why_none()}")
            for node, result in self.engine.ended(WAIT):
                self._end(node, self._busy.pop(node), result)

    def given_up(self, kind: str) -> dict[Job, str]:
        """Jobs of a type that no node survived, each with what became of the last one."""
        return {job: its[-1] for job, its in self.losses.items() if job.kind == kind and len(its) == TRIES}

    def _nodes(self) -> dict[str, str]:
        """The nodes that may measure."""
        there = {node: kind for node, kind in self.engine.nodes().items() if node not in self.refused}
        return {
            node: kind
            for kind, most in self.kinds.items()
            for node in [node for node, its in there.items() if its == kind][:most]
        }

    def _why_none(self) -> str:
        others = sorted({*self.engine.nodes().values()} - self.kinds.keys())
        refused = [f"{node}: {why}" for node, why in self.refused.items()]
        return "".join(f"; {it}" for it in (*refused, *(f"there is {kind}" for kind in others)))

    def _start(self, nodes: Mapping[str, str]) -> None:
        """Give every node that is free a task, if there is one for it."""
        now, count, begun = monotonic(), Counter(nodes.values()), {*self._busy.values()}
        self._resting = {node: until for node, until in self._resting.items() if until > now}
        free = [node for node in nodes if node not in self._busy and node not in self._resting]
        for node in free:
            # a case is spread over as many nodes as it has processes, where there are so many
            most = math.ceil(self.processes / count[nodes[node]])
            jobs = (job for job in self._open[nodes[node]] if job not in begun and self.held[node, job.case] < most)
            if job := next(jobs, None):
                begun.add(job)
                self._busy[node] = job
                self.engine.start(node, self.task | {"case": job.case})

    def _end(self, node: str, job: Job, result: Result) -> None:
        match result:
            case {"refused": why}:
                self._refuse(node, why)
            case {"failed": why} if job.case is None:
                raise Mistake(f"{node}: {why}")
            case {"failed": why} | {"lost": why}:
                self._lose(node, job, why)
            case {"plan": {"cells": []}}:
                raise Mistake(f"{job.kind}: no cell is selected")
            case {"run": {"complete": False}}:
                self._lose(node, job, "interrupted")
            case {"run": run} if other := differing(self.plans[job.kind]["machine"], run["machine_info"]):
                self._refuse(node, f"{job.kind} has {other}")
            case _:
                self.journal.add({"job": job, "answer": result})
                self._take(job, result)
                what = f"{job.case}, process {job.process + 1} of {self.processes}" if job.case else "what is there"
                tell(f"{job.kind}  {what}: {result['node']}; {len(self._open[job.kind])} left")

    def _take(self, job: Job, answer: Result) -> None:
        """Know a job's answer."""
        del self._open[job.kind][job]
        if job.case is None:
            self.plans[job.kind] = plan = answer["plan"]
            cases = dict.fromkeys(case for _, case in plan["cells"])
            self._open[job.kind] = {Job(job.kind, case, i): None for i in range(self.processes) for case in cases}
        else:
            self.answers[job] = answer
            self.held[answer["node"], job.case] += 1

    def _refuse(self, node: str, why: str) -> None:
        """A node is another machine, or has other software, than its type."""
        self.refused[node] = why
        tell(f"{node} is refused: {why}")

    def _lose(self, node: str, job: Job, why: str) -> None:
        """A job is lost with its node; another one does it."""
        self._resting[node] = monotonic() + self.rest
        self.losses.setdefault(job, []).append(why)
        if len(self.losses[job]) == TRIES:
            del self._open[job.kind][job]
        tell(f"{node} is lost: {why}")


def differing(plan: Mapping[str, Any], machine: Mapping[str, Any]) -> str:
    """`cores 2, not 4`: parts of a type's fingerprint that a node has otherwise; empty where it is the same machine."""
    parts = [key for key in {**plan, **machine} if plan.get(key) != machine.get(key)]
    return ", ".join(f"{key} {plan.get(key)}, not {machine.get(key)}" for key in parts)


def tell(line: str) -> None:
    print(line, flush=True)
