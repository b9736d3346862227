"""The judge: logarithms of ratios in, verdicts out. One number per fresh process; needs NumPy and scipy only.

Rounds within a process share its memory layout and the machine's mood, so they are no replicates: processes are. A change
counts when it is larger than a threshold, not when it is larger than nothing: t-tests of Yuen (pairs, trimmed) or Welch (two
saved runs) against it, Simes' test over the cells of each implementation and then Benjamini and Hochberg's control of false
discoveries among them, and `UNCHANGED` only where two one-sided tests show it (Schuirmann 1987). Which rule finds most at
equally few alarms, `tests/experiments/rules.py` prints.

>>> judge({"sdpa": [0.051, 0.049, 0.052, 0.050]})["sdpa"].word
'REGRESSED'
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from . import estimate
from .estimate import LEVEL, Estimate, Key, Logs
from .shares import bound, signed

REGRESSED = "REGRESSED"
IMPROVED = "IMPROVED"
UNCHANGED = "UNCHANGED"
INCONCLUSIVE = "INCONCLUSIVE"
WRONG = "WRONG"  # base or head fails the correctness check: never a speed-up
BROKEN = "BROKEN"  # head can't do what base can
NEW = "NEW"  # only in head
GONE = "GONE"  # only in base
WORDS = (REGRESSED, BROKEN, WRONG, GONE, IMPROVED, INCONCLUSIVE, NEW, UNCHANGED)
"""All words, in the order in which a reader wants to know."""

CHANGED = (REGRESSED, IMPROVED)

JUDGED = (REGRESSED, IMPROVED, UNCHANGED)
"""Words that say something about the code."""

MARGIN = 0.01
"""A change that is shown to be smaller than this share is none."""

ALARM = 0.2
"""A change is reported where it is shown to be larger than this share of the margin, by sides that took turns. At the usual
margin that is 0.2 %: two folders with the same code differ by less, 0.08 % in standard deviation (docs/measured.md)."""

FALSE_ALARMS = 0.01
"""Share of false ones among the reported changes. With one in twenty, a true change of eight cells takes a ninth along in
every third comparison."""

POWER = 0.8
"""Chance of seeing a change as large as `detectable`."""

STILL = 0.03
"""A control whose time changes by more than this share shows machine drift."""

CROWD = 4
"""Fewer cells than this can't be said to move together."""

MOST_PAIRS = 1000
"""Beyond so many pairs nobody waits: `more_pairs` is None then."""

BETWEEN_RUNS = 0.01
"""Standard deviation, in logarithms, of what two runs of unchanged code disagree about a ratio beyond their processes.

Calibrated by `tests/experiments/denominator.py`, which prints what a set of stored runs needs.
"""

BETWEEN_RUNS_SECONDS = 0.12
"""The same of times that are no ratios: what the machine does from one minute to the other doesn't cancel."""

MARGINS = (0.01, 0.02, 0.05)
"""Of two saved runs, where none is asked for."""

COVERED = 0.8
"""Share of the cells that a margin should do for."""


@dataclass(frozen=True)
class Verdict:
    """What can be said of one cell. Ratios are head over base: above 1 is slower. NaN where there is no number."""

    word: str
    ratio: float
    low: float
    """Lower end of the ratio's 95 % interval."""
    high: float
    detectable: float
    """Smallest change, as ratio - 1, that had an 80 % chance of being seen, had it been the only one."""
    p: float
    """Of the test for a change beyond the margin, adjusted for all cells judged together."""
    reason: str
    more_pairs: int | None
    """Pairs of processes still needed to resolve it: 0 for none, None where that is unknown or beyond MOST_PAIRS."""


def judge(
    cells: Mapping[Key, ArrayLike],
    margin: float = MARGIN,
    controls: Mapping[str, ArrayLike] | None = None,
    alarm: float | None = None,
) -> dict[Key, Verdict]:
    """Verdicts on paired measurements, whose sides took turns.

    Each cell brings log(head / base), one for every pair of fresh processes, already centred on the controls if it is to
    be (`centred`). The first of a key that is a tuple is the cell's implementation. `controls` are the controls' own log
    ratios: they alone void a comparison, since what all cells share beside controls that stand still is the code. `alarm` is
    what a change must exceed (ALARM of the margin). Numbers that are not finite count as pairs not measured.

    Raises:
        ValueError: the margin is negative or not finite.
    """
    limits = _Limits(_limit(margin), _limit(ALARM * margin if alarm is None else alarm))
    return _judged({key: estimate.paired(logs) for key, logs in cells.items()}, limits, controls, together=False)


