"""Time and memory on a CUDA device: events in the stream, and the caching allocator's own count."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from math import ceil
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from ...cases.outcome import Wrong
from .device import Device, Memory, copied
from .energy import Counter, Unread, of_gpu
from .graphs import captured
from .nvml import Nvml, Reading, opened

COLD_CALLS, COLD_BELOW = 11, 0.1
"""Single calls of which `cold_s` is the median, and its 98.8 % interval the second and the last but one; seconds of a hot call
above which neither a cache nor launches make a difference.
"""

SPIN_CYCLES, SPIN_MORE = 1_000_000, 1e-4
"""Cycles of the spin by which the device's clock is calibrated; seconds of a spin beyond what the host needs meanwhile."""

GRAPH_BELOW = 5e-3
"""Seconds of a hot call below which launches may be a part of it that counts."""

GRAPH_SECONDS, REPLAYS, BLOCKS = 5e-4, 4, 5
"""Seconds of hot calls that one graph holds, or that are queued at once, so that the device's queue of 1024 launches is not
full; replays in a block; blocks of which `graph_s` and `device_s` are the medians.
"""

LATE, LATE_SHARE = 2e-4, 0.1
"""Seconds, and share of a block, by which the device may be done later than the call's own stream."""

LATE_BLOCKS = 3
"""Blocks in a row that must be late: one may be because the host was interrupted."""


class CudaMeter:
    """`cuda` is `torch.cuda`, or a simulated device that answers to the same names; so are `empty` and `clock`."""

    clock = "cuda_events"
    whole_blocks = True

    def __init__(
        self,
        cuda: Any = torch.cuda,
        nvml: Nvml | None = None,
        empty: Any = torch.empty,
        host_clock: Callable[[], float] = perf_counter,
    ):
        self._cuda, self._nvml, self._empty, self._host_clock = cuda, nvml, empty, host_clock
        self._seen: Reading | None = None
        self._late = 0

    def timed(self, call: Callable[[], Any], times: int, warm: int = 0) -> tuple[float, Any]:
        """Time between two events in the stream. The `warm` calls are queued before the first event and not waited for, so
        that the device is busy when the first timed call is launched; work from before is waited for. A spin before them would
        hide launches, which are a part of this time (`device_s` is without). Raises `Wrong` where work in another stream is
        done later than the call's own, block after block.
        """

        def behind() -> None:
            for _ in range(warm):
                call()

        return self._between(call, times, behind)

    def seconds(self, call: Callable[[], Any], times: int, warm: int = 0) -> float:
        return self.timed(call, times, warm)[0]

    def _between(self, call: Callable[[], Any], times: int, behind: Callable[[], Any]) -> tuple[float, Any]:
        """Seconds of `times` calls, queued behind work that is not counted, and the last one's answer."""
        start, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
        self._cuda.synchronize()
        behind()
        start.record()
        for _ in range(times - 1):
            call()
        answer = call()
        end.record()
        self._look()  # while the device works
        end.synchronize()  # calls return before their work is done
        seconds = float(start.elapsed_time(end)) / 1e3  # milliseconds
        self._check_other_streams(seconds)
        return seconds, answer

    def _check_other_streams(self, seconds: float) -> None:
        """An event is of one stream: work that an implementation leaves in another would not be timed."""
        before = self._host_clock()
        self._cuda.synchronize()
        is_late = self._host_clock() - before > max(LATE, LATE_SHARE * seconds)
        self._late = self._late + 1 if is_late else 0
        if self._late == LATE_BLOCKS:
            raise Wrong(
                "its work in another CUDA stream goes on when that in the current one is done: it can't be timed"
            )

    def slowed(self, call: Callable[[], Any], share: float) -> Callable[[], Any]:
        """The call with a kernel behind it that spins for a share of its time."""
        self.seconds(call, 1)
        cycles = ceil(share * self.seconds(call, 10, warm=3) / 10 * self._cycles_per_second())

        def run() -> Any:
            answer = call()
            self._cuda._sleep(cycles)
            return answer

        return run

    def more(self, call: Callable[[], Any], hot_s: float, graph: bool) -> dict[str, float | None]:
        short = hot_s < COLD_BELOW
        cold = self._cold(call) if short else []
        device = self._queued(call, ceil(GRAPH_SECONDS / hot_s), BLOCKS) if short else []
        return {
            "cold_s": median(cold) if cold else None,
            "cold_low": cold[1] if cold else None,
            "cold_high": cold[-2] if cold else None,
            "device_s": median(device) if device else None,
            "graph_s": self._replayed(call, hot_s) if graph and hot_s < GRAPH_BELOW else None,
        }

    def _cold(self, call: Callable[[], Any]) -> list[float]:
        """Seconds of the device for single calls, each behind a write of twice the L2, sorted; none if its size is unknown."""
        size = 2 * self._cuda.get_device_properties().L2_cache_size
        return (
            self._queued(call, 1, COLD_CALLS, self._empty(size, dtype=torch.uint8, device="cuda").zero_) if size else []
        )

    def _queued(
        self, call: Callable[[], Any], calls: int, blocks: int, first: Callable[[], Any] = lambda: None
    ) -> list[float]:
        """Seconds of the device for a call in each of some blocks of calls, sorted. All launches are queued behind a spin, and
        behind what comes `first`, before the clock starts; none where they take longer than that: the call waits for the
        device, or the queue is full.
        """
        began = done = 0.0

        def launch() -> Any:
            nonlocal done
            answer = call()
            done = self._host_clock()
            return answer

        def behind() -> None:
            nonlocal began
            began = self._host_clock()
            self._cuda._sleep(cycles)
            first()

        self._cuda.synchronize()
        before = self._host_clock()
        first()
        for _ in range(calls):
            launch()
        spin = 2 * (done - before) + SPIN_MORE
        cycles, found = ceil(spin * self._cycles_per_second()), []
        for _ in range(blocks):
            found.append(self._between(launch, calls, behind)[0] / calls)
            if done - began > spin:
                return []
        return sorted(found)

    def _cycles_per_second(self) -> float:
        """Of `torch.cuda._sleep`, which counts those of the multiprocessors' clock."""
        return SPIN_CYCLES / self.seconds(lambda: self._cuda._sleep(SPIN_CYCLES), 1, warm=1)

    def _replayed(self, call: Callable[[], Any], hot_s: float) -> float | None:
        """Seconds of a call in a graph of many; None where it can't be captured, or where a replay gives another answer."""
        calls = ceil(GRAPH_SECONDS / hot_s)
        found = captured(self._cuda, call, calls)
        if found is None:
            return None
        graph, answer = found
        if not self._is_same(graph, answer, call):
            return None
        taken = (self.seconds(graph.replay, REPLAYS, warm=1) for _ in range(BLOCKS))
        return median(taken) / REPLAYS / calls

    def _is_same(self, graph: Any, answer: torch.Tensor, call: Callable[[], Any]) -> bool:
        """Whether a replay computes the answer anew, as an eager call does, within the tolerance of its dtype."""
        expected = call().clone()
        answer.fill_(torch.nan)
        graph.replay()
        self._cuda.synchronize()
        try:
            torch.testing.assert_close(answer, expected)
        except AssertionError:
            return False
        return True

    def _look(self) -> None:
        """Ask NVML, now and then: its questions keep the device waiting."""
        if self._nvml and self._nvml.is_due(self._host_clock()):
            self._seen = self._nvml.of(_uuid(self._cuda))

    def sensors(self) -> Reading | None:
        """What was read during a block since this was asked last."""
        seen, self._seen = self._seen, None
        return seen

    def memory(self, call: Callable[[], Any]) -> tuple[Memory, Any]:
        """What was asked of the allocator, unrounded. The libraries' workspaces stay: the probes have filled them by now."""
        before = self._requested()
        self._cuda.reset_peak_memory_stats()
        answer = call()
        self._cuda.synchronize()
        peak = int(self._cuda.memory_stats()["requested_bytes.all.peak"])
        held = self._requested()
        copy = copied(answer)
        copies = self._requested() - held
        del answer
        return Memory(peak - before, max(0, self._requested() - copies - before)), copy

    def _requested(self) -> int:
        gc.collect()
        self._cuda.synchronize()
        return int(self._cuda.memory_stats()["requested_bytes.all.current"])

    def resident(self, call: Callable[[], Any]) -> tuple[None, Any]:
        return None, call()


