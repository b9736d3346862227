"""The journal of a run: each result is on disk at once, so that a killed run can be resumed."""

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
"""{"header": ...}, or one of what `Run` writes: {"begin": key}, {"checked": ...}, {"skipped": ...}, {"visit": ...}, ..."""


class Journal:
    """A file of one JSON object a line, beside the run file: a header for each process that wrote to it, then what it did."""

    def __init__(self, path: Path, header: Line, lines: list[Line] | None = None):
        self.path = path
        self.header = header
        self.lines = lines or []
        """What earlier processes of the run wrote."""
        self._file = path.open("a", encoding="utf-8")

    @classmethod
    def start(cls, folder: Path, name: str, header: Line) -> Journal:
        """A new journal; raises OSError when the folder can't be written to."""
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
        """Go on with a journal that a killed process left; a line that it didn't finish is cut off."""
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
        with suppress(OSError):  # of a full disk: what it didn't take was said when it was added
            self._file.close()

    def delete(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)


def names(folder: Path) -> set[str]:
    """Of runs that have a journal."""
    return {_name(path) for path in folder.glob("*.journal")}


def _name(path: Path) -> str:
    """`x` of `x.20260101T000000-1.journal`"""
    return path.name.rsplit(".", 2)[0]


def newest(folder: Path, name: str) -> Path | None:
    """The newest journal of a run that holds a header; None when there is none."""
    found = [
        path
        for path in folder.glob("*.journal")
        if _name(path) == name and any("header" in it for it in _read(path)[1])
    ]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def header_of(path: Path) -> Line:
    """What a journal says of its run."""
    header: Line = next(line["header"] for line in _read(path)[1] if "header" in line)
    return header


def writer(path: Path) -> int | None:
    """The process that is writing to a journal right now; None when it is gone."""
    last = [line["header"] for line in _read(path)[1] if "header" in line][-1]
    return last["pid"] if alive(last) else None


def refuse_written(path: Path) -> None:
    """Raises `UsageError` while a process is writing to a journal."""
    if (pid := writer(path)) is not None:
        raise UsageError(f"run {_name(path)} is being measured right now, by process {pid}")


def process() -> Line:
    """Which process this is: numbers are used again, so with the time when it began."""
    return {"pid": os.getpid(), "started": psutil.Process().create_time()}


def alive(writer: Line) -> bool:
    """Whether a process, as `process` describes it, still runs."""
    try:
        return bool(abs(psutil.Process(writer["pid"]).create_time() - writer["started"]) < 1)
    except psutil.Error:
        return False


def _read(path: Path) -> tuple[int, list[Line]]:
    """Bytes up to the end of the last whole line, and the lines; what a bad disk made of one is measured again."""
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    lines = []
    for text in data[:whole].splitlines():
        with suppress(ValueError):
            lines.append(json.loads(text))
    return whole, lines
