"""Describes the machine: constant facts that determine speed (fingerprint), and changing ones (state)."""

from __future__ import annotations

import os
import platform
import re
from typing import Any

import psutil
import torch

from .devices import DEVICES, nvml
from .devices.cpu import cores
from .malloc import allocator_settings

SPEED = re.compile(
    "(?!.*(_DIR|_PATH|_HOME|_DEVICES)$)(OMP_|MKL_|KMP_|GOMP_|TORCH|PYTORCH_|CUDA_|CUBLAS_|NVIDIA_TF32|MALLOC_|ONEDNN_|DNNL_)"
)
"""Environment variables that may determine speed; folders don't, and the fingerprint names the GPU."""


def crowded(threads: int) -> str | None:
    """Explain what to do about more threads than cores; None if there are enough cores."""
    usable = cores()
    advice = f"use --threads {usable} or OMP_NUM_THREADS={usable}"
    return f"more threads ({threads}) than cores ({usable}) wait for each other: {advice}" if threads > usable else None


def fingerprint() -> dict[str, Any]:
    """Return the facts that must match for two runs to be compared; constant between runs."""
    return {
        **{fact: value for device in DEVICES.values() for fact, value in device.identity().items()},
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "torch": torch.__version__,
        "torch_build": (torch.version.git_version or "unknown")[:10],
        "python": platform.python_version(),
        "allocator": allocator_settings(),
    }


def state() -> dict[str, Any]:
    """Return changing facts, recorded with a run: the state of every GPU, and variables, shown when they differ."""
    return {
        "gpus": nvml.opened().state(),
        "environment": {name: os.environ[name] for name in sorted(os.environ) if SPEED.match(name)},
    }
