"""What a node does with a task. It travels by value to nodes that have no checkout, so it needs the standard library alone.

A task has options of `bench sweep`, and a case that is to be measured; without a case it lists the cells.
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

LOOK = 1.0
"""Seconds between two checks that the driver still wants an answer."""

PR_SET_PDEATHSIG = 1
"""Of Linux' prctl."""


def do(archive: bytes | Path, task: dict[str, Any]) -> dict[str, Any]:
    """Do a task by an ordinary run of the suite: `cells`, or `run`, the contents of a run file; else why it `failed`.

    `archive`: the code, or the file that holds it. When the file is gone, so is the driver, and the task ends.
    """
    began = time.time()
    code = unpacked(archive if isinstance(archive, bytes) else archive.read_bytes())
    with tempfile.TemporaryDirectory(prefix="attention-bench-") as name:
        folder = Path(name)
        with (folder / "said").open("w") as said:
            process = _started(code, folder, task, said)
            while process.poll() is None:
                if isinstance(archive, Path) and not archive.exists():
                    process.kill()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK)
        answers = {"cells": [*folder.glob("cells.json")], "run": [*folder.glob("results/*/*.json")]}
        found = {
            what: json.loads(file.read_text(encoding="utf-8")) for what, files in answers.items() for file in files
        }
        if not found:
            lines = (folder / "said").read_text(encoding="utf-8", errors="replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), "it said nothing")
            found = {"failed": f"{last.removeprefix('ERROR: ')} (exit code {process.returncode})"}
        return found | {"node": socket.gethostname(), "began": began}


def model(gpus: list[str]) -> str:
    """The processor's name, and those of its GPUs."""
    name = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    return " ".join([name, *gpus])


def unpacked(archive: bytes) -> Path:
    """The folder with the code, which is unpacked once a node."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attention-bench"
    code = caches / hashlib.sha256(archive).hexdigest()
    if not code.is_dir():
        caches.mkdir(parents=True, exist_ok=True)
        fresh = tempfile.mkdtemp(dir=caches)
        zipfile.ZipFile(io.BytesIO(archive)).extractall(fresh)
        try:
            os.rename(fresh, code)
        except OSError:  # another process was faster
            shutil.rmtree(fresh)
    return code


def _started(code: Path, folder: Path, task: dict[str, Any], said: Any) -> subprocess.Popen[Any]:
    command = [sys.executable, str(code / "bench"), "sweep", "--save=job", *task["arguments"]]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env["ATTENTION_BENCH_PATH"] = str(code / "user")
    if task["case"] is None:
        command += ["-pbench.cluster.plan", "--collect-only", "--quiet"]
        env["PYTHONPATH"] = str(code)
    else:
        command += [f"--case={task['case']}"]
    return subprocess.Popen(command, cwd=folder, env=env, stdout=said, stderr=said, preexec_fn=_end_with_parent)


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
