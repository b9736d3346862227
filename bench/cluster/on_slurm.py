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


class Cluster:
    """Submits one job per task, with exclusive use of its node."""

    def __init__(self, options: argparse.Namespace, archive: bytes, kinds: Mapping[str, int | None], folder: Path):
        cloudpickle.register_pickle_by_value(on_node)
        local = options.address == LOCAL
        given = {"timeout_min" if local else "time": MINUTES} | dict(options.slurm_option)
        try:
            self._executor = (submitit.LocalExecutor if local else submitit.SlurmExecutor)(folder / "jobs")
            self._executor.update_parameters(**given, job_name="attention-bench", nodes=1, exclusive=True)
        except (RuntimeError, TypeError, ValueError) as error:
            raise UsageError(f"--cluster slurm: {str(error).splitlines()[0]}") from None
        self._nodes = {kind: most or 1 for kind, most in (kinds or {LOCAL: 1}).items()} if local else _partitions(kinds)
        self._jobs: list[Any] = []
        self._folder = folder
        shutil.rmtree(folder, ignore_errors=True)  # jobs of a killed driver end when their code is deleted
        folder.mkdir(parents=True)
        self._code = folder / f"code-{uuid4().hex}.zip"
        self._code.write_bytes(archive)

    def nodes(self, refused: Collection[str]) -> Mapping[str, int]:
        self._executor.update_parameters(exclude=",".join(refused) or None)
        return self._nodes

    def submit(self, kind: str, task: dict[str, Any]) -> Future[Reply]:
        self._executor.update_parameters(partition=kind)
        job: Future[Reply] = self._executor.submit(on_node.do, self._code, task)
        self._jobs.append(job)
        return job

    def close(self) -> None:
        for job in self._jobs:
            if not job.done():
                job.cancel(check=False)
        shutil.rmtree(self._folder, ignore_errors=True)


def _partitions(kinds: Mapping[str, int | None]) -> dict[str, int]:
    """Return the number of nodes of the requested partitions, or of the default one."""
    printed = subprocess.run(["sinfo", "--noheader", "--format=%R %D %P"], capture_output=True, text=True).stdout
    lines = [line.split() for line in printed.splitlines()]
    there = {name: int(nodes) for name, nodes, _ in lines}
    if unknown := kinds.keys() - there.keys():
        raise UsageError(f"--node-types: Slurm has no partition {unknown.pop()}; known: {', '.join(there)}")
    return {kind: there[kind] for kind in kinds or [name for name, _, marked in lines if marked != name]}
