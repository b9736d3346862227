"""Describes the machine: constant facts that determine speed (fingerprint), and changing ones (state)."""

from __future__ import annotations

import mmap
import os
import platform
import resource
from dataclasses import asdict
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import psutil
import torch

from .devices import DEVICES, energy_sources
from .devices.nvml import readings, words
from .pages import allocator_settings

ENVIRONMENT = ("OMP_", "MKL_", "KMP_", "GOMP_", "TORCH", "PYTORCH_", "CUDA_", "CUBLAS_", "NVIDIA_TF32", "MALLOC_")

PAGES, MAPPINGS = 2048, 7


def fingerprint() -> dict[str, Any]:
    """Return the facts that must match for two runs to be compared; constant between runs."""
    return {
        **{fact: value for device in DEVICES.values() for fact, value in device.identity().items()},
        "cores": len(psutil.Process().cpu_affinity())
        if hasattr(psutil.Process, "cpu_affinity")
        else psutil.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "torch": torch.__version__,
        "torch_build": (torch.version.git_version or "unknown")[:10],
        "python": platform.python_version(),
        "allocator": allocator_settings(),
    }


def state() -> dict[str, Any]:
    """Return changing facts, recorded with a run and shown when they differ."""
    memory = psutil.virtual_memory()
    frequency = psutil.cpu_freq() if hasattr(psutil, "cpu_freq") else None
    return {
        "load": list(os.getloadavg()),
        "cpu_mhz": frequency.current if frequency else None,
        "free_bytes": memory.available,
        "page_fault_s": page_fault_seconds(),
        "energy": energy_sources(),
        "gpus": [asdict(gpu) | {"reasons": words(gpu.reasons)} for gpu in readings()],
        "system": f"{platform.system()} {platform.release()}",
        "environment": {name: os.environ[name] for name in sorted(os.environ) if _decides_speed(name)},
    }


def page_fault_seconds() -> float:
    """Return the seconds of a minor page fault with clearing: the median over MAPPINGS, each of PAGES fresh pages."""
    return median(_fault_seconds() for _ in range(MAPPINGS))


def _fault_seconds() -> float:
    with mmap.mmap(-1, PAGES * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as fresh:
        pages = np.frombuffer(fresh, np.uint8)[:: mmap.PAGESIZE]
        faults, start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, perf_counter()
        pages[:] = 1
        spent = perf_counter() - start
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
        del pages  # or the mapping can't be closed
    return spent / max(1, faults)


def _decides_speed(name: str) -> bool:
    return name.startswith(ENVIRONMENT) and not name.endswith(("_DIR", "_PATH", "_HOME"))  # folders don't
