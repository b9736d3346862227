"""One look per implementation, the same in every figure, table and run: colour, marker, line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

COMPILED = "+compile"

#: (on white, on near-black). Spread apart in OKLab as seen with normal vision, protanopia, deuteranopia and tritanopia,
#: each at least 3:1 against its ground. Ten are as many as stay apart; after them markers tell the difference.
COLOURS = (
    ("#0f58d3", "#45a1fe"),
    ("#cc8608", "#f2cb45"),
    ("#1ca872", "#39e5a3"),
    ("#d32496", "#d468c5"),
    ("#903714", "#da6707"),
    ("#3a2c90", "#6f67f8"),
    ("#1382bc", "#a7e8fd"),
    ("#710940", "#b3657a"),
    ("#7f751b", "#b2ae5e"),
    ("#54585f", "#a1b8ce"),
)
#: One more than colours, so that the pair (colour, marker) comes round only after 110 implementations.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h", "d")

#: What is not data: (on white, on near-black).
INK = ("#1b1e23", "#e8eaee")
MUTED = ("#5d6570", "#9aa3af")
GRID = ("#e3e6ea", "#2b3038")
SURFACE = ("#fefefe", "#14171c")
GOOD = ("#2b7d4f", "#5ecf92")
BAD = ("#b9402f", "#f08a76")


@dataclass(frozen=True)
class Look:
    """How one implementation is drawn. `slot` is the index of its colour in COLOURS."""

    slot: int
    marker: str
    compiled: bool

    @property
    def colour(self) -> str:
        """On white; the page swaps it for the dark one."""
        return COLOURS[self.slot][0]

    @property
    def line(self) -> str:
        return "--" if self.compiled else "-"

    @property
    def fill(self) -> str:
        """Compiled forms have hollow markers in their base's colour."""
        return SURFACE[0] if self.compiled else self.colour


class Palette:
    """Looks by name, decided by the shelf: an implementation keeps its colour whatever else was selected."""

    def __init__(self, shelf: Iterable[str], present: Iterable[str] = ()) -> None:
        """Names in `present` that the shelf doesn't know come after it, in alphabetical order."""
        listed = list(shelf)
        self.order = list(dict.fromkeys([*listed, *sorted(set(present) - set(listed), key=_compiled_last)]))
        bases = list(dict.fromkeys(base(name) for name in self.order))
        self._looks = {name: _look(bases.index(base(name)), name) for name in self.order}

    def __getitem__(self, name: str) -> Look:
        return self._looks[name]

    def sort_key(self, name: str) -> tuple[int, bool]:
        """Shelf order, a compiled form right after its base."""
        bases = [base(other) for other in self.order]
        return bases.index(base(name)), name != base(name)

    def sorted(self, names: Iterable[str]) -> list[str]:
        return sorted(set(names), key=self.sort_key)


def base(name: str) -> str:
    """`NAME+compile` -> `NAME`."""
    return name.removesuffix(COMPILED) or name


def themed() -> dict[str, tuple[str, str, str]]:
    """Every colour used, on white, as (name of its CSS variable, on white, on near-black)."""
    named = {"ink": INK, "muted": MUTED, "grid": GRID, "surface": SURFACE, "good": GOOD, "bad": BAD}
    named |= {f"c{slot}": pair for slot, pair in enumerate(COLOURS)}
    return {light: (name, light, dark) for name, (light, dark) in named.items()}


def _look(slot: int, name: str) -> Look:
    return Look(slot % len(COLOURS), MARKERS[slot % len(MARKERS)], name != base(name))


def _compiled_last(name: str) -> tuple[str, bool]:
    return base(name), name != base(name)
