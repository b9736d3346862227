"""Energy of calls, from counters of processors and GPUs that cover a whole package with all its processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
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
    """An energy counter with its own units."""

    seconds: float
    """Seconds of observation after which its resolution doesn't matter."""
    read: Callable[[], tuple[int, ...]]
    """Reads it; raises OSError."""
    joules: Callable[[tuple[int, ...], tuple[int, ...]], float]
    """Joules between two readings."""


def joules_of_a_call(counter: Counter, run: Callable[[int], object], hot_s: float) -> float | None:
    """Return the joules of a call of about `hot_s` seconds; `run` makes a number of calls. None if the counter doesn't
    change, as virtual ones may.
    """
    at_a_time, made = max(1, ceil(AT_A_TIME / max(hot_s, 1e-9))), 0
    before, until = counter.read(), perf_counter() + counter.seconds
    while not made or perf_counter() < until:
        run(at_a_time)
        made += at_a_time
    return counter.joules(before, counter.read()) / made or None


def rapl(folder: Path = POWERCAP) -> Counter | None:
    """Return the counter of all packages of the machine; None if it can't be read. Other zones are parts of a package,
    or `psys`, a superset.
    """

    def number(zone: Path, name: str) -> int:
        return int((zone / name).read_text())

    def read() -> tuple[int, ...]:
        return tuple(number(zone, "energy_uj") for zone in zones)

    def joules(before: tuple[int, ...], after: tuple[int, ...]) -> float:
        """Return the joules between two readings; a counter wraps to zero at its range."""
        return sum((b - a) % most for a, b, most in zip(before, after, ranges, strict=True)) / 1e6

    try:
        zones = [it for it in sorted(folder.glob("intel-rapl:*")) if (it / "name").read_text().startswith("package")]
        ranges = [number(zone, "max_energy_range_uj") for zone in zones]
        read()
    except OSError:
        return None
    return Counter(RAPL_SECONDS, read, joules) if zones else None


def of_gpu(nvml: Nvml, uuid: str) -> Counter | None:
    """Return the counter of one GPU; None if NVML reports no energy for it."""

    def read() -> tuple[int, ...]:
        found = nvml.millijoules(uuid)
        if found is None:
            raise OSError("NVML reports no energy for this GPU")
        return (found,)

    if nvml.millijoules(uuid) is None:
        return None
    return Counter(NVML_SECONDS, read, lambda before, after: (after[0] - before[0]) / 1e3)
