"""One look per implementation, the same in every figure, table and chart of a page: colour, marker, line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from ..reading.words import base

#: (on white, on near-black), the strongest first: it is the reader's own kernel's. As many as stay apart in OKLab as
#: seen with normal vision, protanopia, deuteranopia and tritanopia, each at least 3:1 against its ground.
COLOURS = (
    ("#d810b8", "#ff2fb3"),
    ("#1f06dd", "#5f92f0"),
    ("#cb8118", "#e4c90e"),
    ("#2c7d65", "#8bc69c"),
    ("#622712", "#ba3f16"),
    ("#37346c", "#663ffb"),
    ("#6c5501", "#ae9a1f"),
    ("#1191ff", "#a7e8fd"),
)
#: Of those that are left over, until they are picked.
WEAK = ("#868d97", "#7d8693")
MARKERS = ("*", "o", "s", "^", "D", "v", "P", "X")
WEAK_MARKERS = ("<", ">", "h", "d", *MARKERS[1:])

#: Markers as paths, from -1 to 1, y downwards: for Vega and for the page.
PATHS = {
    "*": "M0,-1.3L.31,-.42L1.24,-.4L.5,.16L.76,1.05L0,.52L-.76,1.05L-.5,.16L-1.24,-.4L-.31,-.42Z",
    "o": "M0,-1A1,1,0,1,1,0,1A1,1,0,1,1,0,-1Z",
    "s": "M-.88,-.88L.88,-.88L.88,.88L-.88,.88Z",
    "^": "M0,-1L1,.8L-1,.8Z",
    "D": "M0,-1.1L1.1,0L0,1.1L-1.1,0Z",
    "v": "M0,1L1,-.8L-1,-.8Z",
    "P": "M-.37,-1L.37,-1L.37,-.37L1,-.37L1,.37L.37,.37L.37,1L-.37,1L-.37,.37L-1,.37L-1,-.37L-.37,-.37Z",
    "X": "M-1,-.5L-.5,-1L0,-.5L.5,-1L1,-.5L.5,0L1,.5L.5,1L0,.5L-.5,1L-1,.5L-.5,0Z",
    "<": "M-1,0L.8,-1L.8,1Z",
    ">": "M1,0L-.8,-1L-.8,1Z",
    "h": "M0,-1L.87,-.5L.87,.5L0,1L-.87,.5L-.87,-.5Z",
    "d": "M0,-1.2L.65,0L0,1.2L-.65,0Z",
}

#: What is not data: (on white, on near-black).
INK = ("#1b1e23", "#e8eaee")
MUTED = ("#5d6570", "#9aa3af")
GRID = ("#e3e6ea", "#2b3038")
SURFACE = ("#fefefe", "#14171c")
GOOD = ("#2b7d4f", "#5ecf92")
BAD = ("#b9402f", "#f08a76")


@dataclass(frozen=True)
class Look:
    """How one implementation is drawn. `slot` is the index of its colour in COLOURS; one past its end is WEAK."""

    slot: int
    marker: str
    compiled: bool
    own: bool = False
    """Whether it is the reader's own: it is drawn stronger than what it is compared with."""

    @property
    def weak(self) -> bool:
        return self.slot == len(COLOURS)

    @property
    def colour(self) -> str:
        """On white; the page swaps it for the dark one."""
        return (*COLOURS, WEAK)[self.slot][0]

    @property
    def line(self) -> str:
        return "--" if self.compiled else "-"

    @property
    def width(self) -> float:
        return 3.2 if self.own else 1.2 if self.weak else 1.8

    @property
    def fill(self) -> str:
        """Compiled forms have hollow markers in their base's colour."""
        return SURFACE[0] if self.compiled else self.colour

    @property
    def path(self) -> str:
        return PATHS[self.marker]


class Palette:
    """Looks by name. What is present is distinguished: eight at most have a colour and a marker of their own, the rest are
    grey. An implementation keeps its place in the registry's colours where nothing else that is present has it."""

    def __init__(self, registry: Iterable[str], present: Iterable[str] = (), first: Iterable[str] = ()) -> None:
        """Names in `present` that the registry doesn't know are the reader's own, and come after it, in alphabetical order.
        Where more are present than there are colours, those in `first` get them, after the reader's own."""
        listed, there = list(registry), set(present)
        self.order = list(dict.fromkeys([*listed, *sorted(there - set(listed), key=_compiled_last)]))
        bases = list(dict.fromkeys(map(base, self.order)))
        seen = set(map(base, there)) or set(bases)
        shown = [name for name in bases if name in seen]
        registered = set(map(base, listed)) or seen
        own = [name for name in shown if name not in registered]
        preferred = [name for name in map(base, first) if name in seen]
        strong = list(dict.fromkeys([*own, *preferred, *shown]))[: len(COLOURS)]
        slots = _slots([name for name in bases if name in strong], own, bases)
        weak = [name for name in bases if name not in slots]
        self.weak = bool(set(weak) & seen)
        """Whether more are present than there are colours."""
        self._looks = {name: _look(name, slots.get(base(name)), base(name) in own, weak) for name in self.order}

    def __getitem__(self, name: str) -> Look:
        return self._looks[name]

    def sort_key(self, name: str) -> tuple[int, bool]:
        """The registry's order, a compiled form right after its base."""
        bases = [base(other) for other in self.order]
        return bases.index(base(name)), name != base(name)

    def sorted(self, names: Iterable[str]) -> list[str]:
        return sorted(set(names), key=self.sort_key)


def foremost(frame: pd.DataFrame, baseline_impl: str | None) -> list[str]:
    """Who deserves a colour where there are too few: the baseline implementation, then the nearest to the fastest of a case."""
    timed = frame[frame["median"] > 0]
    behind = timed["median"] / timed.groupby("id")["median"].transform("min")
    ranked = behind.groupby(timed["impl"]).median().sort_values(kind="stable")
    return [*filter(None, [baseline_impl]), *map(str, ranked.index)]


def themed() -> dict[str, tuple[str, str, str]]:
    """Every colour used, on white, as (name of its CSS variable, on white, on near-black)."""
    named = {"ink": INK, "muted": MUTED, "grid": GRID, "surface": SURFACE, "good": GOOD, "bad": BAD}
    named |= {f"c{slot}": pair for slot, pair in enumerate((*COLOURS, WEAK))}
    return {light: (name, light, dark) for name, (light, dark) in named.items()}


def _slots(strong: Sequence[str], own: Sequence[str], bases: Sequence[str]) -> dict[str, int]:
    """A colour for each name. The first is the reader's own, or the last to be given; the others begin at a name's place
    in the registry."""
    others = len(COLOURS) - 1
    free, slots = list(range(len(COLOURS))), dict[str, int]()
    for name in sorted(strong, key=lambda name: name not in own):
        at = 1 + bases.index(name) % others
        wanted = free if name in own else [*range(at, others + 1), *range(1, at), 0]
        slots[name] = next(slot for slot in wanted if slot in free)
        free.remove(slots[name])
    return slots


def _look(name: str, slot: int | None, own: bool, weak: Sequence[str]) -> Look:
    compiled = name != base(name)
    if slot is None:
        return Look(len(COLOURS), WEAK_MARKERS[weak.index(base(name)) % len(WEAK_MARKERS)], compiled, own)
    return Look(slot, MARKERS[slot], compiled, own)


def _compiled_last(name: str) -> tuple[str, bool]:
    return base(name), name != base(name)
