"""Findings of a run in sentences: the recommended implementation, confidence, wrong outputs, page faults."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from statistics import median

from stats import conditions, shares
from stats.estimate import BETWEEN_PROCESSES, grouped
from stats.ratios import FASTEST, NOT_RESOLVED

from ..reading import units, words
from ..reading.fingerprint import KEEP
from ..reading.runs import Object, Run
from .grid import Case, Cases, Grid, counted, mean_slowdown, slowdown_text
from .model_steps import OF_MODELS
from .rows import Rows, ranked, ratio, trusted, varying

MEMORY_RATIO = 1.25
"""Ratio of memory from which on it is mentioned, and decides between implementations that are tied in time."""

MOST_DRIFT = 1.0
"""Change of the reference workload's time, as a share, from which on a recommendation has a warning."""

CLOSE = 1.05
"""Slowdown up to which an implementation that is fastest elsewhere is recommended, too."""

MOST_CLAUSES = 3
"""Most clauses along an axis in one sentence."""

MOST_OWN = 3
"""Most implementations of the user's that have a sentence each."""

MIN_FAULT_SHARE = 0.10
"""Share of a call's time in page faults from which on they are mentioned."""

FAULTS = {"wrong": f"{words.WRONG} did not pass the correctness check", "error": "failed", "timeout": "timed out"}
"""What an implementation did, by the reason of its cells without numbers."""

KEEPING = "MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184 (--allocator keep) or tcmalloc"
"""Settings with which a program keeps its pages."""


def headline(grid: Grid, baseline: str) -> str:
    """Return the headline in one sentence. `baseline` is the default implementation."""
    cases = grid.judged
    if not cases:
        return "No recommendation: no case of this run has times of two implementations that are correct everywhere."
    name = recommended(cases)
    best = [case for case in cases if case.mark(name).best]
    by_axis = [parts for axis in grid.axes if 1 < len(parts := _along(cases, axis)) <= MOST_CLAUSES]
    close = _most_behind(name, cases) <= CLOSE
    if by_axis and not close:
        return words.sentence("; ".join(sorted(by_axis, key=len)[0]))
    if close or 3 * len(best) >= 2 * len(cases):
        return _use(name, grid, best, baseline)
    if _mostly_open(cases):
        return f"No recommendation yet: {_not_resolved(cases)}."
    named = words.listing(f"{it} in {n}" for it, n in _count_best(cases).most_common())
    return f"No single recommendation: fastest or tied are {named} of {len(cases)} cases."


def _count_best(cases: Cases) -> Counter[str]:
    """Count the cases in which each implementation is fastest or tied."""
    return Counter(mark.impl for case in cases for mark in case.ranked if mark.best)


def _most_behind(name: str, cases: Cases) -> float:
    """Return the largest upper end of its intervals in the cases in which it is neither fastest nor tied: 1 without such cases,
    infinite if it has no interval in one of them.
    """
    marks = [case.mark(name) for case in cases]
    return max((mark.high if mark.high > 0 else math.inf for mark in marks if not mark.best), default=1.0)


def _slower_elsewhere(name: str, cases: Cases) -> str:
    """Return 'up to 1.08× slower in the others'; '' if it is fastest or tied everywhere, or lacks one of them."""
    others = [mark for case in cases if not (mark := case.mark(name)).best]
    if not others or not all(mark.counts for mark in others):
        return ""
    return f"up to {slowdown_text(max(mark.slowdown for mark in others))}× slower in the other{'s' * (len(others) > 1)}"


def _open(cases: Cases) -> int:
    """Count the cases in which the fastest is not known."""
    return sum(case.ranked[0].state == NOT_RESOLVED for case in cases)


def _mostly_open(cases: Cases) -> bool:
    """Whether so many are not resolved that the headline says it."""
    return 2 * _open(cases) >= len(cases)


def _not_resolved(cases: Cases) -> str:
    """Return '2 of 6 cases not resolved'; '' if none is."""
    return f"{_open(cases)} of {words.plural(len(cases), 'case')} not resolved" if _open(cases) else ""


def own_results(grid: Grid, wrong: frozenset[str]) -> Iterator[str]:
    """Yield a sentence for each of the user's own correct implementations: 'mine: mean slowdown 1.3 (6/12).'; if at least half
    of its cases are not resolved, 'mine: mean slowdown 1.3, not resolved in 2 of 3 cases.' Yields none if there are more than
    MOST_OWN: the table lists them.
    """
    names = [name for name in grid.impls if name in grid.own - wrong]
    for name in names if len(names) <= MOST_OWN else ():
        if known := [mark.state for mark in counted(name, grid.judged)]:
            open_ = known.count(NOT_RESOLVED)
            where = f", not resolved in {open_} of {words.plural(len(known), 'case')}"
            yield f"{name}: mean slowdown {grid.mean_text(name)}{where if len(known) <= 2 * open_ else ''}."


