"""What each fresh process said of a cell: the unit of replication."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def medians(row: Mapping[str, Any]) -> list[float]:
    """Seconds, one number per process. A row without `process_medians` is one process, and its datum the row's median."""
    several = row["extra_info"].get("process_medians")
    found = several if isinstance(several, list) and several else [row["stats"]["median"]]
    return [float(value) for value in found if _is_time(value)]


def logs(row: Mapping[str, Any]) -> list[float]:
    """Logarithms of the medians in seconds."""
    return [math.log(value) for value in medians(row)]


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
