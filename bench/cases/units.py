"""Seconds and bytes as people read them. Data stay in seconds and bytes."""

from __future__ import annotations


def time_text(seconds: float) -> str:
    """Three digits and a unit: `1.23 ms`"""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def bytes_text(size: float) -> str:
    """`768 KiB`, `66.0 MiB`"""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 2**power:
            return f"{size / 2**power:.1f} {unit}"
    return f"{size:.0f} B"
