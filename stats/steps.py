"""Detects when the times of an implementation changed: steps common to its cases, then those of single cases. Whether
they changed is decided by verdicts.

Runs are analysed one at a time as they arrive, so that detected steps stay detected. At every position, Student's t of
a step is computed in a model in which each run resembles the previous one by an unknown share (AR(1), generalized least
squares): the p-value is the mean over the shares, weighted by their likelihood. `tests/experiments/history.py` prints
the results.

Times are relative to the other implementations of a case, which removes the drift that all of a run share: they are
interleaved, so that a slow day affects all of them. The drift is the median over the others of each one's deviation from
its own usual time; a single changed implementation does not affect it. An implementation whose `impl_hash` changes
(sources, torch, kernel) counts as a new one from there on. A run in which fewer than MIN_OTHERS have the previous run's
code can't be compared with that run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import median_filter
from scipy.special import stdtr

from .conditions import scatter
from .estimate import Array
from .saved import STEADY

MIN_RUNS = 3
"""Fewest runs of a level on either side: a step shows from the third run on."""

FALSE_STEPS = 5
"""Per cent of unchanged implementations that show a step in any cell within a year of daily runs, at most: simulated
with independent runs, long-tailed ones (Student's, 3 degrees of freedom), and an autocorrelation of 0.6.
"""

LEVEL = FALSE_STEPS / 100 / 100
"""Level of one analysis of an implementation, for all positions. A year of daily analyses errs at most as often as 100
independent ones (simulated). One half is for steps common to its cases, the other for steps of single cases.
"""

OF_THE_CASES = 0.5
"""Share of a common step by which a case's own level must change to take part in it."""

ALIKE = np.array([[0.0], [0.2], [0.4], [0.6], [0.8]])
"""Shares by which a run may resemble the previous one (autocorrelations)."""

ODD = 3.0
"""Limit in units of the noise: a run farther from the median of the five around it is moved to this distance."""

LEAST_NOISE = 0.002
"""Smallest noise in logarithms: closer agreement of runs is chance."""

SMALLEST = 0.01
"""Smallest step that is reported, as a share."""

SMALLEST_RELATIVE = 0.03
"""Smallest reported step of a relative time: of three implementations, one that changes together with its `impl_hash`
moves their median by about their noise.
"""

RECOVERED_WITHIN = 0.02
"""A slow-down has recovered if a later level is this close to the one before it."""

MIN_OTHERS = 3
"""Fewest other implementations: of two, one that changed would move the median by half of its change."""

Flags = NDArray[np.bool_]

_median: Any = np.ma.median


@dataclass(frozen=True)
class Step:
    """A change of a series' level. `at` is the position of the first number after it; levels are in seconds."""

    at: int
    before: float
    after: float
    recovered: int | None = None
    """Position from which the level was back; None for a speed-up or an open slow-down."""
    relative: bool = False
    """Whether it was found relative to the case's others: levels then have the drift removed."""

    @property
    def ratio(self) -> float:
        """Ratio of the levels; above 1 is slower."""
        return self.after / self.before

    @property
    def slower(self) -> bool:
        return self.ratio > 1


def steps(logs: Array, smallest: float = SMALLEST) -> list[list[Step]]:
    """Return the steps of each case of an implementation, oldest first: (cases, runs) -> a list per case.

    `logs` are of seconds, NaN where a case was not measured. At least twice MIN_RUNS runs are needed.
    """
    together = _common_of_cases(logs)
    known = np.flatnonzero(np.isfinite(together))
    common = known[[*positions(together[known], LEVEL / 2)]].tolist()
    return [_of_case(case, together, common, LEVEL / 2 / len(logs), smallest) for case in logs]


def _of_case(logs: Array, together: Array, common: Sequence[int], level: float, smallest: float) -> list[Step]:
    """Return the common steps in which a case takes part, and its own steps between them."""
    measured = np.flatnonzero(np.isfinite(logs))
    logs, common = logs[measured], np.searchsorted(measured, common).tolist()
    own, theirs = (np.diff(_levels(of, common)) for of in (logs, together[measured]))
    took = [at for at, a, b in zip(common, own, theirs, strict=True) if a * np.sign(b) >= OF_THE_CASES * abs(b) > 0]
    alone = [a + at for a, b in pairwise([0, *took, len(logs)]) for at in positions(logs[a:b], level)]
    at = sorted([*took, *alone])
    return [
        Step(int(measured[i]), math.exp(before), math.exp(after))
        for i, (before, after) in zip(at, pairwise(_levels(logs, at)), strict=True)
        if abs(after - before) >= math.log1p(smallest)
    ]


def _levels(logs: Array, at: Sequence[int]) -> list[float]:
    """Return the level of each part between positions; NaN for a part without numbers."""
    return [float(np.median(part)) if part.size else math.nan for part in np.split(logs, at)]


def _common_of_cases(logs: Array) -> Array:
    """Return the common component of an implementation's cases by run; noisy cases have less weight."""
    clipped, noises = logs.copy(), []
    for of in clipped:
        measured = np.isfinite(of)
        of[measured] = _clipped(of[measured])
        noises.append(scatter(np.diff(of[measured])) ** 2 + LEAST_NOISE**2)
    return common_component(clipped, weights=1 / (np.array(noises) + np.median(noises)))


def common_component(logs: Array, fewest: int = 1, weights: Array | None = None) -> Array:
    """Return the common component of rows by run: the median deviation from each row's usual level, or with `weights`
    their mean; NaN where fewer than `fewest` were measured. The usual level of a row with missing runs is derived from
    the common component.
    """
    enough = np.isfinite(logs).sum(axis=0) >= fewest
    measured = np.ma.masked_invalid(logs[:, enough])
    moves = _median(np.diff(measured, axis=1), axis=0)
    common = np.array([0.0, *np.ma.filled(moves, 0)]).cumsum()[: measured.shape[1]]
    for _ in range(6):
        apart = measured - _median(measured - common, axis=1, keepdims=True)
        mean = _median(apart, axis=0) if weights is None else np.ma.average(apart, axis=0, weights=weights)
        common = np.ma.filled(mean, np.nan)
    found = np.full(enough.shape, np.nan)
    found[enough] = common
    return found


def with_recoveries(found: Sequence[Step]) -> list[Step]:
    """Return the steps, oldest first, each with the one after which the level was back at its earlier value."""
    return [replace(step, recovered=_recovered(step, found[i:])) for i, step in enumerate(found, 1)]


def _recovered(step: Step, later: Sequence[Step]) -> int | None:
    level = step.ratio
    for one in later if step.slower else ():
        level *= one.ratio
        if level <= 1 + RECOVERED_WITHIN:
            return one.at
    return None


def positions(logs: Array, level: float) -> Iterator[int]:
    """Yield positions of steps in one series, `level` being the risk of one analysis.

    The position is refined for two further runs after a step was detected.
    """
    if logs.size < 2 * MIN_RUNS:
        return
    logs = _clipped(logs)
    start, end = 0, 2 * MIN_RUNS
    while end <= logs.size:
        if _likeliest(logs[start:end])[1] <= level:
            start += _likeliest(logs[start : end + MIN_RUNS - 1])[0]
            end = start + 2 * MIN_RUNS
            yield start
        else:
            end += 1


def _clipped(logs: Array) -> Array:
    """Clip runs that are farther than ODD from the median of their neighbours."""
    around = median_filter(logs, 5, mode="mirror")
    reach = ODD * max(scatter(np.diff(logs)), LEAST_NOISE)
    return np.clip(logs, around - reach, around + reach)


def _likeliest(logs: Array) -> tuple[int, float]:
    """Return the likeliest position of a step, and the p-value over all positions."""
    at = np.arange(MIN_RUNS, logs.size - MIN_RUNS + 1)
    df, after, apart = logs.size - 3, logs.size - 1 - at, 1 - ALIKE
    fresh = (
        logs[1:] - ALIKE * logs[:-1]
    )  # innovations of each run; a step appears as 1 at its position, and `apart` after it
    fresh -= fresh.mean(axis=1, keepdims=True)  # so that those after a position sum to minus those until it
    sums = (fresh - apart * fresh.cumsum(axis=1))[:, at - 1]
    squares = 1 + apart**2 * after - (1 + apart * after) ** 2 / (logs.size - 1)
    rest = np.maximum((fresh**2).sum(axis=1, keepdims=True) - sums**2 / squares, df * LEAST_NOISE**2)
    t = np.abs(sums) * np.sqrt(df / squares / rest)
    weights = (1 - ALIKE**2) * (rest / rest.min(axis=0)) ** (-df / 2)
    weights /= weights.sum(axis=0)
    best = int((weights * t).sum(axis=0).argmax())
    return int(at[best]), 2 * at.size * float(weights[:, best] @ stdtr(df, -t[:, best]))


@dataclass(frozen=True)
class History:
    """All runs of a machine: logarithms (implementations, cases, runs), NaN where a cell was not measured."""

    seconds: Array
    ratios: Array
    """Ratios to the baseline implementation of the run and case, in the same rounds."""
    renewed: Flags
    """(implementations, runs): whether its code changed before this run, or may have."""
    redefined: Flags
    """(implementations, runs): whether the benchmark itself changed before this run."""

    @cached_property
    def machine_changes(self) -> list[Step]:
        """Return the steps at which most seconds changed by more than STEADY, which indicate another machine."""
        everything = self.seconds.reshape(-1, self.seconds.shape[2])
        return steps(common_component(everything)[None], math.expm1(STEADY))[0]

    @cached_property
    def comparable(self) -> Array:
        """Return ratios in runs in which all implementations of a case have one, else seconds."""
        known = (np.isnan(self.ratios) == np.isnan(self.seconds)).all(axis=0)
        return np.where(known, self.ratios, self.seconds)


def steps_of(history: History, impl: int) -> Iterator[tuple[list[Step], Array]]:
    """Yield the steps of each case of an implementation, by position of runs, and its log seconds with drift removed.

    A step in seconds counts only where it can't be compared with others; elsewhere it is attributed to the machine, and
    so is a relative step where the machine changed. Of two steps too close to be distinct, the relative one counts.
    """
    redefined, seconds = history.redefined[impl], history.seconds[impl]
    alone = redefined | (np.delete(~history.renewed, impl, axis=0).sum(axis=0) < MIN_OTHERS)
    usual = np.hstack([_usual(history, impl, slice(*part)) for part in _parts(alone)])
    known = np.isfinite(usual) & ~alone
    found: list[list[Step]] = [[] for _ in seconds]
    for logs, edges, relative in ((usual, alone, True), (seconds, redefined, False)):
        for first, end in _parts(edges):
            if end - first >= 2 * MIN_RUNS and (relative or not known[:, first + 1 : end].all()):
                seen = steps(logs[:, first:end], SMALLEST_RELATIVE if relative else SMALLEST)
                for of, at, those in zip(found, known, seen, strict=True):
                    new = [replace(step, at=step.at + first, relative=relative) for step in those]
                    others = history.machine_changes if relative else of
                    apart = [it for it in new if all(abs(other.at - it.at) >= MIN_RUNS for other in others)]
                    of += [it for it in apart if at[it.at] == relative]
    for of, logs in zip(found, usual, strict=True):
        of.sort(key=lambda step: step.at)
        parts = ([step for step in of if a <= step.at < b] for a, b in _parts(redefined))
        yield [step for part in parts for step in with_recoveries(part)], logs


def _parts(edges: Flags) -> list[tuple[int, int]]:
    """Return the intervals between edges."""
    return list(pairwise([0, *(1 + np.flatnonzero(edges[1:])).tolist(), len(edges)]))


def _usual(history: History, impl: int, runs: slice) -> Array:
    """Return the log seconds of each case with drift removed; NaN in a part too short for a step."""
    logs, codes = history.comparable[:, :, runs], history.renewed[:, runs].cumsum(axis=1)
    usual: Array = np.full(logs.shape[1:], np.nan)
    others = [(i, codes[i] == code) for i in range(len(codes)) if i != impl for code in {*codes[i].tolist()}]
    others = [(i, at) for i, at in others if at.sum() >= MIN_RUNS]  # each code is a member
    if others and usual.shape[1] >= 2 * MIN_RUNS:
        for case, own in enumerate(logs[impl]):
            relative = own - common_component(
                np.array([np.where(at, logs[i, case], np.nan) for i, at in others]), MIN_OTHERS
            )
            day = (history.seconds[impl, case, runs] - relative)[np.isfinite(relative)]
            usual[case] = relative + (float(np.median(day)) if day.size else 0.0)
    return usual
