"""Detects what a call leaves in threads: work would disturb the next measurement, other arithmetic changes its results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter, process_time, sleep

import torch

from ..cases.outcome import Unusable

SETTLING = 5e-3
"""Seconds for which OpenMP threads may spin, waiting for work, before they sleep."""

WATCH = 10e-3
"""Seconds for which the process is then observed."""

BUSY = 0.5
"""CPU time as a share of one core above which the process counts as busy."""

SAMPLES = 3
"""Consecutive busy samples that count as a fault: garbage collection or writeback of a page shows in a single one."""

SAMPLES_ALONE = 13
"""The same in a process of its own, whose threads disturb no other implementation: OpenBLAS's spin for 2^28 cycles, 0.1 s
at 2.6 GHz, before they sleep.
"""

INTERVAL = 1e-3
"""Seconds between two samples while waiting for the process to become idle."""

LONGEST = 250e-3
"""Longest wait in seconds for a process to become idle before another one is timed. Work that lasts longer has been
refused by the check.
"""

ELSEWHERE = "if they only wait for work, give it a process of its own: `limits = {'alone': True}`"


def check_idle_afterwards(alone: bool) -> None:
    """Raise `Unusable` if the process stays busy after a call has returned. Must be called right after the call.

    `alone`: whether the implementation has a process of its own.
    """
    for _ in range(SAMPLES_ALONE if alone else SAMPLES):
        sleep(SETTLING)
        before = process_time()
        sleep(WATCH)
        share = (process_time() - before) / WATCH
        if share <= BUSY:
            return
    fault = f"leaves threads that work when its call has returned: {share:.1f} cores stay busy"
    raise Unusable(fault if alone else f"{fault}; {ELSEWHERE}")


TINY = 2.0**-149
"""The smallest float32 above zero."""

PART = 1 << 15
"""Numbers that torch gives to each thread at least."""


@contextmanager
def keeping_arithmetic() -> Iterator[None]:
    """Raise `Unusable` if after the block, also if it fails, a thread of torch's flushes denormals to zero, or doesn't
    round to nearest.
    """
    try:
        yield
    finally:
        x = torch.tensor([0.7, -0.7], dtype=torch.float32, device="cpu").repeat(torch.get_num_threads() * PART // 2)
        if (x * TINY).view(torch.int32).bitwise_and_(0x7FFFFFFF).ne(1).any():  # each is rounded to TINY or -TINY
            raise Unusable("leaves threads that flush denormal numbers to zero, or round otherwise than to nearest")


def settle() -> None:
    """Return when this process's threads sleep. Threads of OpenMP and of some BLAS libraries spin for some milliseconds
    after a call, on cores that the next process needs.
    """
    until = perf_counter() + LONGEST
    while (began := perf_counter()) < until:
        before = process_time()
        sleep(INTERVAL)
        if process_time() - before <= BUSY * (perf_counter() - began):
            return
