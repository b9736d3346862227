"""What a device must be able to tell and to do so that cases are measured on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor
from torch.profiler import ProfilerActivity

from .energy import Counter, no_counter
from .nvml import Reading


@dataclass(frozen=True)
class Memory:
    """What one call allocated."""

    peak_bytes: int
    """Peak of newly allocated tensor memory."""
    kept_bytes: int
    """What stayed allocated when its answer was gone: a cache, a buffer that is filled once."""


def copied(answer: Any) -> Any:
    """A copy of the answer of a call: of a tensor, or of the tensors of a tuple."""
    if isinstance(answer, Tensor):
        return answer.detach().clone()
    return tuple(map(copied, answer)) if type(answer) is tuple else answer


class Meter(Protocol):
    """What a device must be able to do to be measured."""

    clock: str
    """How time is taken; a column of the results."""
    whole_blocks: bool
    """Whether the clock is read once a block, since reading it waits for the device."""

    def timed(self, call: Callable[[], Any], times: int, warm: int = 0) -> tuple[float, Any]:
        """Seconds that `times` calls back to back take behind `warm` untimed ones, all of their work included, and the last
        one's answer.
        """

    def seconds(self, call: Callable[[], Any], times: int, warm: int = 0) -> float:
        """The seconds alone."""

    def slowed(self, call: Callable[[], Any], share: float) -> Callable[[], Any]:
        """The call, slower by a share of its own time."""

    def more(self, call: Callable[[], Any], hot_s: float, graph: bool) -> dict[str, float | None]:
        """Seconds of one call taken otherwise than hot and back to back: `cold_s` finds nothing of its data in the cache, with
        the interval `cold_low`, `cold_high`; `device_s` has all launches queued before it begins; `graph_s` is replayed from
        a graph (only where `graph` is wanted). None where the device has no such thing, where a call, of which the hot one
        took `hot_s`, is too long for it to matter, or where it can't be captured or queued.
        """

    def sensors(self) -> Reading | None:
        """What the device says of its clock and temperature now; None where it says nothing."""

    def memory(self, call: Callable[[], Any]) -> tuple[Memory, Any]:
        """Memory of one call, what was there before not counted, and a copy of its answer."""

    def resident(self, call: Callable[[], Any]) -> tuple[int | None, Any]:
        """Bytes by which the process's high-water mark grows over a call, private memory included, None where nothing tells;
        and the call's answer.
        """


@dataclass(frozen=True)
class Device:
    """One kind of device: its meter, identity, free memory and energy counter."""

    name: str
    """As torch has it, and as `cases.case.DEVICES` lists it."""
    present: Callable[[], bool]
    identity: Callable[[], Mapping[str, Any]]
    """Its part of the machine's fingerprint: nothing in it drifts from one run to the next."""
    free_bytes: Callable[[], int]
    """Memory that is left for a cell."""
    meter: Callable[[], Meter]
    activities: tuple[ProfilerActivity, ...]
    """What the profiler watches for a trace."""
    energy: Callable[[], Counter] = no_counter
    """What its energy is read from; raises `Unread`."""
    takes_more: bool = False
    """Whether `Meter.more` measures anything there."""
    works: Callable[[], bool] = lambda: True
    """Whether this process can still use it, once an implementation has failed."""
