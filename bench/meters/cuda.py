"""Time and memory on a CUDA device: events in the stream, and the caching allocator's own count."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

from ..dispatch import kernel_of
from . import Weight


class CudaMeter:
    """`cuda` is `torch.cuda`, or a simulated device that answers to the same names."""

    clock = "cuda_events"

    def __init__(self, cuda: Any = torch.cuda):
        self._cuda = cuda

    def seconds(self, call: Callable[[], Any], times: int) -> float:
        """Time between two events in the stream; the work before the first is waited for, so that it is not counted."""
        start, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
        self._cuda.synchronize()
        start.record()
        for _ in range(times):
            call()
        end.record()
        self._cuda.synchronize()  # calls return before their work is done
        return float(start.elapsed_time(end)) / 1e3  # milliseconds

    def weigh(self, call: Callable[[], Any]) -> Weight:
        """What was asked of the allocator, unrounded. A first call outside fills cuBLAS's workspace, which stays."""
        call()
        gc.collect()
        self._cuda.synchronize()
        self._cuda.reset_peak_memory_stats()
        before = self._cuda.memory_stats()["requested_bytes.all.current"]
        kept = call()
        self._cuda.synchronize()
        peak = self._cuda.memory_stats()["requested_bytes.all.peak"]
        del kept
        return Weight(int(peak - before), kernel_of(call))
