"""Time and memory on a CUDA device: stream events, and the caching allocator's own count."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from math import ceil
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ...cases.outcome import Wrong
from ...checks.dispatch import traced
from .device import Device, Memory, Meter, Work, copied
from .nvml import Nvml, Reading, opened

COLD_CALLS, COLD_BELOW = 11, 0.1
"""Single calls whose median is `cold_s`, with the second and the last but one as its 98.8 % interval; seconds of a hot
call above which neither caches nor launches make a difference.
"""

SPIN_CYCLES, SPIN_MORE = 1_000_000, 1e-4
"""Cycles of the spin that calibrates the device's clock; seconds of a spin beyond the host's own time."""

INFINITY_CACHE = 256 << 20
"""Bytes of the cache behind the L2 in AMD's largest GPUs (MI300X), which torch doesn't report."""

GRAPH_BELOW = 5e-3
"""Seconds of a hot call below which launches may take a relevant part."""

GRAPH_SECONDS, REPLAYS, BLOCKS = 5e-4, 4, 5
"""Seconds of hot calls in one graph or queued at a time, so that the device's queue of 1024 launches is not full;
replays in a block; blocks whose medians are `graph_s` and `device_s`.
"""

LATE, LATE_SHARE = 2e-4, 0.1
"""Seconds, and share of a block, by which the device may finish later than the call's own stream."""

LATE_BLOCKS = 3
"""Consecutive late blocks that count as a fault: a single one may come from an interrupted host."""

WARM = 3
"""Calls on the side stream before capture, as in torch's notes on CUDA graphs, to initialise libraries."""


