"""Seconds and bytes as people read them. Data stay in seconds and bytes."""

from __future__ import annotations


def time_text(seconds: float) -> str:
    """Three digits and a unit: `1.23 ms`"""
    units = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
    unit, size = next((it for it in units if seconds >= 0.9995 * it[1]), units[-1])  # 0.9996 ms are no 1e+03 µs
    return f"{seconds / size:.{'0f' if seconds >= 1000 * size else '3g'}} {unit}"


def bytes_text(size: float) -> str:
    """`768 KiB`, `66.0 MiB`"""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 2**power:
            return f"{size / 2**power:.1f} {unit}"
    return f"{size:.0f} B"
