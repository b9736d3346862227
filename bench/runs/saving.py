"""Finds, reads, numbers and writes run files, safely even if two runs end at the same time."""

from __future__ import annotations

import fcntl
import glob
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from .. import CHECKOUT
from ..selection.errors import UsageError

LONGEST = 200
"""Most bytes of a run's name; the names of its files are a few bytes longer, and may have 255."""

REFUSED = "\\/:*?<>|"
"""Characters that pytest-benchmark refuses in names."""


def valid_name(name: str, option: str) -> str:
    """Return a run's name as it may occur in file names; raises `UsageError` for others."""
    if not name or not name.isprintable() or {*name} & {*REFUSED} or len(os.fsencode(name)) > LONGEST:
        right = f"a run's name has at most {LONGEST} bytes, all of them printed, and none of {REFUSED}"
        raise UsageError(f"{option} {name[:20]!r}: {right}")
    return name


def results_root(start: Path, storage: str | None) -> Path:
    """Return results/ of the checkout from anywhere inside it, else ./results; or the requested storage.

    Raises `UsageError` if the storage is not a folder's name.
    """
    if storage:
        folder = storage.removeprefix("file://")
        if "://" in folder:
            raise UsageError(f"--benchmark-storage {storage}: runs are files: give a folder, or file://FOLDER")
        return Path(folder).resolve()
    start = start.resolve()
    return (CHECKOUT if start.is_relative_to(CHECKOUT) else start) / "results"


def writable(folder: Path) -> Path:
    """Create a folder of results, and write to it once, before anything is measured; raises `UsageError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(b"x")
    except OSError as error:
        raise unwritable(folder, error) from None
    return folder


def unwritable(folder: Path, error: OSError) -> UsageError:
    return UsageError(f"results can't be written to {folder}: {error.strerror}")


def save(folder: Path, name: str, data: dict[str, Any], indent: int | None = 4) -> Path:
    """Write a run file under the next number, all or nothing; raises OSError."""
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed, also by the end of the process
        numbers = [int(path.name[:4]) for path in folder.glob("[0-9][0-9][0-9][0-9]_*.json")]
        path = folder / f"{max(numbers, default=0) + 1:04}_{name}.json"
        whole = path.with_suffix(".tmp")
        try:
            whole.write_text(json.dumps(data, indent=indent), encoding="utf-8")
            return whole.replace(path)
        finally:
            whole.unlink(missing_ok=True)  # on a full disk


def run_files(folder: Path, name: str) -> list[Path]:
    """Return the run files of a name, oldest first."""
    return sorted(folder.glob(f"[0-9][0-9][0-9][0-9]_{glob.escape(name)}.json"))


def load(path: Path) -> dict[str, Any]:
    """Return a run file's contents; empty if it can't be read."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
