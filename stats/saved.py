"""Changes between two saved runs of one machine, corrected for changes of the machine between them.

A cell's level is its log time minus that of its case's anchors, the implementations with the same code in both runs.
Every anchor is also a placebo: its true change is 0, so that placebos estimate how far a cell, and all cells of an
implementation, move without a change of code. `tests/experiments/saved.py` prints the results.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from .conditions import DRIFT, TO_SIGMA
from .effects import WEIGHT, Key
from .estimate import Estimate, grouped, of_replicates
from .ratios import Samples, paired

SD_OF_CELLS, SD_OF_IMPLEMENTATIONS = 0.01, 0.005
"""Least standard deviations in logarithms of cells and implementations of unchanged code on one machine. That of
implementations is also a prior with WEIGHT degrees of freedom, combined with the placebos of the runs.
"""

SLOW_FACTOR, SD_OF_SLOW = 10.0, 0.1
"""An implementation slower than the others of its case by this factor is limited by something else, such as the
interpreter. It is no anchor, and its placebos are such implementations alone, with this standard deviation as prior.
"""

STEADY, SD_OF_EXCESS = 0.2, 0.3
"""If the seconds of unchanged code changed by more than STEADY, in logarithms, the machine counts as another one (a
migrated virtual machine, a neighbour), which affects implementations differently: by SD_OF_EXCESS times the excess, which adds
to the priors of implementations. If one of the runs was disturbed, by more than DRIFT: a load may hide that the machine
became faster.
"""

CAPPED = 2.0
"""Cells farther than this many standard errors from the median of their implementation are down-weighted."""

LONG_TAILED = 4
"""Degrees of freedom of a Student's distribution with tails like those of unchanged cells, some of which alternate
between two speeds from run to run.
"""

FEWEST_VISITS = 3


class Changes(NamedTuple):
    """Changes between two runs: log(head / base) relative to the anchors."""

    cells: dict[Key, Estimate]
    implementations: dict[str, Estimate]
    spreads: dict[str, tuple[float, float]]
    """For each implementation the standard deviations of its placebos' cells, and of the mean over a placebo's cells."""
    shift: float
    """Median change of log seconds of unchanged code."""
    anchors: Collection[str]
    """Implementations to which some cell is relative."""


def changes(pairs: Mapping[Key, Sequence[Samples]], changed: Collection[str], disturbed: bool = False) -> Changes:
    """Return the changes of all cells that have an anchor, from their samples in base and in head. `changed`:
    implementations excluded as anchors; `disturbed`: whether one of the runs was.
    """
    levels = {key: _level(base) for key, (base, _) in pairs.items()}
    shift = median([_level(head) - levels[key] for key, (_, head) in pairs.items() if key[0] not in changed] or [0.0])
    beyond = SD_OF_EXCESS * max(0.0, abs(shift) - (DRIFT if disturbed else STEADY))
    by_case = grouped((case, impl) for impl, case in pairs)
    slow = {
        impl
        for case, of in by_case.items()
        for impl in of
        if levels[impl, case] > math.log(SLOW_FACTOR) + (median if len(of) > 2 else min)(levels[it, case] for it in of)
    }
    cells, anchors = {}, defaultdict[str, set[str]](set)
    for (impl, case), both in pairs.items():
        names = [name for name in by_case[case] if name not in {*changed, *slow, impl}]
        names = [*filter(_plain, names)] or names
        before, after = (
            _beside(own, [(levels[name, case], pairs[name, case][i]) for name in names]) for i, own in enumerate(both)
        )
        if min(before.count, after.count) >= FEWEST_VISITS:
            cells[impl, case] = Estimate(after.mean - before.mean, math.hypot(before.error, after.error))
            anchors[impl] |= {*names}
    by_impl = grouped((impl, it) for (impl, _), it in cells.items())
    found, spreads = {}, {}
    for impl, own in by_impl.items():
        others = [name for name in by_impl if name not in {*changed, impl} and (name in slow) == (impl in slow)]
        alike = [name for name in others if _plain(name) == _plain(impl)] or filter(_plain, others)
        placebos = [by_impl[name] for name in alike]
        # the own change of a single anchor is unknown, and adds to the error
        of_anchor = (SD_OF_CELLS, SD_OF_IMPLEMENTATIONS) if len(anchors[impl]) == 1 else (0.0, 0.0)
        usual = math.hypot(SD_OF_SLOW if impl in slow else SD_OF_IMPLEMENTATIONS, beyond)
        of_cells, of_impl = map(math.hypot, _spreads(placebos, usual), of_anchor)
        spreads[impl] = of_cells, of_impl
        pooled = _pooled(own, of_cells)
        found[impl] = Estimate(pooled.mean, math.hypot(pooled.error, of_impl), WEIGHT + len(placebos))
    alone = {key: Estimate(it.mean, math.hypot(it.error, *spreads[key[0]]), LONG_TAILED) for key, it in cells.items()}
    return Changes(alone, found, spreads, shift, set().union(*anchors.values()))


def _spreads(placebos: Sequence[Sequence[Estimate]], usual: float) -> tuple[float, float]:
    """Return the standard deviations of placebos' cells, and of the mean over a placebo's cells: how far means move in excess
    of their errors, moderated by the `usual` distance and not below it.
    """
    moved = [TO_SIGMA * abs(it.mean) for of in placebos for it in of]
    of_cells = max(median(moved or [0.0]), SD_OF_CELLS)
    excess = sum(it.mean**2 - it.error**2 - usual**2 for it in (_pooled(of, of_cells) for of in placebos))
    return of_cells, math.sqrt(usual**2 + max(0.0, excess / (WEIGHT + len(placebos))))


def _level(samples: Samples) -> float:
    return float(np.median(np.log(samples.seconds)))


def _beside(own: Samples, anchors: Sequence[tuple[float, Samples]]) -> Estimate:
    """Estimate from a cell's visits its log ratio to the anchors: the median of their times relative to their levels in
    base, which stand beside their samples.
    """
    if not anchors:
        return Estimate(math.nan, count=0)
    by_round = grouped(
        (tuple(at), math.log(seconds) - level)
        for level, samples in anchors
        for seconds, *at in zip(*samples, strict=True)
    )
    together = Samples([math.exp(median(logs)) for logs in by_round.values()], *zip(*by_round, strict=True))
    return of_replicates([log for visits in paired(own, together) for log in visits])


def _plain(impl: str) -> bool:
    """Whether it is no variant, unlike `sdpa+compile`; variants change more from run to run."""
    return "+" not in impl


def _pooled(cells: Collection[Estimate], spread: float) -> Estimate:
    """Return the mean over an implementation's cells, weighted by precision; outlying cells are down-weighted."""
    means, variances = np.array([(it.mean, it.error**2 + spread**2) for it in cells]).T
    far = abs(means - np.median(means)) / (CAPPED * np.sqrt(variances))
    weights = 1 / variances / np.maximum(far, 1)
    return Estimate(float(np.average(means, weights=weights)), 1 / math.sqrt(weights.sum()))
