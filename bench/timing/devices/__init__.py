"""Devices on which cases run. Each is one file and an entry here."""

from __future__ import annotations

import subprocess
import sys

from ... import CHECKOUT
from .cpu import CPU
from .cuda import CUDA
from .device import Meter

DEVICES = {"cpu": CPU, "cuda": CUDA}
"""Devices by name, as in torch and in `stats.axes.DEVICES`; later ones are preferred if present."""


def default_device() -> str:
    """Return the last device that is present."""
    return [name for name, it in DEVICES.items() if it.present()][-1]


def meter_for(device: str) -> Meter:
    return DEVICES[device].meter()


def free_bytes(device: str) -> int:
    """Return the free memory of a device in bytes."""
    return DEVICES[device].free_bytes()


def free_bytes_elsewhere(device: str) -> int:
    """Return the free memory in bytes, read for a GPU in a short-lived process, since reading creates a context."""
    if device == "cpu":
        return free_bytes(device)
    code = f"from bench.timing.devices import free_bytes; print(free_bytes({device!r}))"
    return int(subprocess.check_output([sys.executable, "-c", code], cwd=CHECKOUT, stderr=subprocess.PIPE))
