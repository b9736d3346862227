"""Time and memory on the CPU: the wall clock, and the profiler's count of every allocation."""

from __future__ import annotations

import gc
import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from torch.profiler import ProfilerActivity, profile


class CpuMeter:
    clock = "wall"

    def seconds(self, call: Callable[[], Any], times: int) -> float:
        start = perf_counter()
        for _ in range(times):
            call()
        return perf_counter() - start

    def peak_bytes(self, call: Callable[[], Any]) -> int:
        """The largest running sum of the profiler's `[memory]` events: workspaces of operators included, to the byte.

        Unseen: private mallocs inside MKL and oneDNN.
        """
        gc.collect()  # nothing old may be freed, and so counted, during the call
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=False) as profiler:
            kept = call()
        del kept
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder, "trace.json")
            profiler.export_chrome_trace(str(trace))
            return peak(memory_events(trace.read_text()))


def memory_events(trace: str) -> Iterator[dict[str, Any]]:
    """The arguments of a Chrome trace's `[memory]` events. Only they are parsed: a loop's trace holds half a million others."""
    for found in _MEMORY.finditer(trace):
        yield json.loads(found[1])


_MEMORY = re.compile(r'"name": "\[memory\]".*?"args": (\{[^{}]*\})', re.DOTALL)


def peak(events: Iterable[dict[str, Any]]) -> int:
    """Peak of newly allocated bytes, from the profiler's memory events in the order of time.

    The counter `Total Allocated` is process-wide and carries over what earlier profiles left: the base is what stood
    there before the first event.
    """
    base = highest = None
    for event in events:
        if event["Device Type"] == 0:
            base = event["Total Allocated"] - event["Bytes"] if base is None else base
            highest = max(event["Total Allocated"], highest or 0)
    return 0 if base is None or highest is None else max(0, highest - base)
