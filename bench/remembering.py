"""Whether an implementation remembers answers: a call on numbers that it has seen is then no call.

The gate changes numbers and compares answers; what looks them up by content passes, and is timed while it looks them up. Only
the clock can tell: a call on numbers never seen takes longer, again and again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .meters import Meter
from .outcome import Wrong
from .problem import Given

SHARE = 2.0
"""A call on new numbers that takes less than so many times as long as one on known numbers is as long as that."""

PAIRS = 5
"""Calls on new numbers, each beside one on the same numbers again, that must all take longer: noise ends before."""

LONG = 0.05
"""Seconds of a call that isn't made once more for this, where the one that was proved took no longer."""


def check_remembers_nothing(meter: Meter, run: Callable[[], Any], numbers: Given, usual: float, first: float) -> None:
    """Raises `Wrong` where calls on new numbers take longer than those that were timed.

    `usual`: seconds of a call that was timed, `first`: of the one that was proved, on numbers that may have been new.
    """
    if usual > LONG and first <= SHARE * usual:
        return
    ratios = []
    for _ in range(PAIRS):
        numbers.nudge()
        new = meter.seconds(run, 1)
        if new <= SHARE * usual:
            return
        again = meter.seconds(run, 1)
        if new <= SHARE * again:
            return
        ratios.append(new / again)
    raise Wrong(f"remembers its answers: numbers it has not seen take it {min(ratios):.1f} times as long, or more")
