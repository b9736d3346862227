"""The answer of a run in a sentence: which implementation to use, by how much, where not; and how well that is known."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from stats import conditions, ratios, shares

from ..reading import words
from ..reading.axes import length_axes
from ..reading.runs import Run
from . import frame as fr
from . import processes
from .advice import LEANER
from .grid import OPEN, SLOWER, Case, Grid, Mark, interval, slowdown

KNOWN_WELL = 0.03
"""Half of an interval, as a share, that more processes needn't make smaller."""

ADVISED_PROCESSES, MOST_PROCESSES = 5, 20

POSSIBLE = 1.1
"""Between implementations that are tied: larger differences that the run leaves possible are said."""

MOST_PARTS = 3
"""Answers along an axis that a sentence can hold."""


@dataclass(frozen=True)
class Trust:
    """How well the ratios are known, in sentences; and the command that would tell more, where one would."""

    reasons: tuple[str, ...]
    command: str


def headline(grid: Grid, baseline: str | None) -> str:
    """The answer in a sentence. `baseline` is the implementation that one would take by default."""
    cases = grid.judged
    if not cases:
        return "No answer: no case of this run has two implementations that were right everywhere."
    if not any(mark.low == mark.low for case in cases for mark in case.ranked[1:]):
        return f"No answer yet: {processes.NO_INTERVAL}."
    name = _pick(cases)
    best = [case for case in cases if name and _best(case, name)]
    if len(best) == len(cases):
        return _use(name, cases, best, baseline)
    if parts := _by_axis(grid, cases):
        text = "; ".join(f"{where}, use {what}" for where, what in parts)
        return f"{text[0].upper()}{text[1:]}."
    if 3 * len(best) >= 2 * len(cases):
        return f"{_use(name, cases, best, baseline)}{_exceptions(name, cases)}"
    unresolved = [case for case in cases if case.ranked[0].state == OPEN]
    if 2 * len(unresolved) >= len(cases):
        return f"No answer yet: {_not_resolved(len(unresolved), len(cases))}{_least(grid, cases)}."
    counts = Counter(mark.impl for case in cases for mark in case.ranked if mark.best).most_common(3)
    return (
        f"No one answer: fastest or tied are {words.listing(f'{it} in {n}' for it, n in counts)} of {len(cases)} cases"
        f"{_least(grid, cases)}."
    )


def _not_resolved(count: int, all_: int) -> str:
    """'2 of 3 cases are not resolved'"""
    return f"{f'{count} of {all_} cases' if all_ > 1 else 'the one case'} {'is' if count == 1 else 'are'} not resolved"


def _least(grid: Grid, cases: Sequence[Case]) -> str:
    """'; the smallest mean slowdown is 1.05, of sdpa', of those with a number in each of several cases."""
    whole = [name for name in grid.impls if all(_has(case, name) for case in cases)]
    if len(cases) == 1 or not whole:
        return ""
    least = min(whole, key=lambda name: grid.mean(name, cases))
    return f"; the smallest mean slowdown is {slowdown(grid.mean(least, cases))}, of {least}"


def own(grid: Grid, wrong: Collection[str] = ()) -> Iterator[str]:
    """How the reader's own implementations do that were right: 'mine: 1.3× the fastest, on average over 6 cases'."""
    for name in grid.impls:
        if name in grid.own and name not in wrong:
            count, all_ = grid.count(name), words.plural(len(grid.cases), "case")
            mean = f"{slowdown(grid.mean(name))}× the time of the fastest, on average over" if count else "no time in"
            yield f"{name}: {mean} {all_ if count in (0, len(grid.cases)) else f'{count} of {all_}'}."


