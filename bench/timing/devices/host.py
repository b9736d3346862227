"""Host: its processor, and its free memory."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import Any

import psutil
import torch

CGROUP = Path("/sys/fs/cgroup")
"""Folder of a container's own limits."""


def identity() -> dict[str, Any]:
    model = found_in(Path("/proc/cpuinfo"), r"^model name\s*: (.*\S)") or platform.processor() or platform.machine()
    return {"cpu": model, "cpu_capability": torch.backends.cpu.get_cpu_capability()}


def total_bytes() -> int:
    """Return the bytes of memory of the machine, or of this process's container."""
    limit = found_in(CGROUP / "memory.max", r"(\d+)")  # else `max`
    machine: int = psutil.virtual_memory().total
    return min(machine, int(limit or machine))


def free_bytes() -> int:
    """Return the free bytes of the machine, or of this process's container."""
    total, machine = total_bytes(), psutil.virtual_memory()
    if total == machine.total:
        return int(machine.available)
    used = found_in(CGROUP / "memory.current", r"(\d+)") or 0
    cached = found_in(CGROUP / "memory.stat", r"^inactive_file (\d+)") or 0  # counts as used, and is freed on demand
    return max(0, min(machine.available, total - int(used) + int(cached)))


def found_in(path: Path, pattern: str) -> str | None:
    """Return what the group of a pattern matches first in a file; None without the file, or a match."""
    found = re.search(pattern, path.read_text(), re.MULTILINE) if path.exists() else None
    return found[1] if found else None
