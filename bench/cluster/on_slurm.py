"""Slurm engine, using submitit: a type is a partition. Jobs and their results are in a folder shared by all nodes."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from uuid import uuid4

import cloudpickle
import submitit

from ..selection.errors import UsageError
from . import node as on_node
from .sweep import Reply

LOCAL = "local"
"""Address of submitit's local executor, whose jobs are processes of this machine."""

MINUTES = 120
"""Default time limit of a job in minutes."""

Node = tuple[str, int]
"""A partition, and a number: Slurm itself chooses the node of a job."""


class Cluster:
    """Submits one job per task, with exclusive use of its node."""

    def __init__(self, options: argparse.Namespace, archive: bytes, kinds: Mapping[str, int | None], folder: Path):
        cloudpickle.register_pickle_by_value(on_node)
        given = {f"slurm_{name}": value for name, value in options.slurm_option}
        try:
            self._executor = submitit.AutoExecutor(folder / "jobs", options.address or "slurm")
            self._executor.update_parameters(
                name="attention-bench", nodes=1, timeout_min=MINUTES, slurm_exclusive=True, **given
            )
        except (NameError, RuntimeError, ValueError) as error:
            raise UsageError(f"--cluster slurm: {str(error).splitlines()[0]}") from None
        local = {kind: most or 1 for kind, most in (kinds or {LOCAL: 1}).items()}
        there = local if options.address else _partitions(kinds)
        self._nodes = {(kind, i): kind for kind, count in there.items() for i in range(count)}
        self._jobs: list[Any] = []
        self._folder = folder
        shutil.rmtree(folder, ignore_errors=True)  # jobs of a killed driver end when their code is deleted
        folder.mkdir(parents=True, exist_ok=True)  # in which they may still write
        self._code = folder / f"code-{uuid4().hex}.zip"
        self._code.write_bytes(archive)

    def nodes(self, refused: Collection[str]) -> Mapping[Node, str]:
        self._executor.update_parameters(slurm_exclude=",".join(refused) or None)
        return self._nodes

    def submit(self, node: Node, task: dict[str, Any]) -> Future[Reply]:
        self._executor.update_parameters(slurm_partition=node[0])
        try:
            job: Future[Reply] = self._executor.submit(on_node.do, self._code, task)
        except submitit.core.utils.FailedJobError as error:
            raise UsageError(f"--cluster slurm: {str(error).splitlines()[0]}") from None
        self._jobs.append(job)
        return job

    def close(self) -> None:
        for job in self._jobs:
            if not job.done():
                job.cancel(check=False)
        shutil.rmtree(self._folder, ignore_errors=True)


def _partitions(kinds: Mapping[str, int | None]) -> dict[str, int]:
    """Return the number of nodes of the requested partitions, or of the default one."""
    printed = subprocess.run(["sinfo", "--noheader", "--format=%R %D %P"], stdout=subprocess.PIPE, text=True).stdout
    lines = [line.split() for line in printed.splitlines()]
    there = {name: int(nodes) for name, nodes, _ in lines}
    if unknown := kinds.keys() - there.keys():
        raise UsageError(f"--node-types: Slurm has no partition {unknown.pop()}; known: {', '.join(there)}")
    return {kind: there[kind] for kind in kinds or [name for name, _, marked in lines if marked != name]}