def trust(run: Run, grid: Grid) -> Trust:
    """From the intervals of the runners-up, the number of processes, and what disturbed the run."""
    fewest = min((int(it.row["processes"]) for case in grid.cases for it in case.ranked), default=0)
    half = _half_width(grid.judged)
    wide = half is not None and shares.too_wide(1, (1 + half) ** 2)
    known = "no ratio has an interval" if half is None else f"ratios are {shares.UNRESOLVED}" if wide else (
        f"ratios are known to {f'± {shares.percent(half)}' if half < 1 else f'a factor of {slowdown(1 + half)}'} (95 %)"
    )  # fmt: skip
    said = [known, "one process a cell" if fewest < 2 else f"{fewest} processes a cell"]
    unresolved = sum(case.ranked[0].state == OPEN for case in grid.judged)
    said += [f"{unresolved} of {words.plural(len(grid.judged), 'case')} not resolved"] * bool(unresolved)
    said += [f"left out, wrong somewhere: {words.listing(sorted(run.wrong))}"] * bool(run.wrong)
    said += ["the run is not complete"] * (not run.complete)
    on_cuda = any(it.row.get("device") == "cuda" for case in grid.cases for it in case.ranked)
    said += ["times on CUDA are unverified on a GPU"] * on_cuda
    said += list(filter(None, [conditions.disturbed(run.rows)]))
    drift = run.controls.get("drift")
    if isinstance(drift, int | float) and conditions.DRIFT < drift < math.inf:
        said.append(f"meanwhile the reference workload's time varied by {shares.varied(drift)}")
    settled = half is not None and half <= KNOWN_WELL and fewest >= 3 and not unresolved
    return Trust(tuple(said), "" if settled else _settling(run.command, fewest, half))


def _settling(command: str, fewest: int, half: float | None) -> str:
    """The command that would settle what is open; '' where more processes would not."""
    wider = (half / KNOWN_WELL) ** 2 if half else 1.0
    wanted = min(MOST_PROCESSES, max(ADVISED_PROCESSES, math.ceil(max(1, fewest) * wider)))
    kept = re.sub(r" --processes[ =]\S+", "", command)
    return f"{kept} --processes {wanted}" if command and wanted > fewest else ""


def _half_width(cases: Sequence[Case]) -> float | None:
    """Of the median case: half of the interval of the runner-up's slowdown; None where there is none."""
    known = [it for case in cases for it in case.ranked[1:2] if it.low > 0]
    return median((it.high / it.low) ** 0.5 - 1 for it in known) if known else None


def _best(case: Case, name: str) -> bool:
    return name in case.marks and case.marks[name].best


def _pick(cases: Sequence[Case]) -> str:
    """What is the fastest or tied with it in the most cases; of several the one that needs clearly less memory, else the one
    with the smallest slowdowns; '' where nothing is."""
    counts = Counter(mark.impl for case in cases for mark in case.ranked if mark.best)
    most = max(counts.values(), default=0)
    equal = sorted(
        (name for name in counts if counts[name] == most),
        key=lambda name: _sum(math.log(mark.slowdown) for mark in _marks(cases, name)),
    )
    if not equal:
        return ""
    lean = min(equal, key=lambda name: _peaks(cases, name))
    leaner = _peaks(cases, equal[0]) > LEANER * _peaks(cases, lean) and _peaks(cases, equal[0]) < math.inf
    return lean if leaner else equal[0]


def _marks(cases: Sequence[Case], name: str) -> list[Mark]:
    """Its marks; one without numbers where it has none."""
    return [case.marks.get(name, Mark(name, "not measured", row={"peak_bytes": math.nan})) for case in cases]


def _has(case: Case, name: str) -> bool:
    return name in case.marks and case.marks[name].counts


def _sum(numbers: Iterable[float]) -> float:
    """Infinite where one isn't known."""
    total = sum(numbers)
    return total if math.isfinite(total) else math.inf


def _peaks(cases: Sequence[Case], name: str) -> float:
    """Bytes, of all cases together."""
    return _sum(mark.row.get("peak_bytes") or math.nan for mark in _marks(cases, name))


def _use(name: str, cases: Sequence[Case], best: Sequence[Case], baseline: str | None) -> str:
    """'Use sdpa: fastest or tied in 11 of 12 cases, up to 3.2× faster than fused (2.6 to 3.9), 7× less memory at T = 1024.'"""
    count = len(cases)
    everywhere = "the one case" if count == 1 else "both cases" if count == 2 else f"all {count} cases"
    where = everywhere if len(best) == count else f"{len(best)} of {words.plural(count, 'case')}"
    how = _how(name, best)
    said = [f"{how} in {where}{_possible(best) if how.startswith('tied') else ''}"]
    if baseline and baseline != name and (both := [it for it in cases if _has(it, name) and _has(it, baseline)]):
        said += [*_gain(name, both, baseline), *_memory(name, both, baseline, len(cases) > 1)]
    return f"Use {name}: {', '.join(said)}."


def _how(name: str, best: Sequence[Case]) -> str:
    """'fastest', 'tied with packed', or 'fastest or tied'"""
    if all(case.marks[name].state == ratios.FASTEST for case in best):
        return "fastest"
    others = [{mark.impl for mark in case.ranked if mark.best} - {name} for case in best]
    always = [mark.impl for mark in best[0].ranked if all(mark.impl in them for them in others)]
    return f"tied with {words.listing(always, most=2)}" if always else "fastest or tied"


