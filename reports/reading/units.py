"""Formats seconds and bytes; all other modules use plain numbers."""

from __future__ import annotations

import math
import re

from stats.shares import UNRESOLVED, significant, too_wide

MISSING = "–"

_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))

#: Steps of a logarithmic axis within a decade, or an octave, each finer than the one before.
DECIMAL_STEPS = (
    (1.0,),
    (1.0, 2.0, 5.0),
    (1.0, 1.5, 2.0, 3.0, 5.0, 7.0),
    (1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0),
    (*(n / 10 for n in range(10, 20)), *(n / 10 for n in range(20, 50, 2)), *(n / 10 for n in range(50, 100, 5))),
)
BINARY_STEPS = ((1.0,), (1.0, 1.5), *(tuple(1 + n / parts for n in range(parts)) for parts in (4, 8, 16)))

_BYTES = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))

_RATES = ((1e12, "T"), (1e9, "G"), (1e6, "M"))


def seconds(value: float, digits: int = 3) -> str:
    """Format seconds: 0.00123 -> '1.23 ms'."""
    return _scaled(value, _SECONDS, digits)


def memory(value: float) -> str:
    """Format bytes: 2_621_440 -> '2.50 MiB'."""
    return _scaled(value, _BYTES, 3)


def rate(value: float) -> str:
    """Format operations per second, without their unit: 6.5e14 -> '650 T'."""
    return _scaled(value, _RATES, 3)


def tick(text: str) -> str:
    """Format an axis tick: '2.500 MiB' -> '2.5 MiB', '10.00 ms' -> '10 ms'."""
    return re.sub(r"(\.\d*?)0+(?= )", r"\1", text).replace(". ", " ")


def interval(low: float, high: float) -> str:
    """Format the interval of a ratio: '1.2 to 1.4'; '' without one. If it is too wide to be informative: 'over 1.2', or
    'not resolved'.
    """
    if not low > 0:
        return ""
    if too_wide(low, high):
        return f"over {ratio(low)}" if low > 1 else UNRESOLVED
    return f"{ratio(low)} to {ratio(high)}"


def bounded(value: float, low: float, high: float, unit: str = "") -> str:
    """Format a ratio with its interval: '0.513 (0.487 to 0.534)'; without one '0.51'."""
    if not math.isfinite(value):
        return MISSING
    if not math.isfinite(high - low):
        return f"{significant(value, 2)}{unit}"
    return UNRESOLVED if too_wide(low, high) else f"{value:.3f}{unit} ({low:.3f} to {high:.3f})"


def ratio(value: float) -> str:
    """Format a ratio; one above 1 by less than 0.5 % has more digits, so that it differs from 1."""
    decimals = math.ceil(-math.log10(value - 1)) if 1 < value < 1.005 else 2
    return f"{value:.{decimals}f}" if value < 1.995 else significant(value, 2)


def percent(value: float) -> str:
    """Format a share: 0.0312 -> '3.1 %'."""
    return f"{value * 100:.{0 if value >= 1 else 1}f} %" if math.isfinite(value) else MISSING


def change(ratio: float, digits: int = 1) -> str:
    """Format a change of time: 1.052 -> '+5.2 %', 0.9997 -> '0.0 %'."""
    if not math.isfinite(ratio):
        return MISSING
    rounded = round((ratio - 1) * 100, digits)
    return f"{rounded:+.{digits}f} %".replace("-", "\N{MINUS SIGN}") if rounded else f"{0:.{digits}f} %"


def detectable(change: float) -> str:
    """Format the minimum detectable effect: '12.0 %'; very large ones as '> 100 %'."""
    return "> 100 %" if change > 1 else percent(change)


def _scaled(value: float, units: tuple[tuple[float, str], ...], digits: int) -> str:
    if not math.isfinite(value):
        return MISSING
    size, unit = next(((s, u) for s, u in units if abs(value) >= s * 0.9995), units[-1])
    # Whole bytes are counted, not measured: "512 B", never "512.00 B".
    return f"{value / size:.0f} {unit}" if unit == "B" else f"{significant(value / size, digits)} {unit}"
