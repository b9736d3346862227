"""Samples that were taken while the machine was held back are taken once more, or say so.

A GPU tells that it is. Of a CPU it shows in a call that is warm and takes much longer than the first one did: threads that
share a core with somebody else's wait for each other, up to a hundred times as long as they compute.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import sleep
from typing import Any

from .clock import Samples, sample
from .meters import Meter
from .meters.nvml import words

PAUSE = 3.0
"""Seconds for which a GPU that is held back may cool down."""

STALL, SOON = 2.0, 0.5
"""How many times as long as the first call the others take where they were stalled, and seconds to wait until that is over."""


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

    `throttled` names what held the clock back before or after the samples that are kept. Of calls that were stalled the
    faster samples are.
    """
    samples, columns, held_back = _watched(meter, call, seconds, precision, first, proof)
    stalled = first is not None and median(samples.data) > STALL * first
    if held_back or stalled:
        wait(PAUSE if held_back else SOON)
        again, columns_again, _ = _watched(meter, call, seconds, precision, None, proof)
        if held_back or median(again.data) < median(samples.data):
            samples, columns = again, columns_again
    return samples, columns


def _watched(
    meter: Meter,
    call: Callable[[], Any],
    seconds: float,
    precision: float,
    first: float | None,
    proof: Callable[[], float] | None,
) -> tuple[Samples, dict[str, Any], bool]:
    """Samples, columns, and whether the device says that it was held back."""
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
