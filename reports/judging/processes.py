"""Samples and intervals of a cell from the timed processes of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from stats import estimate
from stats.ratios import Samples


def samples(row: Mapping[str, Any]) -> Samples:
    """Return the samples of a row, for pairing with other rows of its run."""
    places = (row["extra_info"][f"sample_{what}"] for what in ("rounds", "visits", "processes"))
    return Samples(row["stats"]["data"], *places)


def interval(medians: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval in seconds for the time in a fresh process; None with too few processes."""
    if len(medians) < estimate.ENOUGH_PROCESSES:
        return None
    low, high = estimate.of_processes({i: [math.log(seconds)] for i, seconds in enumerate(medians)}).interval()
    return math.exp(low), math.exp(high)


def digits(found: tuple[float, float]) -> int:
    """Return the significant digits warranted by an interval: 3 within 10 %, else 2."""
    return 3 if found[1] / found[0] - 1 < 0.1 else 2


def positive(value: Any) -> bool:
    """Whether a value is a positive finite number, valid as a time or a ratio."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
