"""Steps of an implementation relative to the others of its cases, which removes the drift that all of a run share.

Implementations are interleaved, so that a slow day affects all of them. The drift is the median over the others of
each one's deviation from its own usual time; a single changed implementation does not affect it. An implementation whose
`impl_hash` changes (sources, torch, kernel) counts as a new one from there on. A run in which fewer than MIN_OTHERS
have the previous run's code can't be compared with that run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .estimate import Array
from .saved import STEADY
from .steps import MIN_RUNS, SMALLEST, SMALLEST_RELATIVE, Step, common_component, steps, with_recoveries

MIN_OTHERS = 3
"""Fewest other implementations: of two, one that changed would move the median by half of its change."""

Flags = NDArray[np.bool_]


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
                    others = [it.at for it in (history.machine_changes if relative else of)]
                    of += [
                        step
                        for step in new
                        if at[step.at] == relative and all(abs(step.at - other) >= MIN_RUNS for other in others)
                    ]
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
