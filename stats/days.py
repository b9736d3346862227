"""Steps of an implementation relative to the others of its cases: what runs share, such as a slow day, is taken out.

They are interleaved, so a slow day is slow for all of them. By how much is the median over the others of how far each is
from its own usual time: one that changed is outvoted. One whose `impl_hash` changed (sources, torch, kernel) is another one
from there on, and a run in which fewer than MIN_OTHERS have the code of the run before can't be compared with that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .estimate import Array
from .saved import STEADY
from .steps import MIN_RUNS, SMALLEST, SMALLEST_RELATIVE, Step, shared, steps, with_recoveries

MIN_OTHERS = 3
"""Of two, one that changed would move the median by half of what it changed by."""

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Timed:
    """All runs of a machine: logarithms, (implementations, cases, runs), NaN where a cell was not measured."""

    seconds: Array
    ratios: Array
    """Over the baseline implementation of the run and case, in the same rounds."""
    renewed: Flags
    """(implementations, runs): whether its code was another one before, or may have been."""
    redefined: Flags
    """(implementations, runs): whether the benchmark itself was another one before."""

    @cached_property
    def machine(self) -> list[Step]:
        """Where most seconds changed by more than STEADY: it is another machine, faster at this and slower at that."""
        everything = self.seconds.reshape(-1, self.seconds.shape[2])
        return steps(shared(everything)[None], math.expm1(STEADY))[0]

    @cached_property
    def comparable(self) -> Array:
        """Ratios in runs in which all of a case have one, else seconds."""
        known = (np.isnan(self.ratios) == np.isnan(self.seconds)).all(axis=0)
        return np.where(known, self.ratios, self.seconds)


def moved(timed: Timed, impl: int) -> Iterator[tuple[list[Step], Array]]:
    """Of each case of an implementation: its steps, by position of runs, and its log seconds as on a usual day.

    A step in seconds counts where the others are not known: where they are, it is the machine's, as is one relative to the
    others where the machine became another one. Of two that are too near to be two, the one relative to the others counts.
    """
    redefined, seconds = timed.redefined[impl], timed.seconds[impl]
    alone = redefined | (np.delete(~timed.renewed, impl, axis=0).sum(axis=0) < MIN_OTHERS)
    usual = np.hstack([_usual(timed, impl, slice(*part)) for part in _parts(alone)])
    known = np.isfinite(usual) & ~alone
    found: list[list[Step]] = [[] for _ in seconds]
    for logs, edges, relative in ((usual, alone, True), (seconds, redefined, False)):
        for first, end in _parts(edges):
            if end - first >= 2 * MIN_RUNS and (relative or not known[:, first + 1 : end].all()):
                seen = steps(logs[:, first:end], SMALLEST_RELATIVE if relative else SMALLEST)
                for of, at, those in zip(found, known, seen, strict=True):
                    new, others = [step.later(first, relative) for step in those], timed.machine if relative else [*of]
                    of += [step for step in new if at[step.at] == relative and not _near(step, others)]
    for of, logs in zip(found, usual, strict=True):
        parts = (
            [step for step in sorted(of, key=lambda step: step.at) if a <= step.at < b] for a, b in _parts(redefined)
        )
        yield [step for part in parts for step in with_recoveries(part)], logs


def _parts(edges: Flags) -> list[tuple[int, int]]:
    """From each edge to the next."""
    return list(pairwise([0, *(1 + np.flatnonzero(edges[1:])).tolist(), len(edges)]))


def _usual(timed: Timed, impl: int, runs: slice) -> Array:
    """Log seconds of each case as on a usual day; NaN in all of a part too short for a step."""
    logs, codes = timed.comparable[:, :, runs], timed.renewed[:, runs].cumsum(axis=1)
    usual: Array = np.full(logs.shape[1:], np.nan)
    others = [(i, codes[i] == code) for i in range(len(codes)) if i != impl for code in {*codes[i].tolist()}]
    others = [(i, at) for i, at in others if at.sum() >= MIN_RUNS]  # each code of an implementation is one
    if others and usual.shape[1] >= 2 * MIN_RUNS:
        for case, own in enumerate(logs[impl]):
            relative = own - shared(np.array([np.where(at, logs[i, case], np.nan) for i, at in others]), MIN_OTHERS)
            day = (timed.seconds[impl, case, runs] - relative)[np.isfinite(relative)]
            usual[case] = relative + (float(np.median(day)) if day.size else 0.0)
    return usual


def _near(step: Step, found: Iterable[Step]) -> bool:
    return any(abs(step.at - other.at) < MIN_RUNS for other in found)
