"""Lines on stderr."""

from __future__ import annotations

from functools import partial

from stats import arguments
from stats.arguments import USAGE_ERROR

warn = partial(arguments.warn, "bench")


def complain(message: object, code: int = USAGE_ERROR) -> int:
    """Print an error in one line on stderr; returns the exit code."""
    warn(f"error: {message}")
    return code
