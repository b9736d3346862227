"""Host: its processor, and its free memory."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch

CGROUP = Path("/sys/fs/cgroup")
"""Folder of a container's own limits."""


def identity() -> dict[str, Any]:
    return {"cpu": _model(), "cpu_capability": torch.backends.cpu.get_cpu_capability()}


def free_bytes() -> int:
    """Return the free bytes of the machine, or of this process's container."""
    free = [psutil.virtual_memory().available]
    limit, used = (CGROUP / name for name in ("memory.max", "memory.current"))
    if limit.exists() and (most := limit.read_text().strip()) != "max":
        free.append(int(most) - int(used.read_text()) + _reclaimable())
    return max(0, min(free))


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Use a number of intra-op threads within the block; None for as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _reclaimable() -> int:
    """Return the bytes of cached files, which count as used by the container and are reclaimed on demand."""
    stat = CGROUP / "memory.stat"
    lines = stat.read_text().splitlines() if stat.exists() else []
    return next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)


def _model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
