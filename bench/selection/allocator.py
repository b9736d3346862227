"""`--allocator`: selects the memory allocator of worker processes by environment variables set before they start."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from ctypes.util import find_library

from ..cases.cells import Cell
from ..timing.devices.cpu import total_bytes
from ..timing.malloc import KEEP, chosen, has_glibc
from .errors import UsageError

LIBRARIES = {"tcmalloc": ("tcmalloc_minimal", "tcmalloc"), "jemalloc": ("jemalloc",)}
"""Libraries to preload, of which the first installed one is used."""

TIMES = 8
"""Multiple of a cell's least memory on the CPU that the machine, or its container, must have for pages to be kept by default:
a call's freed blocks stay resident, and leave gaps that its next ones don't fit into.
"""

ALLOCATORS = ("system", "keep", *LIBRARIES)


def choose(name: str | None, cells: Sequence[Cell] = (), begun: Mapping[str, str] | None = None) -> None:
    """Set the environment that worker processes inherit; raises `UsageError`.

    `name`: one of `ALLOCATORS`. None: what the environment chooses; if it chooses nothing, the settings with which a
    resumed run was `begun`, and in a new run `keep`, with glibc and ample memory for all `cells`.
    """
    there = chosen()
    if name is None:
        if not there:
            os.environ.update(begun if begun is not None else _usual(cells))
        return
    wanted = _settings(name)
    if there and there != wanted:
        listed = " ".join(f"{variable}={value}" for variable, value in there.items())
        raise UsageError(
            f"--allocator {name}: the environment chooses already ({listed}): unset them, or leave out --allocator"
        )
    os.environ.update(wanted)
    if begun is not None and chosen(begun) != chosen():
        raise UsageError(
            f"--allocator {name}: the run was started with another one; leave out --allocator to keep that"
        )


def _usual(cells: Sequence[Cell]) -> Mapping[str, str]:
    sizes = (cell.least_memory for cell in cells if cell.case.device == "cpu")
    largest = max(sizes, default=0)
    return KEEP if has_glibc() and TIMES * largest <= total_bytes() else {}


def _settings(name: str) -> dict[str, str]:
    """Return the environment variables of an allocator; raises `UsageError` if this machine lacks it."""
    if name == "system":
        return {}
    if name == "keep":
        if not has_glibc():
            raise UsageError("--allocator keep: only glibc has these settings; leave it out here")
        return dict(KEEP)
    library = next(filter(None, map(find_library, LIBRARIES[name])), None) if sys.platform == "linux" else None
    if library is None:
        raise UsageError(f"--allocator {name}: no lib{name}.so is found here; install it, or use --allocator keep")
    return {"LD_PRELOAD": " ".join(filter(None, (library, os.environ.get("LD_PRELOAD"))))}
