"""Devices on which cases run. Each is one file and an entry here."""

from __future__ import annotations

import subprocess
import sys

from ... import CHECKOUT
from .cpu import CPU
from .cuda import CUDA
from .device import Device, Memory, Meter, Work
from .energy import Counter
from .host import threads

__all__ = [
    "DEVICES",
    "Device",
    "Memory",
    "Meter",
    "Work",
    "default_device",
    "energy_counter",
    "free_bytes",
    "free_bytes_elsewhere",
    "measures_more",
    "meter_for",
    "threads",
]  # fmt: skip

DEVICES = {it.name: it for it in (CPU, CUDA)}
"""Devices by name; later ones are preferred if present."""


def default_device() -> str:
    """Return the last device that is present."""
    return [name for name, it in DEVICES.items() if it.present()][-1]


def meter_for(device: str) -> Meter:
    return DEVICES[device].meter()


def measures_more(device: str) -> bool:
    """Whether cells have measurements besides their time on this device."""
    return DEVICES[device].takes_more or energy_counter(device) is not None


def energy_counter(device: str) -> Counter | None:
    """Return the energy counter of a device; None if it isn't read."""
    return DEVICES[device].energy()


def free_bytes(device: str) -> int:
    """Return the free memory of a device in bytes."""
    return DEVICES[device].free_bytes()


def free_bytes_elsewhere(device: str) -> int:
    """Return the free memory in bytes, read for a GPU in a short-lived process, since reading creates a context."""
    if device == CPU.name:
        return free_bytes(device)
    code = f"from bench.timing.devices import free_bytes; print(free_bytes({device!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, check=True, stdout=subprocess.PIPE)
    return int(done.stdout)
