"""Samples that a GPU took while it was held back are taken once more, or say so."""

from __future__ import annotations

from collections.abc import Callable
from time import sleep
from typing import Any

from .clock import Samples, sample
from .meters import Meter
from .meters.nvml import words

PAUSE = 3.0
"""Seconds for which a GPU that is held back may cool down."""


def sample_watched(
    meter: Meter,
    call: Callable[[], Any],
    seconds: float,
    precision: float,
    first: float | None = None,
    proof: Callable[[], float] | None = None,
    wait: Callable[[float], None] = sleep,
) -> tuple[Samples, dict[str, Any]]:
    """`sample`, and the row's columns about the GPU's state; they are None where the device tells nothing.

    `throttled` names what held the clock back before or after the samples that are kept.
    """
    samples, columns, held_back = _watched(meter, call, seconds, precision, first, proof)
    if held_back:
        wait(PAUSE)
        samples, columns, _ = _watched(meter, call, seconds, precision, None, proof)
    return samples, columns


def _watched(
    meter: Meter,
    call: Callable[[], Any],
    seconds: float,
    precision: float,
    first: float | None,
    proof: Callable[[], float] | None,
) -> tuple[Samples, dict[str, Any], bool]:
    """Samples, columns, and whether the samples had better be taken again."""
    before = meter.sensors()
    samples = sample(meter, call, seconds, precision, first, proof)
    after = meter.sensors()
    seen = [reading for reading in (before, after) if reading]
    reasons = 0
    for reading in seen:
        reasons |= reading.throttling
    columns = {
        "sm_mhz": after.sm_mhz if after else None,
        "power_w": after.power_w if after else None,
        "temperature_c": after.temperature_c if after else None,
        "throttled": ", ".join(words(reasons)) or None,
    }
    return samples, columns, any(reading.held_back for reading in seen)
