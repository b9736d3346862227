"""Energy of calls, from counters of processors and GPUs that cover a whole package with all its processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, inf
from pathlib import Path
from time import perf_counter

from .nvml import Nvml

POWERCAP = Path("/sys/class/powercap")
"""Folder of Linux's counters of Intel and AMD processors (RAPL)."""

RAPL_SECONDS, NVML_SECONDS = 0.1, 1.0
"""Seconds of calls per energy measurement: counters are updated every millisecond (processors) or 0.1 s (GPUs)."""

AT_A_TIME = 0.01
"""Seconds of calls between two readings of the clock."""


@dataclass(frozen=True)
class Counter:
    """An energy counter, of one or several parts."""

    seconds: float
    """Seconds of observation after which its resolution doesn't matter."""
    read: Callable[[], list[float]]
    """Reads the joules of each part; raises OSError."""
    wraps: Sequence[float]
    """Joules at which each part begins anew."""

    def since(self, before: Sequence[float]) -> float:
        """Return the joules since an earlier reading."""
        return sum((b - a) % most for a, b, most in zip(before, self.read(), self.wraps, strict=True))


def joules_of_a_call(counter: Counter, run: Callable[[int], object], hot_s: float) -> float | None:
    """Return the joules of a call of about `hot_s` seconds; `run` makes a number of calls. None if the counter doesn't
    change, as virtual ones may.
    """
    at_a_time, made = max(1, ceil(AT_A_TIME / max(hot_s, 1e-9))), 0
    before, until = counter.read(), perf_counter() + counter.seconds
    while not made or perf_counter() < until:
        run(at_a_time)
        made += at_a_time
    found = counter.since(before) / made
    return found if 0 < found < inf else None


def rapl(folder: Path = POWERCAP) -> Counter | None:
    """Return the counter of all packages of the machine; None if it can't be read. Other zones are parts of a package,
    or `psys`, a superset.
    """

    def joules(name: str) -> list[float]:
        return [int((zone / name).read_text()) / 1e6 for zone in zones]

    try:
        zones = [it for it in sorted(folder.glob("intel-rapl:*")) if (it / "name").read_text().startswith("package")]
        counter = Counter(RAPL_SECONDS, partial(joules, "energy_uj"), joules("max_energy_range_uj"))
        counter.read()
    except OSError:
        return None
    return counter if zones else None


def of_gpu(nvml: Nvml, uuid: str) -> Counter | None:
    """Return the counter of one GPU; None if NVML reports no energy for it."""

    def read() -> list[float]:
        if (found := nvml.millijoules(uuid)) is None:
            raise OSError("NVML reports no energy for this GPU")
        return [found / 1e3]

    return None if nvml.millijoules(uuid) is None else Counter(NVML_SECONDS, read, [inf])
