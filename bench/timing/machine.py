"""The machine: what is stable and decides speed (the fingerprint), and what moves (the state)."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import torch

from .devices.nvml import readings, words

ALLOCATOR = ("LD_PRELOAD", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Settings of the memory allocator, besides glibc's MALLOC_*."""

CGROUP = Path("/sys/fs/cgroup")
"""Where a container's own limit stands."""

ENVIRONMENT = ("OMP_", "MKL_", "KMP_", "GOMP_", "TORCH", "PYTORCH_", "CUDA_", "CUBLAS_", "MALLOC_")


def fingerprint() -> dict[str, Any]:
    """What must match for two runs to be compared. Nothing in it drifts from one run to the next."""
    return {
        "cpu": _cpu_model(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "driver": _driver(),
        "cores": len(psutil.Process().cpu_affinity())
        if hasattr(psutil.Process, "cpu_affinity")
        else psutil.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "torch": torch.__version__,
        "torch_build": (torch.version.git_version or "unknown")[:10],
        "python": platform.python_version(),
        "allocator": {name: os.environ[name] for name in sorted(os.environ) if _is_allocator(name)},
    }


def state() -> dict[str, Any]:
    """What moves: recorded with a run, and shown when it differs."""
    memory = psutil.virtual_memory()
    frequency = psutil.cpu_freq() if hasattr(psutil, "cpu_freq") else None
    return {
        "load": list(os.getloadavg()),
        "cpu_mhz": frequency.current if frequency else None,
        "free_bytes": memory.available,
        "gpus": [asdict(gpu) | {"reasons": words(gpu.reasons)} for gpu in readings()],
        "system": f"{platform.system()} {platform.release()}",
        "environment": {name: os.environ[name] for name in sorted(os.environ) if _decides_speed(name)},
    }


def free_bytes(device: str) -> int:
    """Memory that is left for a cell: of the device, or of the machine or the container that this process is in."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    free = [psutil.virtual_memory().available]
    limit, used = (CGROUP / name for name in ("memory.max", "memory.current"))
    if limit.exists() and (most := limit.read_text().strip()) != "max":
        free.append(int(most) - int(used.read_text()) + _reclaimable())
    return max(0, min(free))


def _reclaimable() -> int:
    """Bytes of files that the kernel keeps cached, counts as used by the container, and gives back when they are wanted."""
    stat = CGROUP / "memory.stat"
    lines = stat.read_text().splitlines() if stat.exists() else []
    return next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)


def _decides_speed(name: str) -> bool:
    return name.startswith(ENVIRONMENT) and not name.endswith(("_DIR", "_PATH", "_HOME"))  # folders don't


def _is_allocator(name: str) -> bool:
    return name in ALLOCATOR or name.startswith("MALLOC_")


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _driver() -> str | None:
    """The NVIDIA driver's version; None without a GPU."""
    if not torch.cuda.is_available():
        return None
    import pynvml

    pynvml.nvmlInit()
    return str(pynvml.nvmlSystemGetDriverVersion())
