"""A run as a table of implementations x cases: rank in each case, and slowdown relative to the fastest.

Headline, heat map, tables, terminal output and Markdown are all made from one `Grid`, so that they are consistent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import geometric_mean
from typing import Any

import pandas as pd

from stats import shares
from stats.ratios import FASTEST, NOT_RESOLVED, TIED

from ..reading import words
from ..reading.axes import length_axes
from . import frame as fr

WRONG = "wrong"

MOST_COLUMNS = 20
"""Most columns of single cases; above, columns are values of one axis."""


@dataclass(frozen=True)
class Mark:
    """One implementation in one case. `state` is FASTEST, TIED, NOT_RESOLVED or SLOWER; or the reason for a missing
    number, explained by the sentence `why`.
    """

    impl: str
    state: str
    slowdown: float = math.nan
    """Time relative to the fastest of the case: at least 1."""
    low: float = math.nan
    """Ends of its 95 % interval; NaN if there is none."""
    high: float = math.nan
    row: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""

    @property
    def counts(self) -> bool:
        """Whether it has a number and passed every check."""
        return self.slowdown == self.slowdown

    @property
    def best(self) -> bool:
        """Whether it is significantly fastest, or tied with the fastest."""
        return self.state in (FASTEST, TIED)


@dataclass(frozen=True)
class Case:
    """One case: id, values of the varying axes, title, and marks by implementation, fastest first."""

    id: str
    at: dict[str, Any]
    title: str
    marks: dict[str, Mark]

    @cached_property
    def ranked(self) -> list[Mark]:
        """Implementations with a valid number, fastest first."""
        return [mark for mark in self.marks.values() if mark.counts]

    @property
    def judged(self) -> bool:
        """Whether there was anything to compare."""
        return len(self.ranked) > 1

    def mark(self, impl: str | None) -> Mark:
        """Return the mark of an implementation, UNMEASURED if it has none."""
        return self.marks.get(impl or "") or Mark(impl or "", UNMEASURED)

    @property
    def place(self) -> str:
        """Values of the varying axes: 'H = 8, T = 1024, bf16'."""
        shown = {axis: value for axis, value in self.at.items() if axis != "T_kv" or value != self.at.get("T")}
        return words.title(shown, ", ") or self.title


@dataclass(frozen=True)
class Column:
    """One or several cases under one heading, with a text for each axis."""

    heading: tuple[str, ...]
    cases: Sequence[Case]


@dataclass(frozen=True)
class Entry:
    """An implementation's entry in a column: a slowdown, or a sign if it has none, and a sentence of explanation."""

    text: str
    slowdown: float
    best: bool
    open: bool
    """Whether it is not significant in at least half of the cases."""
    title: str


@dataclass(frozen=True)
class Grid:
    """All cases of a run. `impls`: the user's own first, then by mean slowdown, incomplete ones last; excludes those
    that support no case.
    """

    cases: list[Case]
    impls: list[str]
    axes: list[str]
    own: frozenset[str] = frozenset()

    @property
    def judged(self) -> list[Case]:
        return [case for case in self.cases if case.judged]

    def count(self, impl: str) -> int:
        """Count the cases in which it has a slowdown."""
        return sum(case.mark(impl).counts for case in self.cases)

    def mean_text(self, impl: str) -> str:
        """Format the mean slowdown: '1.2', or '1.1 (6/12)' if it lacks cases."""
        count = self.count(impl)
        mean = slowdown(mean_slowdown(impl, self.cases)) if count else "–"
        return mean if count in (0, len(self.cases)) else f"{mean} ({count}/{len(self.cases)})"

    def columns(self, axis: str | None = None) -> list[Column]:
        """Return one column per case, or per value of an axis."""
        if axis is None:
            return [
                Column(tuple(words.value(it, value) for it, value in case.at.items()), [case]) for case in self.cases
            ]
        values = dict.fromkeys(case.at[axis] for case in self.cases)
        return [Column((words.value(axis, v),), [case for case in self.cases if case.at[axis] == v]) for v in values]

    @property
    def signs(self) -> str:
        """Explain the signs that occur: '✗ wrong, – unsupported'; '' without any."""
        states = {case.mark(impl).state for case in self.cases for impl in self.impls}
        return ", ".join(f"{sign} {state.replace('_', ' ')}" for state, sign in SIGNS.items() if state in states)

    @property
    def views(self) -> list[str | None]:
        """Return the possible choices of columns, the default first: None means one per case."""
        several = [axis for axis in self.axes if len(self.cases) > len(self.columns(axis)) <= MOST_COLUMNS]
        several.sort(key=lambda axis: -len(self.columns(axis)))
        return [None, *several] if len(self.cases) <= MOST_COLUMNS or not several else [*several]

    def entry(self, impl: str, column: Column) -> Entry:
        marks = [case.mark(impl) for case in column.cases]
        found = [mark for mark in marks if mark.counts]
        if not found:
            worst = next((mark for state in SIGNS for mark in marks if mark.state == state), marks[0])
            why = f"{impl}: {worst.state.replace('_', ' ')} {worst.why}"
            return Entry(SIGNS.get(worst.state, SIGNS[UNMEASURED]), math.nan, False, False, why)
        value = mean_slowdown(impl, column.cases)
        judged = [case.mark(impl).best for case in column.cases if case.judged]
        best = bool(judged) and len(found) == len(marks) and all(judged)
        open_ = 2 * sum(it.state == NOT_RESOLVED for it in found) >= len(found)
        return Entry(slowdown(value), value, best, open_, _tooltip(found, column))


