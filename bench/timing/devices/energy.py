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


class Unread(Exception):
    """No counter can be read; the message explains why."""


@dataclass(frozen=True)
class Counter:
    """An energy counter with its own units."""

    source: str
    seconds: float
    """Seconds of observation after which its resolution doesn't matter."""
    read: Callable[[], tuple[int, ...]]
    joules: Callable[[tuple[int, ...], tuple[int, ...]], float]
    """Joules between two readings."""


def no_counter() -> Counter:
    raise Unread("no counter is known")


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


def rapl(folder: Path = POWERCAP) -> Counter:
    """Return the counter of all packages of the machine; raises `Unread`. Other zones are parts of a package, or
    `psys`, a superset.
    """
    names = {zone: _text(zone / "name") for zone in sorted(folder.glob("intel-rapl:*"))}
    zones = [zone for zone, name in names.items() if name.startswith("package")]
    if not zones:
        raise Unread(f"{folder} shows no package of a processor")
    ranges = [int(_text(zone / "max_energy_range_uj")) for zone in zones]

    def read() -> tuple[int, ...]:
        return tuple(int(_text(zone / "energy_uj")) for zone in zones)

    def joules(before: tuple[int, ...], after: tuple[int, ...]) -> float:
        """Return the joules between two readings; a counter wraps to zero at its range."""
        return sum((b - a) % most for a, b, most in zip(before, after, ranges, strict=True)) / 1e6

    read()
    return Counter(f"RAPL, {', '.join(names[zone] for zone in zones)}", RAPL_SECONDS, read, joules)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise Unread(f"{path}: {error.strerror}") from None


def of_gpu(nvml: Nvml | None, uuid: str) -> Counter:
    """Return the counter of one GPU; raises `Unread`."""

    def read() -> tuple[int, ...]:
        found = nvml.millijoules(uuid) if nvml else None
        if found is None:
            raise Unread("NVML reports no energy for this GPU")
        return (found,)

    read()
    return Counter("NVML", NVML_SECONDS, read, lambda before, after: (after[0] - before[0]) / 1e3)
