"""Formats ratios and their intervals; tells which sentences differ only in their numbers."""

from __future__ import annotations

import math
import re

UNRESOLVED = "not resolved"
TOO_WIDE = 10.0
"""Ratio of an interval's ends from which on it is too wide to be informative."""


def too_wide(low: float, high: float) -> bool:
    """Whether the interval of a ratio is too wide to be informative."""
    return not high <= TOO_WIDE * low


def significant(value: float, digits: int = 3) -> str:
    """Format with `digits` significant digits in fixed notation, never dropping integer digits: 1234.5 -> '1234'."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")  # 0.9996 has as many decimals as 1.00
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{value:.{decimals}f}"


def percent(share: float) -> str:
    """Format a share: 0.0123 -> '1.2 %', 0.2 -> '20 %'."""
    return f"{share * 100:.2g} %" if abs(share) < 0.995 else f"{share * 100:.0f} %"


def varied(share: float) -> str:
    """Format a time's deviation from its median: 0.11 -> '11 %', 18.6 -> 'a factor of 20'."""
    return percent(share) if share < 1 else f"a factor of {significant(1 + share, 2)}"


def signed(log: float) -> str:
    """Format a change of time: log(1.012) -> '+1.2 %', log(20) -> 'a factor of 20'."""
    share = math.expm1(log)
    return varied(share) if share >= 1 else f"{round(share * 100, 1) + 0.0:+.1f} %".replace("-", "\N{MINUS SIGN}")


def decimals(low: float, high: float) -> int:
    """Return the decimals that the interval of a ratio warrants, for its estimate too, as a change in percent."""
    return 0 if high - low > 0.1 else 1


def bound(low: float, high: float) -> str:
    """Format the interval of a ratio: 'between 0.4 % faster and 0.9 % slower'."""
    if too_wide(low, high):
        return UNRESOLVED
    lower, upper = (f"{abs(end - 1) * 100:.{decimals(low, high)}f} %" for end in (low, high))
    if high <= 1:
        return f"{upper} to {lower} faster"
    return f"{lower} to {upper} slower" if low >= 1 else f"between {lower} faster and {upper} slower"


def without_numbers(text: str) -> str:
    """Return a sentence without the case's id and other numbers: equal for cells that fail for the same reason."""
    return re.sub(r"\bB\d+-T\d+\S*|\d[\d.,]*(e[+-]?\d+)?", "0", text)
