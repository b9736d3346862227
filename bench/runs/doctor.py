"""`python -m bench doctor`: finds sources of disturbance on this machine and recommends remedies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep

import psutil
import torch

from stats.arguments import Parser, as_typed, wrapped

from ..timing.devices.cpu import cores
from ..timing.devices.nvml import HELD_BACK, IDLE, SETTINGS, opened
from ..timing.machine import crowded

BUSY = 10
"""Percentage of one core above which another process is reported."""

WATCH = 1.0
"""Seconds for which other processes are observed."""

UNEVEN = 1.25
"""Ratio of the 90th percentile to the shortest time of fixed work, above which the machine is uneven."""

INDENT = " " * 22

CPUS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Remark:
    """One finding. `advice` is None if no action is needed."""

    about: str
    found: str
    advice: str | None = None


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 0 without disturbances, 1 with some, 3 for a usage error."""
    Parser(
        "python -m bench doctor",
        description="Find what on this machine will disturb measurements, with advice for each.",
        epilog="Exit code: 0 when nothing disturbs, 1 when something does.",
    ).parse_args(arguments)
    for remark in (found := remarks()):
        print(wrapped(f"{'disturbs' if remark.advice else 'fine':<9} {remark.about:<11} {remark.found}", INDENT))
        if remark.advice:
            print(wrapped(INDENT + as_typed(remark.advice), INDENT))
    disturbing = sum(remark.advice is not None for remark in found)
    print(f"{disturbing or 'none'} of {len(found)} will disturb a measurement")
    return 1 if disturbing else 0


def remarks() -> list[Remark]:
    """Return all findings."""
    return [others(), evenness(), threads(), governor(), *gpus()]


def others() -> Remark:
    """Report other processes that use the CPU."""
    mine = {psutil.Process().pid, *(parent.pid for parent in psutil.Process().parents())}
    for _ in psutil.process_iter(["cpu_percent"]):
        pass  # the first reading only starts the count
    sleep(WATCH)
    seen = psutil.process_iter(["name", "cpu_percent"])
    busy = [it for it in seen if (it.info["cpu_percent"] or 0.0) > BUSY and it.pid not in mine]
    busy.sort(key=lambda it: -it.info["cpu_percent"])
    named = [f"{it.info['name']} (pid {it.pid}) {it.info['cpu_percent']:.0f}% of a core" for it in busy[:5]]
    advice = "stop them, or measure when they are done" if busy else None
    return Remark("other load", ", ".join(named) or "no other process computes", advice)


def evenness() -> Remark:
    """Report disturbances that no counter shows, such as another guest or hyper-thread on the same core, by repeated
    fixed work of about 0.2 ms.
    """
    spent, end = [], perf_counter() + WATCH
    while (start := perf_counter()) < end:
        sum(i * i for i in range(4_000))
        spent.append(perf_counter() - start)
    spent.sort()
    middle, high = (spent[len(spent) * tenths // 10] / spent[0] for tenths in (5, 9))
    found = f"the same work takes {middle:.2f} times its shortest time (median; 90th percentile {high:.2f})"
    advice = "something shares the cores, and runs differ by as much; for small differences use `python -m bench ab`"
    return Remark("evenness", found, advice if high > UNEVEN else None)


def threads() -> Remark:
    """Compare intra-op threads with the cores available to this process."""
    used = torch.get_num_threads()
    return Remark("threads", f"{used} on {cores()} cores", crowded(used))


def governor() -> Remark:
    """Report the frequency governor."""
    kinds = set[str]()
    for path in CPUS.glob("cpu*/cpufreq/scaling_governor"):
        with suppress(OSError):  # EBUSY: the CPU is offline, as hyper-threads may be
            kinds.add(path.read_text().strip())
    advice = None if kinds <= {"performance"} else "sudo cpupower frequency-set -g performance"
    return Remark("governor", ", ".join(sorted(kinds)) or "not visible (a virtual machine, or not Linux)", advice)


def gpus() -> Iterator[Remark]:
    """Report clocks and throttling of every GPU, by NVML."""
    for index, gpu in enumerate(opened().all()):
        advice = "others use this GPU" if (gpu.busy_percent or 0) > 5 else None
        if gpu.reasons & HELD_BACK:
            advice = "its clocks are held back: let it cool down"
        clock, most, busy = ("unknown" if it is None else it for it in (gpu.sm_mhz, gpu.sm_mhz_most, gpu.busy_percent))
        chosen = ", as set" if gpu.reasons & SETTINGS & ~IDLE else ""
        found = f"{clock} of {most} MHz{chosen}, {busy} % busy, throttled: {gpu.throttled or 'no'}"
        yield Remark(f"GPU {index}", found, advice)
