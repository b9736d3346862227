"""Wording of axes, cases and lists in titles and sentences."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from stats.axes import AXES, SHORT, Values

from .axes import LAYER

#: End the names of compiled forms.
COMPILED = ("+compile", "+max-autotune", "+reduce-overhead")

SHORT_DTYPE = {name: short for short, name in SHORT.items()}
WRONG = "✗"
UNVERIFIED = "times on CUDA are unverified on a GPU"

AGAINST = " against "
"""Separates the names of two implementations that are compared with each other."""


def value(axis: str, val: Any, *, equals: str = "=") -> str:
    """Format one axis at one value: 'H=8', 'bf16', 'causal', 'no mask', 'qkv_bias', 'bias=alibi', 'no window'."""
    if val is None:
        return f"no {axis}"
    if axis == "dtype":
        return SHORT_DTYPE.get(str(val), str(val))
    if axis == "mask":
        return "no mask" if val == "none" else str(val)
    known = AXES.get(axis)
    if known is None or (known.kind == "choice" and known.omitted is not None):
        return str(val)
    if known.kind == "switch":
        return axis if val else f"no {axis}"
    return f"{axis}{equals}{number(val)}"


def number(val: Any) -> str:
    """Format a number: 8.0 -> '8', 0.1 -> '0.1', 2.0**20 -> '1048576'."""
    return f"{val:.15g}" if isinstance(val, float) or hasattr(val, "dtype") else str(val)


def setting(values: Values, *, always: Iterable[str] = ()) -> str:
    """Format a setting: 'B=1 H=8 D_h=64 fp32 causal', after its model if known. Defaults are omitted, unless named in
    `always`.
    """
    always = set(always)
    layer = values.get(LAYER)
    shown = [axis for axis in AXES if axis in values and _worth_saying(axis, values, axis in always)]
    parts = [value(axis, values[axis]) for axis in shown if not layer or values[axis] != layer]
    return " ".join([layer, *parts] if layer else parts)


def title(values: Values) -> str:
    """Format a panel's title: 'H = 8 · bf16'."""
    return " · ".join(value(axis, values[axis], equals=" = ") for axis in values)


def listing(names: Iterable[str], most: int = 4) -> str:
    """Join names: 'a', 'a and b', 'a, b and c', and with more than `most`: 'a, b, c and 4 others'."""
    names = list(names)
    if len(names) > most + 1:
        names = [*names[:most], f"{len(names) - most} others"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""


def marked(name: str, wrong: Container[str]) -> str:
    """Return the name, marked if it failed a correctness check anywhere in the run."""
    return f"{name} {WRONG}" if name in wrong else name


def one_line(text: str) -> str:
    """Return a text in one line, without control characters."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def sentence(text: str) -> str:
    """Return a text with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:]}."


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _worth_saying(axis: str, values: Values, always: bool) -> bool:
    val, known = values[axis], AXES[axis]
    if always or val is None:
        return val is not None
    if (usual := known.usual(values)) is not None:
        return bool(val != usual)
    return not known.if_varying and val != known.omitted


def base(name: str) -> str:
    """Return the eager name: `NAME+compile` -> `NAME`."""
    return next((name.removesuffix(form) for form in COMPILED if name.endswith(form)), name) or name


def own(names: Iterable[str], registry: Iterable[str]) -> frozenset[str]:
    """Return those of the names that are the user's own: missing from `registry`; without a registry, none are."""
    known = {*map(base, registry)}
    return frozenset(name for name in names if known and base(name) not in known)