class CudaMeter(Meter):
    """Measurements on a GPU. `cuda`: `torch.cuda`, or a simulation with its interface, with `empty` and `host_clock`."""

    clock = "cuda_events"
    whole_blocks = True

    def __init__(
        self,
        cuda: Any = torch.cuda,
        nvml: Nvml = Nvml(),  # noqa: B008  without GPUs
        empty: Any = torch.empty,
        host_clock: Callable[[], float] = perf_counter,
    ):
        self._cuda, self._nvml, self._empty, self._host_clock = cuda, nvml, empty, host_clock
        self._seen: Reading | None = None
        self._late = 0

    def timed(self, call: Work, times: int, warm: int = 0) -> tuple[float, Any]:
        """Return the time between two events in the stream. The `warm` calls are queued before the first event and not
        waited for, so that the device is busy when the first timed call is launched; earlier work is waited for. A spin
        would overlap launches, which are part of this time (`device_s` excludes them). Raises `Wrong` if work in another
        stream repeatedly finishes later than the call's own.
        """

        def behind() -> None:
            for _ in range(warm):
                call()

        return self._between(call, times, behind)

    def _between(self, call: Work, times: int, behind: Work) -> tuple[float, Any]:
        """Return the seconds of `times` calls queued behind untimed work, and the last output."""
        start, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
        self._cuda.synchronize()
        behind()
        start.record()
        for _ in range(times - 1):
            call()
        output = call()
        end.record()
        self._read_sensors()  # while the device works
        end.synchronize()  # calls return before their work is done
        seconds = float(start.elapsed_time(end)) / 1e3  # milliseconds
        self._check_other_streams(seconds)
        return seconds, output

    def _check_other_streams(self, seconds: float) -> None:
        """Raise `Wrong` for work left in another stream, which stream events don't time."""
        before = self._host_clock()
        self._cuda.synchronize()
        is_late = self._host_clock() - before > max(LATE, LATE_SHARE * seconds)
        self._late = self._late + 1 if is_late else 0
        if self._late == LATE_BLOCKS:
            raise Wrong("its work in another CUDA stream continues after that in the current stream: it can't be timed")

    def slowed(self, call: Work, share: float) -> Work:
        """Return the call followed by a kernel that spins for a share of its time."""
        self.seconds(call, 1)
        cycles = ceil(share * self.seconds(call, 10, warm=3) / 10 * self._cycles_per_second())

        def run() -> Any:
            output = call()
            self._cuda._sleep(cycles)
            return output

        return run

    def more(self, call: Work, hot_s: float, graph: bool, tensors: Sequence[Tensor]) -> dict[str, float | None]:
        found: dict[str, float | None] = dict.fromkeys(("cold_s", "cold_low", "cold_high", "device_s", "graph_s"))
        if hot_s < COLD_BELOW:
            if cold := self._cold(call):
                found |= {"cold_s": median(cold), "cold_low": cold[1], "cold_high": cold[-2]}
            if device := self._queued(call, ceil(GRAPH_SECONDS / hot_s), BLOCKS):
                found["device_s"] = median(device)
        if hot_s < GRAPH_BELOW and graph:
            found["graph_s"] = self._replayed(call, hot_s)
        return found

    def _cold(self, call: Work) -> list[float]:
        """Return sorted device seconds of single calls, each after writing twice the caches; empty if they are unknown."""
        l2 = self._cuda.get_device_properties().L2_cache_size
        if not l2:
            return []
        size = 2 * (max(l2, INFINITY_CACHE) if torch.version.hip else l2)
        return self._queued(call, 1, COLD_CALLS, self._empty(size, dtype=torch.uint8, device="cuda").zero_)

    def _queued(self, call: Work, calls: int, blocks: int, first: Work = lambda: None) -> list[float]:
        """Return sorted device seconds per call over several blocks. All launches are queued behind a spin and behind
        `first` before the clock starts; empty if queueing takes longer than the device spins, because the call waits
        for the device or the queue is full.
        """
        times: list[float] = []  # of the host, before and after each launch
        opened, closed = (self._cuda.Event(enable_timing=True) for _ in range(2))

        def launch() -> Any:
            output = call()
            times.append(self._host_clock())
            return output

        def behind() -> None:
            times[:] = [self._host_clock()]
            opened.record()
            self._cuda._sleep(cycles)
            first()
            closed.record()

        self._cuda.synchronize()
        times.append(self._host_clock())
        first()
        for _ in range(calls):
            launch()
        spin = 2 * (times[-1] - times[0]) + SPIN_MORE
        cycles, found = ceil(spin * self._cycles_per_second()), []
        for _ in range(blocks):
            found.append(self._between(launch, calls, behind)[0] / calls)
            if times[-1] - times[0] > opened.elapsed_time(closed) / 1e3:  # a clock that rises ends a spin early
                return []
        return sorted(found)

    def _cycles_per_second(self) -> float:
        """Return the clock rate of `torch.cuda._sleep`, which counts cycles of the multiprocessors."""
        return SPIN_CYCLES / self.seconds(lambda: self._cuda._sleep(SPIN_CYCLES), 1, warm=1)

    def _replayed(self, call: Work, hot_s: float) -> float | None:
        """Return the seconds of a call in a graph of many; None if capture fails or a replay gives another output, or if
        memory is too small for the graph's beside that of a call.
        """
        calls = ceil(GRAPH_SECONDS / hot_s)
        found = captured(self._cuda, call, calls)
        try:
            if found is None or not self._is_same(*found, call):
                return None
        except torch.OutOfMemoryError:
            return None
        taken = (self.seconds(found[0].replay, REPLAYS, warm=1) for _ in range(BLOCKS))
        return median(taken) / REPLAYS / calls

    def _is_same(self, graph: Any, output: Any, call: Work) -> bool:
        """Whether a replay recomputes the output of an eager call, within the tolerance of its dtype."""
        expected = copied(call())
        for part in output if type(output) is tuple else (output,):
            part.fill_(torch.nan)
        graph.replay()
        self._cuda.synchronize()
        try:
            torch.testing.assert_close(output, expected)
        except AssertionError:
            return False
        return True

    def _read_sensors(self) -> None:
        """Read NVML at intervals, since its queries delay the device."""
        if self._nvml.is_due(self._host_clock()):
            self._seen = self._nvml.of(str(self._cuda.get_device_properties().uuid))

    def sensors(self) -> Reading | None:
        seen, self._seen = self._seen, None
        return seen

    def memory(self, call: Work, operators: bool = True) -> tuple[Memory, bytes, Any]:
        """Return the requested bytes from the allocator, unrounded. Library workspaces are excluded: probes have
        allocated them before.
        """
        before = self._requested()
        self._cuda.reset_peak_memory_stats()
        trace, output = traced(call, operators)
        self._cuda.synchronize()
        peak = int(self._cuda.memory_stats()["requested_bytes.all.peak"])
        held = self._requested()
        copy = copied(output)
        copies = self._requested() - held
        del output
        return Memory(peak - before, max(0, self._requested() - copies - before)), trace, copy

    def counts_memory(self, graphed: bool) -> bool:
        """A graph allocates when it is captured, its replays nothing; requested bytes are counted by torch's own allocator."""
        return not graphed and self._cuda.get_allocator_backend() == "native"

    def _requested(self) -> int:
        gc.collect()
        self._cuda.synchronize()
        return int(self._cuda.memory_stats()["requested_bytes.all.current"])


