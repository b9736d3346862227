"""A run as a table of implementations x cases: rank in each case, and slowdown relative to the fastest.

Headline, heat map, tables, terminal output and Markdown are all made from one `Grid`, so that they are consistent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import geometric_mean
from typing import Any, NamedTuple

from stats.estimate import grouped
from stats.ratios import FASTEST, NOT_RESOLVED, TIED

from ..reading import units, words
from ..reading.axes import AXIS_NAMES, LAYER, LENGTH_AXES
from .rows import Row, Rows, ranked, ratio, trusted, varying

WRONG, UNMEASURED = "wrong", "not measured"

ALWAYS = ("B", "H", "D_h", "T")
"""Axes that a title has even at their default."""

SIGNS = {
    WRONG: words.WRONG, "error": "err", "timeout": "time", "out of memory": "OOM", "unsupported": "–", UNMEASURED: "·",
}  # fmt: skip
"""Signs in place of missing numbers, the worst reason first."""

MOST_COLUMNS = 20
"""Most columns of single cases; if there are more cases, columns are values of one axis."""


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
    row: Row = field(default_factory=dict)
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
    """One case: id, values of the varying axes (`at`), title, and marks by implementation, fastest first."""

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

    def mark(self, impl: str) -> Mark:
        """Return the mark of an implementation, UNMEASURED if it has none."""
        return self.marks.get(impl) or Mark(impl, UNMEASURED)

    @property
    def setting(self) -> dict[str, Any]:
        """Values of the varying axes, without T_kv where it equals T."""
        return {axis: value for axis, value in self.at.items() if axis != "T_kv" or value != self.at.get("T")}


Cases = Sequence[Case]


class Column(NamedTuple):
    """One or several cases under one heading, which has a text for each axis."""

    heading: tuple[str, ...]
    cases: Cases


class Entry(NamedTuple):
    """An implementation's entry in a column: a slowdown, or a sign if it has none, and a sentence of explanation."""

    text: str
    slowdown: float
    best: bool
    open: bool
    """Whether it is not resolved in at least half of its cases."""
    title: str


@dataclass(frozen=True)
class Grid:
    """All cases of a run. `impls`: the user's own first, then by mean slowdown, incomplete ones last; excludes those
    that support no case.
    """

    cases: Cases
    impls: list[str]
    axes: list[str]
    comparable: Cases
    """All cases but those in which the run was stopped when a single implementation was timed."""
    own: frozenset[str]
    shared: str
    """What all cases have in common: 'B=1 D_h=64 causal'."""

    @property
    def judged(self) -> Cases:
        """The cases in which there was anything to compare."""
        return [case for case in self.cases if case.judged]

    def mean_text(self, impl: str) -> str:
        """Format the mean slowdown: '1.2', or '1.1 (6/12)' if it lacks cases."""
        count = len(counted(impl, self.comparable))
        return over_some(mean_slowdown(impl, self.comparable), count, len(self.cases)) if count else "–"

    def columns(self, axis: str = "") -> list[Column]:
        """Return one column per case, or with `axis` per value of that axis."""
        found = grouped((case.at[axis] if axis else case.id, case) for case in self.cases)
        axes = [axis] if axis else self.axes
        return [Column(tuple(words.value(it, of[0].at[it]) for it in axes), of) for of in found.values()]

    def along(self, axis: str) -> list[Cases]:
        """Return lists of cases that differ in this axis alone, each sorted by it, with at least two cases."""
        found = grouped(
            (tuple(it for it in case.setting.items() if it[0] != axis), case)
            for case in self.cases
            if case.ranked and case.at.get(axis) is not None
        )
        return [cases for cases in found.values() if len(cases) > 1]

    @cached_property
    def length(self) -> str:
        """The size axis with the most values at one setting of the others, used as the x-axis; '' without any."""
        most = {axis: max(map(len, self.along(axis)), default=0) for axis in LENGTH_AXES}
        return max(filter(most.get, most), key=most.__getitem__, default="")

    @property
    def signs(self) -> str:
        """Explain the signs that occur: '✗ wrong, – unsupported, (n/m) mean over n of m cases'; '' without any."""
        states = {case.mark(impl).state for case in self.cases for impl in self.impls}
        known = [f"{sign}{':' * sign.isalpha()} {state}" for state, sign in SIGNS.items() if state in states]
        some = any(")" in self.mean_text(impl) for impl in self.impls)
        return ", ".join([*known, *["(n/m) mean over n of m cases"] * some])

    @property
    def views(self) -> list[str]:
        """Return the possible choices of columns, the default first: '' means one per case."""
        several = [axis for axis in self.axes if len(self.cases) > len(self.columns(axis)) <= MOST_COLUMNS]
        several.sort(key=lambda axis: -len(self.columns(axis)))
        return [""] * (len(self.cases) <= MOST_COLUMNS or not several) + several

    def entry(self, impl: str, column: Column) -> Entry:
        """Return the entry of an implementation: the geometric mean of its slowdowns in the column's cases."""
        found = counted(impl, column.cases)
        if not found:
            marks = [case.mark(impl) for case in column.cases]
            worst = min(marks, key=lambda mark: [*SIGNS, mark.state].index(mark.state))
            why = ": ".join(filter(None, (impl, worst.state, worst.why)))
            return Entry(SIGNS.get(worst.state, SIGNS[UNMEASURED]), math.nan, False, False, why)
        value = mean_slowdown(impl, column.cases)
        judged = {case.mark(impl).best for case in column.cases if case.judged}
        best = len(found) == len(column.cases) and judged == {True}
        open_ = 2 * sum(it.state == NOT_RESOLVED for it in found) >= len(found)
        title = f"geometric mean of {words.plural(len(found), 'case')}"
        if len(column.cases) == 1:
            low, high = found[0].low, found[0].high  # equal for the fastest
            between = f" ({units.interval(low, high)})" if 0 < low < high else ""
            title = f"{found[0].state}, {slowdown_text(value)}× the fastest{between}"
        text = over_some(value, len(found), len(column.cases))
        return Entry(text, value, best, open_, f"{impl}, {' '.join(column.heading)}: {title}")


