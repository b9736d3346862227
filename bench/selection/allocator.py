"""`--allocator`: selects the memory allocator of worker processes by environment variables set before they start."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from ..cases.cells import Cell
from ..cases.counting import least_memory
from ..timing.devices.cpu import total_bytes
from ..timing.malloc import KEEP, allocator_settings, chosen, has_glibc
from .errors import UsageError

TIMES = 8
"""Multiple of a cell's least memory that the machine, or its container, must have for pages to be kept by default: a call's
freed blocks stay resident, and leave gaps that its next ones don't fit into.
"""

ALLOCATORS = ("system", "keep")


def choose(name: str | None, cells: Sequence[Cell] = (), begun: Mapping[str, str] | None = None) -> None:
    """Set the environment that worker processes inherit; raises `UsageError`.

    `name`: one of `ALLOCATORS`; None leaves the choice to the environment, else to the settings with which the resumed
    run was `begun`, else it is `keep` where glibc is and memory is ample for all `cells`.
    """
    there = chosen()
    if name is None:
        if not there:
            os.environ.update(begun if begun is not None else _usual(cells))
        return
    if name == "keep" and not has_glibc():
        raise UsageError("--allocator keep: only glibc has these settings; leave it out here")
    wanted = KEEP if name == "keep" else {}
    if there and there != wanted:
        listed = " ".join(f"{variable}={value}" for variable, value in there.items())
        raise UsageError(
            f"--allocator {name}: the environment chooses already ({listed}): unset them, or leave out --allocator"
        )
    os.environ.update(wanted)
    if begun is not None and begun != allocator_settings():
        raise UsageError(
            f"--allocator {name}: the run was started with another one; leave out --allocator to keep that"
        )


def _usual(cells: Sequence[Cell]) -> Mapping[str, str]:
    largest = max((least_memory(cell.impl, cell.case) for cell in cells), default=0)
    return KEEP if has_glibc() and TIMES * largest <= total_bytes() else {}
