"""How the implementations of a case stand in one run: the ratios of their times, with intervals; places, and who leads.

What is called faster, level or fastest anywhere is called so here. NumPy and scipy only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from .estimate import LEVEL, Key, exp_or_inf, of_processes, quantile
from .shares import UNRESOLVED, too_wide

RESOLUTION = 1.5
"""An implementation that may take so many times as long as the leader, or the leader as it, is not called level with it."""

FASTEST, LEVEL_WITH_IT, NOT_RESOLVED, SLOWER = "fastest", "level", UNRESOLVED, "slower"
"""How an implementation stands in its case."""


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
        return too_wide(self.low, self.high)

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
    found = of_processes(logs)
    visits = sum(map(len, logs.values()))
    if not logs:
        return UNKNOWN
    if not found.testable:
        return Ratio(math.exp(found.mean), math.nan, math.nan, len(logs), visits)
    low, high = found.interval(LEVEL / rivals)
    return Ratio(math.exp(found.mean), exp_or_inf(low), exp_or_inf(high), len(logs), visits)


def half_width(logs: Mapping[int, Sequence[float]]) -> float:
    """Half of the 95 % interval that visits alone give: what more time could make narrower. Infinite where they are too few."""
    df = sum(map(len, logs.values())) - len(logs)
    if df < 1:
        return math.inf
    squares = sum(float(((np.array(v) - np.mean(v)) ** 2).sum()) for v in logs.values())
    return math.sqrt(squares / df / (df + len(logs))) * quantile(1 - LEVEL / 2, df)


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