def works(cuda: Any = torch.cuda, ones: Callable[..., Any] = torch.ones) -> bool:
    """Whether the device still computes for this process: an illegal access is an error of every later call, too."""
    if not cuda.is_initialized():
        return True
    try:
        cuda.synchronize()
        return bool(ones(8, device="cuda").sum().item() == 8)
    except torch.OutOfMemoryError:
        return True  # what failed still holds the memory: it is let go of once its error is
    except RuntimeError:
        return False


def free_bytes(cuda: Any = torch.cuda) -> int:
    """What no process has, and what this process's allocator keeps for later."""
    return int(cuda.mem_get_info()[0] + cuda.memory_reserved() - cuda.memory_allocated())


def _uuid(cuda: Any = torch.cuda) -> str:
    return str(cuda.get_device_properties().uuid)


def identity(cuda: Any = torch.cuda) -> dict[str, Any]:
    """The GPU, and its driver: by NVML, or where that is missing the version of CUDA or ROCm that torch was built for."""
    if not cuda.is_available():
        return {"gpu": None, "driver": None}
    nvml = opened()
    driver = nvml.driver() if nvml else None
    built_for = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    return {"gpu": cuda.get_device_name(), "driver": driver or f"unknown, {built_for}"}


VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Environment variables that list GPUs; ROCm knows both."""


def see_one_gpu() -> None:
    """Hide all GPUs but the first from this process, before it uses one: work on a second one would not be waited for."""
    for name in [name for name in VISIBLE if name in os.environ] or VISIBLE[:1]:
        os.environ[name] = os.environ.get(name, "0").partition(",")[0]


def _energy() -> Counter:
    if torch.version.hip:
        raise Unread("with ROCm there is no NVML: no clocks, power, throttling or energy")
    return of_gpu(opened(), _uuid())


CUDA = Device(
    "cuda",
    torch.cuda.is_available,
    identity,
    free_bytes=free_bytes,
    meter=lambda: CudaMeter(nvml=opened()),
    activities=(ProfilerActivity.CPU, ProfilerActivity.CUDA),
    energy=_energy,
    takes_more=True,
    works=works,
)
