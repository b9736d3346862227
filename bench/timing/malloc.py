"""Page faults of memory that glibc's malloc maps anew at each call, and call times with and without them.

With its own settings glibc maps blocks above a threshold separately and unmaps them when freed; the next call faults on
each of their pages again. The threshold depends on earlier frees, so that other cells of a process would affect a
call's time: workers pin it. They check with glibc's settings, since kept pages would count as memory, and time with those
that the environment chooses: by default pages are kept, and the time without kept pages is measured, too.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext

LIBC = ctypes.CDLL(None)

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD, MMAP_MAX = -1, -2, -3, -4
"""Parameters of mallopt(3)."""

MAPPED = 32 << 20
"""Bytes of a block from which on glibc maps it separately: the largest value that its dynamic threshold reaches."""

SYSTEM = {MMAP_THRESHOLD: MAPPED, TRIM_THRESHOLD: 2 * MAPPED, TOP_PAD: 128 << 10, MMAP_MAX: 65536}
"""glibc's own settings with that threshold, and the memory that it then keeps at the top of the heap."""

KEPT = {MMAP_MAX: 0, TRIM_THRESHOLD: -1, TOP_PAD: 1 << 28}
"""No block is mapped separately, and no memory is returned."""

KEEP: Mapping[str, str] = {
    # Measured: with mmap disabled no page faults remain from 30 MB on; with MALLOC_MMAP_THRESHOLD_ some do.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_TOP_PAD_": str(1 << 28),
}
"""`KEPT` as environment variables of a new process."""

HUGE_PAGES: Mapping[str, str] = {"THP_MEM_ALLOC_ENABLE": "1"}
"""Has torch align blocks of 2 MiB or more to pages, and ask Linux for huge pages; another value is the same as none."""

ALLOCATOR = ("LD_PRELOAD", "GLIBC_TUNABLES", *HUGE_PAGES, "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Settings of the memory allocator, besides glibc's MALLOC_*."""

CHOOSES = re.compile(r"MALLOC_(MMAP|TRIM|TOP)_|GLIBC_TUNABLES=.*malloc\.(mmap|trim|top)_|LD_PRELOAD=.*malloc")
"""NAME=VALUE of the settings that select an allocator, or what glibc's maps, keeps and returns."""

CALLS, WITHIN = 3, 0.5
"""Most timed calls under the other setting, and the seconds after which no more are made."""


def chosen(settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the settings, by default of the environment, that select an allocator or control glibc's page caching."""
    there = allocator_settings() if settings is None else settings
    return {name: value for name, value in there.items() if CHOOSES.match(f"{name}={value}")}


def allocator_settings() -> dict[str, str]:
    """Return the environment variables that select a memory allocator and its caching."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if (name in ALLOCATOR or name.startswith("MALLOC_")) and HUGE_PAGES.get(name, value) == value
    }


@contextmanager
def using(parameters: Mapping[int, int]) -> Iterator[None]:
    """Give malloc these settings, `SYSTEM` or `KEPT`, within the block, unless the environment chooses others."""
    if _parameters():
        _set(parameters)
    try:
        yield
    finally:
        use_chosen()


def use_chosen() -> None:
    """Give malloc the settings that the environment chooses."""
    _set(_parameters())


def time_other_setting(seconds: Callable[[], float], checked: float = 0.0) -> dict[str, float]:
    """Time calls under the other setting of malloc, and return the seconds of the fastest: {"fresh_pages_s"} if this
    process keeps its pages, {"kept_pages_s"} if it has glibc's own settings, {} with another allocator or others.

    `seconds` makes a call and returns its duration. With glibc's settings the call in the check counts, if it took
    `checked` seconds alone.
    """
    if not _parameters():
        return {}
    fresh = keeps_pages()
    name, other, heap = ("fresh_pages_s", SYSTEM, _filled) if fresh else ("kept_pages_s", KEPT, nullcontext)
    taken = [checked] if fresh and checked else []
    if sum(taken) < WITHIN:
        release()
        with using(other), heap():
            if not fresh:
                seconds()  # grows the heap; later calls may grow it too, since aligned blocks leave gaps
            while len(taken) < CALLS and sum(taken) < WITHIN:
                taken.append(seconds())
        release()
    return {name: min(taken)}


@contextmanager
def _filled() -> Iterator[None]:
    """Occupy the heap's large free blocks, which malloc would use instead of mapping new ones."""
    LIBC.malloc.restype = LIBC.sbrk.restype = ctypes.c_void_p
    LIBC.free.argtypes = (ctypes.c_void_p,)
    held = [LIBC.malloc(MAPPED)]
    while held[-1] and held[-1] < LIBC.sbrk(0):
        held.append(LIBC.malloc(MAPPED))
    try:
        yield
    finally:
        for block in held:
            LIBC.free(block)


def _parameters() -> Mapping[int, int]:
    """Return the settings that the environment chooses, `SYSTEM` or `KEPT`; {} for others and without glibc."""
    there = chosen() if has_glibc() else None
    return SYSTEM if there == {} else KEPT if there == KEEP else {}


def keeps_pages() -> bool:
    """Whether this process has glibc's malloc, which returns no pages."""
    return _parameters() is KEPT


def release() -> None:
    """Return the free memory of this process to the system, which glibc alone can."""
    if has_glibc():
        LIBC.malloc_trim(0)


def has_glibc() -> bool:
    return hasattr(LIBC, "gnu_get_libc_version")


def _set(parameters: Mapping[int, int]) -> None:
    for parameter, value in parameters.items():
        LIBC.mallopt(parameter, value)
