"""Memory as the operating system counts it: sees threads, NumPy and private buffers, which torch's allocator does not."""

from __future__ import annotations

import ctypes
import gc
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..pages import chosen

FLOOR = 2 << 20
"""Bytes below which growth can't be told from that of the process itself: it is given as 0."""

PROCESS = Path("/proc/self")


def peak_rss(call: Callable[[], Any], process: Path = PROCESS) -> tuple[int | None, Any]:
    """Growth of the process's high-water mark over one call, its answer included; 0 below `FLOOR`. With it the answer.

    None where the mark can't be set back (anywhere but on Linux, and in some containers). Pages that malloc keeps for later
    would hide what a call takes again: they are handed back first, where the C library can. It can't hand back the last free
    block of another thread's arena: what a thread takes in blocks below 32 MiB is seen the first time alone.
    """
    if "LD_PRELOAD" in chosen():
        return None, call()  # what another allocator keeps can't be handed back here
    gc.collect()
    _trim()
    before = _set_back(process)
    answer = call()
    if before is None:
        return None, answer
    grown = _in_bytes(process, "VmHWM") - before
    return (grown if grown >= FLOOR else 0), answer


def _set_back(process: Path) -> int | None:
    """Set the high-water mark to what is resident now, and give that; None where it stays as it was."""
    try:
        (process / "clear_refs").write_text("5")
        resident, highest = (_in_bytes(process, name) for name in ("VmRSS", "VmHWM"))
    except (OSError, ValueError):
        return None
    return highest if highest - resident < FLOOR else None


def _in_bytes(process: Path, name: str) -> int:
    """A line of `status`; raises ValueError where it isn't there."""
    found = re.search(rf"^{name}:\s*(\d+) kB$", (process / "status").read_text(), re.MULTILINE)
    if found is None:
        raise ValueError(f"no {name} in {process / 'status'}")
    return int(found[1]) << 10


def _trim() -> None:
    """Only glibc has it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