def captured(cuda: Any, call: Work, calls: int) -> tuple[Any, Any] | None:
    """Return a `torch.cuda.CUDAGraph` of `calls` calls, and the last output, which replays overwrite; None if capture
    fails.

    A failed capture leaves the current stream, and in some versions of torch the random generator, in capture mode:
    both are restored. The most common failure, a call that waits for the device, is detected before capture.
    """
    generator = cuda.default_generators[cuda.current_device()]
    spare = generator.clone_state()
    graph, side, before, mode = cuda.CUDAGraph(), cuda.Stream(), cuda.current_stream(), cuda.get_sync_debug_mode()
    side.wait_stream(before)
    try:
        with cuda.stream(side):  # restores the stream even if `cuda.graph` failed and doesn't
            for _ in range(WARM):
                call()
            cuda.set_sync_debug_mode("error")
            try:
                call()
            finally:
                cuda.set_sync_debug_mode(mode)
            with cuda.graph(graph, stream=side):
                for _ in range(calls - 1):
                    call()
                output = call()
    except Exception:  # any exception of the implementation or the driver means no graph
        generator.graphsafe_set_state(spare)
        return None
    before.wait_stream(side)
    return graph, output


def works() -> bool:
    """Whether the device still computes for this process; after an illegal access every later call fails too."""
    if not torch.cuda.is_initialized():
        return True
    try:
        torch.cuda.synchronize()
        return bool(torch.ones(8, device="cuda").sum().item() == 8)
    except torch.OutOfMemoryError:
        return True  # failed tensors hold memory until their exception is released
    except RuntimeError:
        return False


def free_bytes() -> int:
    """Return the bytes free on the device, plus those cached by this process's allocator."""
    return int(torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated())


def identity() -> dict[str, Any]:
    """Return the GPU and its driver, by NVML; without NVML the version of CUDA or ROCm for which torch was built."""
    if not torch.cuda.is_available():
        return {"gpu": None, "driver": None}
    built_for = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    return {"gpu": torch.cuda.get_device_name(), "driver": opened().driver() or f"unknown, {built_for}"}


VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Environment variables that list GPUs; ROCm reads both."""


def see_one_gpu() -> None:
    """Make only the first GPU visible to this process before its first use: work on a second would not be waited for."""
    for name in [name for name in VISIBLE if name in os.environ] or VISIBLE[:1]:
        os.environ[name] = os.environ.get(name, "0").partition(",")[0]


CUDA = Device(torch.cuda.is_available, identity, free_bytes, lambda: CudaMeter(nvml=opened()), works)
