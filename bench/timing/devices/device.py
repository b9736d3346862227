"""Interface of a device on which cases are measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .nvml import Reading

Work = Callable[[], Any]
"""A call that is measured; its output may be needed."""


@dataclass(frozen=True)
class Memory:
    """Memory allocated by one call."""

    peak_bytes: int = 0
    """Peak of newly allocated tensor memory."""
    kept_bytes: int = 0
    """Bytes still allocated after the output was freed, such as a cache or a buffer that is filled once."""


def copied(output: Any) -> Any:
    """Return a copy of a call's output, a tensor or a tuple with tensors."""
    if isinstance(output, Tensor):
        return output.detach().clone()
    return tuple(map(copied, output)) if type(output) is tuple else output


class Meter:
    """Measurements on a device; by default without sensors, and without those of the operating system."""

    clock: str
    """Timing method, a column of the results."""
    whole_blocks: bool
    """Whether the clock is read once per block, since reading it waits for the device."""

    def timed(self, call: Work, times: int, warm: int = 0) -> tuple[float, Any]:
        """Return the seconds of `times` calls after `warm` untimed ones, asynchronous work included, and the last
        output.
        """
        raise NotImplementedError

    def seconds(self, call: Work, times: int, warm: int = 0) -> float:
        """Return the seconds alone."""
        return self.timed(call, times, warm)[0]

    def block(self, call: Work, calls: int, slices: int, warm: int) -> tuple[float, float, Any]:
        """Return the seconds of one call, over a block of slices and over its fastest slice, and the last output."""
        if self.whole_blocks:  # at least one call before it: the first launch on an idle device takes longer
            calls, slices, warm = calls * slices, 1, max(1, warm)
        taken = []
        for i in range(slices):
            output = None  # is freed before the next output is computed
            seconds, output = self.timed(call, calls, 0 if i else warm)
            taken.append(seconds)
        return sum(taken) / slices / calls, min(taken) / calls, output

    def slowed(self, call: Work, share: float) -> Work:
        """Return the call, slowed by a share of its own time."""
        raise NotImplementedError

    def more(self, call: Work, hot_s: float, graph: bool, tensors: Sequence[Tensor]) -> dict[str, float | None]:
        """Return the seconds of extra calls: `cold_s` with cold caches, and its interval
        `cold_low`, `cold_high`; `device_s` with all launches queued beforehand; `graph_s` replayed from a graph (only
        if `graph`). Those that the device doesn't support are missing; None if a hot call takes too long (`hot_s`) for it
        to matter, or if the call can't be captured or queued. `tensors`: inputs and weights.
        """
        return {}

    def sensors(self) -> Reading | None:
        """Return the latest reading that was taken during blocks since the last call of this method; None if there is none."""
        return None

    def memory(self, call: Work, operators: bool = True) -> tuple[Memory, bytes, Any]:
        """Return the memory of one call, excluding earlier allocations, its Chrome trace, in which `operators` may be left
        out, and a copy of its output.
        """
        raise NotImplementedError

    def counts_memory(self, graphed: bool) -> bool:
        """Whether `memory` knows what a call allocates. `graphed`: whether it may replay a CUDA graph."""
        return True

    def resident(self, call: Work) -> tuple[int | None, Any]:
        """Return the growth in bytes of the process's high-water mark over a call, private memory included, None if it
        can't be measured; and the call's output.
        """
        return None, call()


@dataclass(frozen=True)
class Device:
    """One kind of device: its meter, identity and free memory."""

    present: Callable[[], bool]
    identity: Callable[[], Mapping[str, Any]]
    """Device part of the machine's fingerprint; constant between runs."""
    free_bytes: Callable[[], int]
    """Free memory in bytes."""
    meter: Callable[[], Meter]
    works: Callable[[], bool] = lambda: True
    """Whether this process can still use the device after an implementation has failed."""
