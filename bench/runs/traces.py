"""`--save-traces`: a profiler trace of one call of every measured cell, for TensorBoard and Perfetto."""

from __future__ import annotations

from urllib.parse import quote

from ..cases.cells import Cell
from .run import Run

FOLDER = "traces"
"""Folder beside the machines' folders of run files."""

ENDING = ".pt.trace.json.gz"
"""Ending by which TensorBoard's plugin recognises traces; it shows the preceding part as name, and the folder as run."""

MOST_OPERATORS = 10_000
"""Operators of one call above which no trace is taken: each takes about a kilobyte to write and to read."""


def trace_path(run: Run, cell: Cell) -> str:
    """Return the path of a cell's trace below the folder of results. The run's folder is named like its journal: unique, and
    reused by resumed runs.
    """
    assert run.journal, "only a run that is saved has traces"
    names = run.journal.path.stem, cell.case.id, cell.impl.name
    return "/".join((FOLDER, *(quote(name, safe="+=") for name in names))) + ENDING
