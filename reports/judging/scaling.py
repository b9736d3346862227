"""How time and memory grow with T: exponents fitted to the longer half of what was measured, and where memory ends."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from . import frame as fr

LEAST_POINTS = 3
CONFIDENCE = 0.95
GIB = 2**30

#: An exponent that is known no better, up or down, is not resolved: it can't tell T from T**1.5, and predicts nothing.
UNSURE = 0.25


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
        """The T at which the curve is that high; None if it doesn't climb, or by how much is not sure."""
        if self.exponent <= 0 or not self.resolved or y <= 0:
            return None
        return math.exp(math.log(y / self.factor) / self.exponent)


@dataclass(frozen=True)
class Growth:
    """One implementation at one setting of all axes but T. None is what can't be said, or is not resolved."""

    impl: str
    setting: dict[str, Any]
    time: Power | None
    memory: Power | None
    memory_ends_at: float | None
    """The T at which the peak would be all of the machine's memory."""
    met_at: int | None
    """The smallest T that was measured to be out of memory."""

    @property
    def tells(self) -> bool:
        return any((self.time, self.memory, self.met_at))


def growths(frame: pd.DataFrame, skipped: pd.DataFrame, machine: dict[str, Any]) -> list[Growth]:
    """One for every implementation and setting with at least two T, in the frame's order.

    `machine` is the run's machine_info: its `memory_gib`, memory of the host, bounds what runs on the CPU.
    """
    usable = fr.own_keys_unsaid(frame.dropna(subset=["T"]))
    axes = [axis for axis in fr.varying(usable) if axis != "T"]
    return [
        _growth(str(impl), values, rows, skipped, machine)
        for values, part in fr.groups(usable, axes)
        for impl, rows in part.groupby("impl", sort=False)
        if rows["T"].nunique() > 1
    ]


def power(T: Sequence[float], y: Sequence[float]) -> Power | None:
    """Least squares in log-log over the upper half of the lengths, at least three; None with fewer.

    The interval is Student's, of the slope. With three points it has one degree of freedom and is wide.
    """
    known = _known(T, y)
    upper = known[-max(LEAST_POINTS, math.ceil(len(known) / 2)) :]
    if len(upper) < LEAST_POINTS:
        return None
    fit = stats.linregress(*np.log(np.array(upper, dtype=float)).T)
    half = stats.t.ppf((1 + CONFIDENCE) / 2, len(upper) - 2) * fit.stderr
    slope = float(fit.slope)
    return Power(slope, slope - half, slope + half, math.exp(fit.intercept), tuple(t for t, _ in upper))


def _known(T: Sequence[float], y: Sequence[float]) -> list[tuple[float, float]]:
    """The positive points, by T."""
    return sorted({t: v for t, v in zip(T, y, strict=True) if t > 0 and v > 0 and math.isfinite(v)}.items())


def _growth(
    impl: str, values: dict[str, Any], rows: pd.DataFrame, skipped: pd.DataFrame, machine: dict[str, Any]
) -> Growth:
    memory = _resolved(power(list(rows["T"]), list(rows["peak_bytes"])))
    available = _host_bytes(machine) if set(rows["device"]) == {"cpu"} else None
    return Growth(
        impl=impl,
        setting=values,
        time=_resolved(power(list(rows["T"]), list(rows["median"]))),
        memory=memory,
        memory_ends_at=memory.reaches(available) if memory and available else None,
        met_at=_met(impl, rows, skipped),
    )


def _resolved(fit: Power | None) -> Power | None:
    return fit if fit and fit.resolved else None


def _host_bytes(machine: dict[str, Any]) -> float | None:
    gib = machine.get("memory_gib")
    return gib * GIB if isinstance(gib, int | float) and gib > 0 else None


def _met(impl: str, rows: pd.DataFrame, skipped: pd.DataFrame) -> int | None:
    cells = skipped[(skipped["reason"] == "out_of_memory") & (skipped["impl"] == impl)]
    here = {_any_length(case) for case in rows["id"]}
    lengths = [_length(case) for case in cells["id"] if _any_length(case) in here]
    return min((T for T in lengths if T is not None), default=None)


def _length(case: str) -> int | None:
    found = re.search(r"(?:^|-)T(\d+)(?=-|$)", str(case))
    return int(found[1]) if found else None


def _any_length(case: str) -> str:
    """A case's id without its T."""
    return re.sub(r"(^|-)T\d+(?=-|$)", r"\1T*", str(case))
