"""Memory as counted by the operating system, including threads, NumPy and private buffers unknown to torch."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..pages import chosen, release

FLOOR = 2 << 20
"""Bytes below which growth can't be distinguished from the process's own: reported as 0."""

PROCESS = Path("/proc/self")


def peak_rss(call: Callable[[], Any], process: Path = PROCESS) -> tuple[int | None, Any]:
    """Return the growth of the process's high-water mark over one call, its output included, and the output; 0 below
    `FLOOR`.

    None if the mark can't be reset (anywhere but on Linux, and in some containers). Pages cached by malloc would hide
    memory that a call reuses: they are released first, if the C library can. It can't release the last free block of
    another thread's arena: blocks below 32 MiB allocated by a thread show in the first call only.
    """
    if "LD_PRELOAD" in chosen():
        return None, call()  # caches of other allocators can't be released here
    gc.collect()
    release()
    before = _set_back(process)
    answer = call()
    if before is None:
        return None, answer
    grown = _in_bytes(process, "VmHWM") - before
    return (grown if grown >= FLOOR else 0), answer


def _set_back(process: Path) -> int | None:
    """Reset the high-water mark to the current resident size, and return that; None if it did not change."""
    try:
        (process / "clear_refs").write_text("5")
        resident, highest = (_in_bytes(process, name) for name in ("VmRSS", "VmHWM"))
    except (OSError, ValueError):
        return None
    return highest if highest - resident < FLOOR else None


def _in_bytes(process: Path, name: str) -> int:
    """Return a line of `status` in bytes; raises ValueError if it is missing."""
    found = re.search(rf"^{name}:\s*(\d+) kB$", (process / "status").read_text(), re.MULTILINE)
    if found is None:
        raise ValueError(f"no {name} in {process / 'status'}")
    return int(found[1]) << 10
