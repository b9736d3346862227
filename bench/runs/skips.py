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


def skip_of(cell: Cell) -> Skip | None:
    """Return why a cell can't be measured in general or on this machine; None if it can be tried. A signature that
    doesn't fit is an error.
    """
    if why := cell.impl.refusal(cell.case):
        return Unsupported(why)
    if cell.impl.compiled and cell.case.device == "cpu" and cpp_compiler() is None:
        compiler = os.environ.get("CXX", CXX)
        return Unsupported(f"compiled forms on the CPU need a C++ compiler, and {compiler} isn't there")
    return Skip(why) if (why := uncallable(cell)) else None
