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
from importlib import metadata
from pathlib import Path
from typing import Any

LOOK = 1.0
"""Seconds between two looks whether the driver still wants an answer."""

PR_SET_PDEATHSIG = 1
"""Of Linux' prctl."""


Lease = tuple[str, str]
"""A file, and what it holds as long as the driver that began a task wants its answer."""


def do(archive: bytes | str, task: dict[str, Any], lease: Lease | None = None) -> dict[str, Any]:
    """What came of a task: `plan`, or `run`, the contents of a run file; else `refused` or `failed`, and why.

    `archive`: the code, or the file it lies in. A task whose lease has gone to another driver is given up.
    """
    known = {"node": socket.gethostname(), "began": time.time()}
    if why := other_environment(task["environment"]):
        return known | {"refused": why}
    data = archive if isinstance(archive, bytes) else Path(archive).read_bytes()
    if hashlib.sha256(data).hexdigest() != task["digest"]:
        return known | {"refused": "the code that arrived is not what was sent"}
    code = unpacked(data, task["digest"])
    with tempfile.TemporaryDirectory(prefix="attention-bench-") as folder:
        return known | _done(code, Path(folder), task, lease)


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


def _done(code: Path, folder: Path, task: dict[str, Any], lease: Lease | None) -> dict[str, Any]:
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
        if not _finished(process, lease):
            return {"failed": -1, "said": "the driver is gone"}
    if (plan := folder / "plan.json").exists():
        return {"plan": json.loads(plan.read_text(encoding="utf-8"))}
    for file in folder.glob("results/*/*.json"):
        return {"run": json.loads(file.read_text(encoding="utf-8"))}
    lines = (folder / "said").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return {"failed": process.returncode, "said": lines[-1] if lines else "it said nothing"}


def _finished(process: subprocess.Popen[Any], lease: Lease | None) -> bool:
    """Wait for its end; False, and it is killed, when the lease has gone to another driver."""
    while True:
        try:
            process.wait(LOOK if lease else None)
            return True
        except subprocess.TimeoutExpired:
            if lease and not _holds(lease):
                process.kill()
                process.wait()
                return False


def _holds(lease: Lease) -> bool:
    """Whether the driver still wants the answer."""
    path, token = lease
    try:
        return Path(path).read_text(encoding="utf-8") == token
    except OSError:
        return False


def _ends_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
