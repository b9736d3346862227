"""Samples of a cell, and the precision of its time, from the timed processes of a run."""

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


def digits(medians: Sequence[float], spread: float) -> int:
    """Return the significant digits that a median warrants: 3 if known to within 10 %, else 2.

    Its interval follows from the medians of the processes; with too few of them, `spread` replaces it, as a share.
    """
    if len(medians) >= estimate.ENOUGH_PROCESSES:
        low, high = estimate.of_processes({i: [math.log(seconds)] for i, seconds in enumerate(medians)}).interval()
        spread = math.expm1(high - low)
    return 3 if spread < 0.1 else 2
