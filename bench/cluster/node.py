"""What a node does with a task. It travels by value to nodes that have no checkout, so it needs the standard library alone.

A task names the code by its digest, the versions that were asked for, options of `bench sweep`, and a case that is to be
measured; without a case it asks what there is to measure.
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
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

LOOK = 1.0
"""Seconds between two looks whether the driver still wants an answer."""

PR_SET_PDEATHSIG = 1
"""Of Linux' prctl."""


def do(archive: bytes | Path, task: dict[str, Any]) -> dict[str, Any]:
    """What came of a task: `plan`, or `run`, the contents of a run file; else `refused` or `failed`, and why.

    `archive`: the code, or the file it lies in. A task whose file is gone is given up: so is its driver.
    """
    known = {"node": socket.gethostname(), "began": time.time()}
    if why := other_environment(task["environment"]):
        return known | {"refused": why}
    data = archive if isinstance(archive, bytes) else archive.read_bytes()
    code = unpacked(data, hashlib.sha256(data).hexdigest())
    with tempfile.TemporaryDirectory(prefix="attention-bench-") as folder:
        return known | _done(code, Path(folder), task, lambda: isinstance(archive, bytes) or archive.exists())


def environment() -> dict[str, str]:
    """The versions of Python and torch, a build for the CPU or for CUDA alike."""
    return {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "torch": metadata.version("torch").partition("+")[0],
    }


def other_environment(wanted: dict[str, str]) -> str:
    """What this node has instead of what was asked for; empty where it is the same."""
    try:
        here = environment()
    except metadata.PackageNotFoundError:
        return f"{sys.executable} has no torch"
    return ", ".join(f"{name} {here[name]}, not {wanted[name]}" for name in wanted if here[name] != wanted[name])


def model() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def unpacked(archive: bytes, digest: str) -> Path:
    """The folder with the code, which is unpacked once a node."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attention-bench"
    code = caches / digest
    if not code.is_dir():
        caches.mkdir(parents=True, exist_ok=True)
        fresh = tempfile.mkdtemp(dir=caches)
        zipfile.ZipFile(io.BytesIO(archive)).extractall(fresh)
        try:
            os.rename(fresh, code)
        except OSError:  # somebody else was faster
            shutil.rmtree(fresh)
    return code


def _done(code: Path, folder: Path, task: dict[str, Any], wanted: Callable[[], bool]) -> dict[str, Any]:
    """An ordinary run of the suite, in a folder of its own."""
    command = [sys.executable, str(code / "bench"), "sweep", "--processes=1", "--save=job", *task["arguments"]]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env["ATTENTION_BENCH_PATH"] = str(code / "user")
    if task["case"] is None:
        command += ["-pbench.cluster.plan", "--collect-only", "--quiet"]
        env["PYTHONPATH"] = str(code)
    else:
        command += [f"--case={task['case']}"]
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=said, stderr=said, preexec_fn=_ends_with_parent)
        while process.poll() is None:
            if not wanted():
                process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(LOOK)
    if (plan := folder / "plan.json").exists():
        return {"plan": json.loads(plan.read_text(encoding="utf-8"))}
    for file in folder.glob("results/*/*.json"):
        return {"run": json.loads(file.read_text(encoding="utf-8"))}
    lines = (folder / "said").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    said_last = lines[-1].removeprefix("ERROR: ") if lines else "it said nothing"
    return {"failed": f"{said_last} (exit code {process.returncode})"}


def _ends_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
