"""Whether a call's work continues in threads after it has returned: it would disturb what is timed next."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, process_time, sleep

from ..cases.outcome import StillWorking

SETTLING = 5e-3
"""Seconds in which OpenMP's threads may wait for more work before they sleep."""

WATCH = 10e-3
"""Seconds for which the process is watched then."""

BUSY = 0.5
"""Share of one core above which something still works."""

LOOKS = 3
"""Times that it must be seen, one after the other: a collection of garbage or a page written back happens once."""

LOOK = 1e-3
"""Seconds between two looks whether the process has come to rest."""

LONGEST = 100e-3
"""Seconds that a process is waited for before another one is timed: what works for longer the check has refused, whose looks
take up to 80 ms beside a thread that holds Python's lock.
"""


def check_idle_afterwards(rest: Callable[[float], None] = sleep, clock: Callable[[], float] = process_time) -> None:
    """Call it right after a call: raises `StillWorking` where the process is busy though that has returned."""
    for _ in range(LOOKS):
        rest(SETTLING)
        before = clock()
        rest(WATCH)
        share = (clock() - before) / WATCH
        if share <= BUSY:
            return
    raise StillWorking(f"leaves threads that work when its call has returned: {share:.1f} cores stay busy")


def settle(
    rest: Callable[[float], None] = sleep,
    clock: Callable[[], float] = process_time,
    wall: Callable[[], float] = perf_counter,
) -> None:
    """Return when this process's threads sleep: OpenMP's, and those of some BLAS, look for more work for some milliseconds, on
    cores that another process needs next.
    """
    until = wall() + LONGEST
    while (began := wall()) < until:
        before = clock()
        rest(LOOK)
        if clock() - before <= BUSY * (wall() - began):
            return
