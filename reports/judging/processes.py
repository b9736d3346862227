"""What the timed processes of a run said of a cell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from stats import estimate
from stats.ratios import Samples


def samples(row: Mapping[str, Any]) -> Samples:
    """The samples of a row, to be paired with those of other rows of its run."""
    places = (row["extra_info"][f"sample_{what}"] for what in ("rounds", "visits", "processes"))
    return Samples(row["stats"]["data"], *places)


def interval(medians: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval, in seconds, of what a fresh process would usually measure; None with too few of them."""
    if len(medians) < estimate.ENOUGH_PROCESSES:
        return None
    low, high = estimate.of_processes({i: [math.log(seconds)] for i, seconds in enumerate(medians)}).interval()
    return math.exp(low), math.exp(high)


def digits(found: tuple[float, float]) -> int:
    """As many as are worth reading of a number with this interval: 3 within 10 %, else 2."""
    return 3 if found[1] / found[0] - 1 < 0.1 else 2


def positive(value: Any) -> bool:
    """Whether it is a number that a time or a ratio can be."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
