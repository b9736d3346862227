"""Time and memory on the CPU: the wall clock, and the profiler's count of every allocation."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from time import perf_counter
from typing import Any

from torch.profiler import ProfilerActivity

from ...proof.dispatch import host_trace, kernel_in, operators_in
from . import host
from .device import CallProfile, Device
from .energy import rapl
from .nvml import Reading
from .resident import FLOOR, peak_rss

MORE_CALLS = 2
"""Calls more, where one made the process grow by more than torch allocated."""


class CpuMeter:
    clock = "wall"

    def timed(self, call: Callable[[], Any], times: int) -> tuple[float, Any]:
        start = perf_counter()
        for _ in range(times - 1):
            call()  # its answer is gone before the next one is computed
        answer = call()
        return perf_counter() - start, answer

    def seconds(self, call: Callable[[], Any], times: int) -> float:
        return self.timed(call, times)[0]

    def more(self, call: Callable[[], Any], hot_s: float, graph: bool) -> dict[str, float | None]:
        return {"cold_s": None, "graph_s": None}

    def sensors(self) -> Reading | None:
        return None

    def kept(self, call: Callable[[], Any]) -> int:
        def let_go() -> None:
            call()
            gc.collect()

        return left(memory_events(host_trace(let_go, memory=True, operators=False)))

    def profile_call(self, call: Callable[[], Any]) -> CallProfile:
        """The largest sum of live allocations among the profiler's `[memory]` events, workspaces of operators included.

        What was there before and is freed meanwhile, by a garbage collection too, doesn't count (`peak`).
        Private mallocs, of NumPy or inside MKL and oneDNN, and what an implementation's own threads take, are unseen there:
        the operating system is the second meter, of a call that isn't traced.
        """
        trace = host_trace(call, memory=True)
        profile = CallProfile(peak(memory_events(trace)), kernel_in(trace), operators_in(trace))
        return replace(profile, peak_rss_bytes=_least_rss(call, profile.peak_bytes + FLOOR))


def _least_rss(call: Callable[[], Any], enough: int) -> int | None:
    """Of a few calls the least that the process grew by: malloc keeps what is freed now and then, and not every time."""
    found = peak_rss(call)
    for _ in range(MORE_CALLS):
        if found is None or found <= enough:
            break
        again = peak_rss(call)
        found = found if again is None else min(found, again)
    return found


_EVENT = re.compile(rb'"name": "\[memory\]".*?"args": \{([^{}]*)\}', re.DOTALL)
_ADDRESS, _CHANGE, _ON_CPU = (
    re.compile(pattern) for pattern in (rb'"Addr": (\d+)', rb'"Bytes": (-?\d+)', rb'"Device Type": 0\b')
)


def memory_events(trace: bytes) -> Iterator[tuple[int, int]]:
    """(address, change in bytes) of each `[memory]` event of a Chrome trace that is about the CPU.

    Only these are read: the trace of a Python loop holds half a million other events, and a whole parse takes seconds.
    """
    for event in _EVENT.finditer(trace):
        address, change = _ADDRESS.search(event[1]), _CHANGE.search(event[1])
        if address is None or change is None:
            raise ValueError(
                "the profiler's [memory] events have another form than is known: peak memory can't be read"
            )
        if _ON_CPU.search(event[1]):
            yield int(address[1]), int(change[1])


def peak(events: Iterable[tuple[int, int]]) -> int:
    """Peak of newly allocated bytes, from (address, change) in the order of time.

    By address, since what was there before and is freed meanwhile must not make room for what is new.
    """
    return max(_live(events), default=0)


def left(events: Iterable[tuple[int, int]]) -> int:
    """Bytes that were allocated meanwhile and weren't freed, from the same events."""
    return [0, *_live(events)][-1]


def _live(events: Iterable[tuple[int, int]]) -> Iterator[int]:
    """Newly allocated bytes after each event."""
    live: dict[int, int] = {}
    now = 0
    for address, change in events:
        if change > 0:
            live[address] = change
            now += change
        else:
            now -= live.pop(address, 0)
        yield now


CPU = Device("cpu", lambda: True, host.identity, host.free_bytes, CpuMeter, (ProfilerActivity.CPU,), rapl)
