"""How time and memory grow with T: exponents fitted to the longer half of what was measured, and where memory ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from . import frame as fr
from . import processes

LEAST_POINTS = 3
CONFIDENCE = 0.95
GIB = 2**30

UNSURE = 0.25
"""An exponent that is known no better, up or down, is not resolved: it can't tell T from T**1.5, and predicts nothing."""


@dataclass(frozen=True)
class Power:
    """y = factor * T ** exponent, fitted to the lengths in `T`; `low` to `high` holds the exponent with 95 %."""

    exponent: float
    low: float
    high: float
    factor: float
    T: tuple[float, ...]

    @property
    def resolved(self) -> bool:
        return self.high - self.exponent <= UNSURE

    def reaches(self, y: float) -> float | None:
        """The T at which the curve is that high; None if it doesn't climb."""
        return math.exp(math.log(y / self.factor) / self.exponent) if self.exponent > 0 else None


@dataclass(frozen=True)
class Growth:
    """One implementation at one setting of all axes but T. None is what can't be said, or is not resolved."""

    impl: str
    setting: dict[str, Any]
    time: Power | None
    memory: Power | None
    memory_ends_at: float | None
    """The T at which the peak would be all of the machine's memory."""


def growths(frame: pd.DataFrame, machine: dict[str, Any]) -> list[Growth]:
    """One for every implementation and setting with at least two T, in the frame's order.

    `machine` is the run's machine_info: its `memory_gib`, memory of the host, bounds what runs on the CPU.
    """
    usable = fr.own_keys_unsaid(frame.dropna(subset=["T"]))
    axes = [axis for axis in fr.varying(usable) if axis != "T"]
    return [
        _growth(str(impl), values, rows, machine.get("memory_gib"))
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
    return Power(slope, slope - half, slope + half, math.exp(fit.intercept), tuple(t for t, _ in upper))


def _growth(impl: str, setting: dict[str, Any], rows: pd.DataFrame, gib: Any) -> Growth:
    fits = (power(list(rows["T"]), list(rows[column])) for column in ("median", "peak_bytes"))
    time, memory = (fit if fit and fit.resolved else None for fit in fits)
    bounded = memory is not None and processes.positive(gib) and set(rows["device"]) == {"cpu"}
    return Growth(impl, setting, time, memory, memory.reaches(gib * GIB) if memory and bounded else None)
