"""Hands out jobs to the nodes of a cluster until all are done, and writes every answer into the journal at once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from ..runs.journal import Journal, Line
from ..selection.mistake import Mistake
from .engine import Engine, Lost, Result, Task
from .state import TRIES, Job, State

WAIT = 2.0
"""Seconds for which the end of a task is waited for before nodes are counted again."""

REST = 10.0
"""Seconds for which a node that lost a task gets none: it takes a cluster a while to notice that a node is gone."""

Tell = Callable[[str], None]


@dataclass
class Driver:
    """A sweep that is being measured."""

    engine: Engine
    journal: Journal
    state: State
    task: Task
    """What all tasks have in common."""
    kinds: Mapping[str, int | None]
    """The types of nodes that measure, each with how many of them at a time; None for all."""
    tell: Tell
    rest: float = REST
    _busy: dict[str, tuple[str, Job | None]] = field(default_factory=dict)
    """By node, its type, and the job; None while it plans."""
    _resting: dict[str, float] = field(default_factory=dict)
    """Nodes that lost a task, each with when it may have another."""
    _unplanned: Counter[str] = field(default_factory=Counter)
    """By type, how often a node was lost while it planned."""

    def run(self) -> None:
        """Until every job has an answer or was given up; raises `Mistake` where no node is left for one."""
        while left := self._left():
            nodes = self._nodes()
            self._start(nodes)
            if not self._busy and not self._resting.keys() & nodes.keys():
                raise Mistake(f"no node of type {' or '.join(left)} is left{self._why_none()}")
            for node, result in self.engine.ended(WAIT):
                self._end(node, result)

    def _left(self) -> list[str]:
        """The types of which something is left to do."""
        busy = {kind for kind, _ in self._busy.values()}
        return [it for it in self.kinds if it in busy or it not in self.state.plans or self.state.open(it)]

    def _nodes(self) -> dict[str, str]:
        """The nodes that may measure."""
        nodes: dict[str, str] = {}
        count: Counter[str] = Counter()
        for node, kind in self.engine.nodes().items():
            most = self.kinds.get(kind, 0)
            if node not in self.state.refused and (most is None or count[kind] < most):
                nodes[node] = kind
                count[kind] += 1
        return nodes

    def _why_none(self) -> str:
        others = sorted({*self.engine.nodes().values()} - self.kinds.keys())
        refused = [f"{node}: {why}" for node, why in self.state.refused.items()]
        return "".join(f"; {it}" for it in (*refused, *(f"there is {kind}" for kind in others)))

    def _start(self, nodes: Mapping[str, str]) -> None:
        """Give every node that is free a task, if there is one for it."""
        now, count = monotonic(), Counter(nodes.values())
        self._resting = {node: until for node, until in self._resting.items() if until > now}
        planning = {kind for kind, job in self._busy.values() if job is None}
        for node, kind in nodes.items():
            if node in self._busy or node in self._resting:
                continue
            if kind not in self.state.plans:
                if kind not in planning:
                    planning.add(kind)
                    self._begin(node, kind, None)
            # a case is spread over as many nodes as it has processes, where there are so many
            elif job := self.state.next_job(kind, node, math.ceil(self.state.processes / count[kind])):
                self._begin(node, kind, job)

    def _begin(self, node: str, kind: str, job: Job | None) -> None:
        self._busy[node] = kind, job
        self.engine.start(node, self.task | {"case": job.case if job else None})

    def _end(self, node: str, result: Result | Lost) -> None:
        """Write down what came of a node's task."""
        kind, job = self._busy.pop(node)
        if isinstance(result, Lost):
            self._lose(node, kind, job, result.why)
        elif "refused" in result:
            self._refuse(node, job, result["refused"])
        elif "failed" in result:
            if job is None:
                raise Mistake(f"{node}: {result['said'].removeprefix('ERROR: ')}")
            self._lose(node, kind, job, f"exit code {result['failed']}: {result['said']}")
        elif job is None:
            self._plan(kind, result["plan"])
        else:
            self._keep(node, job, result)

    def _plan(self, kind: str, plan: dict[str, Any]) -> None:
        if not plan["cells"]:
            raise Mistake(f"{kind}: no cell is selected")
        self._add({"plan": {"kind": kind, **plan}})
        self.tell(f"{self.state.progress(kind)} {kind}: {len(plan['cells'])} cells")

    def _keep(self, node: str, job: Job, result: Result) -> None:
        run = result["run"]
        if other := differing(self.state.plans[job.kind].machine, run["machine_info"]):
            self._refuse(node, job, f"{job.kind} has {other}")
        elif not run["complete"]:
            self._lose(node, job.kind, job, "interrupted")
        else:
            where, began = result["node"], result["began"]
            self._add({"answer": {"job": job, "node": where, "began": began, "run": run}})
            of = f"process {job.process + 1} of {self.state.processes}"
            self.tell(f"{self.state.progress(job.kind)} {job.kind}  {job.case}, {of}: {where}")

    def _refuse(self, node: str, job: Job | None, why: str) -> None:
        """A node is another machine, or has other software, than its type."""
        self._add({"refused": {"node": node, "why": why}})
        self.tell(f"{node} is refused: {why}")
        if job:
            self.state.give_back(job)

    def _lose(self, node: str, kind: str, job: Job | None, why: str) -> None:
        """A task is lost with its node; another one does it."""
        self._resting[node] = monotonic() + self.rest
        self.tell(f"{node} is lost: {why}")
        if job:
            return self._add({"lost": {"job": job, "node": node, "why": why}})
        self._unplanned[kind] += 1
        if self._unplanned[kind] == TRIES:
            raise Mistake(f"{kind}: its nodes were lost {TRIES} times before they knew what to measure: {why}")

    def _add(self, line: Line) -> None:
        self.journal.add(line)
        self.state.take(line)


def differing(plan: Mapping[str, Any], machine: Mapping[str, Any]) -> str:
    """`cores 2, not 4`: parts of a type's fingerprint that a node has otherwise; empty where it is the same machine."""
    parts: Sequence[str] = [key for key in {**plan, **machine} if plan.get(key) != machine.get(key)]
    return ", ".join(f"{key} {plan.get(key)}, not {machine.get(key)}" for key in parts)
