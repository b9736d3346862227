"""The devices that cases run on. Each is one file and its name here; everything else never learns what a GPU is."""

from __future__ import annotations

from .cpu import CPU
from .cuda import CUDA
from .device import CallProfile, Device, Meter

__all__ = ["DEVICES", "CallProfile", "Device", "Meter", "default_device", "free_bytes", "meter_for"]

DEVICES = {it.name: it for it in (CPU, CUDA)}
"""A later one is preferred where it is present."""


def default_device() -> str:
    """What this machine has: the last one present."""
    return [name for name, it in DEVICES.items() if it.present()][-1]


def meter_for(device: str) -> Meter:
    return DEVICES[device].meter()


def free_bytes(device: str) -> int:
    """Memory that is left for a cell."""
    return DEVICES[device].free_bytes()
