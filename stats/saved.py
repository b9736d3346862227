"""Changes between two saved runs of one machine, corrected for changes of the machine between them.

A cell's level is its log time minus that of its case's anchors, the implementations with the same code in both runs.
Every anchor is also a placebo: its true change is 0, so that placebos estimate how far a cell, and all cells of an
implementation, move without a change of code. `tests/experiments/saved.py` prints the results.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from .conditions import TO_SIGMA
from .effects import WEIGHT, Key, moderated
from .estimate import Array, Estimate
from .ratios import Samples

USUAL_OF_CELLS, USUAL_OF_IMPLEMENTATIONS = 0.01, 0.005
"""Standard deviations in logarithms of cells and implementations of unchanged code on one machine: a prior with WEIGHT
degrees of freedom, combined with the placebos of the runs.
"""

ANOTHER_KIND, ANOTHER_KINDS = 10.0, 0.1
"""An implementation slower than the others of its case by this factor is limited by something else, such as the
interpreter: it is no anchor, and moves independently with this standard deviation.
"""

STEADY, BEYOND = 0.2, 0.3
"""If the seconds of unchanged code changed by more than STEADY, in logarithms, the machine counts as another one (a
migrated virtual machine, a neighbour), which affects implementations differently: they move by BEYOND times the excess.
"""

CAPPED = 2.0
"""Cells farther than this many standard errors from the median of their implementation are down-weighted."""

LONG_TAILED = 4
"""Degrees of freedom of a Student's distribution with tails like those of unchanged cells, some of which alternate
between two speeds from run to run.
"""

FARTHEST = 0.2
"""Cap on the movement of a placebo's cell in the estimate of their spread."""

LEAST = 0.25
"""Lower limit of an estimated variance, as a share of the usual variance."""

FEWEST_VISITS = 3

Rounds = Mapping[tuple[int, int], float]
"""Log seconds by process and round, minus the level of the base run."""


@dataclass(frozen=True)
class Changes:
    """Changes between two runs: log(head / base) relative to the anchors."""

    cells: dict[Key, Estimate]
    implementations: dict[str, Estimate]
    placebos: int
    """Number of implementations used as placebos for a changed one."""
    of_cells: float
    """Standard deviation of the placebos' cells."""
    of_implementations: float
    """Standard deviation of the mean over a placebo's cells."""
    shift: float
    """Median change of log seconds of unchanged code."""


def changes(base: Mapping[Key, Samples], head: Mapping[Key, Samples], changed: Collection[str]) -> Changes:
    """Return the changes of all cells of both runs that have an anchor. `changed`: implementations excluded as anchors;
    if all are, the others of a case are its anchors, and a common change can't be detected.
    """
    timed = _Timed(base, head)
    shift = timed.shift(changed)
    changed = {*changed} if {impl for impl, _ in timed.levels} - {*changed} else set()
    cells = _differences(timed, changed)
    names = list(dict.fromkeys(impl for impl, _ in cells))
    steady = [impl for impl in names if impl not in changed | timed.others]
    beyond = BEYOND * max(0.0, abs(shift) - STEADY)
    found, alone, spreads = {}, {}, []
    for impl in names:
        own = {key: it for key, it in cells.items() if key[0] == impl}
        placebos = [name for name in steady if name != impl and (_plain(name) or not _plain(impl))]
        of_cells, of_impls = _spreads(cells, placebos, impl in timed.others)
        of_impls = math.hypot(of_impls, beyond)
        pooled = _pooled(own.values(), of_cells)
        found[impl] = replace(pooled, error=math.hypot(pooled.error, of_impls), df=WEIGHT + len(placebos))
        for key, it in own.items():
            alone[key] = replace(it, error=math.hypot(it.error, of_cells, of_impls), df=LONG_TAILED)
        spreads.append((of_cells, of_impls))
    of_cells, of_impls = map(median, zip(*spreads, strict=True)) if spreads else (math.nan, math.nan)
    return Changes(alone, found, len({*steady} - changed), of_cells, of_impls, shift)


