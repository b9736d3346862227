"""Cells that can't be measured, as far as that is known before anything runs."""

from __future__ import annotations

import os
import shutil
import sys

from ..cases.cells import Cell
from ..cases.outcome import Skip, Unsupported
from ..selection.choice import uncallable

CXX = "clang++" if sys.platform == "darwin" else "g++"
"""What torch's compiler calls where CXX doesn't name another."""


def cpp_compiler() -> str | None:
    """Where the C++ compiler is that compiled forms need on the CPU; None without one."""
    return shutil.which(os.environ.get("CXX", CXX))


def refusal(cell: Cell) -> str | None:
    """Why a cell can't be measured, in one sentence: its implementation can't, or can't here. None when it can."""
    if why := cell.impl.refusal(cell.case):
        return why
    if cell.impl.compiled and cell.case.device == "cpu" and cpp_compiler() is None:
        return f"compiled forms on the CPU need a C++ compiler, and {os.environ.get('CXX', CXX)} isn't there"
    return None


def skip_of(cell: Cell) -> Skip | None:
    """Why a cell has no row; None where it can be tried. A signature that doesn't fit is an error."""
    if why := refusal(cell):
        return Unsupported(why)
    return Skip(why) if (why := uncallable(cell)) else None
