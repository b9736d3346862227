"""Pages that glibc's malloc maps anew at each call, and what a call takes when it keeps them.

glibc maps a block above a threshold by itself and unmaps it when it is freed; the next call faults on each of its pages again.
The threshold moves with what was freed before, so that other cells of a process would decide a call's time: workers fix it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
"""Parameters of mallopt(3)."""

SYSTEM = {MMAP_THRESHOLD: 32 << 20, TRIM_THRESHOLD: 64 << 20, MMAP_MAX: 65536}
"""The largest threshold that glibc's moving one reaches, and what it then keeps at the top of the heap."""

KEPT = {MMAP_MAX: 0, TRIM_THRESHOLD: -1}
"""No block is mapped by itself, and nothing is given back."""

VARIABLES = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")
"""The same for a process that starts."""

CALLS = 3
"""Timed ones, behind one that grows the heap; later ones may grow it as well, as aligned blocks leave gaps."""

FAULT_SECONDS, LARGE_PART = 1e-6, 0.05
"""Of one page fault, about; and the part of a call that its faults take from which `kept_pages_s` is measured."""


def chosen() -> dict[str, str]:
    """Environment variables that choose an allocator or say when glibc's keeps pages."""
    libraries = {name: os.environ.get(name, "") for name in ("LD_PRELOAD", "GLIBC_TUNABLES")}
    settings = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    return settings | {name: value for name, value in libraries.items() if "malloc" in value}


def fix_threshold() -> None:
    """Fix the mmap threshold of this process at that of `SYSTEM`, where the environment leaves it to glibc."""
    if (libc := _libc()) is not None:
        _set(libc, SYSTEM)


def faulting(faults: float, seconds: float) -> bool:
    """Whether page faults may take a large part of a call. `faults`: of a call; `seconds`: that it takes."""
    return faults * FAULT_SECONDS >= LARGE_PART * seconds


def kept_pages_s(seconds: Callable[[], float]) -> float | None:
    """Seconds of the fastest of a few calls while glibc keeps its pages; None with another allocator, or settings of its own.

    `seconds` makes a call and gives what it took.
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
    """glibc, where its malloc is in use and the environment sets nothing of it."""
    return ctypes.CDLL(None) if has_glibc() and not chosen() else None


def _set(libc: ctypes.CDLL, parameters: Mapping[int, int]) -> None:
    for parameter, value in parameters.items():
        libc.mallopt(parameter, value)
