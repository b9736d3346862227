"""What the reference workload did while a run was measured."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from ..reading import units

COLUMNS = ("reference workload", "times measured", "median", "fastest", "slowest")
"""Of `looks`."""


def seen(controls: Mapping[str, Any]) -> dict[str, list[dict[str, float]]]:
    """The looks at every control whose time is known: `at` and `seconds`."""
    return {
        name: [look for look in looks if isinstance(look.get("at"), int | float)]
        for name, looks in controls.get("looks", {}).items()
    }


def looks(controls: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Name, how many looks, median, fastest and slowest of every control."""
    rows = []
    for name, those in seen(controls).items():
        spent = sorted(look["seconds"] for look in those)
        if spent:
            rows.append((name, str(len(spent)), *map(units.seconds, (median(spent), spent[0], spent[-1]))))
    return rows
