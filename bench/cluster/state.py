"""What is known of a sweep over many machines: every line of its journal, one after the other."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..runs.journal import Line

TRIES = 3
"""How often a job may be lost with its node, before it is given up."""


class Job(NamedTuple):
    """All implementations of a case, in one process, on a node of one type."""

    kind: str
    """The type of node."""
    case: str
    process: int
    """Which of the processes that each case is measured in."""


@dataclass(frozen=True)
class Answer:
    """What came of a job."""

    job: Job
    node: str
    began: float
    """By the node's own clock: seconds since the epoch."""
    run: dict[str, Any]
    """A run file's contents."""


@dataclass(frozen=True)
class Plan:
    """What there is to measure on a type of node."""

    machine: dict[str, Any]
    """The fingerprint that all nodes of the type share."""
    cells: list[tuple[str, str]]

    @property
    def cases(self) -> list[str]:
        return list(dict.fromkeys(case for _, case in self.cells))


@dataclass
class State:
    """Plans and answers by type of node, what was lost, and who was refused."""

    processes: int
    plans: dict[str, Plan] = field(default_factory=dict)
    answers: dict[Job, Answer] = field(default_factory=dict)
    losses: dict[Job, list[str]] = field(default_factory=dict)
    """By job, why each try came to nothing."""
    refused: dict[str, str] = field(default_factory=dict)
    """Nodes that don't measure, and why."""
    held: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By node and case, the processes that were measured there."""
    _open: dict[str, OrderedDict[Job, None]] = field(default_factory=dict)
    """Of each type, the jobs that nobody does and nobody did."""
    _answered: Counter[str] = field(default_factory=Counter)

    def take(self, line: Line) -> None:
        """Know what a line of the journal tells."""
        match line:
            case {"plan": {"kind": kind, "machine": machine, "cells": cells}}:
                self.plans[kind] = plan = Plan(machine, [(impl, case) for impl, case in cells])
                jobs = (Job(kind, case, i) for i in range(self.processes) for case in plan.cases)
                self._open[kind] = OrderedDict.fromkeys(jobs)
            case {"answer": {"job": named, "node": node, "began": began, "run": run}}:
                job = Job(*named)
                self.answers[job] = Answer(job, node, began, run)
                self.held[node, job.case] += 1
                self._answered[job.kind] += 1
                self._open[job.kind].pop(job, None)
            case {"lost": {"job": named, "why": why}}:
                job = Job(*named)
                self.losses.setdefault(job, []).append(why)
                self._open[job.kind].pop(job, None)
                if not self.given_up(job):
                    self._open[job.kind][job] = None
            case {"refused": {"node": node, "why": why}}:
                self.refused[node] = why

    def next_job(self, kind: str, node: str, at_most: int) -> Job | None:
        """A job for a node that measures a case in so many processes at most; it is given out once."""
        for job in self._open[kind]:
            if self.held[node, job.case] < at_most:
                del self._open[kind][job]
                return job
        return None

    def give_back(self, job: Job) -> None:
        """A job that nobody does any more is open again."""
        self._open[job.kind][job] = None

    def given_up(self, job: Job) -> bool:
        return len(self.losses.get(job, ())) >= TRIES

    def open(self, kind: str) -> int:
        """Jobs of a type that nobody does and nobody did."""
        return len(self._open[kind])

    def progress(self, kind: str) -> str:
        """` 2/16`: jobs of a type that have an answer."""
        return f"{self._answered[kind]:>3}/{self.processes * len(self.plans[kind].cases)}"
