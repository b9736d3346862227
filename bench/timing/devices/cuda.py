"""Time and memory on a CUDA device: events in the stream, and the caching allocator's own count."""

from __future__ import annotations

import gc
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from ...proof.dispatch import host_trace, kernel_in, operators_in
from .device import CallProfile, Device
from .energy import of_gpu
from .graphs import captured
from .nvml import Nvml, Reading, opened

COLD_CALLS, COLD_BELOW = 11, 0.1
"""Single calls of which `cold_s` is the median; seconds of a hot call above which a cache makes no difference."""

GRAPH_BELOW = 200e-6
"""Seconds of a hot call below which launching may take most of it."""

REPLAYS, BLOCKS = 100, 5
"""Replays in a block, and blocks of which `graph_s` is the median."""


class CudaMeter:
    """`cuda` is `torch.cuda`, or a simulated device that answers to the same names; so is `empty` for `torch.empty`."""

    clock = "cuda_events"

    def __init__(self, cuda: Any = torch.cuda, nvml: Nvml | None = None, empty: Any = torch.empty):
        self._cuda, self._nvml, self._empty = cuda, nvml, empty

    def timed(self, call: Callable[[], Any], times: int) -> tuple[float, Any]:
        """Time between two events in the stream; the work before the first is waited for, so that it is not counted."""
        return self._between(call, times, behind=lambda: None)

    def seconds(self, call: Callable[[], Any], times: int) -> float:
        return self.timed(call, times)[0]

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
        self._cuda.synchronize()  # calls return before their work is done
        return float(start.elapsed_time(end)) / 1e3, answer  # milliseconds

    def more(self, call: Callable[[], Any], hot_s: float, graph: bool) -> dict[str, float | None]:
        return {
            "cold_s": self._cold(call) if hot_s < COLD_BELOW else None,
            "graph_s": self._replayed(call) if graph and hot_s < GRAPH_BELOW else None,
        }

    def _cold(self, call: Callable[[], Any]) -> float | None:
        """Seconds of a single call behind a write of twice the L2, which also hides most of the launch (Triton's way)."""
        size = 2 * self._cuda.get_device_properties().L2_cache_size
        if not size:
            return None  # unknown: nothing would be flushed
        buffer = self._empty(size, dtype=torch.uint8, device="cuda")
        return median(self._between(call, 1, behind=buffer.zero_)[0] for _ in range(COLD_CALLS))

    def _replayed(self, call: Callable[[], Any]) -> float | None:
        """Seconds of one of many replays back to back; None where the call can't be captured."""
        graph = captured(self._cuda, call)
        if graph is None:
            return None
        self.seconds(graph.replay, 1)  # the first uploads it
        return median(self.seconds(graph.replay, REPLAYS) / REPLAYS for _ in range(BLOCKS))

    def sensors(self) -> Reading | None:
        return self._nvml.of(_uuid(self._cuda)) if self._nvml else None

    def kept(self, call: Callable[[], Any]) -> tuple[int, None]:
        """The libraries' workspaces stay, too: the probes have filled them by now."""
        before = self._requested()
        call()
        return max(0, self._requested() - before), None

    def _requested(self) -> int:
        gc.collect()
        self._cuda.synchronize()
        return int(self._cuda.memory_stats()["requested_bytes.all.current"])

    def profile_call(self, call: Callable[[], Any], first: CallProfile | None = None) -> CallProfile:
        """What was asked of the allocator, unrounded. A first call outside fills cuBLAS's workspace, which stays."""
        call()
        before = self._requested()
        self._cuda.reset_peak_memory_stats()
        kept = call()
        self._cuda.synchronize()
        peak = self._cuda.memory_stats()["requested_bytes.all.peak"]
        del kept
        trace = host_trace(call)
        return CallProfile(int(peak - before), kernel_in(trace), operators_in(trace))


def _uuid(cuda: Any = torch.cuda) -> str:
    """As NVML has it."""
    return f"GPU-{cuda.get_device_properties().uuid}"


def _identity() -> dict[str, Any]:
    present = torch.cuda.is_available()
    return {"gpu": torch.cuda.get_device_name() if present else None, "driver": _driver() if present else None}


def _driver() -> str:
    """The NVIDIA driver's version."""
    import pynvml

    pynvml.nvmlInit()
    return str(pynvml.nvmlSystemGetDriverVersion())


CUDA = Device(
    "cuda",
    torch.cuda.is_available,
    _identity,
    free_bytes=lambda: int(torch.cuda.mem_get_info()[0]),
    meter=lambda: CudaMeter(nvml=opened()),
    activities=(ProfilerActivity.CPU, ProfilerActivity.CUDA),
    energy=lambda: of_gpu(opened(), _uuid()),
    takes_more=True,
)
