"""Whether an implementation remembers answers: a call on numbers that it has seen is then no call.

The gate changes numbers and compares answers; what looks them up by content passes, and is timed while it looks them up. Only
the clock can tell: a call on numbers never seen takes longer, again and again.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import sleep
from typing import Any

from .meters import Meter
from .outcome import Wrong
from .problem import Given

SHARE = 2.0
"""A call on new numbers that takes less than so many times as long as one on known numbers is as long as that."""

FEW, PAIRS = 3, 10
"""Calls on new numbers, each beside one on the same numbers again, before their medians can clear a call, and before they may
accuse it.
"""

PAUSE = 0.01
"""Seconds before each call but the first. Without it a crowded machine takes turns with us in step, and it is always the calls
on new numbers that wait: of three thousand honest checks forty accused somebody.
"""

LONG = 0.05
"""Seconds of a call that isn't made once more for this, where the one that was proved took no longer."""


def check_remembers_nothing(meter: Meter, run: Callable[[], Any], numbers: Given, usual: float, first: float) -> None:
    """Raises `Wrong` where calls on new numbers take longer than those that were timed.

    `usual`: seconds of a call that was timed, `first`: of the one that was proved, on numbers that may have been new.
    """
    if usual > LONG and first <= SHARE * usual:
        return
    new: list[float] = []
    again: list[float] = []
    for pair in range(PAIRS):
        numbers.nudge()
        new.append(_after(PAUSE if pair else 0.0, meter, run))
        if new[-1] <= SHARE * usual:
            return
        again.append(_after(PAUSE, meter, run))
        ratio = median(new) / median(again)
        if pair + 1 >= FEW and ratio <= SHARE:
            return
    raise Wrong(f"remembers its answers: numbers it has not seen take it {ratio:.1f} times as long")


def _after(pause: float, meter: Meter, run: Callable[[], Any]) -> float:
    """Seconds of a call after a pause."""
    sleep(pause)
    return meter.seconds(run, 1)
