"""The axes of a case, as run files describe them: nothing else here knows their names by heart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
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
    """The value that goes without saying; empty where all are said."""

    @property
    def is_number(self) -> bool:
        return self.kind in ("size", "share")

    def parse(self, text: str) -> Any:
        """A value from the command line; raises ValueError."""
        if self.kind == "switch":
            return _SWITCH[text.lower()] if text.lower() in _SWITCH else _refused(text)
        return int(text) if self.kind == "size" else float(text) if self.kind == "share" else text

    def usual(self, values: Mapping[str, Any]) -> Any:
        """What it is where it follows from others; None where one of those isn't known."""
        if not self.follows or not all(name in values for name in self.follows):
            return None
        return math.prod(values[name] for name in self.follows)


_SWITCH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def _refused(text: str) -> bool:
    raise ValueError(text)


def _axis(name: str, kind: str, label: str = "", follows: tuple[str, ...] = (), unsaid: tuple[Any, ...] = ()) -> Axis:
    return Axis(name, kind, label, follows, unsaid)


KNOWN_AXES: dict[str, Axis] = {
    it.name: it
    for it in (
        _axis("B", "size", "batch"),
        _axis("H", "size", "heads"),
        _axis("H_kv", "size", "key-value heads", ("H",)),
        _axis("D_h", "size"),
        _axis("D_v", "size", follows=("D_h",)),
        _axis("d_model", "size", follows=("H", "D_h")),
        _axis("T", "size", "tokens"),
        _axis("T_kv", "size", "keys", ("T",)),
        _axis("dtype", "choice"),
        _axis("device", "choice", unsaid=("cpu",)),
        _axis("mask", "choice"),
        _axis("source", "choice", unsaid=("self",)),
        _axis("dropout", "share", unsaid=(0,)),
        _axis("out_dropout", "share", unsaid=(0,)),
        _axis("qkv_bias", "switch", unsaid=(False,)),
        _axis("out_bias", "switch", unsaid=(False,)),
        _axis("threads", "size", unsaid=(None,)),
        _axis("mode", "choice", unsaid=("forward",)),
        _axis("scope", "choice", unsaid=("layer",)),
    )
}
"""In the order in which people say them. These are the axes of schema 1, whose files describe none; a file of a later schema
brings its own (`learn`)."""


def learn(described: Iterable[Mapping[str, Any]]) -> None:
    """Know the axes that a run file describes; what is no description is left out."""
    for it in described:
        if "name" in it and "kind" in it:
            unsaid = (it["unsaid"],) if "unsaid" in it else ()
            follows = tuple(map(str, it.get("follows") or ()))
            KNOWN_AXES[str(it["name"])] = Axis(
                str(it["name"]), str(it["kind"]), str(it.get("label") or ""), follows, unsaid
            )


def axis_names() -> list[str]:
    """All of them, the first of which vary slowest where panels are laid out: sizes and the dtype last."""
    return sorted(
        KNOWN_AXES, key=lambda name: (KNOWN_AXES[name].kind == "size" and name != "threads") or name == "dtype"
    )


def length_axes() -> list[str]:
    """What lines can run along, the first that varies first."""
    first = ("T", "T_kv", "H", "threads")
    return [*first, *(name for name, it in KNOWN_AXES.items() if it.kind == "size" and name not in first)]


def labelled(name: str) -> str:
    """'tokens T'"""
    return f"{KNOWN_AXES[name].label} {name}".strip()
