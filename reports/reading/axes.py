"""Axes as reports list them."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from stats.axes import AXES, Values

LAYER = "layer"
"""Column with the models whose layer a case is: an axis for readers, which others follow from."""

AXIS_NAMES = sorted(AXES, key=lambda name: (AXES[name].kind == "size" and not AXES[name].if_varying) or name == "dtype")
"""All names, slowest-varying first in the layout of panels: sizes and the dtype last."""

LENGTH_AXES = [*dict.fromkeys(("T", "T_kv", "H", "threads", *(name for name, it in AXES.items() if it.kind == "size")))]
"""Axes that may be an x-axis, preferred ones first."""


def setting(row: Values, without: Container[str]) -> tuple[Any, ...]:
    """Return a row's values of all axes but some."""
    return tuple(row[axis] for axis in AXIS_NAMES if axis not in without)


def without_defaults(values: Values) -> dict[str, Any]:
    """Return a case as `--cases FILE` reads it: without axes at their defaults or of the machine."""
    defaults = {name: (None, it.omitted, it.usual(values)) for name, it in AXES.items()}
    return {
        name: values[name]
        for name in AXIS_NAMES
        if name not in ("device", "threads") and values.get(name) not in defaults[name]
    }


def labelled(name: str) -> str:
    """Return a name with its label: 'tokens T'."""
    return f"{AXES[name].label} {name}".strip()
