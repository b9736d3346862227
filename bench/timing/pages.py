"""Measures page faults of memory that glibc's malloc maps anew at each call, and call times when it keeps its pages.

glibc maps blocks above a threshold separately and unmaps them when freed; the next call faults on each of their pages
again. The threshold depends on earlier frees, so that other cells of a process would affect a call's time: workers fix
it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
"""Parameters of mallopt(3)."""

SYSTEM = {MMAP_THRESHOLD: 32 << 20, TRIM_THRESHOLD: 64 << 20, MMAP_MAX: 65536}
"""Largest value that glibc's dynamic threshold reaches, and the memory that it then keeps at the top of the heap."""

KEPT = {MMAP_MAX: 0, TRIM_THRESHOLD: -1}
"""No block is mapped separately, and no memory is returned."""

VARIABLES = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")
"""Environment variables for these parameters in a new process."""

ALLOCATOR = ("LD_PRELOAD", "GLIBC_TUNABLES", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Settings of the memory allocator, besides glibc's MALLOC_*."""

CALLS = 3
"""Timed calls after one that grows the heap; later ones may grow it too, since aligned blocks leave gaps."""

FAULT_SECONDS, LARGE_PART = 1e-6, 0.05
"""Approximate seconds of a page fault; share of a call in page faults above which `kept_pages_s` is measured."""


def chosen() -> dict[str, str]:
    """Return the environment variables that select an allocator or control glibc's page caching."""
    libraries = {name: os.environ.get(name, "") for name in ("LD_PRELOAD", "GLIBC_TUNABLES")}
    settings = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    return settings | {name: value for name, value in libraries.items() if "malloc" in value}


def allocator_settings() -> dict[str, str]:
    """Return the environment variables that select a memory allocator and its caching."""
    return {name: os.environ[name] for name in sorted(os.environ) if name in ALLOCATOR or name.startswith("MALLOC_")}


def fix_threshold() -> None:
    """Fix the mmap threshold of this process at that of `SYSTEM`, unless the environment sets it."""
    if (libc := _libc()) is not None:
        _set(libc, SYSTEM)


def faulting(faults: float, seconds: float) -> bool:
    """Whether page faults may take a large share of a call. `faults`: number per call; `seconds`: of a call."""
    return faults * FAULT_SECONDS >= LARGE_PART * seconds


def kept_pages_s(seconds: Callable[[], float]) -> float | None:
    """Return the seconds of the fastest of several calls while glibc keeps its pages; None with another allocator or
    other settings.

    `seconds` makes a call and returns its duration.
    """
    libc = _libc()
    if libc is None:
        return None
    _set(libc, KEPT)
    try:
        seconds()
        return min(seconds() for _ in range(CALLS))
    finally:
        _set(libc, SYSTEM)
        libc.malloc_trim(0)


def has_glibc() -> bool:
    return hasattr(ctypes.CDLL(None), "gnu_get_libc_version")


def _libc() -> ctypes.CDLL | None:
    """Return glibc if its malloc is in use and the environment sets none of its parameters."""
    return ctypes.CDLL(None) if has_glibc() and not chosen() else None


def _set(libc: ctypes.CDLL, parameters: Mapping[int, int]) -> None:
    for parameter, value in parameters.items():
        libc.mallopt(parameter, value)
