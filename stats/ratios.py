"""Ratios of the times of a case's implementations in one run, with intervals, ranks, and the fastest ones.

All statements on order are made here: faster, tied, fastest. NumPy and scipy only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import median
from typing import NamedTuple

import numpy as np

from .estimate import (
    PRIOR,
    Array,
    ByProcess,
    Variance,
    between_processes,
    exp_or_inf,
    grouped,
    of_processes,
    quantile,
    simultaneous,
    trimmed,
    usual_visits,
)
from .shares import UNRESOLVED, too_wide

RESOLUTION = 1.5
"""Two are called tied only if a difference of this factor either way is excluded."""

FASTEST, TIED, NOT_RESOLVED, SLOWER = "fastest", "tied", UNRESOLVED, "slower"
"""States of an implementation in its case."""


class Samples(NamedTuple):
    """Timed blocks of one row, one entry per block: seconds of a call, and the block's position in the run.

    Blocks of two rows with the same round number were timed in the same round, and are paired. `visits` gives the
    rounds that were timed together; a visit lies within one process.
    """

    seconds: Sequence[float]
    rounds: Sequence[int]
    visits: Sequence[int]
    processes: Sequence[int]

    def by_visit(self) -> dict[tuple[int, int], list[tuple[int, float]]]:
        """Return the rounds and their seconds, for each process and visit."""
        blocks = sorted(zip(self.processes, self.visits, self.rounds, self.seconds, strict=True))
        return grouped(((process, visit), (round_, seconds)) for process, visit, round_, seconds in blocks)


class Ratio(NamedTuple):
    """A ratio with its 95 % interval, mostly of one implementation's time to another's: below 1 is faster. NaN if
    unknown.
    """

    value: float
    low: float
    """Lower end of the interval; within a case, the intervals of all pairs hold simultaneously."""
    high: float

    @property
    def known(self) -> bool:
        """Whether it has an interval."""
        return math.isfinite(self.high - self.low)

    @property
    def faster(self) -> bool:
        """Whether the first is significantly faster than the second: the interval lies below 1."""
        return self.high < 1

    @property
    def slower(self) -> bool:
        return self.low > 1

    @property
    def inverse(self) -> Ratio:
        return Ratio(1 / self.value, 1 / self.high, 1 / self.low)


VISITS = 6
"""Visits of a case in one process, spread over the process's lifetime. If there are fewer visits, and they have fewer than
VISITS rounds on average, the scatter is that of the rounds instead of the visits' means: few visits estimate it poorly, and
means of few rounds scatter as much as the rounds.
"""

TRIMMED = 3
"""Of a process's n rounds, the (n - 2) // TRIMMED lowest and as many highest are left out: disturbances make a call, or all
calls of a visit, longer, occasionally twice as long (compared on recorded runs with medians, the Hodges-Lehmann
estimator and ratios of medians: docs/measured.md). If processes have too few for that, the rounds of all are trimmed together.
"""

UNKNOWN, SAME = (Ratio(value, value, value) for value in (math.nan, 1.0))
"""Ratio to a row that was not timed, and of a row to itself."""

Ratios = dict[str, dict[str, Ratio]]
"""`ratios[a][b]`: the time of `a` divided by that of `b`, for all implementations of a case."""


def paired(of: Samples, over: Samples, one_case: bool = True) -> ByProcess:
    """Return log ratios by process whose mean is the trimmed mean over the rounds that both rows have, and whose scatter
    shows its error: one per visit, or per round if there are few (`VISITS`).

    Rows without common rounds, which may not have fitted into memory at once, are paired by visit as those of two
    cases.
    """
    base = dict(zip(over.rounds, over.seconds, strict=True)) if one_case else {}
    found = grouped(
        (process, logs)
        for (process, _), times in of.by_visit().items()
        if (logs := [math.log(seconds / base[round_]) for round_, seconds in times if round_ in base])
    )
    rounds = [np.concatenate(visits) for visits in found.values()]
    if found and min(map(len, found.values())) > 1 and max(map(len, rounds)) < TRIMMED + 2:
        ends = np.cumsum([*map(len, rounds)])[:-1]
        return [[*it] for it in np.split(_trimmed(np.concatenate(rounds)), ends)]
    return [*map(_with_scatter, rounds, found.values())] or _paired_by_visit(of, over)


def _trimmed(rounds: Array, few: bool = True) -> Array:
    """Return log ratios whose mean is the trimmed mean of these, and whose scatter shows its error."""
    cut = max(0, rounds.size - 2) // TRIMMED
    values = trimmed(rounds, cut)
    if few:  # Yuen's degrees of freedom are those of the rounds that are kept
        wider = quantile(rounds.size - 2 * cut - 1) / quantile(rounds.size - 1)
        values = values.mean() + wider * (values - values.mean())
    return values


def _with_scatter(rounds: Array, visits: Sequence[Sequence[float]]) -> Sequence[float]:
    """Return the log ratios of a process, from those of its rounds."""
    few = 1 < len(visits) < VISITS and rounds.size < VISITS * len(visits)
    values = _trimmed(rounds, few)
    if few:
        return [*values]
    # weighted by rounds, so that the mean stays
    starts = np.cumsum([0, *map(len, visits[:-1])])
    deviations = np.add.reduceat(values - values.mean(), starts) * len(visits) / rounds.size
    return [*values.mean() + deviations]


def _paired_by_visit(of: Samples, over: Samples) -> ByProcess:
    """Pair visits: a process visits all of its cases in one pass, in random order, before the next pass. Each visit of
    the row with fewer is divided by the nearest visit of the other in its process. Rows timed in two interleaved
    processes of their own are paired with the nearest visit of either process.
    """
    visits, others = (
        {where: median(seconds for _, seconds in times) for where, times in row.by_visit().items()}
        for row in (of, over)
    )
    if len(visits) > len(others):
        return [[-log for log in logs] for logs in _paired_by_visit(over, of)]
    interleaved = all(len({process for process, _ in row}) == 1 for row in (visits, others))
    found = grouped(
        (process, math.log(seconds / others[min(near, key=lambda it: abs(it[1] - visit))]))
        for (process, visit), seconds in visits.items()
        if (near := [it for it in others if it[0] == process or interleaved])
    )
    return [*found.values()]


def ratio(of: Samples, over: Samples, one_case: bool = True) -> Ratio:
    """Return the ratio of the first's time to the second's; that of medians, without interval, if unpaired."""
    logs = paired(of, over, one_case)
    return _ratio(of, over, logs, 2, PRIOR, usual_visits([logs]))


def _ratio(of: Samples, over: Samples, logs: ByProcess, among: int, between: Variance, usual: Variance) -> Ratio:
    """Return a ratio from log ratios by process. Intervals of all pairs of `among` implementations hold with 95 %."""
    found = of_processes(logs, between, usual)
    value = exp_or_inf(found.mean) if logs else median(of.seconds) / median(over.seconds)
    half = found.error * simultaneous(among, found.df)
    low, high = (exp_or_inf(found.mean + end) for end in (-half, half))
    return Ratio(value, low, high)


def compared(cases: Mapping[str, Mapping[str, Samples]]) -> tuple[dict[str, Ratios], Variance]:
    """Return the ratios of all cases of a run, in the order of medians, and the variance between its processes, as
    estimated from all pairs.

    An interval is extended to 1 if the medians have the opposite order.
    """
    found = {
        case: {name: {name: SAME} for name in sorted(rows, key=lambda name: median(rows[name].seconds))}
        for case, rows in cases.items()
    }
    pairs = [
        (case, a, b, paired(rows[a], rows[b])) for case, rows in cases.items() for a, b in combinations(found[case], 2)
    ]
    between = between_processes(logs for *_, logs in pairs)
    usual = {case: usual_visits(of) for case, of in grouped((case, logs) for case, *_, logs in pairs).items()}
    for case, a, b, logs in pairs:
        rows = cases[case]
        it = _ratio(rows[a], rows[b], logs, len(rows), between, usual[case])
        if it.value > 1:  # the medians have the opposite order
            it = it._replace(low=min(it.low, 1.0))
        found[case][a][b], found[case][b][a] = it, it.inverse
    return found, between


def ranks(names: Sequence[str], over: Ratios) -> dict[str, tuple[str, int, int]]:
    """Return how each implementation of a case ranks, and its lowest and highest rank by the significant differences;
    `names` in the order of time.

    The first is FASTEST if it is significantly faster than every other. Another is tied with it if their difference is
    not significant and differences of RESOLUTION are excluded; then the first is tied as well. If some implementation may
    be faster than the first by RESOLUTION, or its interval is too wide, none is tied.
    """
    others = [it for other in names[1:] if not (it := over[other][names[0]]).slower]
    known = all(it.low > 1 / RESOLUTION and not too_wide(it.low, it.high) for it in others)
    near = any(it.high < RESOLUTION for it in others)
    best = FASTEST if not others else TIED if known and near else NOT_RESOLVED
    found = {}
    for one in names:
        its = [over[one][other] for other in names]
        state = SLOWER if its[0].slower else best if its[0].high < RESOLUTION else NOT_RESOLVED
        found[one] = state, 1 + sum(it.slower for it in its), len(names) - sum(it.faster for it in its)
    return found