def confidence(run: Run, grid: Grid) -> str:
    """Return a sentence on the precision of the ratios: median interval, number of processes, cases not resolved, drift."""
    marks = [mark for case in grid.cases for mark in case.ranked]
    fewest = min((len(it.row["process_medians"]) for it in marks), default=0)
    known = [it.high / it.low for case in grid.judged for it in case.ranked[1:] if it.low > 0]
    wide = median(known or [math.inf])
    how = NOT_RESOLVED if shares.too_wide(1, wide) else f"known to ± {shares.percent(wide**0.5 - 1)} (95 %; median)"
    reasons = [
        f"ratios are {how}" if known else "no ratio has an interval" if grid.judged else "",
        "one process per cell" if fewest < 2 else f"{fewest} processes per cell",
        "" if _mostly_open(grid.judged) else _not_resolved(grid.judged),
        words.UNVERIFIED if any(it.row.get("device") == "cuda" for it in marks) else "",
        f"meanwhile the reference workload's time varied by {shares.varied(run.drift)}"
        if conditions.DRIFT < run.drift < MOST_DRIFT
        else "",
    ]
    return words.sentence("; ".join(filter(None, reasons)))


def unsteady(run: Run) -> Iterator[str]:
    """Yield warnings if the run was disturbed, or the machine changed so much that a recommendation is doubtful."""
    if why := conditions.disturbed(run.rows, run.controls):
        yield words.sentence(why)
    if run.drift >= MOST_DRIFT:
        change = shares.varied(run.drift)
        what = f"The reference workload's time changed by {change} between the halves of this run"
        yield f"{what}: measure again before you rely on it."


def _peak(case: Case, name: str) -> float:
    """Return its peak memory in bytes; infinite if unknown."""
    peak = case.mark(name).row.get("peak_bytes", math.nan)
    return float(peak) if peak >= 0 else math.inf


def recommended(cases: Cases) -> str:
    """Return the implementation that is fastest or tied in the most cases; of several, excluding those with clearly
    more memory than the leanest, and forms of another one (compiled, or pinned to its kernel), the one with the smallest
    mean slowdown; '' if there is none.
    """
    counts = _count_best(cases)
    peaks = {name: sum(_peak(case, name) for case in cases) for name in counts if counts[name] == max(counts.values())}
    lean = [name for name in peaks if peaks[name] <= MEMORY_RATIO * min(peaks.values())]
    plain = [it for it in lean if {words.base(it), cases[0].mark(it).row.get("pins")}.isdisjoint({*lean} - {it})]
    return min(plain, key=lambda name: mean_slowdown(name, cases), default="")


def _use(name: str, grid: Grid, best: Cases, baseline: str) -> str:
    """Return 'Use sdpa: fastest or tied in 11 of 12 cases, up to 1.08× slower in the other, up to 3.2× faster than fused
    (2.6 to 3.9), 7× less memory in the largest case.'
    """
    cases, count = grid.judged, len(grid.judged)
    everywhere = {1: "the one case", 2: "both cases"}.get(count, f"all {count} cases")
    where = everywhere if len(best) == count else f"{len(best)} of {count} cases"
    where += " with several implementations" if count < len(grid.cases) else ""
    both = [it for it in cases if it.mark(name).counts and it.mark(baseline).counts]
    steps = [it for it in both if it.ranked[0].row.get("scope") in OF_MODELS]  # cores alone predict them
    why = (
        f"{_how(name, best)} in {where}",
        _slower_elsewhere(name, cases),
        _leaner(name, best, baseline),
        _speed_up(name, steps or both, baseline, "steps " if steps else ""),
        _memory(name, steps or cases, baseline),
    )
    return f"Use {name}: {', '.join(filter(None, why))}."


def _best_in_all(cases: Cases) -> list[str]:
    """Return the implementations that are fastest or tied in all of these cases."""
    return [it.impl for it in cases[0].ranked if all(case.mark(it.impl).best for case in cases)]


def _leaner(name: str, best: Cases, baseline: str = "") -> str:
    """Return '2× less memory than fused', if `fused` is the fastest of the implementations that are tied; '' if that is `name`
    or `baseline`.
    """
    first = min(_best_in_all(best), key=lambda it: mean_slowdown(it, best))
    return _memory(name, best, first, f" than {first}") if first != baseline else ""


def _how(name: str, best: Cases) -> str:
    """Return 'fastest', 'tied with packed', or 'fastest or tied'."""
    if all(case.marks[name].state == FASTEST for case in best):
        return "fastest"
    always = [it for it in _best_in_all(best) if it != name]
    return f"tied with {words.listing(always, most=2)}" if always else "fastest or tied"