class _Timed:
    """The samples of both runs by process and round, minus each cell's level in base."""

    def __init__(self, base: Mapping[Key, Samples], head: Mapping[Key, Samples]) -> None:
        self._sides = base, head
        self.levels = {key: float(np.median(np.log(it.seconds))) for key, it in base.items() if key in head}
        self._rounds = {(side, key): self._by_round(side, key) for side in (0, 1) for key in self.levels}
        self.cases: dict[str, list[str]] = {}
        for impl, case in self.levels:
            self.cases.setdefault(case, []).append(impl)
        usual = {case: median(self.levels[name, case] for name in names) for case, names in self.cases.items()}
        self.others = {key[0] for key, level in self.levels.items() if level - usual[key[1]] > math.log(ANOTHER_KIND)}

    def _by_round(self, side: int, key: Key) -> Rounds:
        of = self._sides[side][key]
        logs = np.log(of.seconds) - self.levels[key]
        return dict(zip(zip(of.processes, of.rounds, strict=True), logs.tolist(), strict=True))

    def shift(self, changed: Collection[str]) -> float:
        """Return the median change of log seconds from base to head; 0 if all code changed."""
        moved = [
            median(rounds.values()) for (side, key), rounds in self._rounds.items() if side and key[0] not in changed
        ]
        return median(moved) if moved else 0.0

    def visits(self, side: int, key: Key, anchors: Sequence[str]) -> Array:
        """Return per visit the median over its rounds of the cell's log time minus the anchors' median, over rounds
        with all anchors, or else any; minus the anchors' level in the run if they share no round.
        """
        beside = [self._rounds[side, (name, key[1])] for name in anchors]
        own, of = self._rounds[side, key], self._sides[side][key]
        known = {at: [rounds[at] for rounds in beside if at in rounds] for at in own}
        most = max(map(len, known.values()))
        if not most:
            usual = median(median(rounds.values()) for rounds in beside)
            known = {at: [usual] for at in own}
        fewest = most if most == len(anchors) else 1
        found: dict[tuple[int, int], list[float]] = {}
        for process, visit, at in zip(of.processes, of.visits, own, strict=True):
            if len(known[at]) >= fewest:
                found.setdefault((process, visit), []).append(own[at] - median(known[at]))
        return np.array([median(logs) for logs in found.values()])


def _differences(timed: _Timed, changed: Collection[str]) -> dict[Key, Estimate]:
    """Return head - base of each cell that has an anchor, with the standard error from its visits."""
    sides: dict[tuple[int, Key], Estimate] = {}
    for impl, case in ((impl, case) for case, names in timed.cases.items() for impl in names):
        anchors = [name for name in timed.cases[case] if name not in {impl, *changed} | timed.others]
        anchors = [name for name in anchors if _plain(name)] or anchors
        levels = [timed.visits(side, (impl, case), anchors) for side in (0, 1)] if anchors else []
        if levels and min(map(len, levels)) >= FEWEST_VISITS:
            for side, visits in enumerate(levels):
                spread, n = float(visits.std(ddof=1)), len(visits)
                sides[side, (impl, case)] = Estimate(float(visits.mean()), spread / math.sqrt(n), n - 1, n, spread)
    known = moderated(sides)
    return {
        key: Estimate(known[1, key].mean - it.mean, math.hypot(it.error, known[1, key].error), it.df, it.pairs)
        for (side, key), it in known.items()
        if side == 0
    }


def _spreads(cells: Mapping[Key, Estimate], placebos: Sequence[str], of_another_kind: bool) -> tuple[float, float]:
    """Return the standard deviations of unchanged cells and implementations in excess of their visits' error."""
    by_impl = {name: [it for key, it in cells.items() if key[0] == name] for name in placebos}
    moved = [it for own in by_impl.values() for it in own]
    of_cells = _spread(USUAL_OF_CELLS, [replace(it, mean=min(abs(it.mean), FARTHEST)) for it in moved])
    if moved:
        of_cells = min(of_cells, TO_SIGMA * median(abs(it.mean) for it in moved))
    of_cells = max(of_cells, math.sqrt(LEAST) * USUAL_OF_CELLS)
    if of_another_kind:
        return of_cells, ANOTHER_KINDS
    return of_cells, _spread(USUAL_OF_IMPLEMENTATIONS, [_pooled(own, of_cells) for own in by_impl.values()])


def _spread(usual: float, moved: Sequence[Estimate]) -> float:
    """Return the standard deviation of movements in excess of their errors, moderated by the usual one."""
    squares = WEIGHT * usual**2 + sum(it.mean**2 - it.error**2 for it in moved)
    return math.sqrt(max(squares / (WEIGHT + len(moved)), LEAST * usual**2))


def _plain(impl: str) -> bool:
    """Whether it is no variant, unlike `sdpa+compile`."""
    return "+" not in impl


def _pooled(cells: Collection[Estimate], spread: float) -> Estimate:
    """Return the mean over an implementation's cells, weighted by precision; outlying cells are down-weighted."""
    means, variances = np.array([(it.mean, it.error**2 + spread**2) for it in cells]).T
    far = abs(means - np.median(means)) / (CAPPED * np.sqrt(variances))
    weights = 1 / variances / np.maximum(far, 1)
    whole = weights.sum()
    return Estimate(float((weights * means).sum() / whole), 1 / math.sqrt(whole), math.nan, len(cells))
