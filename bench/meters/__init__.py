"""Meters read time and memory; everything else never learns what a GPU is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Meter(Protocol):
    """What a device must be able to do to be measured."""

    clock: str
    """How time is taken; a column of the results."""

    def seconds(self, call: Callable[[], Any], times: int) -> float:
        """Seconds that `times` calls back to back take, all of their work included."""

    def peak_bytes(self, call: Callable[[], Any]) -> int:
        """Peak of newly allocated tensor memory during one call, in bytes; what was there before is not counted."""


def meter_for(device: str) -> Meter:
    """The meter of a device type."""
    if device == "cuda":
        from .cuda import CudaMeter

        return CudaMeter()
    from .cpu import CpuMeter

    return CpuMeter()
