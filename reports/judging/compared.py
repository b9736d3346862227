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

    `verdict` is that of the ratio where there is one, unless only the absolute time was shown to have changed.
    """

    impl: str
    id: str
    verdict: Verdict
    base: float
    head: float
    processes: tuple[int, int]
    """How many each side has."""
    changes: tuple[Change, ...] = ()
    ratio: Verdict | None = None
    """Of head over base by turns; or, of two runs, of its time over that of the unchanged implementations of the case."""
    absolute: Verdict | None = None
    """Of its seconds in two runs; None where a side has none."""
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
    """On the mean over the cells of each, where sides took turns."""
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
        words = self.counts.keys()
        open_ = verdict.INCONCLUSIVE in words and not words & {*verdict.JUDGED}
        return NOT_JUDGED if self.unjudged or open_ else FINE


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
