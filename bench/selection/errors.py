"""What a user may get wrong, and values of options that are right. Needs no torch, so that who says it needs none."""

from __future__ import annotations

import argparse
import math


class UsageError(Exception):
    """Of the user's: one line that says what would be right."""


def positive(text: str) -> float:
    """A positive number; argparse says what is wrong with another."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return number


def whole(text: str) -> int:
    """A whole number; argparse says what is wrong with another."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def count(text: str) -> int:
    """A positive whole number; argparse says what is wrong with another."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)
