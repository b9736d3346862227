"""Detects work that continues in threads after a call has returned: it would disturb the next measurement."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, process_time, sleep

from ..cases.outcome import StillWorking

SETTLING = 5e-3
"""Seconds for which OpenMP threads may spin, waiting for work, before they sleep."""

WATCH = 10e-3
"""Seconds for which the process is then observed."""

BUSY = 0.5
"""CPU time as a share of one core above which the process counts as busy."""

SAMPLES = 3
"""Consecutive busy samples that count as a fault: garbage collection or writeback of a page shows in a single one."""

INTERVAL = 1e-3
"""Seconds between two samples while waiting for the process to become idle."""

LONGEST = 100e-3
"""Longest wait in seconds for a process to become idle before another one is timed. Work that lasts longer has been
refused by the check, whose samples take up to 80 ms beside a thread that holds Python's lock.
"""


def check_idle_afterwards(rest: Callable[[float], None] = sleep, clock: Callable[[], float] = process_time) -> None:
    """Raise `StillWorking` if the process stays busy after a call has returned. Must be called right after the call."""
    for _ in range(SAMPLES):
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
    """Return when this process's threads sleep. Threads of OpenMP and of some BLAS libraries spin for some milliseconds
    after a call, on cores that the next process needs.
    """
    until = wall() + LONGEST
    while (began := wall()) < until:
        before = clock()
        rest(INTERVAL)
        if clock() - before <= BUSY * (wall() - began):
            return
