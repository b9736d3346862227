"""Time and memory on the CPU: the wall clock, and the profiler's count of every allocation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import Any

from ..dispatch import host_trace, kernel_in, operators_in
from . import Weight
from .nvml import Reading
from .resident import peak_rss


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

    def weigh(self, call: Callable[[], Any]) -> Weight:
        """The largest sum of live allocations among the profiler's `[memory]` events, workspaces of operators included.

        What was there before and is freed meanwhile, by a garbage collection too, doesn't count (`peak`).
        Private mallocs, of NumPy or inside MKL and oneDNN, and what an implementation's own threads take, are unseen there:
        the operating system is the second witness, of a call that isn't traced.
        """
        resident = peak_rss(call)
        trace = host_trace(call, memory=True)
        return Weight(peak(memory_events(trace)), kernel_in(trace), operators_in(trace), resident)


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
    live: dict[int, int] = {}
    now = highest = 0
    for address, change in events:
        if change > 0:
            live[address] = change
            now += change
            highest = max(highest, now)
        else:
            now -= live.pop(address, 0)
    return highest
