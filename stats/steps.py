"""Detects when the times of an implementation changed: steps common to its cases, then those of single cases. Whether
they changed is decided by verdicts.

Runs are analysed one at a time as they arrive, so that detected steps stay detected, except those of few runs, which
later ones may show to be outliers. At every position, Student's t of a step is computed in a model in which each run
resembles the previous one by an unknown share (AR(1), generalized least squares): the p-value is the mean over the
shares, weighted by their likelihood. `tests/experiments/history.py` prints the results.

Times are relative to the other implementations of a case, which removes the drift that they share: they are
interleaved, so that a slow day affects all of them. The drift is the median over the others of each one's deviation from
its own usual time; a single changed implementation does not affect it. An implementation whose `impl_hash` changes
(sources, torch, kernel) counts as a new one from there on. A run in which fewer than MIN_OTHERS have the previous run's
code can't be compared with that run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import median_filter
from scipy.special import stdtr

from .conditions import scatter
from .estimate import Array
from .saved import STEADY

MIN_RUNS = 3
"""Fewest runs before and after a step."""

FALSE_STEPS = 5
"""Per cent of unchanged implementations that show a step in any cell within a year of daily runs, at most: simulated
with independent runs, long-tailed ones (Student's, 3 degrees of freedom), and an autocorrelation of 0.6.
"""

LEVEL = FALSE_STEPS / 100 / 100
"""Significance level of one analysis of an implementation, for all positions. A year of daily analyses errs at most as
often as 100 independent ones (simulated). One half is for steps common to its cases, the other for steps of single cases.
"""

SHARE_OF_COMMON = 0.5
"""Share of a common step by which a case's own level must change to take part in it."""

AUTOCORRELATIONS = np.arange(5)[:, None] / 5
"""Shares by which a run may resemble the previous one (autocorrelations)."""

OUTLIER = 3.0
"""Limit in units of the noise: a run farther from the median of the five around it is moved to this distance."""

LEAST_NOISE = 0.002
"""Smallest noise in logarithms: closer agreement of runs is chance."""

SMALLEST = 0.01
"""Smallest step that is reported, as a share."""

DETECTED = {6: 31, 7: 20, 8: 15, 10: 10, 15: 7, 30: 5, 60: 4}
"""By number of runs, the step, in standard deviations of a run, that is found in four of five series of one case, three runs
after it (simulated with independent runs).
"""

SMALLEST_RELATIVE = 0.03
"""Smallest reported step of a relative time: of three implementations, one that changes together with its `impl_hash`
moves their median by about their noise.
"""

RECOVERED_WITHIN = 0.02
"""A regression has recovered if a later level is this close to the one before it."""

MIN_OTHERS = 3
"""Fewest other implementations: of two, one that changed would move the median by half of its change."""

Flags = NDArray[np.bool_]

_median: Any = np.ma.median


class Step(NamedTuple):
    """A change of a series' level. `at` is the position of the first number after it."""

    at: int
    ratio: float
    """Ratio of the levels; above 1 is slower."""
    recovered: int | None = None
    """Position from which the level was back; None for a speedup or an open regression."""
    relative: bool = False
    """Whether it was found relative to the case's others."""

    @property
    def slower(self) -> bool:
        return self.ratio > 1


def steps(logs: Array, smallest: float = SMALLEST) -> Iterator[list[Step]]:
    """Yield the steps of each case of an implementation, oldest first: (cases, runs) -> a list per case.

    Those are the common steps in which it takes part, and its own between them; in what the cases have in common, noisy
    ones have less weight. `logs` are of seconds, NaN where a case was not measured. At least twice MIN_RUNS runs are
    needed.
    """
    noises = np.array([scatter(np.diff(of[np.isfinite(of)])) ** 2 + LEAST_NOISE**2 for of in logs])
    together = common_component(logs, weights=1 / (noises + np.median(noises)))
    known = np.flatnonzero(np.isfinite(together))
    common = known[[*positions(together[known], LEVEL / 2)]]
    for case in logs:
        measured = np.flatnonzero(np.isfinite(case))
        own, at = case[measured], np.searchsorted(measured, common).tolist()
        changes = zip(at, _changes(own, at), _changes(together[measured], at), strict=True)
        took = [i for i, change, of_all in changes if change * np.sign(of_all) >= SHARE_OF_COMMON * abs(of_all) > 0]
        parts = pairwise([0, *took, len(own)])
        at = sorted([*took, *(a + i for a, b in parts for i in positions(own[a:b], LEVEL / 2 / len(logs)))])
        each = zip(measured[at].tolist(), _changes(own, at), strict=True)
        yield [Step(run, math.exp(change)) for run, change in each if abs(change) >= math.log1p(smallest)]


def _changes(logs: Array, at: Sequence[int]) -> Array:
    """Return the changes of level at positions; NaN beside a part without numbers."""
    return np.diff([np.median(part) if part.size else math.nan for part in np.split(logs, at)])


def common_component(logs: Array, fewest: int = 1, weights: Array | None = None) -> Array:
    """Return the common component of rows by run: the median deviation from each row's usual level, or with `weights`
    their mean; NaN where fewer than `fewest` were measured. The usual level of a row with missing runs is derived from
    the common component.
    """
    measured = np.ma.masked_invalid(logs)
    measured[:, measured.count(axis=0) < fewest] = np.ma.masked
    moves = _median(np.diff(measured, axis=1), axis=0)
    common = np.array([0.0, *np.ma.filled(moves, 0)]).cumsum()[: logs.shape[1]]
    for _ in range(6):
        apart = measured - _median(measured - common, axis=1, keepdims=True)
        mean = _median(apart, axis=0) if weights is None else np.ma.average(apart, axis=0, weights=weights)
        common = np.ma.filled(mean, np.nan)
    return common


def with_recoveries(found: Sequence[Step]) -> Iterator[Step]:
    """Yield the steps, oldest first, each with the position from which the level was back at its earlier value."""
    levels = list(zip(found, np.cumprod([step.ratio for step in found]), strict=True))
    for i, (step, level) in enumerate(levels, 1):
        usual = level / step.ratio * (1 + RECOVERED_WITHIN)
        back = (it.at for it, later in levels[i:] if later <= usual)
        yield step._replace(recovered=next(back, None) if step.slower else None)


def positions(logs: Array, level: float) -> Iterator[int]:
    """Yield positions of steps in one series, `level` being the risk of one analysis.

    The position is refined for two further runs after a step was detected.
    """
    if logs.size < 2 * MIN_RUNS:
        return
    around = median_filter(logs, 5, mode="mirror")
    reach = OUTLIER * max(scatter(np.diff(logs)), LEAST_NOISE)
    logs = np.clip(logs, around - reach, around + reach)
    start, end = 0, 2 * MIN_RUNS
    while end <= logs.size:
        if _likeliest(logs[start:end])[1] <= level:
            start += _likeliest(logs[start : end + MIN_RUNS - 1])[0]
            end = start + 2 * MIN_RUNS
            yield start
        else:
            end += 1


def _likeliest(logs: Array) -> tuple[int, float]:
    """Return the likeliest position of a step, and the p-value over all positions."""
    at = np.arange(MIN_RUNS, logs.size - MIN_RUNS + 1)
    df, after, apart = logs.size - 3, logs.size - 1 - at, 1 - AUTOCORRELATIONS
    # innovations of each run: a step appears as 1 at its position, and `apart` after it
    fresh = logs[1:] - AUTOCORRELATIONS * logs[:-1]
    fresh -= fresh.mean(axis=1, keepdims=True)  # so that those after a position sum to minus those until it
    sums = (fresh - apart * fresh.cumsum(axis=1))[:, at - 1]
    squares = 1 + apart**2 * after - (1 + apart * after) ** 2 / (logs.size - 1)
    rest = np.maximum((fresh**2).sum(axis=1, keepdims=True) - sums**2 / squares, df * LEAST_NOISE**2)
    t = np.abs(sums) * np.sqrt(df / squares / rest)
    weights = (1 - AUTOCORRELATIONS**2) * (rest / rest.min(axis=0)) ** (-df / 2)
    weights /= weights.sum(axis=0)
    best = int((weights * t).sum(axis=0).argmax())
    return int(at[best]), 2 * at.size * float(weights[:, best] @ stdtr(df, -t[:, best]))


def of_history(
    seconds: Array, comparable: Array, renewed: Flags, redefined: Flags
) -> Iterator[tuple[list[Step], float]]:
    """Yield the steps of each case of each implementation, by position of runs, and the smallest one that it would show at
    the end (`DETECTED`) as a share, NaN if too few runs have it since the benchmark changed.

    `seconds` and `comparable`, seconds or ratios to the baseline implementation, are logarithms: (implementations, cases,
    runs), NaN where a cell was not measured. `renewed` and `redefined`, (implementations, runs), tell whether an
    implementation's code, or the benchmark itself, changed before this run.

    A step in seconds counts only where it can't be compared with others; elsewhere it is attributed to the machine, and
    so is a relative step where most seconds changed by more than STEADY. Of two steps too close to be distinct, the
    relative one counts.
    """
    everything = common_component(seconds.reshape(-1, seconds.shape[2]))
    [of_machine] = steps(everything[None], math.expm1(STEADY))
    for impl, own in enumerate(seconds):
        alone = redefined[impl] | (np.delete(~renewed, impl, axis=0).sum(axis=0) < MIN_OTHERS)
        apart: Array = np.full_like(own, np.nan)
        for part in _parts(alone):
            apart[:, part] = _apart(comparable[:, :, part], renewed[:, part], impl)
        known = np.isfinite(apart) & ~alone
        found: list[list[Step]] = [[] for _ in own]
        # no step in seconds counts if all runs can be compared
        for logs, edges, relative in ((apart, alone, True), (own, redefined[impl] | known.all(), False)):
            for part in _parts(edges):
                seen = steps(logs[:, part], SMALLEST_RELATIVE if relative else SMALLEST)
                for of, at, those in zip(found, known, seen, strict=True):
                    others = of_machine if relative else of
                    new = (step._replace(at=part.start + step.at, relative=relative) for step in those)
                    of += [
                        it
                        for it in new
                        if at[it.at] == relative and all(abs(other.at - it.at) >= MIN_RUNS for other in others)
                    ]
        last = slice(max(np.flatnonzero(redefined[impl]), default=0), None)
        for of, case, relative in zip(found, np.where(known, apart, own), known, strict=True):
            of.sort(key=lambda step: step.at)
            its = ([it for it in of if part.start <= it.at < part.stop] for part in _parts(redefined[impl]))
            smallest = _detectable(case[last], SMALLEST_RELATIVE if relative[last].any() else SMALLEST)
            yield [step for each in its for step in with_recoveries(each)], smallest


def _detectable(logs: Array, smallest: float) -> float:
    logs = logs[np.isfinite(logs)]
    if logs.size < 2 * MIN_RUNS:
        return math.nan
    noises = np.interp(logs.size, [*DETECTED], [*DETECTED.values()])
    return max(smallest, math.expm1(scatter(np.diff(logs)) * noises))


def _parts(edges: Flags) -> list[slice]:
    """Return the intervals between edges that are long enough for a step."""
    ends = pairwise([0, *(1 + np.flatnonzero(edges[1:])).tolist(), len(edges)])
    return [slice(a, b) for a, b in ends if b - a >= 2 * MIN_RUNS]


def _apart(logs: Array, renewed: Flags, impl: int) -> Array:
    """Return the logarithms of each case of an implementation relative to what the others have in common; NaN where too
    few were measured. Each of their codes is a member of its own.
    """
    codes, others = renewed.cumsum(axis=1), [np.full_like(logs[impl], np.nan)]
    for i, of in enumerate(codes):
        counted = zip(*np.unique(of, return_counts=True), strict=True)
        others += [np.where(of == code, logs[i], np.nan) for code, count in counted if i != impl and count >= MIN_RUNS]
    cases = zip(logs[impl], np.stack(others, axis=1), strict=True)
    return np.array([own - common_component(case, MIN_OTHERS) for own, case in cases])
