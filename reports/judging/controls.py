"""What the control workload did while a run was measured."""

from __future__ import annotations

from statistics import median
from typing import Any

from ..reading import units


def seen(controls: dict[str, Any]) -> dict[str, list[dict[str, float]]]:
    """The looks at every control that can be read: `at` and `seconds`."""
    looks = controls.get("looks")
    return {
        str(name): [look for look in those if _is_look(look)]
        for name, those in (looks if isinstance(looks, dict) else {}).items()
        if isinstance(those, list)
    }


def looks(controls: dict[str, Any]) -> list[tuple[str, ...]]:
    """Name, how many looks, median, fastest and slowest of every control."""
    rows = []
    for name, those in seen(controls).items():
        spent = sorted(look["seconds"] for look in those)
        if spent:
            rows.append((name, str(len(spent)), *map(units.seconds, (median(spent), spent[0], spent[-1]))))
    return rows


def _is_look(look: Any) -> bool:
    return isinstance(look, dict) and all(isinstance(look.get(key), int | float) for key in ("at", "seconds"))
