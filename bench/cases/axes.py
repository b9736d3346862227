"""Defines an axis of a case: parsing of values, derivation from other axes, display. `Case` has one per field."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

NOTHING: Any = object()
"""Sentinel for no value, since None is a value."""


KINDS = {"int": "size", "float": "share", "str": "choice", "bool": "switch"}
"""Kinds of axes by the type of their values: `size`, an integer from 1; `share`, from 0 to below 1; `choice`, one of a few
words; `switch`, on or off.
"""


@dataclass(frozen=True)
class Axis:
    """One axis, as used by the command line, by ids and by readers of run files."""

    about: str
    """Description of the values, for `--help`."""
    kind: str = "choice"
    """One of `KINDS`."""
    name: str = ""
    label: str = ""
    """Word printed before the name where space allows: `tokens` for T."""
    values: tuple[str, ...] = ()
    follows: tuple[str, ...] = ()
    """Axes whose product is the default."""
    default: Any = NOTHING
    """Value if none is given. NOTHING if the axis is required or derived."""
    most: int = 2**31 - 1
    """Largest `size`."""
    if_varying: bool = False
    """Whether it is shown only where it varies."""
    validate: Callable[[str], Any] | None = None
    """Checks a `choice` without `values`: raises ValueError with the correct usage."""
    omitted: Any = NOTHING
    """Default that ids leave out; NOTHING if every value is shown."""
    masks: bool = False
    """Whether it affects visibility: which keys a query sees. `none` and None mask no key."""

    def read(self, text: str) -> Any:
        """Parse a command-line value, `none` where None is the default; raises ValueError with the correct usage."""
        if self.default is None and text == "none":
            return None
        if self.validate is not None:
            self.validate(text)
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

    def read_each(self, words: Iterable[str]) -> tuple[Any, ...]:
        """Parse several values, each once; raises ValueError with the wrong one and the correct usage."""
        found: dict[Any, None] = {}
        for word in words:
            try:
                found[self.read(word)] = None
            except ValueError as error:
                raise ValueError(f"{word!r} is not {error}") from None
        return tuple(found)

    def described(self) -> dict[str, Any]:
        """Return its description for readers of the run file."""
        return {
            "name": self.name, "kind": self.kind, "label": self.label, "follows": [*self.follows], "quiet": self.if_varying,
            "hides": self.masks, **({} if self.omitted is NOTHING else {"unsaid": self.omitted}),
        }  # fmt: skip


def axis(about: str, *, default: Any = NOTHING, **others: Any) -> Any:
    """Declare a dataclass field that is an axis, of a kind by its type; `others` are fields of `Axis`."""
    known = Axis(about, default=default, **{"omitted": default} | others)
    if default is NOTHING:
        return dataclasses.field(metadata={"axis": known})
    return dataclasses.field(default=default, metadata={"axis": known})


def axes_of(case: type[Any]) -> dict[str, Axis]:
    """Return every axis of a dataclass, in field order."""
    return {
        it.name: dataclasses.replace(
            it.metadata["axis"], name=it.name, kind=KINDS[str(it.type).removesuffix(" | None")]
        )
        for it in dataclasses.fields(case)
    }


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean ...?`, or an empty string if no known name is similar."""
    known = list(known)
    same = [it for it in known if it.lower() == name.lower()]
    longer = [it for it in known if name in it][:2] if len(name) > 2 else []
    usual = SYNONYMS.get(name, "")
    is_one = usual in known or usual.startswith("--")
    near = [usual] if is_one else same or longer or get_close_matches(name, known, n=1, cutoff=0.65)
    return f"; did you mean {' or '.join(near)}?" if near else ""


SYNONYMS = {
    "gpu": "cuda",
    "batch": "B",
    "heads": "H",
    "seq_len": "T",
    "sliding": "--window",
    "sliding_window": "--window",
    "swa": "--window",
    "alibi": "--bias alibi",
    "additive": "--bias dense",
    "--gpu": "--device cuda",
    "--causal": "--mask causal",
    "--batch": "--B",
    "--seq-len": "--T",
    "--heads": "--H",
    "--kernel": "--impl",
    "--save": "--benchmark-save",
}
"""Names used in other projects or in other options, with the axis, option or value to use here."""

SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}
"""Abbreviations of dtypes used in tables."""


def _share(text: str) -> float:
    try:
        p = float(text)
    except ValueError:
        p = -1.0
    if not 0 <= p < 1:
        raise ValueError("a probability: 0 or more, and less than 1")
    return p
