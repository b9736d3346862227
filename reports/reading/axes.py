"""The axes of a case, as run files describe them: nothing else here knows their names by heart."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Axis:
    """What a report needs to know of an axis."""

    name: str
    kind: str
    """`size` or `share`, which lie on a line; `choice` or `switch`, which don't."""
    label: str = ""
    """The word before the name where there is room: `tokens` for T."""
    follows: tuple[str, ...] = ()
    """The axes whose product it usually is."""
    unsaid: tuple[Any, ...] = ()
    """The default, which ids leave out; empty where every value is shown."""
    quiet: bool = False
    """Whether it is said only where it varies."""
    hides: bool = False
    """Whether it decides which keys a query sees; at `none` or None it hides none."""

    @property
    def is_number(self) -> bool:
        return self.kind in ("size", "share")

    def parse(self, text: str) -> Any:
        """A value from the command line; raises `argparse.ArgumentTypeError`, which says what would be right."""
        read, wanted = _READ[self.kind]
        try:
            return read(text)
        except (ValueError, KeyError):
            raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}") from None

    def usual(self, values: Mapping[str, Any]) -> Any:
        """What it is where it follows from others; None where one of those isn't known."""
        if not self.follows or not all(name in values for name in self.follows):
            return None
        return math.prod(values[name] for name in self.follows)


_SWITCH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def _size(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError
    return int(text)


def _share(text: str) -> float:
    if not math.isfinite(share := float(text)):
        raise ValueError
    return share


_READ: dict[str, tuple[Callable[[str], Any], str]] = {
    "size": (_size, "a positive whole number"),
    "share": (_share, "a number"),
    "choice": (str, "a word"),
    "switch": (lambda text: _SWITCH[text.lower()], "on or off"),
}

KNOWN_AXES: dict[str, Axis] = {
    it.name: it
    for it in (
        Axis("B", "size", "batch"),
        Axis("H", "size", "heads"),
        Axis("H_kv", "size", "key-value heads", ("H",)),
        Axis("D_h", "size"),
        Axis("D_v", "size", follows=("D_h",)),
        Axis("d_model", "size", follows=("H", "D_h")),
        Axis("T", "size", "tokens"),
        Axis("T_kv", "size", "keys", ("T",)),
        Axis("dtype", "choice"),
        Axis("device", "choice", unsaid=("cpu",)),
        Axis("mask", "choice", hides=True),
        Axis("source", "choice", unsaid=("self",)),
        Axis("dropout", "share", unsaid=(0,)),
        Axis("out_dropout", "share", unsaid=(0,)),
        Axis("qkv_bias", "switch", unsaid=(False,)),
        Axis("out_bias", "switch", unsaid=(False,)),
        Axis("threads", "size", unsaid=(None,), quiet=True),
        Axis("mode", "choice", unsaid=("forward",)),
        Axis("scope", "choice", unsaid=("layer",)),
    )
}
"""In the order in which people say them. A run file brings its own (`learn`)."""


def learn(described: Iterable[Mapping[str, Any]]) -> None:
    """Know the axes that a run file describes; what is no description is left out."""
    for it in described:
        name, kind, label = (str(it.get(key) or "") for key in ("name", "kind", "label"))
        follows = it.get("follows") or []
        if name.isidentifier() and kind in _READ and isinstance(follows, list):
            unsaid = (it["unsaid"],) if "unsaid" in it else ()
            hides = bool(it.get("hides", name in KNOWN_AXES and KNOWN_AXES[name].hides))
            KNOWN_AXES[name] = Axis(name, kind, label, tuple(map(str, follows)), unsaid, bool(it.get("quiet")), hides)


def axis_names() -> list[str]:
    """All of them, the first of which vary slowest where panels are laid out: sizes and the dtype last."""
    return sorted(
        KNOWN_AXES,
        key=lambda name: (KNOWN_AXES[name].kind == "size" and not KNOWN_AXES[name].quiet) or name == "dtype",
    )


def length_axes() -> list[str]:
    """What lines can run along, the first that varies first."""
    first = ("T", "T_kv", "H", "threads")
    return [*first, *(name for name, it in KNOWN_AXES.items() if it.kind == "size" and name not in first)]


def labelled(name: str) -> str:
    """'tokens T'"""
    return f"{KNOWN_AXES[name].label} {name}".strip()
