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
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit

from ..reading import units

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

TRIM = 10
"""Of so many pairs the lowest and the highest don't count: a neighbour that came and went is in few."""

LEVEL = 0.05
"""Risk of a false `UNCHANGED`; what an interval leaves out."""

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

Key = TypeVar("Key", bound=Hashable)


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


def interval(medians: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the geometric mean of positive numbers, one a process (Student's, of their logarithms).

    None of fewer than two.
    """
    if len(medians) < 2:
        return None
    logs = np.log(medians)
    half = _quantile(1 - LEVEL / 2, len(logs) - 1) * np.std(logs, ddof=1) / math.sqrt(len(logs))
    low, high = np.exp([np.mean(logs) - half, np.mean(logs) + half])
    return float(low), float(high)


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
    return _judged({key: _paired(logs) for key, logs in cells.items()}, limits, controls, together=False)


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


def bound(low: float, high: float) -> str:
    """What the interval of a ratio leaves possible: 'at most 0.9 % slower'."""
    if units.too_wide(low, high):
        return NOT_RESOLVED
    if high <= 1:
        return f"{_percent(1 - high)} to {_percent(1 - low)} faster"
    return f"{_percent(low - 1)} to {_percent(high - 1)} slower" if low >= 1 else f"at most {_percent(high - 1)} slower"


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
    sides = {key: (_finite(base), _finite(head)) for key, (base, head) in cells.items()}
    seen = _between([side for pair in sides.values() for side in pair])
    estimates = {key: _centred(_welch(*pair, seen), shift, shift_error) for key, pair in sides.items()}
    return _judged(estimates, _Limits.both(_limit(margin)), controls, together)


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
class _Estimate:
    """A cell's log ratio: its mean, standard error and degrees of freedom; and the spread of a single pair."""

    mean: float
    error: float = math.nan
    df: float = math.nan
    pairs: int = 1
    spread: float = math.nan
    beyond: float = 0.0
    """With a borrowed spread: the farthest that two processes were ever seen apart. Such a cell can't be UNCHANGED."""

    @property
    def testable(self) -> bool:
        return math.isfinite(self.mean) and math.isfinite(self.error)

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        half = self.error * _quantile(1 - level / 2, self.df) if self.error else 0.0
        return self.mean - half, self.mean + half


@dataclass(frozen=True)
class _Between:
    """How processes that ran the same code differed, over all cells: in logarithms."""

    spread: float
    df: int
    widest: float


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


def _finite(logs: ArrayLike) -> NDArray[np.float64]:
    values = np.atleast_1d(np.asarray(logs, float))
    finite: NDArray[np.float64] = values[np.isfinite(values)]
    return finite


def _paired(logs: ArrayLike) -> _Estimate:
    values = _finite(logs)
    if values.size < 2:
        return _Estimate(float(values[0]) if values.size else math.nan, pairs=values.size)
    cut = values.size // TRIM
    kept = np.sort(values)[cut : values.size - cut]
    winsorized = values.clip(kept[0], kept[-1])
    error = float(winsorized.std(ddof=1)) * math.sqrt((values.size - 1) / (kept.size * (kept.size - 1)))  # Yuen 1974
    return _Estimate(float(kept.mean()), error, kept.size - 1, values.size, error * math.sqrt(values.size))


def _welch(base: NDArray[np.float64], head: NDArray[np.float64], seen: _Between | None) -> _Estimate:
    pairs = min(base.size, head.size)
    if pairs == 0:
        return _Estimate(math.nan, pairs=0)
    mean = float(head.mean() - base.mean())
    if pairs == 1:
        return _lone(mean, base.size, head.size, seen)
    spreads = float(base.var(ddof=1)), float(head.var(ddof=1))
    parts = spreads[0] / base.size, spreads[1] / head.size
    squared = sum(parts)
    below = parts[0] ** 2 / (base.size - 1) + parts[1] ** 2 / (head.size - 1)
    df = squared**2 / below if below else base.size + head.size - 2  # Welch-Satterthwaite
    return _Estimate(mean, math.sqrt(squared), df, pairs, math.sqrt(sum(spreads)))


def _lone(mean: float, in_base: int, in_head: int, seen: _Between | None) -> _Estimate:
    if seen is None:
        return _Estimate(mean)
    error = seen.spread * math.sqrt(1 / in_base + 1 / in_head)
    return _Estimate(mean, error, seen.df, 1, seen.spread * math.sqrt(2), beyond=seen.widest)


def _between(sides: Sequence[NDArray[np.float64]]) -> _Between | None:
    several = [side for side in sides if side.size > 1]
    if not several:
        return None
    df = sum(side.size - 1 for side in several)
    squares = sum(float(((side - side.mean()) ** 2).sum()) for side in several)
    return _Between(math.sqrt(squares / df), df, max(float(np.ptp(side)) for side in several))


def _centred(estimate: _Estimate, shift: float, shift_error: float) -> _Estimate:
    return replace(estimate, mean=estimate.mean - shift, error=math.hypot(estimate.error, shift_error))


def _judged(
    cells: dict[Key, _Estimate], limits: _Limits, controls: Mapping[str, ArrayLike] | None, together: bool
) -> dict[Key, Verdict]:
    small = adjusted({key: _p_moved(cell, limits.alarm) for key, cell in cells.items() if cell.testable})
    verdicts = {
        key: _verdict(cell, limits, small[key], len(small)) if key in small else _untestable(cell)
        for key, cell in cells.items()
    }
    reason = drifted(controls or {}) or (_changed_alike(list(cells.values()), limits.same) if together else "")
    if reason:
        return {key: replace(v, word=INCONCLUSIVE, reason=reason, more_pairs=None) for key, v in verdicts.items()}
    return verdicts


def adjusted(p: Mapping[Key, float]) -> dict[Key, float]:
    """For the number of cells: Simes' test that anything changed in an implementation, adjusted for their number, and
    among the cells of each once more, both by Benjamini and Hochberg. So one that changed everywhere needn't outdo all
    cells of the others.
    """
    families: dict[Hashable, dict[Key, float]] = {}
    for key, one in p.items():
        families.setdefault(key[0] if isinstance(key, tuple) else None, {})[key] = one
    within = {name: _discoveries(of) for name, of in families.items()}
    gates = _discoveries({name: min(of.values()) for name, of in within.items()})  # the smallest of them is Simes' p
    return {key: max(one, gates[name]) for name, of in within.items() for key, one in of.items()}


def _discoveries(p: Mapping[Key, float]) -> dict[Key, float]:
    """Adjusted p, by Benjamini and Hochberg."""
    from scipy.stats import false_discovery_control  # half a second to import: of those who judge alone

    return dict(zip(p, map(float, false_discovery_control(list(p.values())) if p else ()), strict=True))


def _verdict(cell: _Estimate, limits: _Limits, p: float, among: int) -> Verdict:
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
        low=_exp(low),
        high=_exp(high),
        detectable=_detectable(cell, limits.alarm, among),
        p=p,
        reason=reason,
        more_pairs=_more_pairs(cell, limits, among) if word == INCONCLUSIVE else 0,
    )


def _word(cell: _Estimate, limits: _Limits, p: float) -> str:
    if cell.pairs > 1 and _p_same(cell, limits.same) <= LEVEL:
        return UNCHANGED
    if p <= FALSE_ALARMS and abs(cell.mean) > limits.alarm + cell.beyond:
        return REGRESSED if cell.mean > 0 else IMPROVED
    return INCONCLUSIVE


def _untestable(cell: _Estimate) -> Verdict:
    if not math.isfinite(cell.mean):
        return without_numbers(INCONCLUSIVE, "no pair of processes with two numbers")
    reason = "one process a side tells no interval"
    return replace(without_numbers(INCONCLUSIVE, reason), ratio=math.exp(cell.mean))


def _p_moved(cell: _Estimate, limit: float) -> float:
    """Of the hypothesis that the ratio lies within the margin: chance of a mean this far out when it lies on its edge."""
    size = abs(cell.mean)
    return min(1.0, _p_positive(size - limit, cell) + _p_positive(size + limit, cell))


def _p_same(cell: _Estimate, limit: float) -> float:
    """Of the hypothesis that the ratio lies on the margin or beyond: the worse of two one-sided tests (TOST)."""
    return max(_p_positive(limit - cell.mean, cell), _p_positive(limit + cell.mean, cell))


def _p_positive(distance: float, cell: _Estimate) -> float:
    """Of the hypothesis that a distance measured with the cell's error is not really positive."""
    if cell.error == 0:  # identical numbers: nothing is left to chance
        return 0.0 if distance > 0 else 1.0
    return float(stdtr(cell.df, -distance / cell.error))


def _detectable(cell: _Estimate, limit: float, among: int) -> float:
    """Margin, plus what the test needs, plus what luck may take away; the test as it is for a lone change."""
    if cell.error == 0:
        return math.expm1(limit + cell.beyond)
    needed = cell.error * (_quantile(1 - FALSE_ALARMS / 2 / among, cell.df) + _quantile(POWER, cell.df))
    return _exp(max(limit + needed, limit + cell.beyond)) - 1


def _more_pairs(cell: _Estimate, limits: _Limits, among: int) -> int | None:
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


def _why_inconclusive(cell: _Estimate, limits: _Limits, among: int) -> str:
    if cell.pairs == 1:
        apart = _share(cell.beyond)
        return f"one process a side; processes were seen {apart} apart"
    if abs(cell.mean) > limits.alarm and _p_moved(cell, limits.alarm) <= FALSE_ALARMS:
        return f"beyond {_share(limits.alarm)}, but among {among} cells that may be chance"
    possible = bound(*map(_exp, cell.interval()))
    return f"{possible}: its interval crosses the margin of {_share(limits.same)}"


def drifted(controls: Mapping[str, ArrayLike]) -> str:
    """Why nothing can be said of the code, or '': a control workload took another time, by its median over the pairs."""
    for name, logs in controls.items():
        pairs = _finite(logs)
        middle = float(np.median(pairs)) if pairs.size else 0.0  # one pair that was disturbed is no machine drift
        if abs(middle) > math.log1p(STILL):
            return f"machine drift: the time of the control workload {name!r} changed by {signed(middle)}"
    return ""


def _changed_alike(cells: Sequence[_Estimate], limit: float) -> str:
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


def _moved(cell: _Estimate, limit: float, way: int) -> bool:
    if not cell.testable or way * cell.mean <= limit:
        return False
    low, high = cell.interval()
    return low > 0 or high < 0


def _share(log: float) -> str:
    """log(1.01) -> '1 %'."""
    return f"{math.expm1(log) * 100:.3g} %"


def _percent(share: float) -> str:
    """0.0123 -> '1.2 %', 0.2 -> '20 %'."""
    return f"{share * 100:.2g} %" if abs(share) < 1 else f"{share * 100:.0f} %"


def varied(share: float) -> str:
    """By how much a time differed from its median: 0.11 -> '11 %', 18.6 -> 'a factor of 20'."""
    return _percent(share) if share < 1 else f"a factor of {units.significant(1 + share, 2)}"


def signed(log: float) -> str:
    """By how much a time changed: log(1.012) -> '+1.2 %', log(20) -> 'a factor of 20'."""
    share = math.expm1(log)
    if share >= 1:
        return varied(share)
    return f"{round(share * 100, 1) + 0.0:+.1f} %".replace("-", "\N{MINUS SIGN}")


BETWEEN_PROCESSES = 0.02
"""Standard deviation, in logarithms, of what two processes of unchanged code disagree about a ratio beyond their visits.

Calibrated on stored runs (`tests/experiments/ranking.py`); it counts where a run has too few processes to show its own.
"""

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

RESOLUTION = 1.5
"""An implementation that may take so many times as long as the leader, or the leader as it, is not called level with it."""

FASTEST, LEVEL_WITH_IT, NOT_RESOLVED, SLOWER = "fastest", "level", units.UNRESOLVED, "slower"
"""How an implementation stands in its case."""

ENOUGH_PROCESSES = 3
"""Processes from which on their own disagreement is the interval."""


@dataclass(frozen=True)
class Samples:
    """What was timed of one row, one entry a block: seconds of a call, and where in the run the block stood.

    Blocks of two rows with one number of a round were timed within the same round, so they are paired by it. `visits`
    tells which rounds were timed at one go; a visit lies within one process.
    """

    seconds: Sequence[float]
    rounds: Sequence[int]
    visits: Sequence[int]
    processes: Sequence[int]


@dataclass(frozen=True)
class Ratio:
    """Time of one implementation over that of another in the same case: below 1 is faster. NaN where nothing is known."""

    value: float
    low: float
    """Lower end of the 95 % interval; of one among several rivals, of the interval that holds all of theirs with 95 %."""
    high: float
    processes: int
    visits: int

    @property
    def known(self) -> bool:
        """Whether it has an interval."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def wide(self) -> bool:
        """Whether its interval says no more than that it is wide."""
        return units.too_wide(self.low, self.high)

    @property
    def resolved(self) -> bool:
        """Whether the two were shown to differ."""
        return self.faster or self.slower

    @property
    def faster(self) -> bool:
        """Whether the first may be called faster than the second: the interval lies below 1."""
        return self.high < 1

    @property
    def slower(self) -> bool:
        return self.low > 1

    @property
    def level(self) -> bool:
        """Whether no difference is shown, and none as large as `RESOLUTION` is left possible."""
        return 1 / RESOLUTION < self.low <= 1 <= self.high < RESOLUTION

    @property
    def inverse(self) -> Ratio:
        return replace(self, value=1 / self.value, low=1 / self.high, high=1 / self.low)


UNKNOWN = Ratio(math.nan, math.nan, math.nan, 0, 0)


def log_ratios(of: Samples, over: Samples) -> dict[int, list[float]]:
    """log(seconds / seconds) by process, one a visit: the median over the rounds that both took part in."""
    base = dict(zip(over.rounds, over.seconds, strict=True))
    visits: dict[tuple[int, int], list[float]] = {}
    for seconds, round_, visit, process in zip(of.seconds, of.rounds, of.visits, of.processes, strict=True):
        if round_ in base:
            visits.setdefault((process, visit), []).append(math.log(seconds / base[round_]))
    found: dict[int, list[float]] = {}
    for (process, _), logs in sorted(visits.items()):
        found.setdefault(process, []).append(float(np.median(logs)))
    return found


def ratio(of: Samples, over: Samples, rivals: int = 1) -> Ratio:
    """How much longer one implementation takes than another, from what was timed by turns.

    Of several `rivals` that one is compared with, the intervals of all hold with 95 % (Bonferroni). Two that share no round
    are paired by visit: all of a case may not have fitted into memory at once.
    """
    logs = log_ratios(of, over)
    return ratio_of_logs(logs, rivals) if logs else ratio_by_visit(of, over, rivals)


def ratio_by_visit(of: Samples, over: Samples, rivals: int = 1) -> Ratio:
    """How much longer one row takes than one of another case, whose rounds are others.

    A process visits all of its cases in one pass, in an order drawn anew, before it comes to the first again. So each visit
    of the row that has fewer is divided by the nearest of the other in its process; of two that were each timed in a process
    of their own, which take turns, by the nearest of all.
    """
    visits, others = _visit_medians(of), _visit_medians(over)
    if len(visits) > len(others):
        return ratio_by_visit(over, of, rivals).inverse
    in_turns = all(len({process for process, _ in side}) == 1 for side in (visits, others))
    logs: dict[int, list[float]] = {}
    for (process, visit), seconds in visits.items():
        near = [it for it in others if it[0] == process or in_turns]
        if near:
            nearest = min(near, key=lambda it: abs(it[1] - visit))
            logs.setdefault(process, []).append(math.log(seconds / others[nearest]))
    return ratio_of_logs(logs, rivals)


def _visit_medians(samples: Samples) -> dict[tuple[int, int], float]:
    """Seconds by process and visit."""
    found: dict[tuple[int, int], list[float]] = {}
    for seconds, process, visit in zip(samples.seconds, samples.processes, samples.visits, strict=True):
        found.setdefault((process, visit), []).append(seconds)
    return {where: float(np.median(times)) for where, times in sorted(found.items())}


def ratio_of_logs(logs: Mapping[int, Sequence[float]], rivals: int = 1) -> Ratio:
    """From log ratios by process, one a visit.

    Student's interval over the processes' means where there are `ENOUGH_PROCESSES`; of fewer processes over their visits,
    with `BETWEEN_PROCESSES` added, since visits of one process share what another process would change.
    """
    found = _of_processes(logs)
    visits = sum(map(len, logs.values()))
    if not logs:
        return UNKNOWN
    if not found.testable:
        return Ratio(math.exp(found.mean), math.nan, math.nan, len(logs), visits)
    low, high = found.interval(LEVEL / rivals)
    return Ratio(math.exp(found.mean), _exp(low), _exp(high), len(logs), visits)


def _exp(log: float) -> float:
    """Of an end of an interval; so wide that it is beyond all numbers is infinitely wide."""
    return math.exp(log) if log < 700 else math.inf


def _of_processes(logs: Mapping[int, Sequence[float]]) -> _Estimate:
    """Of log ratios by process, one a visit: `pairs` are the visits."""
    means = [float(np.mean(visits)) for visits in logs.values()]
    K, visits = len(means), sum(map(len, logs.values()))
    if not K:
        return _Estimate(math.nan, pairs=0)
    middle = float(np.mean(means))
    if K >= ENOUGH_PROCESSES:
        return _Estimate(middle, float(np.std(means, ddof=1)) / math.sqrt(K), K - 1, visits)
    if visits == K:
        return _Estimate(middle, pairs=visits)
    squares = sum(float(((np.array(v) - np.mean(v)) ** 2).sum()) for v in logs.values())
    within = squares / (visits - K) / visits
    return _widened(_Estimate(middle, math.sqrt(within), visits - K, visits), BETWEEN_PROCESSES / math.sqrt(K))


def _widened(estimate: _Estimate, term: float) -> _Estimate:
    """With the error of something more that is known, and so has degrees of freedom without end (Satterthwaite's)."""
    squared = estimate.error**2 + term**2
    df = estimate.df * (squared / estimate.error**2) ** 2 if estimate.error else math.inf
    return replace(estimate, error=math.sqrt(squared), df=df)


def compared(rows: Mapping[Key, Samples], rivals: int | None = None) -> dict[tuple[Key, Key], Ratio]:
    """Time of each implementation of a case over that of each other."""
    among = max(1, len(rows) - 1 if rivals is None else rivals)
    pairs = {(one, other): ratio(rows[one], rows[other], among) for one, other in combinations(rows, 2)}
    return pairs | {(other, one): found.inverse for (one, other), found in pairs.items()}


def places(rows: Mapping[Key, Samples]) -> dict[Key, int]:
    """The place of each implementation of a case, from 1: one more than how many were shown to be faster."""
    return places_of(rows, compared(rows))


def places_of(names: Iterable[Key], pairs: Mapping[tuple[Key, Key], Ratio]) -> dict[Key, int]:
    """`places`, of implementations that were compared before."""
    names = list(names)
    return {one: 1 + sum(pairs[one, other].slower for other in names if other != one) for one in names}


def leader(names: Sequence[Key], pairs: Mapping[tuple[Key, Key], Ratio]) -> Key:
    """Who is ahead of most others by what was measured, shown or not."""
    return max(names, key=lambda one: sum(pairs[other, one].value > 1 for other in names if other != one))


def standings(names: Sequence[Key], pairs: Mapping[tuple[Key, Key], Ratio]) -> dict[Key, str]:
    """How each implementation of a case stands: every claim about who is fastest is made from this, and from nothing else.

    The leader is FASTEST where every rival was shown to be slower. A rival is level with it where no difference is shown, and
    none as large as RESOLUTION is possible. Where a rival may be faster than the leader by RESOLUTION, or its interval says no
    more than that it is wide, nobody is level.
    """
    first = leader(names, pairs)
    over = {rival: pairs[rival, first] for rival in names if rival != first}
    known = all(it.slower or (it.low > 1 / RESOLUTION and not it.wide) for it in over.values())
    level = LEVEL_WITH_IT if known else NOT_RESOLVED
    found = {rival: SLOWER if it.slower else level if it.level else NOT_RESOLVED for rival, it in over.items()}
    return {first: FASTEST if all(it.slower for it in over.values()) else level, **found}


Logs = Mapping[int, Sequence[float]]
"""Log ratios by process, one a visit."""


def margin_between_runs(cells: Iterable[tuple[Logs, Logs]]) -> float:
    """The smallest of MARGINS within which most cells would be shown UNCHANGED where they are; blind to what changed."""
    known = [it for it in (_between_runs(*sides, BETWEEN_RUNS) for sides in cells) if it.testable]
    needs = sorted(it.error * (_quantile(1 - LEVEL, it.df) + _quantile((1 + POWER) / 2, it.df)) for it in known)
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


def _between_runs(base: Logs, head: Logs, term: float) -> _Estimate:
    return _widened(_change(_of_processes(base), _of_processes(head)), term)


def change(base: Logs, head: Logs) -> tuple[float, float, float]:
    """How much a log ratio changed from one run to the other; its standard error within the runs; degrees of freedom."""
    found = _change(_of_processes(base), _of_processes(head))
    return found.mean, found.error, found.df


def holds(mean: float, error: float, df: float, term: float) -> bool:
    """Whether a 95 % interval that is widened by a known standard deviation holds 0."""
    low, high = _widened(_Estimate(mean, error, df), term).interval()
    return low <= 0 <= high


def _change(base: _Estimate, head: _Estimate) -> _Estimate:
    """Welch and Satterthwaite's difference."""
    mean, pairs = head.mean - base.mean, min(base.pairs, head.pairs)
    parts = [(side.error**2, side.df) for side in (base, head)]
    squared = sum(part for part, _ in parts)
    below = sum(part**2 / df for part, df in parts)
    return _Estimate(mean, math.sqrt(squared), squared**2 / below if below else math.inf, pairs)


def half_width(logs: Mapping[int, Sequence[float]]) -> float:
    """Half of the 95 % interval that visits alone give: what more time could make narrower. Infinite where they are too few."""
    df = sum(map(len, logs.values())) - len(logs)
    if df < 1:
        return math.inf
    squares = sum(float(((np.array(v) - np.mean(v)) ** 2).sum()) for v in logs.values())
    return math.sqrt(squares / df / (df + len(logs))) * _quantile(1 - LEVEL / 2, df)


def _quantile(share: float, df: float) -> float:
    """Of Student's distribution."""
    return float(stdtrit(df, share))
