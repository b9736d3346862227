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


def seconds(value: float, digits: int = 3) -> str:
    """Format seconds: 0.00123 -> '1.23 ms'."""
    return _scaled(value, _SECONDS, digits)


def memory(value: float, digits: int = 3) -> str:
    """Format bytes: 2_621_440 -> '2.50 MiB'."""
    return _scaled(value, _BYTES, digits)


def tick(text: str) -> str:
    """Format an axis tick: '2.500 MiB' -> '2.5 MiB', '10.00 ms' -> '10 ms'."""
    return re.sub(r"(\.\d*?)0+(?= )", r"\1", text).replace(". ", " ")


def bounded(value: float, low: float, high: float, unit: str = "") -> str:
    """Format a positive number with its interval, with as many digits as that warrants: '0.51 (0.49 to 0.53)'.

    Without an interval, at most two digits; with one whose ends are TOO_WIDE apart, none.
    """
    if not math.isfinite(value):
        return MISSING
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"{significant(value, 2)}{unit}"
    if high - low < 1e-3 * value:
        return f"{significant(value)}{unit}"
    if too_wide(low, high):
        return UNRESOLVED
    decimals = _decimals((high - low) / 2)
    while round(low, decimals) <= 0:
        decimals += 1
    decimals = _telling(decimals, low, high) if unit == "×" else decimals
    texts = [f"{round(number, decimals):.{max(0, decimals)}f}" for number in (value, low, high)]
    return f"{texts[0]}{unit} ({texts[1]} to {texts[2]})"


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


def _telling(decimals: int, low: float, high: float) -> int:
    """Return the decimals, at most three, needed to show that an interval excludes 1."""
    while decimals < 3 and ((low > 1) != (round(low, decimals) > 1) or (high < 1) != (round(high, decimals) < 1)):
        decimals += 1
    return decimals


def _decimals(half: float) -> int:
    """Return the decimals warranted by the half-width of an interval."""
    decimals = -math.floor(math.log10(half))
    return decimals + (half * 10.0**decimals < 2)  # one more digit if the first is 1, which is coarser


def _scaled(value: float, units: tuple[tuple[float, str], ...], digits: int) -> str:
    if not math.isfinite(value):
        return MISSING
    size, unit = next(((s, u) for s, u in units if abs(value) >= s * 0.9995), units[-1])
    # Whole bytes are counted, not measured: "512 B", never "512.00 B".
    return f"{value / size:.0f} {unit}" if unit == "B" else f"{significant(value / size, digits)} {unit}"
