"""Steps of an implementation relative to the others of its cases: what the machine did to all of them is taken out.

They take turns, so a slow day is slow for all of them. By how much is the median over the others of how far each is from its
own usual time: one that changed is outvoted. One whose `impl_hash` changed (sources, torch, kernel) is another one from there
on, and where fewer than MIN_OTHERS stay the same nothing is known of the day.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .saved import STEADY
from .steps import MIN_RUNS, SMALLEST_RELATIVE, Array, Step, steps, with_recoveries

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
        return steps(shared(everything, 1)[None], math.expm1(STEADY))[0]


@dataclass(frozen=True)
class Moved:
    """What became of one cell. Positions are those of runs."""

    steps: list[Step]
    usual: Array
    """Log seconds as on a usual day of its case, around the last step relative to its others; else NaN."""


def moved(timed: Timed, impl: int, cases: Sequence[int]) -> list[Moved]:
    """Each of these cases of an implementation.

    A step in seconds counts where the others are not known: where they are, it is the machine's, as is one relative to the
    others where the machine became another one. Of two that are too near to be two, the one relative to the others counts.
    """
    usual = np.full((len(cases), timed.seconds.shape[2]), np.nan)
    found: list[list[Step]] = [[] for _ in cases]
    for start, stop in pairwise([0, *np.flatnonzero(timed.redefined[impl]), usual.shape[1]]):
        for of, new in zip(found, _in_piece(timed, impl, cases, start, stop, usual), strict=True):
            of += with_recoveries(sorted(new, key=lambda step: step.at))
    return [Moved(*of) for of in zip(found, usual, strict=True)]


def _in_piece(timed: Timed, impl: int, cases: Sequence[int], start: int, stop: int, usual: Array) -> list[list[Step]]:
    """Steps of each case while the benchmark means one thing; writes to `usual` what `Moved` has."""
    found: list[list[Step]] = [[] for _ in cases]
    known = np.zeros(usual.shape, bool)
    for first, end, others in _stretches(np.delete(timed.renewed, impl, axis=0), start, stop):
        logs = np.array([_usual(timed, impl, case, slice(first, end), others) for case in cases])
        for i, seen in enumerate(_shifted(steps(logs, SMALLEST_RELATIVE), first)):
            new = [replace(step, relative=True) for step in seen if not _near(step, timed.machine)]
            found[i] += new
            if (at := first + np.flatnonzero(np.isfinite(logs[i]))).size:
                known[i, at[0] + 1 : at[-1] + 1] = True
            if new:
                usual[i] = np.nan
                usual[i, first:end] = logs[i]
    if not known[:, start + 1 : stop].all():
        for i, new in enumerate(_shifted(steps(timed.seconds[impl, cases, start:stop]), start)):
            found[i] += [step for step in new if not known[i, step.at] and not _near(step, found[i])]
    return found


def _stretches(renewed: Flags, start: int, stop: int) -> Iterator[tuple[int, int, Flags]]:
    """Runs through which at least MIN_OTHERS kept their code, and which of them did; those that are too short are left out."""
    same = np.ones(len(renewed), bool)
    for run in range(start + 1, stop + 1):
        left = same & ~renewed[:, run] if run < stop else np.zeros_like(same)
        if left.sum() < MIN_OTHERS:
            if run - start >= 2 * MIN_RUNS:
                yield start, run, same
            start, left = run, np.ones_like(same)
        same = left


def _usual(timed: Timed, impl: int, case: int, runs: slice, others: Flags) -> Array:
    """Log seconds of a cell as on a usual day; by the others' ratios in runs in which all have one, else by their seconds."""
    seconds, ratios = timed.seconds[:, case, runs], timed.ratios[:, case, runs]
    logs = np.where((np.isnan(ratios) == np.isnan(seconds)).all(axis=0), ratios, seconds)
    relative: Array = logs[impl] - shared(np.delete(logs, impl, axis=0)[others], MIN_OTHERS)
    day = (seconds[impl] - relative)[np.isfinite(relative)]
    return relative + float(np.median(day)) if day.size else relative


def shared(logs: Array, fewest: int) -> Array:
    """What rows have in common, by run: the median of how far each is from its own usual level; NaN where fewer than
    `fewest` were measured."""
    common = np.full(logs.shape[1], np.nan)
    enough = np.isfinite(logs).sum(axis=0) >= fewest
    if enough.any():
        logs = logs[:, enough]
        logs = logs[np.isfinite(logs).any(axis=1)]
        median = np.nanmedian if np.isnan(logs).any() else np.median
        common[enough] = 0.0
        for _ in range(2):  # the usual level of a row that missed some runs is better known once these are
            common[enough] = median(logs - median(logs - common[enough], axis=1, keepdims=True), axis=0)
    return common


def _shifted(found: Iterable[list[Step]], by: int) -> Iterator[list[Step]]:
    return ([replace(step, at=step.at + by) for step in of] for of in found)


def _near(step: Step, found: Iterable[Step]) -> bool:
    return any(abs(step.at - other.at) < MIN_RUNS for other in found)