def _possible(cases: Sequence[Case]) -> str:
    """' (differences up to 1.4× are possible)' between those that are tied; '' where none of more than POSSIBLE is."""
    widest = max((mark.high for case in cases for mark in case.ranked[1:] if mark.best), default=1.0)
    return f" (differences up to {slowdown(widest)}× are possible)" if widest > POSSIBLE else ""


def _gain(name: str, cases: Sequence[Case], baseline: str) -> Iterator[str]:
    """The largest speed-up over the baseline implementation that was shown."""
    shown = [it for case in cases if (it := fr.ratio(case.marks[baseline].row, case.marks[name].row)).slower]
    if shown:
        most = max(shown, key=lambda it: it.low)
        upto = "up to " * (len(cases) > 1)
        yield f"{upto}{slowdown(most.value)}× faster than {baseline} ({interval(most.low, most.high)})"


def _memory(name: str, cases: Sequence[Case], baseline: str, several: bool) -> Iterator[str]:
    """Its memory beside that of the baseline implementation, where that needs the most."""
    known = [case for case in cases if _peaks([case], name) < math.inf > _peaks([case], baseline)]
    if known:
        case = max(known, key=lambda case: (_peaks([case], baseline), case.ranked[0].row["median"]))
        less = _peaks([case], baseline) / _peaks([case], name)
        if max(less, 1 / less) >= LEANER:
            where = f" at {case.place}" * several
            yield f"{slowdown(max(less, 1 / less))}× {'less' if less > 1 else 'more'} memory{where}"


def _exceptions(name: str, cases: Sequence[Case]) -> str:
    """' Exception: H = 1, T = 64, bf16: packed, 1.2× faster.'"""
    slower = [case for case in cases if _has(case, name) and case.marks[name].state == SLOWER]
    lacking = [case for case in cases if not _has(case, name)]
    unresolved = [case for case in cases if _has(case, name) and case.marks[name].state == OPEN]
    said = []
    if slower:
        worst = max(slower, key=lambda case: case.marks[name].slowdown)
        least: Mark = worst.ranked[0]
        one = f"{worst.place}: {least.impl}, {slowdown(worst.marks[name].slowdown)}× faster"
        said.append(one if len(slower) == 1 else f"slower in {len(slower)} cases, most at {one}")
    said += [f"{words.plural(len(unresolved), 'case')} not resolved"] * bool(unresolved)
    said += [f"no number in {words.plural(len(lacking), 'case')}"] * bool(lacking)
    return f" Exception{'s' * (len(slower) + len(unresolved) + len(lacking) > 1)}: {'; '.join(said)}."


def _by_axis(grid: Grid, cases: Sequence[Case]) -> list[tuple[str, str]]:
    """Along the axis with the fewest answers: where, and what to use there. Empty where no axis has one for each value."""
    tried = (_along(cases, axis) for axis in grid.axes)
    told = [it for it in tried if 1 < len(it) <= MOST_PARTS and all(what for _, what in it)]
    return min(told, key=len, default=[])


def _along(cases: Sequence[Case], axis: str) -> list[tuple[str, str]]:
    """Each value of an axis, or each range of lengths with one answer, and the answer."""
    values = list(dict.fromkeys(case.at[axis] for case in cases))
    on_a_line = axis in length_axes() and None not in values
    ranges: list[list[Any]] = []
    for value in sorted(values) if on_a_line else values:
        if on_a_line and ranges and _everywhere(_where(cases, axis, [*ranges[-1], value])):
            ranges[-1].append(value)
        else:
            ranges.append([value])
    said = []
    for one in ranges:
        first, last = words.value(axis, one[0], equals=" = "), words.number(one[-1])
        where = f"{'at' if on_a_line else 'with'} {first}" if len(one) == 1 else f"from {first} to {last}"
        said.append((where, _everywhere(_where(cases, axis, one))))
    return said


def _everywhere(cases: Sequence[Case]) -> str:
    """'sdpa (fastest)', where something is the fastest or tied in every case; else ''."""
    name = _pick(cases)
    return f"{name} ({_how(name, cases)})" if name and all(_best(case, name) for case in cases) else ""


def _where(cases: Sequence[Case], axis: str, values: Sequence[Any]) -> list[Case]:
    return [case for case in cases if case.at[axis] in values]
