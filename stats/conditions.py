"""Machine conditions during a run: drift of the reference workload, and external disturbances."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .shares import percent

DRIFT = 0.05
"""Relative change of the reference workload's time above which drift is reported."""

SCATTERS = 3.0
"""Multiple of the workload's own scatter above which a change counts as drift."""

INTERRUPTIONS = 200.0
"""Involuntary context switches per second of timed calls on the CPU: up to 110 in undisturbed runs, from 380 on beside load.
"""

SCATTER = 0.075
"""Scatter between successive blocks: up to 6 % in undisturbed runs."""

QUARTERS, SCATTER_OF_QUARTER, MIN_PAIRS = 4, 0.1, 200
"""The same in a quarter of the run's visits, up to 7.4 % in undisturbed runs, and the least pairs of blocks to judge one by."""

LOOP_RATIO, LOOP_QUANTILE = 2.0, 0.9
"""A run was disturbed if a tenth of the samples of the reference workload's loop take more than this multiple of the
shortest: up to 1.2 in undisturbed runs, from 2.7 on beside so many threads that calls run, and are interrupted, rarely.
"""

HELD_BACK = ("hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "power brake")
"""Entries of `throttled` for which a GPU is slower than it can be. A power cap, common during matrix products, is none of them.
"""

TO_SIGMA = 1 / 0.6745
"""Ratio of the standard deviation to the median absolute deviation, for normal numbers."""


def drift(samples: Mapping[str, Sequence[float]]) -> float:
    """Return the relative change of the reference workload's time from the first half of the run to the second; 0 for
    none.

    `samples`: seconds of each part of the workload, in the order of time. The change is compared with the workload's own
    scatter, the typical difference of successive samples, so that it doesn't grow with the number of samples.
    """
    found = [0.0]
    for logs in map(np.log, samples.values()):
        if half := len(logs) // 2:
            change = abs(float(np.median(logs[-half:]) - np.median(logs[:half])))
            found += [math.expm1(change)] * (half < 2 or change > SCATTERS * scatter(np.diff(logs)))
    return max(found)


def disturbed(rows: Iterable[Mapping[str, Any]], workload: Mapping[str, Any]) -> str:
    """Explain in one sentence why a run was disturbed and what to do; '' if not. `rows`: the run file's benchmarks;
    `workload`: its `controls`.
    """
    switches, found, last, throttled = [], [], 1, set[str]()
    for row in rows:
        extra, stats = row["extra_info"], row["stats"]
        if extra.get("switches_involuntary") is not None and extra.get("device", "cpu") == "cpu":
            switches.append(extra["switches_involuntary"] / stats["median"])
        throttled.update((extra.get("throttled") or "").split(", "))
        visits = np.array(extra["sample_visits"])
        same, last = np.diff(visits) == 0, max(last, 1 + visits.max())
        found.append((visits[1:][same], np.diff(np.log(stats["data"]))[same]))
    quarters = [[moves[visits * QUARTERS // last == it] for visits, moves in found] for it in range(QUARTERS)]
    usual = _usual_scatter([moves for _, moves in found])
    worst = max((_usual_scatter(it) for it in quarters if sum(map(len, it)) >= MIN_PAIRS), default=0.0)
    why = []
    if switches and (often := float(np.median(switches))) > INTERRUPTIONS:
        why.append(f"timed calls were interrupted {often:.0f} times a second")
    if usual > SCATTER:
        why.append(f"successive blocks differed by {percent(usual)}")
    elif worst > SCATTER_OF_QUARTER:
        why.append(f"successive blocks differed by {percent(worst)} in a quarter of its visits")
    if held := [reason for reason in HELD_BACK if reason in throttled]:
        why.append(f"the GPU's clocks were held back ({', '.join(held)}), for want of cooling or power")
    loop = [sample["seconds"] for sample in workload.get("looks", {}).get("python", ())]
    if loop and (times := float(np.quantile(loop, LOOP_QUANTILE)) / min(loop)) > LOOP_RATIO:
        why.append(f"a tenth of the reference workload's loops took at least {times:.1f} times the shortest")
    return f"the run was disturbed: {', '.join(why)}; stop other work and measure it again" if why else ""


def _usual_scatter(rows: Iterable[ArrayLike]) -> float:
    """Return the median of rows' scatters; 0 without any. `rows`: differences of logarithms of successive blocks."""
    found = [scatter(moves) for moves in rows if np.size(moves)]
    return float(np.median(found)) if found else 0.0


def scatter(moves: ArrayLike) -> float:
    """Return the standard deviation of numbers, estimated from successive differences; 0 without any."""
    return TO_SIGMA / math.sqrt(2) * float(np.median(np.abs(moves))) if np.size(moves) else 0.0
