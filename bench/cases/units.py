"""Formats bytes for display; stored data stay in bytes."""

from __future__ import annotations


def bytes_text(size: float) -> str:
    """Format a number of bytes: `768 KiB`, `66.0 MiB`."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 2**power:
            return f"{size / 2**power:.1f} {unit}"
    return f"{size:.0f} B"
