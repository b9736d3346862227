"""Usage errors, and validators of option values. Independent of torch."""

from __future__ import annotations

import argparse
import math


class UsageError(Exception):
    """Error of the user: one line that gives the correct usage."""


def positive(text: str) -> float:
    """Parse a positive number; argparse reports errors."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return number


def share(text: str) -> float:
    """Parse a positive number below 1; argparse reports errors."""
    if (number := positive(text)) >= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share below 1, such as 0.02 for 2 %")
    return number


def count(text: str) -> int:
    """Parse a positive integer; argparse reports errors."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)
