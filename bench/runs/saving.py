"""Files of runs: finds, reads, numbers and writes run files, safely even if two runs end at the same time; the journal of
a run stores each result on disk at once, so that a killed run can be resumed.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from .. import CHECKOUT
from ..selection.errors import UsageError

Object = dict[str, Any]
"""An object of JSON."""

LONGEST = 200
"""Most bytes of a run's name; the names of its files are a few bytes longer, and may have 255."""

REFUSED = "\\/:*?<>|"
"""Characters that pytest-benchmark refuses in names."""


def valid_name(name: str, option: str) -> str:
    """Return a run's name as it may occur in file names; raises `UsageError` for others."""
    if not name.strip(".") or not name.isprintable() or {*name} & {*REFUSED} or len(os.fsencode(name)) > LONGEST:
        right = f"a run's name has at most {LONGEST} bytes, all of them printed, none of {REFUSED}, and not only dots"
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


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Make an OSError name the file that is written, as one of a full disk doesn't."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def save(folder: Path, name: str, data: Object, indent: int | None = 4) -> Path:
    """Write a run file under the next number, all or nothing; raises OSError. The file of a complete run replaces those
    written when the run was interrupted.
    """
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed, also by the end of the process
        journal = data.get("complete") and data.get("journal")
        earlier = [path for path in run_files(folder, name) if journal and load(path).get("journal") == journal]
        numbers = [int(path.name.partition("_")[0]) for path in run_files(folder) if path not in earlier]
        path = folder / f"{max(numbers, default=0) + 1:04}_{name}.json"
        whole = path.with_suffix(".tmp")
        try:
            text = json.dumps(data, indent=indent, ensure_ascii=False)
            with naming(whole):
                whole.write_text(text, encoding="utf-8", errors="replace")  # a folder's name may be no UTF-8
            whole.replace(path)
        finally:
            whole.unlink(missing_ok=True)  # on a full disk
        for file in earlier:
            if file != path:
                file.unlink()
        return path


def run_files(folder: Path, name: str = "") -> list[Path]:
    """Return the run files, or those of a name, oldest first."""
    right = re.compile(rf"(\d{{4,}})_{re.escape(name) or '.+'}\.json")
    found = {path: int(match[1]) for path in folder.glob("*.json") if (match := right.fullmatch(path.name))}
    return sorted(found, key=lambda path: (found[path], path))


def load(path: Path) -> Object:
    """Return a run file's contents; empty if it can't be read."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


class Journal:
    """File of one JSON object per line beside the run file: a header, followed by results (`Run._take`); locked by its
    process.
    """

    def __init__(self, path: Path):
        """Open a journal, new or left by a killed process; raises `UsageError` while another process has it open. What
        follows the last complete line is cut off when the next line is written.
        """
        self.path, self._file = path, path.open("ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until it is closed, also by the end of the process
        except BlockingIOError:
            raise UsageError(f"{_name(path)} is being measured right now, by another process") from None
        except OSError as error:
            raise UsageError(f"{path} can't be locked: {error.strerror}") from None
        self._whole, lines = _read(path)
        match lines or [{"header": {}}]:
            case [{"header": dict(header)}, *results]:
                self.header: Object = header
                self.lines: list[Object] = results
                """Results of this process and of earlier ones."""
            case _:
                raise UsageError(f"{path} is no journal: its first line has no header; move it elsewhere")

    @classmethod
    def start(cls, folder: Path, name: str, header: Object) -> Journal:
        """Create a journal; raises `UsageError` if it can't be written."""
        stamp = datetime.now().strftime("%Y%m%dT%H%M%S%f")
        journal = cls(writable(folder) / f"{name}.{stamp}-{os.getpid()}.journal")
        journal.header = header
        try:
            journal._write({"header": header})
        except OSError as error:
            journal.delete()
            raise unwritable(folder, error) from None
        return journal

    def add(self, line: Object) -> None:
        """Write a result and wait until it is on disk."""
        with naming(self.path):
            self._write(line)
        self.lines.append(line)

    def _write(self, line: Object) -> None:
        text = json.dumps(line, allow_nan=False).encode() + b"\n"
        self._file.truncate(self._whole)
        self._file.write(text)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._whole += len(text)

    def close(self) -> None:
        with suppress(OSError):  # on a full disk: the lost line was reported when it was added
            self._file.close()

    def delete(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)


def _name(path: Path) -> str:
    """Return the run's name: `x` of `x.20260101T000000-1.journal`."""
    return path.name.rsplit(".", 2)[0]


def newest_journal(folder: Path, name: str) -> Path | None:
    """Return the newest journal of a run that has a header; None if there is none."""
    begun = [path for path in folder.glob("*.journal") if _name(path) == name and _read(path)[1]]
    return max(begun, key=lambda path: path.stat().st_mtime, default=None)


def _read(path: Path) -> tuple[int, list[Object]]:
    """Return the lines before the first incomplete one, and their bytes."""
    whole, lines = 0, []
    with suppress(ValueError):
        for text in path.read_bytes().split(b"\n")[:-1]:
            lines.append(json.loads(text))
            whole += len(text) + 1
    return whole, lines
