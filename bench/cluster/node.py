"""Executes a task on a node. Sent by value to nodes without a checkout, so it needs the standard library alone.

A task has options of `bench sweep`, and the case to measure; without a case it lists the cells, using this file as a
pytest plugin.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

POLL = 1.0
"""Seconds between two checks that the driver still runs."""

PR_SET_PDEATHSIG = 1
"""Option of Linux's prctl: signal sent when the parent ends."""


def do(archive: bytes | Path, task: dict[str, Any]) -> dict[str, Any]:
    """Execute a task by an ordinary run of the suite: returns `cells`, or `run`, the contents of a run file; else why
    it `failed`.

    `archive`: the code, or the file that holds it. The task ends when the file disappears, since the driver has then
    ended.
    """
    with tempfile.TemporaryDirectory(prefix="attention-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        zipfile.ZipFile(archive if isinstance(archive, Path) else io.BytesIO(archive)).extractall(folder / "code")
        code = folder / "code"
        what = [f"--case={task['case']}"] if task["case"] else ["-pbench.cluster.node", "--collect-only", "-q"]
        suite = [str(code / "bench"), "sweep", "--save=job", "--no-summary"]
        command = [sys.executable, *suite, *task["arguments"], *what]
        env = os.environ | {"ATTENTION_BENCH_PATH": str(code / "user")}
        with (folder / "output").open("w") as output:
            process = subprocess.Popen(
                command, cwd=folder, env=env, stdout=output, stderr=output, preexec_fn=_end_with_parent
            )
            while process.poll() is None:
                if isinstance(archive, Path) and not archive.exists():
                    process.kill()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL)
        node = {"node": os.environ.get("SLURMD_NODENAME", socket.gethostname())}
        for file in (*folder.glob("cells.json"), *folder.glob("results/*/*.json")):
            found = json.loads(file.read_text())
            if found and found.get("complete", True):
                return node | {"run" if task["case"] else "cells": found}
        last = (folder / "output").read_text(errors="replace").strip().split("\n")[-1]
        return node | {"failed": f"{last.removeprefix('ERROR: ')} (exit code {process.returncode})"}


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def pytest_collection_finish(session: Any) -> None:
    """Write the implementations of each case."""
    cells: dict[str, list[str]] = {}
    for item in session.items:
        cells.setdefault(item.callspec.params["case"], []).append(item.callspec.params["impl"])
    Path("cells.json").write_text(json.dumps(cells))
