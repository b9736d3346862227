"""What each fresh process said of a cell: the unit of replication."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from . import units, verdict


def medians(row: Mapping[str, Any]) -> list[float]:
    """Seconds, one number per process. A row without `process_medians` is one process, and its datum the row's median."""
    return _times(row["extra_info"].get("process_medians")) or _times([row["stats"]["median"]])


def logs(row: Mapping[str, Any]) -> list[float]:
    """Logarithms of the medians in seconds."""
    return [math.log(value) for value in medians(row)]


def several(frame: pd.DataFrame) -> bool:
    """Whether any row of a frame was measured in several processes."""
    return "process_medians" in frame and any(map(interval, frame["process_medians"]))


def interval(process_medians: Any) -> tuple[float, float] | None:
    """The 95 % interval, in seconds, of what a fresh process would usually measure; None with fewer than two of them."""
    return verdict.interval(_times(process_medians))


def said(process_medians: Any) -> str:
    """'1.20 ms to 1.31 ms, n = 5', or that there was one process."""
    found = interval(process_medians)
    if found is None:
        return "one process"
    low, high = (units.seconds(value) for value in found)
    return f"{low} to {high}, n = {len(_times(process_medians))}"


def _times(values: Any) -> list[float]:
    given = values if isinstance(values, Sequence) and not isinstance(values, str) else []
    return [float(value) for value in given if _is_time(value)]


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
