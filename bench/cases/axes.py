"""What an axis of a case is: how its values are read, what it follows from, how it is said. `Case` has one a field."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

NOTHING: Any = object()
"""No such value: None is one."""


@dataclass(frozen=True)
class Axis:
    """One axis, for the command line, for ids, and for readers of run files."""

    kind: str
    """`size`, a whole number from 1 on; `share`, from 0 to below 1; `choice`, one of `values`; or `switch`, on or off."""
    about: str
    """What its values are, for `--help`."""
    name: str = ""
    label: str = ""
    """The word before the name where there is room: `tokens` for T."""
    values: tuple[str, ...] = ()
    follows: tuple[str, ...] = ()
    """The axes whose product it is where it isn't given."""
    default: Any = NOTHING
    """Left out of ids. NOTHING where it has to be given, or follows."""
    most: int = 2**31 - 1
    """The largest `size`."""
    quiet: bool = False
    """Whether it is said only where it varies."""
    check: Callable[[str], Any] | None = None
    """Of a `choice` without `values`: raises ValueError with what would be right."""
    unsaid: Any = NOTHING
    """The default, which ids leave out; NOTHING where every value is shown."""
    hides: bool = False
    """Whether it decides which keys a query sees; at `none` or None it hides none."""

    def read(self, text: str) -> Any:
        """A value from the command line, `none` where None is the default; raises ValueError with what would be right."""
        if self.default is None and text == "none":
            return None
        if self.check is not None:
            self.check(text)
            return text
        if self.kind in ("choice", "switch"):
            values, word = self.values or ("on", "off"), SHORT.get(text, text)
            if word not in values:
                raise ValueError(f"one of {', '.join(values)}{nearest(text, values)}")
            return word == "on" if self.kind == "switch" else word
        if self.kind == "share":
            return _share(text)
        if not text.isascii() or not text.isdigit() or int(text) == 0:
            raise ValueError("a positive whole number")
        if int(text) > self.most:
            raise ValueError(f"a whole number up to {self.most}")
        return int(text)

    def implied(self, given: Mapping[str, Any]) -> Any:
        """Its value where it follows from others."""
        return math.prod(given[name] for name in self.follows)

    def described(self) -> dict[str, Any]:
        """For the run file: what a reader needs to know of it."""
        described: dict[str, Any] = {name: getattr(self, name) for name in ("name", "kind", "label", "quiet", "hides")}
        described["follows"] = list(self.follows)
        return described if self.unsaid is NOTHING else described | {"unsaid": self.unsaid}


def axis(kind: str, about: str, *, default: Any = NOTHING, **others: Any) -> Any:
    """A field of a dataclass that is an axis; `others` are fields of `Axis`."""
    known = Axis(kind, about, default=default, **{"unsaid": default} | others)
    if default is NOTHING:
        return dataclasses.field(metadata={"axis": known})
    return dataclasses.field(default=default, metadata={"axis": known})


def axes_of(case: type[Any]) -> dict[str, Axis]:
    """Every axis of a dataclass, in its order."""
    return {it.name: dataclasses.replace(it.metadata["axis"], name=it.name) for it in dataclasses.fields(case)}


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean ...?`, where something is near."""
    known = list(known)
    held = [it for it in known if name in it][:2] if len(name) > 2 else []
    near = [ELSEWHERE[name]] if name in ELSEWHERE else held or get_close_matches(name, known, n=1, cutoff=0.65)
    return f"; did you mean {' or '.join(near)}?" if near else ""


ELSEWHERE = {
    "gpu": "cuda",
    "sliding": "--window",
    "sliding_window": "--window",
    "swa": "--window",
    "alibi": "--bias alibi",
    "additive": "--bias dense",
}
"""Words that others use, or that belong to another option."""

SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}
"""Dtypes as tables print them."""


def _share(text: str) -> float:
    try:
        p = float(text)
    except ValueError:
        p = -1.0
    if not 0 <= p < 1:
        raise ValueError("a probability: 0 or more, and less than 1")
    return p
