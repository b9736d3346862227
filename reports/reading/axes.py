"""Axes of a case, as described by run files."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Container, Iterable, Mapping
from configparser import RawConfigParser
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Axis:
    """Properties of an axis used in reports."""

    name: str
    kind: str
    """`size` or `share`, which are numeric; `choice` or `switch`, which aren't."""
    label: str = ""
    """Word printed before the name where space allows: `tokens` for T."""
    follows: tuple[str, ...] = ()
    """Axes whose product is its usual value."""
    omitted: tuple[Any, ...] = ()
    """Default, which ids leave out; empty if every value is shown."""
    if_varying: bool = False
    """Whether it is shown only where it varies."""
    masks: bool = False
    """Whether it affects visibility: which keys a query sees. `none` and None mask no key."""

    def parse(self, text: str) -> Any:
        """Parse a value from the command line; raises `argparse.ArgumentTypeError` with the correct usage."""
        read, wanted = _READ[self.kind]
        try:
            return read(text)
        except (ValueError, KeyError):
            raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}") from None

    def usual(self, values: Values) -> Any:
        """Return its value as derived from other axes; None if one of those is unknown."""
        factors = [values.get(name) for name in self.follows]
        return math.prod(factors) if factors and None not in factors else None


def _size(text: str) -> int:
    if (size := int(text)) < 1:
        raise ValueError
    return size


def _share(text: str) -> float:
    if not math.isfinite(share := float(text)):
        raise ValueError
    return share


_READ: dict[str, tuple[Callable[[str], Any], str]] = {
    "size": (_size, "a positive whole number"),
    "share": (_share, "a number"),
    "choice": (str, "a word"),
    "switch": (lambda text: RawConfigParser.BOOLEAN_STATES[text.lower()], "on or off"),
}

Values = Mapping[str, Any]
"""Values of axes by name."""

KNOWN_AXES: dict[str, Axis] = {}
"""Axes in display order, as the run files that were read describe them."""

LAYER = "layer"
"""Column with the models whose layer a case is: an axis for readers, which others follow from."""


def axes_of(described: Iterable[Any]) -> dict[str, Axis]:
    """Return the axes that a run file describes; those of other kinds are ignored."""
    return {
        it["name"]: Axis(
            it["name"],
            it["kind"],
            it.get("label", ""),
            tuple(it.get("follows", ())),
            (it["unsaid"],) if "unsaid" in it else (),
            it.get("quiet", False),
            it.get("hides", False),
        )
        for it in described
        if it["kind"] in _READ
    }


def axis_names() -> list[str]:
    """Return all names, slowest-varying first in the layout of panels: sizes and the dtype last."""
    return sorted(
        KNOWN_AXES,
        key=lambda name: (KNOWN_AXES[name].kind == "size" and not KNOWN_AXES[name].if_varying) or name == "dtype",
    )


def setting(row: Values, without: Container[str]) -> tuple[Any, ...]:
    """Return a row's values of all axes but some."""
    return tuple(row[axis] for axis in axis_names() if axis not in without)


def length_axes() -> list[str]:
    """Return the axes that may be an x-axis, preferred ones first."""
    first = ("T", "T_kv", "H", "threads")
    return [*first, *(name for name, it in KNOWN_AXES.items() if it.kind == "size" and name not in first)]


def without_defaults(values: Values) -> dict[str, Any]:
    """Return a case as `--cases FILE` reads it: without axes at their defaults or of the machine."""
    defaults = {name: (None, *it.omitted, it.usual(values)) for name, it in KNOWN_AXES.items()}
    return {
        name: values[name]
        for name in axis_names()
        if name not in ("device", "threads") and values.get(name) not in defaults[name]
    }


def labelled(name: str) -> str:
    """Return a name with its label: 'tokens T'."""
    return f"{KNOWN_AXES[name].label} {name}".strip()