def _speed_up(name: str, cases: Cases, baseline: str, what: str) -> str:
    """Return 'up to 3.2× faster than fused (2.6 to 3.9)' after `what`: the largest significant speedup; '' without any."""
    found = (ratio(case.mark(baseline).row, case.mark(name).row) for case in cases)
    most = max((it for it in found if it.slower), default=None)
    if most is None:
        return ""
    upto = "up to " if len(cases) > 1 else ""
    return f"{what}{upto}{units.ratio(most.value)}× faster than {baseline} ({units.interval(most.low, most.high)})"


def _memory(name: str, cases: Cases, beside: str, than: str = "") -> str:
    """Return '2× less memory in the largest case': relative to `beside`, in the case in which `beside` needs most; '' if about
    the same.
    """
    peaks = ((_peak(case, beside), _peak(case, name)) for case in cases)
    known = [it for it in peaks if 0 < min(it) <= max(it) < math.inf]
    other, own = max(known, default=(1.0, 1.0))
    times = max(other / own, own / other)
    largest = f" in the largest case{' of both' * (len(known) < len(cases))}" if len(cases) > 1 else ""
    less = "less" if own < other else "more"
    return f"{slowdown_text(times)}× {less} memory{than}{largest}" if times >= MEMORY_RATIO else ""


def _along(cases: Cases, axis: str) -> list[str]:
    """Return for each implementation and its values of an axis 'with T = 64 and T = 256, use sdpa (fastest)'; an empty list
    if nothing is fastest or tied, or close, at one of the values.
    """
    at = grouped((case.at[axis], case) for case in cases)
    parts = []
    for name, values in grouped((recommended(of), value) for value, of in at.items()).items():
        of = [case for value in values for case in at[value]]
        best = [case for case in of if case.mark(name).best]
        if _most_behind(name, of) > CLOSE:
            return []
        where = words.listing((words.value(axis, value, equals=" = ") for value in values), most=len(values))
        some = f" in {len(best)} of {len(of)} cases" if len(best) < len(of) else ""
        why = f"{_how(name, best)}{some}", _slower_elsewhere(name, of), _leaner(name, best)
        parts.append(f"with {where}, use {name} ({', '.join(filter(None, why))})")
    return parts


def faults(rows: Rows, skipped: Rows) -> list[str]:
    """Return a warning for every implementation that was wrong, failed or timed out, with the first detail."""
    found = grouped(((cell["reason"], cell["impl"]), cell) for cell in skipped if cell["reason"] in FAULTS)
    measured = {row["impl"] for row in rows}
    return [
        f"{name} {FAULTS[reason]} in {words.plural(len(cells), 'cell')}: {cells[0]['detail']}."
        f"{' Its numbers elsewhere are in doubt.' if reason == 'wrong' and name in measured else ''}"
        for (reason, name), cells in found.items()
    ]


def page_faults(rows: Rows, machine: Object) -> str:
    """Return sentences on the call that loses most time to page faults where glibc has its own settings; '' if none loses
    `MIN_FAULT_SHARE`. `machine`: that of the run; settings of its allocator that don't keep pages hold there, too.

    A run that keeps pages has `fresh_pages_s`, seconds with those settings; another one has `kept_pages_s`.
    """
    usable = [
        {**row, "kept": min(row["median"], row["kept_pages_s"]), "fresh": max(row["median"], row["fresh_pages_s"])}
        for row in trusted(rows)
    ]
    faulting = [row for row in usable if row["kept"] <= (1 - MIN_FAULT_SHARE) * row["fresh"]]
    if not faulting:
        return ""
    most = max(faulting, key=lambda row: row["fresh"] - row["kept"])
    kept, fresh = (units.seconds(most[way]) for way in ("kept", "fresh"))
    also = "".join(f" and {name}={value}" for name, value in machine.get("allocator", {}).items() if name not in KEEP)
    where = words.setting(most, always=varying(usable))
    text = (
        f"With glibc's own settings{also} {most['impl']} takes {fresh} at {where}, of which "
        f"{shares.percent(1 - most['kept'] / most['fresh'])} are page faults. With {KEEPING} it takes {kept}"
    )
    fastest = ranked(row for row in usable if row["id"] == most["id"])[0]
    if fastest["impl"] != most["impl"]:
        own = ratio(most, fastest).value  # as in the tables; that with the other settings follows from the medians
        kept, fresh = (own * most[way] / most["median"] * fastest["median"] / fastest[way] for way in ("kept", "fresh"))
        now = f"{units.ratio(kept)}× faster" if kept > 1 else "no longer faster"
        text += f", and {fastest['impl']} is {now} instead of {slowdown_text(fresh)}×"
    return f"{text}."


def between_processes(rows: Rows) -> str:
    """Return a sentence on how much ratios vary between processes."""
    usual = rows[0]["between_processes"] if rows else BETWEEN_PROCESSES
    found, prior = map(shares.percent, (usual, BETWEEN_PROCESSES))
    return f"Intervals include the variation between processes: {found} (standard deviation; prior {prior})."
