"""`--save-traces`: saves a profiler trace of one call of every measured cell, for TensorBoard and Perfetto."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ..cases.accounting import accounted
from ..cases.cells import Cell
from ..cases.outcome import Skip

if TYPE_CHECKING:
    from .run import Run

FOLDER = "traces"
"""Folder beside the machines' folders of run files."""

FILE = "call.pt.trace.json.gz"
"""Ending by which TensorBoard's plugin recognises traces; it shows the preceding part as name, and the folder as run.
"""

MOST_OPERATORS = 10_000
"""Operators of one call above which no trace is taken: each takes about a kilobyte to write and to read."""

LONGEST_NAME = 200


class Traces:
    """Takes the traces of a run, and finally reports the cells without one."""

    def __init__(self, run: Run):
        self.run = run
        self.saved = 0
        self.without: dict[str, list[Cell]] = {}
        """Cells without a trace, by reason."""

    def save(self, cell: Cell, operators: int, write: Callable[..., dict[str, Any]]) -> dict[str, str]:
        """Trace one more call of a cell with this number of operators; returns the row's column with the trace's path,
        or none.

        `write(path=...)` writes the trace. The row is already measured, so that a failure here loses only the trace.
        """
        if operators > MOST_OPERATORS:
            self.without.setdefault(f"more than {MOST_OPERATORS:,} operators a call", []).append(cell)
            return {}
        path = self.folder / on_disk(cell.case.id) / on_disk(cell.impl.name) / FILE
        try:
            with accounted("traces"):
                write(path=str(path))
        except Skip as error:
            self.without.setdefault(str(error), []).append(cell)
            return {}
        self.saved += 1
        return {"trace": path.relative_to(self.run.folder.parent).as_posix()}

    @property
    def folder(self) -> Path:
        """Folder of traces, named like the journal: unique per run, and reused by resumed runs."""
        assert self.run.journal, "only a run that is saved has traces"
        return self.run.folder.parent / FOLDER / on_disk(self.run.journal.path.stem)

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for why, cells in self.without.items():
            names = dict.fromkeys(cell.impl.name for cell in cells)
            terminalreporter.write_line(f"no trace of {len(cells)} cells ({', '.join(names)}): {why}")
        if self.saved:
            terminalreporter.write_line(f"traces: {self.saved}, for `tensorboard --logdir {self.folder}`")


def on_disk(name: str) -> str:
    """Return a folder's name for a name; different names have different folders.

    >>> on_disk("fused+compile"), on_disk("a/b")
    ('fused+compile', 'a_b~07f4401c')
    """
    if re.fullmatch(r"\w[\w.+=-]*", name, re.ASCII) and len(name) <= LONGEST_NAME:
        return name
    plain = re.sub(r"[^\w+=-]", "_", name, flags=re.ASCII)[:LONGEST_NAME]
    return f"{plain}~{zlib.crc32(name.encode('utf-8', 'backslashreplace')):08x}"
