"""Meters read time and memory; everything else never learns what a GPU is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Weight:
    """What one call was seen to do."""

    peak_bytes: int
    """Peak of newly allocated tensor memory."""
    kernel: str


class Meter(Protocol):
    """What a device must be able to do to be measured."""

    clock: str
    """How time is taken; a column of the results."""

    def seconds(self, call: Callable[[], Any], times: int) -> float:
        """Seconds that `times` calls back to back take, all of their work included."""

    def weigh(self, call: Callable[[], Any]) -> Weight:
        """Peak memory of one call, what was there before not counted, and the kernel that it dispatched."""


def meter_for(device: str) -> Meter:
    """The meter of a device type."""
    if device == "cuda":
        from .cuda import CudaMeter

        return CudaMeter()
    from .cpu import CpuMeter

    return CpuMeter()
