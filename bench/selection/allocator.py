"""`--allocator`: selects the memory allocator of worker processes by environment variables set before they start."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from ctypes.util import find_library

from ..cases.axes import nearest
from ..timing.pages import allocator_settings, chosen, has_glibc
from .errors import UsageError

KEEP: Mapping[str, str] = {
    # Measured: with mmap disabled no page faults remain from 30 MB on; with MALLOC_MMAP_THRESHOLD_ some do.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_TOP_PAD_": str(1 << 28),
}
"""Settings with which glibc's allocator returns no memory to the system."""

LIBRARIES = {"tcmalloc": ("tcmalloc_minimal", "tcmalloc"), "jemalloc": ("jemalloc",)}
"""Libraries to preload, of which the first installed one is used."""

ALLOCATORS = ("system", "keep", *LIBRARIES)


def choose(name: str | None, begun: Mapping[str, str] | None = None) -> None:
    """Set the environment that worker processes inherit; raises `UsageError`.

    `name`: one of `ALLOCATORS`; None leaves the choice to the environment, else to the settings with which the resumed
    run was `begun`.
    """
    there = chosen()
    if name is None:
        if begun and not there:
            os.environ.update(begun)
        return
    wanted = _settings(name)
    if there and there != wanted:
        listed = " ".join(f"{variable}={value}" for variable, value in there.items())
        raise UsageError(
            f"--allocator {name}: the environment chooses already ({listed}): unset that, or leave --allocator out"
        )
    os.environ.update(wanted)
    if begun is not None and begun != allocator_settings():
        raise UsageError(
            f"--allocator {name}: the run was begun with another one; leave --allocator out to go on with that"
        )


def _settings(name: str) -> dict[str, str]:
    """Return the environment variables of an allocator; raises `UsageError` if this machine lacks it."""
    if name not in ALLOCATORS:
        raise UsageError(f"--allocator {name}: known are {', '.join(ALLOCATORS)}{nearest(name, ALLOCATORS)}")
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
