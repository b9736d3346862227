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

from . import estimate, ratios
from .conditions import DRIFT, TO_SIGMA
from .effects import WEIGHT, Key, moderated
from .estimate import Estimate, grouped
from .ratios import Samples

USUAL_OF_CELLS, USUAL_OF_IMPLEMENTATIONS = 0.01, 0.005
"""Standard deviations in logarithms of cells and implementations of unchanged code on one machine: a prior with WEIGHT
degrees of freedom, combined with the placebos of the runs.
"""

ANOTHER_KIND, ANOTHER_KINDS = 10.0, 0.1
"""An implementation slower than the others of its case by this factor is limited by something else, such as the
interpreter. It is no anchor, and its placebos are such implementations alone, with this standard deviation as prior.
"""

STEADY, BEYOND = 0.2, 0.3
"""If the seconds of unchanged code changed by more than STEADY, in logarithms, the machine counts as another one (a
migrated virtual machine, a neighbour), which affects implementations differently: by BEYOND times the excess, which adds
to the priors of implementations. If one of the runs was disturbed, by more than DRIFT: a load may hide that the machine
became faster.
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


@dataclass(frozen=True)
class Changes:
    """Changes between two runs: log(head / base) relative to the anchors."""

    cells: dict[Key, Estimate]
    implementations: dict[str, Estimate]
    of_cells: float
    """Standard deviation of the placebos' cells."""
    of_implementations: float
    """Standard deviation of the mean over a placebo's cells."""
    shift: float
    """Median change of log seconds of unchanged code."""
    anchors: Collection[str]
    """Implementations to which some cell is relative."""


def changes(
    base: Mapping[Key, Samples], head: Mapping[Key, Samples], changed: Collection[str], disturbed: bool = False
) -> Changes:
    """Return the changes of all cells of both runs that have an anchor. `changed`: implementations excluded as anchors;
    `disturbed`: whether one of the runs was.
    """
    shared = grouped((case, impl) for impl, case in base if (impl, case) in head)
    levels = {case: {impl: _level(base[impl, case]) for impl in impls} for case, impls in shared.items()}
    moved = [_level(head[impl, case]) - of[impl] for case, of in levels.items() for impl in of if impl not in changed]
    shift = median(moved or [0.0])
    beyond = BEYOND * max(0.0, abs(shift) - (DRIFT if disturbed else STEADY))
    slow = {
        impl
        for of in levels.values()
        for impl, level in of.items()
        if level > math.log(ANOTHER_KIND) + median([it for name, it in of.items() if name != impl] or [math.inf])
    }
    cells, anchors = _differences(base, head, levels, {*changed} | slow)
    by_impl = grouped((impl, it) for (impl, _), it in cells.items())
    found, spreads = {}, {}
    for impl, own in by_impl.items():
        others = [name for name in by_impl if name not in {impl, *changed} and (name in slow) == (impl in slow)]
        alike = [name for name in others if _plain(name) == _plain(impl)] or filter(_plain, others)
        placebos = [by_impl[name] for name in alike]
        of_cells = _spread_of_cells([it for of in placebos for it in of])
        usual = ANOTHER_KINDS if impl in slow else USUAL_OF_IMPLEMENTATIONS
        of_impl = _spread(math.hypot(usual, beyond), [_pooled(of, of_cells) for of in placebos])
        pooled = _pooled(own, of_cells)
        found[impl] = Estimate(pooled.mean, math.hypot(pooled.error, of_impl), WEIGHT + len(placebos))
        spreads[impl] = of_cells, of_impl
    alone = {key: Estimate(it.mean, math.hypot(it.error, *spreads[key[0]]), LONG_TAILED) for key, it in cells.items()}
    of_cells, of_impls = map(median, zip(*spreads.values(), strict=True)) if spreads else (math.nan, math.nan)
    return Changes(alone, found, of_cells, of_impls, shift, anchors)


def _level(samples: Samples) -> float:
    return float(np.median(np.log(samples.seconds)))


def _differences(
    base: Mapping[Key, Samples],
    head: Mapping[Key, Samples],
    levels: Mapping[str, Mapping[str, float]],
    excluded: Collection[str],
) -> tuple[dict[Key, Estimate], set[str]]:
    """Return head - base of each cell that has an anchor, with the standard error from its visits; and all anchors."""
    of_runs: dict[tuple[Key, int], Estimate] = {}
    used: set[str] = set()
    for case, of_case in levels.items():
        for impl in of_case:
            names = [name for name in of_case if name not in {impl, *excluded}]
            names = [*filter(_plain, names)] or names
            anchors = {(name, case): of_case[name] for name in names}
            logs = [_beside(run[impl, case], run, anchors) for run in (base, head)] if anchors else [[]]
            if min(map(len, logs)) >= FEWEST_VISITS:
                of_runs |= {((impl, case), run): estimate.of_replicates(of) for run, of in enumerate(logs)}
                used |= {*names}
    both = iter(moderated(of_runs).items())
    pairs = zip(both, both, strict=True)
    return {key: Estimate(b.mean - a.mean, math.hypot(a.error, b.error)) for ((key, _), a), (_, b) in pairs}, used


def _beside(own: Samples, run: Mapping[Key, Samples], anchors: Mapping[Key, float]) -> list[float]:
    """Return log ratios, one per visit, to the anchors: the median of their times relative to their levels in base, in
    rounds with all anchors, or else any.
    """
    by_round = grouped(
        (at, math.log(seconds) - level)
        for key, level in anchors.items()
        for seconds, at in zip(run[key].seconds, zip(*run[key][1:], strict=True), strict=True)
    )
    whole = {at: logs for at, logs in by_round.items() if len(logs) == len(anchors)} or by_round
    together = Samples([math.exp(median(logs)) for logs in whole.values()], *zip(*whole, strict=True))
    return [log for visits in ratios.paired(own, together) for log in visits]


def _spread_of_cells(moved: Sequence[Estimate]) -> float:
    """Return the standard deviation of unchanged cells in excess of their visits' error."""
    spread = _spread(USUAL_OF_CELLS, [replace(it, mean=min(abs(it.mean), FARTHEST)) for it in moved])
    usual = TO_SIGMA * median(abs(it.mean) for it in moved) if moved else math.inf
    return max(min(spread, usual), math.sqrt(LEAST) * USUAL_OF_CELLS)


def _spread(usual: float, moved: Sequence[Estimate]) -> float:
    """Return the standard deviation of movements in excess of their errors, moderated by the usual one."""
    squares = WEIGHT * usual**2 + sum(it.mean**2 - it.error**2 for it in moved)
    return math.sqrt(max(squares / (WEIGHT + len(moved)), LEAST * usual**2))


def _plain(impl: str) -> bool:
    """Whether it is no variant, unlike `sdpa+compile`; variants change more from run to run."""
    return "+" not in impl


def _pooled(cells: Collection[Estimate], spread: float) -> Estimate:
    """Return the mean over an implementation's cells, weighted by precision; outlying cells are down-weighted."""
    means, variances = np.array([(it.mean, it.error**2 + spread**2) for it in cells]).T
    far = abs(means - np.median(means)) / (CAPPED * np.sqrt(variances))
    weights = 1 / variances / np.maximum(far, 1)
    return Estimate(float(np.average(means, weights=weights)), 1 / math.sqrt(weights.sum()))