def over_some(mean: float, count: int, cases: int) -> str:
    """Format a mean slowdown, with the number of its cases if it lacks some: '1.1 (6/12)'."""
    return slowdown_text(mean) + (f" ({count}/{cases})" if count < cases else "")


def counted(impl: str, cases: Cases) -> list[Mark]:
    """Return an implementation's marks in the cases in which it has a slowdown."""
    return [mark for case in cases if (mark := case.mark(impl)).counts]


def mean_slowdown(impl: str, cases: Cases) -> float:
    """Return the geometric mean of an implementation's slowdowns, over the cases in which it has one; else NaN."""
    found = [mark.slowdown for mark in counted(impl, cases)]
    return geometric_mean(found) if found else math.nan


def grid(rows: Rows, skipped: Rows = (), registry: Iterable[str] = ()) -> Grid:
    """Build the grid. Names missing from `registry` are the user's own; without a registry, none are."""
    axes, gone = varying(rows), grouped((cell["id"], cell) for cell in skipped)
    seen = {axis: [*dict.fromkeys(row[axis] for row in rows)] for axis in axes}
    in_order = sorted(
        rows,  # by axes: numbers by size, None last; words as in the file
        key=lambda row: [
            of.index(row[axis]) if str in map(type, of) else (row[axis] is None, row[axis] or 0)
            for axis, of in seen.items()
        ],
    )
    parts = grouped((row["id"], row) for row in in_order)
    cases = [_case(axes, part, gone.get(id_, [])) for id_, part in parts.items()]
    marks = [mark for case in cases for mark in case.marks.values()]
    own = words.own((mark.impl for mark in marks), registry)
    shown = dict.fromkeys(mark.impl for mark in marks if mark.impl in own or mark.state != "unsupported")
    comparable = [case for case in cases if case.judged or UNMEASURED not in {case.mark(impl).state for impl in shown}]
    order = sorted(shown, key=lambda it: (it not in own, -len(counted(it, comparable)), mean_slowdown(it, comparable)))
    values = {axis: {row[axis] for row in rows} for axis in (LAYER, *AXIS_NAMES)}
    shared = words.setting({axis: of.pop() for axis, of in values.items() if len(of) == 1}, always=ALWAYS)
    return Grid(cases, order, axes, comparable, own, shared)


def slowdown_text(value: float) -> str:
    """Format a slowdown with the digits of its interval: 1.0 -> '1', 1.034 -> '1.03', 12.3 -> '12'."""
    return "1" if value < 1.005 else units.ratio(value)


def median_text(row: Row) -> str:
    """Format a row's median time, with a digit less if its blocks vary by a tenth or more."""
    return units.seconds(row["median"], 3 if row["spread"] < 0.1 else 2)


def _case(axes: Sequence[str], part: Rows, gone: Rows) -> Case:
    first, rows = part[0], ranked(trusted(part))
    # the smallest median is the fastest: a paired ratio below 1 is not significant
    marks = [
        Mark(row["impl"], row["standing"] or NOT_RESOLVED, max(1.0, it.value), it.low, it.high, row)
        for row, it in ((row, ratio(row, rows[0])) for row in rows)
    ]
    marks.sort(key=lambda mark: mark.slowdown)
    marks += [
        Mark(row["impl"], WRONG, row=row, why="in another case: its times are in doubt") for row in part if row["wrong"]
    ]
    marks += [Mark(cell["impl"], cell["reason"].replace("_", " "), why=cell["detail"]) for cell in gone]
    title = words.setting(first, always=[*axes, *ALWAYS]) or first["id"]
    return Case(first["id"], {axis: first[axis] for axis in axes}, title, {mark.impl: mark for mark in marks})
