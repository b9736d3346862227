"""Colour, marker and line style of each implementation, in every chart and table on every page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stats.estimate import grouped

from ..reading.words import base

FIRST_MET = ("sdpa", "fused", "packed", "einsum", "wrapper", "mask_after_softmax", "linear", "loop")
"""Implementations with their own colour and marker."""

#: (on white, on near-black): first for the user's own, then for FIRST_MET; the last is shared by all others.
#: All but the last stay apart in OKLab as seen with normal vision, protanopia, deuteranopia and tritanopia, each at least 3:1
#: against its ground.
COLOURS = (
    ("#d810b8", "#ff2fb3"),
    ("#1f06dd", "#5f92f0"),
    ("#cb8118", "#e4c90e"),
    ("#2c7d65", "#8bc69c"),
    ("#622712", "#ba3f16"),
    ("#37346c", "#663ffb"),
    ("#6c5501", "#ae9a1f"),
    ("#1191ff", "#a7e8fd"),
    ("#050122", "#fbf89e"),
    ("#868d97", "#7d8693"),
)

#: Markers, in the order of COLOURS, as paths from -1 to 1, y downwards.
PATHS = {
    "*": "M0-1.3.31-.42 1.24-.4.5.16.76 1.05 0 .52-.76 1.05-.5.16-1.24-.4-.31-.42Z",
    "o": "M0-1A1 1 0 1 1 0 1 1 1 0 1 1 0-1Z",
    "s": "M-.88-.88H.88V.88H-.88Z",
    "^": "M0-1 1 .8H-1Z",
    "D": "M0-1.1 1.1 0 0 1.1-1.1 0Z",
    "v": "M0 1 1-.8H-1Z",
    "P": "M-.37-1H.37V-.37H1V.37H.37V1H-.37V.37H-1V-.37H-.37Z",
    "X": "M-1-.5-.5-1 0-.5.5-1 1-.5.5 0 1 .5.5 1 0 .5-.5 1-1 .5-.5 0Z",
    "h": "M0-1 .87-.5V.5L0 1-.87.5V-.5Z",
    "d": "M0-1.2.65 0 0 1.2-.65 0Z",
}

#: What is not data: name of the CSS variable, on white, on near-black.
THEME = (
    ("ink", "#1b1e23", "#e8eaee"),
    ("muted", "#5d6570", "#9aa3af"),
    ("grid", "#e3e6ea", "#2b3038"),
    ("surface", "#fefefe", "#14171c"),
    ("good", "#2b7d4f", "#5ecf92"),
    ("bad", "#b9402f", "#f08a76"),
    ("heat", "#f0883e", "#a8501c"),
    ("page", "#f5f6f8", "#0d0f13"),
    ("accent", "#0f58d3", "#6fb3ff"),
    *((f"c{index}", *pair) for index, pair in enumerate(COLOURS)),
)
INK, MUTED, GRID, SURFACE = (light for _, light, _ in THEME[:4])


@dataclass(frozen=True)
class Style:
    """Style of an implementation; a compiled form has that of its base, hollow and dashed."""

    index: int
    """Its colour."""
    symbol: int
    """Its marker."""
    compiled: bool

    @property
    def own(self) -> bool:
        return self.index == 0

    @property
    def colour(self) -> str:
        return COLOURS[self.index][0]

    @property
    def marker(self) -> str:
        return [*PATHS][self.symbol]


class Palette:
    """Styles by name. The user's own share a colour, and so do those that have none; among `names`, these have different
    markers.
    """

    def __init__(self, own: Iterable[str] = (), names: Iterable[str] = ()) -> None:
        self.own = set(map(base, own))
        self.alike = grouped((self._index(name), name) for name in sorted(set(map(base, names))))

    def __getitem__(self, name: str) -> Style:
        known = base(name)
        index = self._index(known)
        before = [it for it in self.alike.get(index, ()) if it < known]
        return Style(index, (index - len(before)) % len(PATHS), known != name)

    def _index(self, known: str) -> int:
        return 0 if known in self.own else 1 + [*FIRST_MET, known].index(known)
