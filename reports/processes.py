"""How far apart processes are: an interval for what a fresh process would measure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from . import units

CONFIDENCE = 0.95


def interval(medians: Any) -> tuple[float, float] | None:
    """Student's 95 % interval of the mean of the processes' medians, in seconds; None with fewer than two of them.

    Not below zero: with two processes that differ, little is known, and that is what it says.
    """
    known = _known(medians)
    if len(known) < 2:
        return None
    half = stats.t.ppf((1 + CONFIDENCE) / 2, len(known) - 1) * np.std(known, ddof=1) / math.sqrt(len(known))
    mean = float(np.mean(known))
    return max(0.0, mean - half), mean + half


def said(medians: Any) -> str:
    """'1.20 ms to 1.31 ms, n = 5', or that there was one process."""
    found = interval(medians)
    if found is None:
        return "one process"
    low, high = (units.seconds(value) for value in found)
    return f"{low} to {high}, n = {len(_known(medians))}"


def _known(medians: Any) -> list[float]:
    given = medians if isinstance(medians, Sequence) and not isinstance(medians, str) else []
    return [float(v) for v in given if isinstance(v, int | float) and math.isfinite(v)]
