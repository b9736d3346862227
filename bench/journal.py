"""Each outcome on disk as soon as it is known, so that a killed run keeps what it had and can be resumed."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

Entry = dict[str, Any]
"""{"row": a benchmark as in the run file} or {"skipped": {"impl", "id", "reason", "detail"}}."""


class Journal:
    """A file of one JSON object a line, beside the run file: a header for each process that wrote to it, then what it did.

    A cell is written twice: when it is begun, and with its outcome. One that was begun only ended the process, or was
    interrupted with it; a fatal signal leaves its trace in a file beside the journal.
    """

    def __init__(self, path: Path, header: Entry, entries: list[Entry] | None = None):
        self.path = path
        self.header = header
        self.entries = entries or []
        self.begun: Counter[tuple[str, str]] = Counter()
        """How often a cell was begun, among those without an outcome."""
        self.last: tuple[str, str] | None = None
        """The cell that was begun last."""
        self.machine: Entry = {}
        """What the processes before had seen of the machine, when they last wrote it down."""
        self.faults = self.faults_path.open("a", encoding="utf-8")
        self._file = path.open("a", encoding="utf-8")

    @classmethod
    def start(cls, folder: Path, name: str, header: Entry) -> Journal:
        """A new journal; raises OSError when the folder can't be written to."""
        folder.mkdir(parents=True, exist_ok=True)
        stamp = time.strftime("%Y%m%dT%H%M%S")
        journal = cls(folder / f"{name}.{stamp}-{os.getpid()}.journal", header)
        journal._write({"header": header | process()})
        return journal

    @classmethod
    def reopen(cls, path: Path) -> Journal:
        """Go on with a journal that a killed process left; a line that it didn't finish is cut off."""
        whole, lines = _read(path)
        with path.open("r+b") as file:
            file.truncate(whole)
        header = next(line["header"] for line in lines if "header" in line)
        journal = cls(path, header, [line for line in lines if "row" in line or "skipped" in line])
        begun = [(impl, case) for line in lines if "begin" in line for impl, case in [line["begin"]]]
        journal.begun.update(key for key in begun if key not in journal.keys)
        journal.last = begun[-1] if begun else None
        journal.machine = next((line["machine"] for line in reversed(lines) if "machine" in line), {})
        journal._write({"header": header | process()})
        return journal

    @property
    def keys(self) -> set[tuple[str, str]]:
        """(impl, case id) of every outcome that is on disk."""
        return {entry_key(entry) for entry in self.entries}

    def add(self, entry: Entry) -> None:
        """Write an outcome and wait until it is on disk."""
        self.entries.append(entry)
        self._write(entry)

    def begin(self, key: tuple[str, str]) -> None:
        """Write down which cell comes now."""
        self._write({"begin": key})

    def note(self, machine: Entry) -> None:
        """Write down what was seen of the machine so far, what earlier processes saw included."""
        self._write({"machine": machine})

    def fault(self) -> str | None:
        """What a fatal signal left in the process that wrote here before, in a line; it is told once."""
        trace = self.faults_path.read_text(encoding="utf-8").strip()
        self.faults.truncate(0)
        return trace.splitlines()[0] if trace else None

    @property
    def faults_path(self) -> Path:
        return self.path.with_suffix(".fault")

    def close(self) -> None:
        self._file.close()
        self.faults.close()
        if not self.faults_path.stat().st_size:
            self.faults_path.unlink()

    def delete(self) -> None:
        self.close()
        self.faults_path.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    def _write(self, line: Entry) -> None:
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def entry_key(entry: Entry) -> tuple[str, str]:
    """(impl, case id) of an outcome."""
    of = entry["skipped"] if "skipped" in entry else entry["row"]["extra_info"]
    return of["impl"], of["id"]


def newest(folder: Path, name: str) -> Path | None:
    """The newest journal of a run that holds a header; None when there is none."""
    found = [path for path in folder.glob("*.journal") if path.name.rsplit(".", 2)[0] == name and _read(path)[1]]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def writer(path: Path) -> int | None:
    """The process that is writing to a journal right now; None when it is gone."""
    last = [line["header"] for line in _read(path)[1] if "header" in line][-1]
    return last["pid"] if alive(last) else None


def begun(folder: Path) -> int:
    """How many cells were begun, by the journals in the folders of `folder`."""
    return sum("begin" in line for path in folder.glob("*/*.journal") for line in _read(path)[1])


def process() -> Entry:
    """Which process this is: numbers are used again, so with the time when it began."""
    return {"pid": os.getpid(), "started": psutil.Process().create_time()}


def alive(writer: Entry) -> bool:
    """Whether a process, as `process` told it, still runs."""
    try:
        return bool(abs(psutil.Process(writer["pid"]).create_time() - writer["started"]) < 1)
    except psutil.Error:
        return False


def _read(path: Path) -> tuple[int, list[Entry]]:
    """Bytes up to the end of the last whole line, and those lines."""
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    return whole, [json.loads(line) for line in data[:whole].splitlines()]
