"""Time and memory on the CPU: wall clock, and the profiler's record of every allocation; the processor, and its free
memory.
"""

from __future__ import annotations

import gc
import math
import platform
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import psutil
import torch
from torch import Tensor

from ...checks.dispatch import traced
from ..malloc import chosen, release
from .device import Device, Memory, Meter, Work, copied

FLOOR = 2 << 20
"""Bytes below which growth can't be distinguished from the process's own: reported as 0."""

PROCESS = Path("/proc/self")

CGROUP = Path("/sys/fs/cgroup")
"""Folder of limits of containers and jobs."""

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")

COLD_CALLS, COLD_BELOW = 7, 0.1
"""Calls whose median is `cold_s`; seconds of a hot call above which caches make no difference."""

MOST_PLACES = 64
"""Most locations in rotation; if they are too small together, other memory is written beside each."""


class CpuMeter(Meter):
    clock = "wall"
    whole_blocks = False

    def timed(self, call: Work, times: int, warm: int = 0) -> tuple[float, Any]:
        for _ in range(warm):
            call()
        start = perf_counter()
        for _ in range(times - 1):
            call()  # its output is freed before the next one is computed
        output = call()
        return perf_counter() - start, output

    def slowed(self, call: Work, share: float) -> Work:
        """Return the call slowed by a share of its time, which includes reading the clock."""

        def around(call: Work, own: float) -> Work:
            def run() -> Any:
                start = perf_counter()
                output = call()
                until = start + (1 + share) * (perf_counter() - start) - own
                while perf_counter() < until:
                    pass
                return output

            return run

        own = min(self.seconds(around(lambda: None, 0.0), 100) / 100 for _ in range(20))
        return around(call, own)

    def more(self, call: Work, hot_s: float, graph: bool, tensors: Sequence[Tensor]) -> dict[str, float | None]:
        """Return `cold_s`, as in a model: the tensors move in memory before each call, and all their locations together
        exceed the last-level cache. None if its size is unknown, the call long, or memory too small for the locations.
        """
        cache, size = last_level_cache(), sum(it.nbytes for it in tensors)
        if cache is None or hot_s > COLD_BELOW or 4 * size > free_bytes():
            return {"cold_s": None}
        count = min(MOST_PLACES, 1 + math.ceil(2 * cache / size))
        filler = max(0, 2 * cache // MOST_PLACES - size)
        with torch.inference_mode(False):  # inference tensors would trigger a recompilation
            kept = [it.data for it in tensors]
            places = [([it.clone() for it in kept], torch.ones(filler, dtype=torch.uint8)) for _ in range(count)]
        taken = []
        try:
            for moved, beside in islice(cycle(places), COLD_CALLS):  # the least recently written location comes first
                for tensor, data in zip(tensors, moved, strict=True):
                    tensor.data = data
                taken.append(self.seconds(call, 1))
                beside.fill_(2)
        finally:
            for tensor, data in zip(tensors, kept, strict=True):
                tensor.data = data
        return {"cold_s": median(taken)}

    def memory(self, call: Work, operators: bool = True) -> tuple[Memory, bytes, Any]:
        """Return the largest sum of live allocations among the profiler's `[memory]` events, workspaces of operators
        included.

        Memory allocated before and freed meanwhile, also by garbage collection, doesn't count (`live`). Private
        mallocs, of NumPy or inside MKL and oneDNN, and allocations of an implementation's own threads are not recorded:
        the operating system's count covers them (`resident`).
        """
        trace, output = traced(call, operators)
        copy, held = copied(output), [output]
        del output

        def let_go() -> None:
            held.clear()
            gc.collect()

        of_call, of_end = (memory_events(it) for it in (trace, traced(let_go, operators=False)[0]))
        sizes = live([*of_call, *of_end])
        return Memory(max(sizes[: len(of_call) + 1]), sizes[-1]), trace, copy

    def resident(self, call: Work) -> tuple[int | None, Any]:
        """Return the growth of the process's high-water mark over one call, its output included, and the output; 0 below
        `FLOOR`.

        None if the mark can't be reset (anywhere but on Linux, and in some containers). Pages cached by malloc would
        hide memory that a call reuses: they are released first, if the C library can. It can't release the last free
        block of another thread's arena: blocks below 32 MiB allocated by a thread show in the first call only.
        """
        if "LD_PRELOAD" in chosen():
            return None, call()  # caches of other allocators can't be released here
        gc.collect()
        release()
        before = _reset_high_water_mark()
        output = call()
        if before is None:
            return None, output
        grown = _in_bytes("VmHWM") - before
        return (grown if grown >= FLOOR else 0), output


def _reset_high_water_mark() -> int | None:
    """Reset the high-water mark to the current resident size, and return that; None if it did not change."""
    try:
        (PROCESS / "clear_refs").write_text("5")
        resident, highest = map(_in_bytes, ("VmRSS", "VmHWM"))
    except (OSError, ValueError):
        return None
    return highest if highest - resident < FLOOR else None


def _in_bytes(name: str) -> int:
    """Return a line of this process's `status` in bytes; raises ValueError if it is missing."""
    return int(found_in(PROCESS / "status", rf"^{name}:\s*(\d+) kB$") or "") << 10


_FIELDS = [re.compile(rb'"%s": (-?\d+)' % name) for name in (b"Addr", b"Bytes", b"Device Type")]
"""Fields of a `[memory]` event: operators don't have them."""


def memory_events(trace: bytes) -> list[tuple[int, int]]:
    """Return (address, change in bytes) of each `[memory]` event of a Chrome trace on the CPU, in the order of time."""
    found = [field.findall(trace) for field in _FIELDS]
    if {len(it) for it in found} != {trace.count(b'"name": "[memory]"')}:
        raise ValueError("the profiler's [memory] events have another form than is known: peak memory can't be read")
    return [(int(address), int(change)) for address, change, device in zip(*found, strict=True) if device == b"0"]


def live(events: Iterable[tuple[int, int]]) -> list[int]:
    """Return the newly allocated bytes, initially and after each event, from (address, change) in the order of time.

    Matched by address, since memory allocated before and freed meanwhile must not offset new allocations.
    """
    sizes: dict[int, int] = {}
    found = [0]
    for address, change in events:
        freed = sizes.pop(address, 0)
        if change > 0:
            sizes[address], freed = change, -change
        found.append(found[-1] - freed)
    return found


def last_level_cache() -> int | None:
    """Return the size of the last-level cache in bytes; None if the system doesn't provide it."""
    return max((int(it.read_text().rstrip("K\n")) << 10 for it in CACHES.glob("index*/size")), default=None)


def identity() -> dict[str, Any]:
    model = found_in(Path("/proc/cpuinfo"), r"^model name\s*: (.*\S)") or platform.processor() or platform.machine()
    return {"cpu": model, "cpu_capability": torch.backends.cpu.get_cpu_capability()}


def cores() -> int:
    """Return the cores that this process can use: those of its affinity, within the quota of its container or job."""
    own = len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else psutil.cpu_count() or 1
    found = (found_in(group / "cpu.max", r"(\d+ \d+)") for group in _control_groups())  # microseconds, of how many
    quotas = (map(int, it.split()) for it in found if it)
    return min([own, *(max(1, used // period) for used, period in quotas)])


def total_bytes() -> int:
    """Return the bytes of memory of the machine, or of this process's container or job."""
    return min([psutil.virtual_memory().total, *(limit for limit, _ in _limits())])


def free_bytes() -> int:
    """Return the free bytes of the machine, or of this process's container or job."""
    return max(0, min([psutil.virtual_memory().available, *(free for _, free in _limits())]))


def _limits() -> Iterator[tuple[int, int]]:
    """Yield the limit of memory of each control group around this process that has one, and how much of it is free."""
    for group in _control_groups():
        if limit := found_in(group / "memory.max", r"(\d+)"):  # else `max`
            used = found_in(group / "memory.current", r"(\d+)") or 0
            cached = found_in(group / "memory.stat", r"^inactive_file (\d+)") or 0  # counts as used, is freed on demand
            yield int(limit), int(limit) - int(used) + int(cached)


def _control_groups() -> list[Path]:
    """Return the folders of the control groups around this process, its own first."""
    own = CGROUP / (found_in(PROCESS / "cgroup", r"^0::/(.*)") or "")
    return [own, *own.parents]


def found_in(path: Path, pattern: str) -> str | None:
    """Return what the group of a pattern matches first in a file; None without the file, or a match."""
    found = re.search(pattern, path.read_text(), re.MULTILINE) if path.exists() else None
    return found[1] if found else None


CPU = Device(lambda: True, identity, free_bytes, CpuMeter)
