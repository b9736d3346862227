"""Lines on stderr."""

from __future__ import annotations

import sys

from stats.arguments import USAGE_ERROR, as_typed


def warn(text: str) -> None:
    """Print one line on stderr, prefixed with the command's name."""
    print(as_typed(f"bench: {text}"), file=sys.stderr, flush=True)


def complain(message: object, code: int = USAGE_ERROR) -> int:
    """Print an error in one line on stderr; returns the exit code."""
    warn(f"error: {message}")
    return code
