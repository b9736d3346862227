"""What the timed processes of a run said of a cell, and how two cells compare in it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from stats import estimate, shares
from stats.ratios import Samples

from ..reading import units

BETWEEN, BETWEEN_NODES, WITHIN = "between processes", "between nodes", "within the run's processes"

NO_INTERVAL = (
    "no ratio of this run has an interval: its implementations were timed one after the other, or took turns only once"
)


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
    return _merged(extra.get("process_medians"))


def medians(row: Mapping[str, Any]) -> list[float]:
    """Seconds, one number per process. A row without `process_medians` is one process, and its datum the row's median."""
    return _times(row["extra_info"].get("process_medians")) or _times([row["stats"]["median"]])


def several(frame: pd.DataFrame) -> bool:
    """Whether any row of a frame has an interval between processes."""
    return "process_medians" in frame and any(map(interval, frame["process_medians"]))


def interval(process_medians: Any) -> tuple[float, float] | None:
    """The 95 % interval, in seconds, of what a fresh process would usually measure; None with too few of them."""
    logs = {process: [math.log(seconds)] for process, seconds in enumerate(_times(process_medians))}
    if len(logs) < estimate.ENOUGH_PROCESSES:
        return None
    low, high = estimate.of_processes(logs).interval()
    return math.exp(low), math.exp(high)


def said(process_medians: Any) -> str:
    """'1.20 ms to 1.31 ms, n = 5', or that there were too few processes."""
    count, found = len(_times(process_medians)), interval(process_medians)
    if found is None:
        return "one process" if count < 2 else f"{count} processes"
    low, high = found
    text = (
        f"{units.seconds(low, digits(found))} to {units.seconds(high, digits(found))}"
        if not shares.too_wide(low, high)
        else shares.UNRESOLVED
    )
    return f"{text}, n = {count}"


def digits(found: tuple[float, float] | None) -> int:
    """As many as are worth reading of a number with this interval: 3 within 10 %, else 2."""
    wide = found[1] / found[0] - 1 if found else 0.0
    return 3 if wide < 0.1 else 2


def interval_name(frame: pd.DataFrame) -> str:
    """What the intervals of ratios are taken over."""
    return between(frame) if frame["processes"].min() >= estimate.ENOUGH_PROCESSES else WITHIN


def between(frame: pd.DataFrame) -> str:
    """What lies between the processes of a cell: nodes, where each of them was on one of its own."""
    nodes = frame["process_nodes"] if "process_nodes" in frame else pd.Series([None])
    apart = nodes.map(lambda names: isinstance(names, list) and len(set(names)) == len(names))
    return BETWEEN_NODES if apart.all() else BETWEEN


def _merged(process_medians: Any) -> Samples | None:
    given = process_medians if isinstance(process_medians, list) else []
    times = {process: value for process, value in enumerate(given) if positive(value)}
    if len(times) < 2:
        return None
    rounds = [-1 - process for process in times]  # below 0: equal to no round that was counted
    return Samples(list(times.values()), rounds, list(times), list(times))


def _times(values: Any) -> list[float]:
    given = values if isinstance(values, Sequence) and not isinstance(values, str) else []
    return [float(value) for value in given if positive(value)]


def positive(value: Any) -> bool:
    """Whether it is a number that a time or a ratio can be."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
