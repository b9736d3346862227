"""Journal of a run: stores each result on disk at once, so that a killed run can be resumed."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from ..selection.errors import UsageError

Line = dict[str, Any]
"""{"header": ...}, or a line written by `Run`: {"begin": key}, {"checked": ...}, {"skipped": ...}, {"visit": ...}, ...
"""


class Journal:
    """File of one JSON object per line beside the run file: a header for each process, followed by its results."""

    def __init__(self, path: Path, header: Line, lines: list[Line] | None = None):
        self.path = path
        self.header = header
        self.lines = lines or []
        """Lines written by earlier processes of the run."""
        self._file = path.open("a", encoding="utf-8")

    @classmethod
    def start(cls, folder: Path, name: str, header: Line) -> Journal:
        """Create a journal; raises OSError if the folder isn't writable."""
        folder.mkdir(parents=True, exist_ok=True)
        stamp = datetime.now().strftime("%Y%m%dT%H%M%S%f")
        journal = cls(folder / f"{name}.{stamp}-{os.getpid()}.journal", header)
        try:
            journal.add({"header": header | process()})
        except OSError:
            journal.delete()
            raise
        return journal

    @classmethod
    def reopen(cls, path: Path) -> Journal:
        """Reopen a journal left by a killed process; an incomplete last line is cut off."""
        whole, lines = _read(path)
        with path.open("r+b") as file:
            file.truncate(whole)
        header = next(line["header"] for line in lines if "header" in line)
        journal = cls(path, header, [line for line in lines if "header" not in line])
        journal.add({"header": header | process()})
        return journal

    def add(self, line: Line) -> None:
        """Write a line and wait until it is on disk."""
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        with suppress(OSError):  # on a full disk: the lost line was reported when it was added
            self._file.close()

    def delete(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)


def names(folder: Path) -> set[str]:
    """Return the names of runs that have a journal."""
    return {_name(path) for path in folder.glob("*.journal")}


def _name(path: Path) -> str:
    """Return the run's name: `x` of `x.20260101T000000-1.journal`."""
    return path.name.rsplit(".", 2)[0]


def newest(folder: Path, name: str) -> Path | None:
    """Return the newest journal of a run that has a header; None if there is none."""
    found = [
        path
        for path in folder.glob("*.journal")
        if _name(path) == name and any("header" in it for it in _read(path)[1])
    ]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def header_of(path: Path) -> Line:
    """Return the header of a journal."""
    header: Line = next(line["header"] for line in _read(path)[1] if "header" in line)
    return header


def writer(path: Path) -> int | None:
    """Return the process currently writing to a journal; None if it has ended."""
    last = [line["header"] for line in _read(path)[1] if "header" in line][-1]
    return last["pid"] if alive(last) else None


def refuse_written(path: Path) -> None:
    """Raise `UsageError` while a process is writing to a journal."""
    if (pid := writer(path)) is not None:
        raise UsageError(f"run {_name(path)} is being measured right now, by process {pid}")


def process() -> Line:
    """Identify this process by number and start time, since numbers are reused."""
    return {"pid": os.getpid(), "started": psutil.Process().create_time()}


def alive(writer: Line) -> bool:
    """Whether a process identified by `process` still runs."""
    try:
        return bool(abs(psutil.Process(writer["pid"]).create_time() - writer["started"]) < 1)
    except psutil.Error:
        return False


def _read(path: Path) -> tuple[int, list[Line]]:
    """Return the bytes up to the last complete line, and the lines; a corrupted line is dropped and measured again."""
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    lines = []
    for text in data[:whole].splitlines():
        with suppress(ValueError):
            lines.append(json.loads(text))
    return whole, lines
