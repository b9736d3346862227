"""What the timed processes of a run said of a cell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from stats import estimate
from stats.ratios import Samples


def samples(row: Mapping[str, Any]) -> Samples | None:
    """The samples of a row, to be paired with those of other rows of its run; None where they can't be paired.

    A run merged from several processes knows no rounds: its processes are paired instead, a visit each. One process without
    rounds tells no interval.
    """
    extra, seconds = row["extra_info"], row["stats"].get("data")
    places = [extra.get(f"sample_{what}") for what in ("rounds", "visits", "processes")]
    if seconds and all(isinstance(place, list) and len(place) == len(seconds) for place in places):
        timed = [block for block in zip(seconds, *places, strict=True) if positive(block[0])]
        return Samples(*map(list, zip(*timed, strict=True))) if timed else None
    times = {process: value for process, value in enumerate(_listed(extra.get("process_medians"))) if positive(value)}
    rounds = [-1 - process for process in times]  # below 0: equal to no round that was counted
    return Samples([*times.values()], rounds, [*times], [*times]) if len(times) > 1 else None


def medians(row: Mapping[str, Any]) -> list[float]:
    """Seconds, one number per process. A row without `process_medians` is one process, and its datum the row's median."""
    return _times(row["extra_info"].get("process_medians")) or _times([row["stats"]["median"]])


def interval(process_medians: Any) -> tuple[float, float] | None:
    """The 95 % interval, in seconds, of what a fresh process would usually measure; None with too few of them."""
    logs = {process: [math.log(seconds)] for process, seconds in enumerate(_times(process_medians))}
    if len(logs) < estimate.ENOUGH_PROCESSES:
        return None
    low, high = estimate.of_processes(logs).interval()
    return math.exp(low), math.exp(high)


def digits(found: tuple[float, float]) -> int:
    """As many as are worth reading of a number with this interval: 3 within 10 %, else 2."""
    return 3 if found[1] / found[0] - 1 < 0.1 else 2


def _times(values: Any) -> list[float]:
    return [float(value) for value in _listed(values) if positive(value)]


def _listed(values: Any) -> Sequence[Any]:
    return values if isinstance(values, Sequence) and not isinstance(values, str) else []


def positive(value: Any) -> bool:
    """Whether it is a number that a time or a ratio can be."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
