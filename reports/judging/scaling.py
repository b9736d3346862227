"""How time and memory grow with T: exponents fitted to the longer half of what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from . import frame as fr

LEAST_POINTS = 3
CONFIDENCE = 0.95

UNSURE = 0.25
"""An exponent that is known no better, up or down, is not resolved: it can't tell T from T**1.5, and predicts nothing."""


@dataclass(frozen=True)
class Power:
    """y ~ T ** exponent, fitted to the lengths in `T`; `low` to `high` holds the exponent with 95 %."""

    exponent: float
    low: float
    high: float
    T: tuple[float, ...]


@dataclass(frozen=True)
class Growth:
    """One implementation at one setting of all axes but T. None is what can't be said, or is not resolved."""

    impl: str
    setting: dict[str, Any]
    time: Power | None
    memory: Power | None


def growths(frame: pd.DataFrame) -> list[Growth]:
    """One for every implementation and setting with at least two T, in the frame's order."""
    usable = fr.own_keys_unsaid(frame.dropna(subset=["T"]))
    axes = [axis for axis in fr.varying(usable) if axis != "T"]
    return [
        Growth(
            str(impl), values, *(_resolved(list(rows["T"]), list(rows[column])) for column in ("median", "peak_bytes"))
        )
        for values, part in fr.groups(usable, axes)
        for impl, rows in part.groupby("impl", sort=False)
        if rows["T"].nunique() > 1
    ]


def power(T: Sequence[float], y: Sequence[float]) -> Power | None:
    """Least squares in log-log over the upper half of the lengths, at least three; None with fewer.

    The interval is Student's, of the slope. With three points it has one degree of freedom and is wide.
    """
    known = sorted({t: v for t, v in zip(T, y, strict=True) if t > 0 and 0 < v < math.inf}.items())
    upper = known[-max(LEAST_POINTS, math.ceil(len(known) / 2)) :]
    if len(upper) < LEAST_POINTS:
        return None
    fit = stats.linregress(*np.log(np.array(upper, dtype=float)).T)
    half = stats.t.ppf((1 + CONFIDENCE) / 2, len(upper) - 2) * fit.stderr
    slope = float(fit.slope)
    return Power(slope, slope - half, slope + half, tuple(t for t, _ in upper))


def _resolved(T: Sequence[float], y: Sequence[float]) -> Power | None:
    fit = power(T, y)
    return fit if fit and fit.high - fit.exponent <= UNSURE else None
