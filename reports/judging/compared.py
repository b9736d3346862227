"""What a comparison says, of two saved runs or of two sides that took turns: cells, implementations, an exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from typing import Any

from stats import verdict
from stats.verdict import Verdict

from ..reading.command import FINE, NOT_JUDGED, REGRESSED

EXACT = ("peak_bytes", "kernel", "operators", "error")
"""What every call of a cell repeats to the last digit, so that any difference is reported."""

Key = tuple[str, str]
"""An implementation, and the id of a case."""


@dataclass(frozen=True)
class Change:
    """A fact that should be equal and isn't. `worse` when it counts as a regression: memory beyond the margin."""

    what: str
    base: Any
    head: Any
    worse: bool


@dataclass(frozen=True)
class Cell:
    """One implementation in one case. Seconds are typical of the processes, NaN where there are none.

    The ratio is that of sides by turns; of two runs, relative to the implementations of the case whose code is unchanged.
    """

    impl: str
    id: str
    verdict: Verdict
    base: float
    head: float
    processes: tuple[int, int]
    """How many each side has."""
    changes: tuple[Change, ...] = ()
    broken: bool = False
    """Head gives a wrong answer, fails or hangs where base does not."""

    @property
    def regressed(self) -> bool:
        """In time, in memory, or altogether."""
        return self.broken or self.verdict.word == verdict.REGRESSED or any(change.worse for change in self.changes)


@dataclass(frozen=True)
class Comparison:
    """Cells with the worst first, and what to know before believing them."""

    base: str
    head: str
    margin: float
    cells: list[Cell]
    notes: list[str]
    machine: Mapping[str, Any]
    commands: Sequence[str]
    """That do it again."""
    implementations: Mapping[str, Verdict] = field(default_factory=dict)
    """On the mean over the cells of each."""
    asked: Sequence[str] = ()
    """Implementations that one wants to know of: those whose code changed; none: all."""
    shared: Verdict | None = None
    """On all cells together, where all implementations changed alike."""
    unjudged: str = ""
    """Why nothing can be said of the code; or ''."""

    @property
    def regressed(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.regressed]

    @property
    def counts(self) -> dict[str, int]:
        """How many cells have each word, in the words' order; only words that occur."""
        counted = Counter(cell.verdict.word for cell in self.cells)
        return {word: counted[word] for word in verdict.WORDS if counted[word]}

    @property
    def code(self) -> int:
        """Of the command: 0 nothing regressed, 1 something did, 2 nothing could be judged."""
        if self.regressed or any(
            it.word == verdict.REGRESSED for it in (*self.implementations.values(), self.shared) if it
        ):
            return REGRESSED
        of_cells = {cell.verdict.word for cell in self.cells if cell.impl in self.asked or not self.asked}
        of_impls = {it.word for name, it in self.implementations.items() if name in self.asked or not self.asked}
        open_ = verdict.INCONCLUSIVE in of_cells and not (of_cells | of_impls) & {*verdict.SETTLED}
        unknown = self.shared is not None and self.shared.word == verdict.INCONCLUSIVE
        return NOT_JUDGED if self.unjudged or open_ or unknown else FINE


def changes(base: Mapping[str, Any], head: Mapping[str, Any], margin: float) -> Iterator[Change]:
    """Of a cell, from what is known of it on both sides."""
    for what in EXACT:
        before, after = base.get(what), head.get(what)
        if before is not None and after is not None and before != after:
            yield Change(what, before, after, worse=what == "peak_bytes" and after > before * (1 + margin))


def worst_first(cell: Cell) -> tuple[bool, int, float]:
    """To sort cells by."""
    size = abs(log(cell.verdict.ratio)) if cell.verdict.ratio > 0 else 0.0
    return not cell.regressed, verdict.WORDS.index(cell.verdict.word), -size
