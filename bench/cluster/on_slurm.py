"""Slurm, by submitit: a type is a partition, and a node is one of as many jobs as run in it at a time.

A job has a node to itself, and lies with its answer in a folder that all nodes share.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import cloudpickle
import submitit

from ..selection.mistake import Mistake
from . import node as on_node
from .driver import Result, Task

LOCAL = "local"
"""The address of submitit's own executor, whose jobs are processes of this machine."""

MINUTES = 120
"""For a job, at most, where no option says otherwise."""

OF_ALL = ("timeout_min", "mem_gb", "cpus_per_task", "gpus_per_node")
"""Parameters that submitit has for every cluster."""

LOOK = 0.2
"""Seconds between two checks of the jobs."""


class OnSlurm:
    """A job for every task."""

    def __init__(
        self,
        address: str | None,
        archive: bytes,
        kinds: Mapping[str, int | None],
        options: Mapping[str, str],
        folder: Path,
    ):
        cloudpickle.register_pickle_by_value(on_node)
        local = address == LOCAL
        try:
            self._executor = submitit.AutoExecutor(folder / "jobs", cluster=LOCAL if local else "slurm")
            given = {name if name in OF_ALL else f"slurm_{name}": _read(text) for name, text in options.items()}
            fixed = {"name": "attention-bench", "nodes": 1, "slurm_exclusive": True}
            self._executor.update_parameters(**{"timeout_min": MINUTES} | given | fixed)
        except (RuntimeError, ValueError, NameError) as error:
            raise Mistake(f"--cluster slurm: {str(error).splitlines()[0]}") from None
        known = kinds or {LOCAL: 1} if local else _partitions(kinds)
        self._nodes = {f"{kind}/{i + 1}": kind for kind, most in known.items() for i in range(most or 1)}
        self._jobs: dict[str, Any] = {}
        self._folder = folder
        shutil.rmtree(folder, ignore_errors=True)  # jobs of a driver that was killed end when their code is gone
        folder.mkdir(parents=True)
        self._code = folder / f"code-{uuid4().hex}.zip"
        self._code.write_bytes(archive)

    def nodes(self) -> Mapping[str, str]:
        return self._nodes

    def start(self, node: str, task: Task) -> None:
        self._executor.update_parameters(slurm_partition=self._nodes[node])
        self._jobs[node] = self._executor.submit(on_node.do, self._code, task)

    def ended(self, seconds: float) -> list[tuple[str, Result]]:
        until = time.monotonic() + seconds
        while not (ended := [node for node, job in self._jobs.items() if job.done()]) and time.monotonic() < until:
            time.sleep(LOOK)
        return [(node, _result(self._jobs.pop(node))) for node in ended]

    def close(self) -> None:
        """Jobs that are still there end when they find no code."""
        for job in self._jobs.values():
            job.cancel(check=False)
        shutil.rmtree(self._folder, ignore_errors=True)


def _result(job: Any) -> Result:
    try:
        return dict(job.result())
    except (submitit.core.utils.UncompletedJobError, submitit.core.utils.FailedJobError) as error:
        return {"lost": str(error).strip().splitlines()[-1]}


def _read(text: str) -> str | int:
    return int(text) if text.isdigit() else text


def _partitions(kinds: Mapping[str, int | None]) -> dict[str, int]:
    """How many jobs each partition takes at a time: as many as are asked for, or as it has nodes."""
    command = ["sinfo", "--noheader", "--format=%P %D"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise Mistake(f"--cluster slurm: sinfo: {error}") from None
    lines = [line.split() for line in said.splitlines()]
    there = {name.removesuffix("*"): int(nodes) for name, nodes in lines}
    wanted = kinds or {name.removesuffix("*"): None for name, _ in lines if name.endswith("*")}
    if unknown := wanted.keys() - there.keys():
        raise Mistake(f"--node-types: Slurm has no partition {unknown.pop()}; known: {', '.join(there)}")
    return {kind: most or there[kind] for kind, most in wanted.items()}