def mean_slowdown(impl: str, cases: Iterable[Case]) -> float:
    """Return the geometric mean of an implementation's slowdowns, over the cases in which it has one; else NaN."""
    found = [it.slowdown for it in (case.mark(impl) for case in cases) if it.counts]
    return geometric_mean(found) if found else math.nan


UNMEASURED = "not measured"

SIGNS = {
    WRONG: words.WRONG, "error": "err", "timeout": "time", "out_of_memory": "OOM", "unsupported": "–", UNMEASURED: "·",
}  # fmt: skip
"""Signs in place of missing numbers, the worst reason first."""


def grid(frame: pd.DataFrame, skipped: pd.DataFrame, registry: Iterable[str] = ()) -> Grid:
    """Build the grid. Names missing from `registry` are the user's own; without a registry, none are."""
    axes = fr.varying(frame)
    gone: dict[str, list[Mapping[str, Any]]] = {}
    for row in fr.records(skipped):
        gone.setdefault(row["id"], []).append(row)
    cases = [_case(id_, axes, part, gone.get(id_, [])) for id_, part in fr.by_case(frame, axes)]
    known = set(map(words.base, registry))
    names = list(dict.fromkeys(impl for case in cases for impl in case.marks))
    own = frozenset(name for name in names if known and words.base(name) not in known)
    supported = {
        mark.impl for case in cases for mark in case.marks.values() if mark.counts or mark.state != "unsupported"
    }
    made = Grid(cases, [name for name in names if name in own | supported], axes, own)
    made.impls.sort(key=lambda name: (name not in own, -made.count(name), mean_slowdown(name, cases)))
    return made


def slowdown(value: float) -> str:
    """Format a slowdown: 1.0 -> '1', 1.034 -> '1.03', 1.34 -> '1.3', 12.3 -> '12'."""
    if value < 1.005:
        return "1"
    return f"{value:.2f}" if value < 1.095 else shares.significant(value, 2)


def interval(low: float, high: float) -> str:
    """Format an interval: '1.2 to 1.4'; one too wide to be informative as 'over 1.2', or as why it is omitted."""
    if not low > 0:
        return ""
    if shares.too_wide(low, high):
        return f"over {_end(low)}" if low > 1 else NOT_RESOLVED
    return f"{_end(low)} to {_end(high)}"


def length(cases: Sequence[Case]) -> str | None:
    """Return the size axis with the most values at one setting of the others, used as the x-axis."""
    axes = [axis for axis in length_axes() if cases and axis in cases[0].at]
    counts = {axis: max(map(len, along(cases, axis).values()), default=0) for axis in axes}
    return max(counts, key=counts.__getitem__) if counts and max(counts.values()) > 1 else None


def along(cases: Sequence[Case], axis: str) -> dict[tuple[Any, ...], list[Case]]:
    """Group cases by their setting of all axes but one, sorted by that axis. T_kv equal to T is no setting."""
    found: dict[tuple[Any, ...], list[Case]] = {}
    known = [case for case in cases if case.at[axis] is not None and case.ranked]
    for case in sorted(known, key=lambda case: case.at[axis]):
        at = {key: None if key == "T_kv" and value == case.at.get("T") else value for key, value in case.at.items()}
        found.setdefault(tuple(value for key, value in at.items() if key != axis), []).append(case)
    return found


def _end(value: float) -> str:
    """Format an interval's end; one above 1 by less than 0.5 % has a digit more, so that it differs from 1."""
    return f"{value:.{2 + (1 < value < 1.005)}f}" if value < 1.995 else shares.significant(value, 2)


def _tooltip(found: Sequence[Mark], column: Column) -> str:
    """Return 'sdpa, H=8 T=64: tied, 1.03× the fastest (0.99 to 1.08)'."""
    where = f"{found[0].impl}, {' '.join(column.heading)}"
    if len(column.cases) > 1:
        return f"{where}: geometric mean of {words.plural(len(found), 'case')}"
    [mark] = found
    between = f" ({interval(mark.low, mark.high)})" if mark.low > 0 else ""
    return f"{where}: {mark.state}, {slowdown(mark.slowdown)}× the fastest{between}"


def _case(id_: str, axes: Sequence[str], part: pd.DataFrame, gone: Sequence[Mapping[str, Any]]) -> Case:
    at = {axis: fr.plain(part[axis].iloc[0]) for axis in axes}
    title = words.place(fr.settings(part), always=[*at, "B", "H", "D_h", "T"]) or id_
    rows = fr.ranked(fr.trusted(part))
    marks = sorted((_mark(row, rows[0]) for row in rows), key=lambda mark: mark.slowdown)
    doubtful = fr.records(part[part["wrong"] & part["median"].notna()])
    marks += [Mark(row["impl"], WRONG, row=row, why="in another case: its times are in doubt") for row in doubtful]
    marks += [Mark(str(row["impl"]), str(row["reason"]), why=str(row["detail"] or "")) for row in gone]
    return Case(id_, at, title, {mark.impl: mark for mark in marks})


def _mark(row: Mapping[str, Any], best: Mapping[str, Any]) -> Mark:
    found = fr.ratio(row, best)
    # the smallest median is the fastest: a paired ratio below 1 is not significant
    return Mark(row["impl"], row["standing"] or NOT_RESOLVED, max(1.0, found.value), found.low, found.high, row)
