"""Baseline of a machine: the run with which later ones are compared, and its predecessors, with reasons.

The file lies in the machine's results folder, beside its runs, and changes only by `python -m reports baseline set`. It
contains JSON without the ending `.json`, since pytest-benchmark treats every `*.json` as a run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from . import command
from .runs import RunError

NAME = "baseline"
SCHEMA = 1
HOW_TO_SET_ONE = "set one with: python -m reports baseline set RUN"


@dataclass(frozen=True)
class Entry:
    """A run that became the baseline: its file's name, when (ISO 8601, UTC), and what was accepted and why."""

    run: str
    at: str
    accepted: Sequence[str] = ()
    """Accepted objections: regressed cells, an incomplete run, another machine."""
    reason: str | None = None


@dataclass(frozen=True)
class Baseline:
    """All baselines of one results folder, oldest first; the last one is current."""

    folder: Path
    history: tuple[Entry, ...]

    @property
    def current(self) -> Entry:
        return self.history[-1]

    @property
    def path(self) -> Path:
        """Path of the current baseline's run file."""
        return self.folder / self.current.run


def read(folder: Path) -> Baseline | None:
    """Read the baseline of a machine's results folder; None before the first was set.

    Raises:
        RunError: the file exists but is no baseline file.
    """
    path = folder / NAME
    if not path.exists():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        history = tuple(Entry(**entry) for entry in data["history"])
        whole = all(isinstance(it.run, str) and isinstance(it.accepted, list | tuple) for it in history)
        if data["schema"] != SCHEMA or not history or not whole:
            raise ValueError
    except (ValueError, KeyError, TypeError, OSError):
        raise RunError(f"{path}: not a baseline file of this suite; delete it and {HOW_TO_SET_ONE}") from None
    return Baseline(folder, history)


def write(baseline: Baseline) -> Path:
    """Write the file, all or nothing.

    Raises:
        OSError: the folder can't be written to.
    """
    path = baseline.folder / NAME
    history = [asdict(entry) for entry in baseline.history]
    data = {"schema": SCHEMA, "history": history}
    unfinished = path.with_suffix(".unfinished")
    command.write(unfinished, json.dumps(data, indent=2, ensure_ascii=False) + "\n")
    os.replace(unfinished, path)
    return path
