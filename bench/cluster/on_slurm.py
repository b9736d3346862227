"""Slurm engine, using submitit: a type is a partition. Jobs and their results are in a folder shared by all nodes."""

from __future__ import annotations

import argparse
import shutil
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

DEFAULT = "default"
"""Type of nodes without `--node-types`: Slurm's default partition. None can have this name in Slurm's configuration."""

MINUTES = 120
"""Default time limit of a job in minutes."""

Node = tuple[str, int]
"""A partition, and the number of one of its jobs at a time: Slurm itself chooses their nodes."""


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
        self._nodes = {(kind, i): kind for kind, most in (kinds or {DEFAULT: 1}).items() for i in range(most or 1)}
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
        kind, _ = node
        if kind != DEFAULT:
            self._executor.update_parameters(slurm_partition=kind)
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
