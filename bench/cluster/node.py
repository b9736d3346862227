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

SUITE = "attention-bench"
"""Folder of the suite in the archive, beside the user's own files, and of results."""

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
        folder, case = Path(name), task["case"]
        zipfile.ZipFile(archive if isinstance(archive, Path) else io.BytesIO(archive)).extractall(folder)
        given, what = task["arguments"], ["-pbench.cluster.node", "--collect-only", "-q"]
        if case:
            given, what = [it for it in given if not it.startswith("--case=")], [f"--case={case}"]
        suite = [f"{SUITE}/bench", "sweep", "--save=job", "--no-summary", f"--benchmark-storage={SUITE}"]
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            process = subprocess.Popen(
                [sys.executable, *suite, *given, *what],
                cwd=folder,
                stdout=output,
                stderr=output,
                preexec_fn=_end_with_parent,
            )
            while process.poll() is None:
                if isinstance(archive, Path) and not archive.exists():
                    process.kill()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL)
            output.seek(0)
            last = output.read().strip().split("\n")[-1]
        node = {"node": os.environ.get("SLURMD_NODENAME", socket.gethostname())}
        for file in (folder / SUITE).rglob("*_job.json"):
            found = json.loads(file.read_text())
            if found and found.get("complete", True):
                return node | {"run" if case else "cells": found}
        return node | {"failed": f"{last.removeprefix('ERROR: ')} (exit code {process.returncode})"}


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def pytest_collection_finish(session: Any) -> None:
    """Write the implementations of each case."""
    cells: dict[str, list[str]] = {}
    for item in session.items:
        impl, case = item.cell.key
        cells.setdefault(case, []).append(impl)
    Path(SUITE, "0000_job.json").write_text(json.dumps(cells))
