"""Finds cells that can't be measured, before anything runs."""

from __future__ import annotations

import os
import shutil
import sys

from ..cases.cells import Cell
from ..cases.outcome import Skip, Unsupported
from ..selection.choice import uncallable

CXX = "clang++" if sys.platform == "darwin" else "g++"
"""Compiler used by torch if CXX is not set."""


def cpp_compiler() -> str | None:
    """Return the path of the C++ compiler needed for compiled forms on the CPU; None if missing."""
    return shutil.which(os.environ.get("CXX", CXX))


def refusal(cell: Cell) -> str | None:
    """Return one sentence on why a cell can't be measured in general or on this machine; None if it can."""
    if why := cell.impl.refusal(cell.case):
        return why
    if cell.impl.compiled and cell.case.device == "cpu" and cpp_compiler() is None:
        return f"compiled forms on the CPU need a C++ compiler, and {os.environ.get('CXX', CXX)} isn't there"
    return None


def skip_of(cell: Cell) -> Skip | None:
    """Return why a cell has no row; None if it can be tried. A signature that doesn't fit is an error."""
    if why := refusal(cell):
        return Unsupported(why)
    return Skip(why) if (why := uncallable(cell)) else None