def judge_pairs(
    cells: Mapping[Key, ArrayLike],
    controls: Mapping[str, ArrayLike],
    margin: float = MARGIN,
    alarm: float | None = None,
) -> dict[Key, Verdict]:
    """Verdicts on pairs of fresh processes as measured: log(head / base) of every pair, NaN where a cell was not in it.

    Sides that take turns every few milliseconds see the same machine: mostly nothing changed, and to subtract the controls
    would add nothing but their own spread. So cells are centred on them where these changed.
    """
    known = {name: np.array(logs, float) for name, logs in controls.items()}
    return judge({key: _centred_if_needed(np.array(logs, float), known) for key, logs in cells.items()},
                 margin, controls, alarm)  # fmt: skip


def judge_groups(
    groups: Mapping[Key, Sequence[ArrayLike]],
    controls: Mapping[str, ArrayLike],
    margin: float = MARGIN,
    alarm: float | None = None,
) -> dict[Key, Verdict]:
    """Verdicts on groups of cells, such as those of an implementation: on the mean over the cells of a group, pair by pair.

    Pairs that lack a cell don't count for its group, whose cells need not have changed alike.
    """
    means = {key: np.mean(np.array(cells, float), axis=0) for key, cells in groups.items()}
    return judge_pairs(means, controls, margin, alarm)


