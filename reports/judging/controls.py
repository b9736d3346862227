"""What the reference workload did while a run was measured."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from ..reading import units

COLUMNS = ("reference workload", "times measured", "median", "fastest", "slowest")
"""Of `looks`."""


def looks(controls: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Name, how many times, median, fastest and slowest of every part of it."""
    spent = {name: [look["seconds"] for look in seen] for name, seen in controls.get("looks", {}).items() if seen}
    return [(name, str(len(of)), *map(units.seconds, (median(of), min(of), max(of)))) for name, of in spent.items()]
