"""`--save-traces`: saves a profiler trace of one call of every measured cell, for TensorBoard and Perfetto."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable

from ..cases.accounting import accounted
from ..cases.cells import Cell
from ..cases.outcome import Skip
from .rows import Row
from .run import Run

FOLDER = "traces"
"""Folder beside the machines' folders of run files."""

FILE = "call.pt.trace.json.gz"
"""Ending by which TensorBoard's plugin recognises traces; it shows the preceding part as name, and the folder as run.
"""

MOST_OPERATORS = 10_000
"""Operators of one call above which no trace is taken: each takes about a kilobyte to write and to read."""

LONGEST_NAME = 200


def save_trace(run: Run, cell: Cell, write: Callable[..., object]) -> Row:
    """Trace one more call of a cell by `write(path=...)`; returns the row's column with the trace's path. Raises `Skip` if
    there is no trace.

    The folder is named like the journal: unique per run, and reused by resumed runs.
    """
    if run.found[cell.key].columns["operators"] > MOST_OPERATORS:
        raise Skip(f"more than {MOST_OPERATORS:,} operators a call")
    assert run.journal, "only a run that is saved has traces"
    names = map(on_disk, (run.journal.path.stem, cell.case.id, cell.impl.name))
    path, results = "/".join((FOLDER, *names, FILE)), run.folder.parent
    with accounted("traces"):
        write(path=str(results / path))
    return {"trace": path}


def on_disk(name: str) -> str:
    """Return a folder's name for a name; different names have different folders.

    >>> on_disk("fused+compile"), on_disk("a/b")
    ('fused+compile', 'a_b~07f4401c')
    """
    if re.fullmatch(r"\w[\w.+=-]*", name, re.ASCII) and len(name) <= LONGEST_NAME:
        return name
    plain = re.sub(r"[^\w+=-]", "_", name, flags=re.ASCII)[:LONGEST_NAME]
    return f"{plain}~{zlib.crc32(name.encode('utf-8', 'backslashreplace')):08x}"