def _centred_if_needed(logs: NDArray[np.float64], controls: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    measured = np.isfinite(logs)
    beside = {name: control[measured] for name, control in controls.items()}
    moved = any(verdict.word in CHANGED for verdict in judge(beside, margin=0.0).values())
    return centred(logs[measured], beside if moved else {})


def judge_unpaired(
    cells: Mapping[Key, tuple[ArrayLike, ArrayLike]],
    margin: float = MARGIN,
    controls: Mapping[str, ArrayLike] | None = None,
    together: bool = True,
    shift: float = 0.0,
    shift_error: float = 0.0,
) -> dict[Key, Verdict]:
    """Verdicts on two saved runs, whose processes are not paired and did not take turns.

    Each cell brings log(seconds) of base's and of head's processes. A cell with a single process on a side borrows the
    spread between processes of all other cells: it has changed only if its sides lie farther apart than any two
    processes of any cell. Without such cells it stays INCONCLUSIVE.

    `shift` is subtracted from every log ratio (by how much the controls changed), and `shift_error`, its standard error, widens
    every interval: the price of centring.

    Raises:
        ValueError: the margin is negative or not finite.
    """
    sides = {key: (estimate.finite(base), estimate.finite(head)) for key, (base, head) in cells.items()}
    seen = estimate.between([side for pair in sides.values() for side in pair])
    estimates = {key: estimate.shifted(estimate.welch(*pair, seen), shift, shift_error) for key, pair in sides.items()}
    return _judged(estimates, _Limits.both(_limit(margin)), controls, together)


def margin_between_runs(cells: Iterable[tuple[Logs, Logs]]) -> float:
    """The smallest of MARGINS within which most cells would be shown UNCHANGED where they are; blind to what changed."""
    known = [it for it in (_between_runs(*sides, BETWEEN_RUNS) for sides in cells) if it.testable]
    needs = sorted(
        it.error * (estimate.quantile(1 - LEVEL, it.df) + estimate.quantile((1 + POWER) / 2, it.df)) for it in known
    )
    needed = needs[int(COVERED * (len(needs) - 1))] if needs else 0.0
    return next((margin for margin in MARGINS if needed < math.log1p(margin)), MARGINS[-1])


def judge_changes(
    cells: Mapping[Key, tuple[Logs, Logs]],
    margin: float = MARGIN,
    between_runs: float = BETWEEN_RUNS,
    alarm: float | None = None,
) -> dict[Key, Verdict]:
    """Verdicts on two saved runs whose implementations took turns.

    Each cell brings the log ratios of base and of head over a denominator that didn't change. What the machine did that day
    cancels in them, but for `between_runs`, which widens every interval. `alarm` is what a change must exceed (the margin).

    Raises:
        ValueError: the margin is negative or not finite.
    """
    changes = {key: _between_runs(*sides, between_runs) for key, sides in cells.items()}
    return _judged(changes, _Limits(_limit(margin), _limit(margin if alarm is None else alarm)), None, together=False)


def _between_runs(base: Logs, head: Logs, term: float) -> Estimate:
    return estimate.widened(estimate.difference(estimate.of_processes(base), estimate.of_processes(head)), term)


def change(base: Logs, head: Logs) -> tuple[float, float, float]:
    """How much a log ratio changed from one run to the other; its standard error within the runs; degrees of freedom."""
    found = estimate.difference(estimate.of_processes(base), estimate.of_processes(head))
    return found.mean, found.error, found.df


def centred(logs: ArrayLike, controls: Mapping[str, ArrayLike]) -> NDArray[np.float64]:
    """A cell's log ratios less, pair by pair, the mean of the controls' log ratios.

    Raises:
        ValueError: a control has another number of pairs than the cell.
    """
    cell: NDArray[np.float64] = np.array(logs, float)
    for name, control in controls.items():
        if np.shape(control) != cell.shape:
            raise ValueError(f"control {name!r} has {np.size(control)} pairs, the cell {cell.size}")
    if not controls:
        return cell
    together = np.array(list(controls.values()), float)  # (controls, pairs)
    cell -= together.mean(axis=0)
    return cell


def without_numbers(word: str, reason: str) -> Verdict:
    """A verdict on a cell that can't be compared: BROKEN, WRONG, NEW, GONE, or INCONCLUSIVE for a reason known beforehand."""
    nan = math.nan
    return Verdict(word, nan, nan, nan, nan, nan, reason, None)


@dataclass(frozen=True)
class _Limits:
    """In logarithms: what UNCHANGED lies within, and what a change must exceed."""

    same: float
    alarm: float

    @classmethod
    def both(cls, limit: float) -> _Limits:
        return cls(limit, limit)


def _limit(margin: float) -> float:
    if not (math.isfinite(margin) and margin >= 0):
        raise ValueError(f"the margin is a share like 0.01, not {margin}")
    return math.log1p(margin)


def _judged(
    cells: dict[Key, Estimate], limits: _Limits, controls: Mapping[str, ArrayLike] | None, together: bool
) -> dict[Key, Verdict]:
    small = estimate.adjusted(
        {key: estimate.p_moved(cell, limits.alarm) for key, cell in cells.items() if cell.testable}
    )
    verdicts = {
        key: _verdict(cell, limits, small[key], len(small)) if key in small else _untestable(cell)
        for key, cell in cells.items()
    }
    reason = drifted(controls or {}) or (_changed_alike(list(cells.values()), limits.same) if together else "")
    if reason:
        return {key: replace(v, word=INCONCLUSIVE, reason=reason, more_pairs=None) for key, v in verdicts.items()}
    return verdicts


def _verdict(cell: Estimate, limits: _Limits, p: float, among: int) -> Verdict:
    low, high = cell.interval()
    word = _word(cell, limits, p)
    reason = {
        REGRESSED: f"slower by more than {_share(limits.alarm)}",
        IMPROVED: f"faster by more than {_share(limits.alarm)}",
        UNCHANGED: f"shown to be within {_share(limits.same)}",
    }.get(word) or _why_inconclusive(cell, limits, among)
    return Verdict(
        word=word,
        ratio=math.exp(cell.mean),
        low=estimate.exp_or_inf(low),
        high=estimate.exp_or_inf(high),
        detectable=_detectable(cell, limits.alarm, among),
        p=p,
        reason=reason,
        more_pairs=_more_pairs(cell, limits, among) if word == INCONCLUSIVE else 0,
    )


def _word(cell: Estimate, limits: _Limits, p: float) -> str:
    if cell.pairs > 1 and estimate.p_same(cell, limits.same) <= LEVEL:
        return UNCHANGED
    if p <= FALSE_ALARMS and abs(cell.mean) > limits.alarm + cell.beyond:
        return REGRESSED if cell.mean > 0 else IMPROVED
    return INCONCLUSIVE


def _untestable(cell: Estimate) -> Verdict:
    if not math.isfinite(cell.mean):
        return without_numbers(INCONCLUSIVE, "no pair of processes with two numbers")
    reason = "one process a side tells no interval"
    return replace(without_numbers(INCONCLUSIVE, reason), ratio=math.exp(cell.mean))


def _detectable(cell: Estimate, limit: float, among: int) -> float:
    """Margin, plus what the test needs, plus what luck may take away; the test as it is for a lone change."""
    if cell.error == 0:
        return math.expm1(limit + cell.beyond)
    needed = cell.error * (estimate.quantile(1 - FALSE_ALARMS / 2 / among, cell.df) + estimate.quantile(POWER, cell.df))
    return estimate.exp_or_inf(max(limit + needed, limit + cell.beyond)) - 1


def _more_pairs(cell: Estimate, limits: _Limits, among: int) -> int | None:
    """Pairs to go, if mean and spread stay as they are, until it is shown to be a change or none, whichever comes first."""
    size = abs(cell.mean)
    enough = cell.spread * _reach(FALSE_ALARMS / 2 / among) <= size - limits.alarm
    enough |= cell.spread * _reach(LEVEL) <= limits.same - size
    counts = [int(n) for n in np.flatnonzero(enough) + 2 if n > cell.pairs]
    return counts[0] - cell.pairs if counts else None


@cache
def _reach(level: float) -> NDArray[np.float64]:
    """How far from the margin a mean of 2, 3, ... MOST_PAIRS pairs must lie, in spreads of one pair, to be seen."""
    pairs = np.arange(2, MOST_PAIRS + 1)
    reach: NDArray[np.float64] = stdtrit(pairs - 1, 1 - level) + stdtrit(pairs - 1, POWER)
    reach /= np.sqrt(pairs)
    return reach


def _why_inconclusive(cell: Estimate, limits: _Limits, among: int) -> str:
    if cell.pairs == 1:
        apart = _share(cell.beyond)
        return f"one process a side; processes were seen {apart} apart"
    if abs(cell.mean) > limits.alarm and estimate.p_moved(cell, limits.alarm) <= FALSE_ALARMS:
        return f"beyond {_share(limits.alarm)}, but among {among} cells that may be chance"
    possible = bound(*map(estimate.exp_or_inf, cell.interval()))
    return f"{possible}: its interval crosses the margin of {_share(limits.same)}"


def drifted(controls: Mapping[str, ArrayLike]) -> str:
    """Why nothing can be said of the code, or '': a control workload took another time, by its median over the pairs."""
    for name, logs in controls.items():
        pairs = estimate.finite(logs)
        middle = float(np.median(pairs)) if pairs.size else 0.0  # one pair that was disturbed is no machine drift
        if abs(middle) > math.log1p(STILL):
            return f"machine drift: the time of the control workload {name!r} changed by {signed(middle)}"
    return ""


def _changed_alike(cells: Sequence[Estimate], limit: float) -> str:
    """Of sides that did not take turns: more than half of all cells changed the same way, each by between half and twice the
    median of those that changed. A cell has changed when its 95 % interval leaves 1 out and its mean is beyond the margin.
    """
    if len(cells) < CROWD:
        return ""
    for way in (1, -1):
        moved = np.array([way * cell.mean for cell in cells if _moved(cell, limit, way)])
        middle = float(np.median(moved)) if moved.size else 0.0
        alike = int(((moved >= middle / 2) & (moved <= 2 * middle)).sum())
        if alike > len(cells) / 2:
            changed = f"{alike} of {len(cells)} cells changed alike, by about {signed(way * middle)}"
            return f"possibly machine drift: {changed}"
    return ""


def _moved(cell: Estimate, limit: float, way: int) -> bool:
    if not cell.testable or way * cell.mean <= limit:
        return False
    low, high = cell.interval()
    return low > 0 or high < 0


def _share(log: float) -> str:
    """log(1.01) -> '1 %'."""
    return f"{math.expm1(log) * 100:.3g} %"
