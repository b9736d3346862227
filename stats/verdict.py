"""Derives verdicts from effects, independently of how they were measured.

An effect has two properties: it *exceeds the minimum effect*, or not; and it *lies within the margin*, or not. Both may
hold: slower by 0.8 %, within a margin of 1 %. The user sets the margin; the minimum effect is a share of it. More data
may establish a property, and never retracts one, since intervals hold at every interim analysis (`Estimate.analyses`).

>>> cells, _ = of_effects({("sdpa", "T256"): Estimate(0.051, 0.001, 20)})
>>> cells["sdpa", "T256"].word
'REGRESSED'
"""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from . import effects, estimate
from .effects import Key
from .estimate import Estimate
from .shares import bound, signed

REGRESSED = "REGRESSED"
IMPROVED = "IMPROVED"
SLIGHT = "SLIGHT"  # a change, and within the margin
UNCHANGED = "UNCHANGED"
INCONCLUSIVE = "INCONCLUSIVE"
WRONG = "WRONG"  # base or head fails the correctness check: never a speedup
BROKEN = "BROKEN"  # head doesn't support what base does
NEW = "NEW"  # only in head
GONE = "GONE"  # only in base
WORDS = (REGRESSED, BROKEN, WRONG, IMPROVED, INCONCLUSIVE, SLIGHT, UNCHANGED, GONE, NEW)
"""All verdicts, most important first; last those of cells that one variant alone has."""

CHANGED = (REGRESSED, IMPROVED)
SETTLED = (REGRESSED, IMPROVED, SLIGHT, UNCHANGED)
"""Verdicts that state a fact about the code."""

MARGIN = 0.01
"""Default equivalence margin of interleaved comparisons: smaller changes never fail a comparison."""

MARGIN_OF_RUNS = 0.05
"""Default equivalence margin of two saved runs, which are less precise."""

MINIMUM = 0.2
"""Minimum effect as a share of the margin, or of the default one if that is larger: two folders with the same code differ
by 0.08 % in standard deviation, implementations of unchanged code by 0.5 % between saved runs (docs/measured.md).
"""

MOST_MARGIN = 0.5
"""Upper limit of the margin, beyond which everything would be unchanged."""

FALSE_ALARMS = 0.01
"""Risk that a comparison reports any unchanged implementation, or any unchanged cell, as changed."""

CONTRADICTED = "later replicates contradict it"

POWER = 0.8
"""Probability of detecting a change as large as `detectable`."""

MAX_DRIFT = 0.03
"""Relative change of a reference workload's time above which the machine has drifted."""


@dataclass(frozen=True)
class Verdict:
    """Verdict on a cell or an implementation. Ratios are head over base: above 1 is slower. NaN if unknown."""

    word: str
    reason: str
    """Why there is no verdict, or what contradicts it; or ''."""
    ratio: float = math.nan
    low: float = math.nan
    """Lower end of the ratio's 95 % interval, which lies entirely within the margin for UNCHANGED."""
    high: float = math.nan
    detectable: float = math.nan
    """Minimum detectable effect, as ratio - 1: an 80 % chance of detection, if it is the only change."""

    @property
    def way(self) -> int:
        """1 or -1 if it is shown to be slower or faster by more than the minimum effect; else 0."""
        return (1 if self.ratio > 1 else -1) * (self.word in (*CHANGED, SLIGHT))


Verdicts = tuple[dict[Key, Verdict], dict[str, Verdict]]
"""Of cells, and of implementations."""


def as_margin(text: str) -> float:
    """Parse a margin from the command line.

    Raises:
        ArgumentTypeError: it is no share from 0 to below MOST_MARGIN.
    """
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0 <= share < MOST_MARGIN:
        raise ArgumentTypeError(f"{text!r} is not a share like {MARGIN}, from 0 to below {MOST_MARGIN}")
    return share


def of_effects(
    cells: Mapping[Key, Estimate],
    implementations: Mapping[str, Estimate] = {},
    margin: float = MARGIN,
    default: float = MARGIN,
    changed: Collection[str] = (),
) -> Verdicts:
    """Return verdicts on cells, and on the implementations that have an effect of their own.

    An implementation is tested for the minimum effect at FALSE_ALARMS divided by the number of implementations. A cell
    is tested at FALSE_ALARMS divided by the number of its implementation's cells, if the implementation changed in the
    same direction, else divided by the number of all cells. A cell whose interval overlaps that of its implementation
    is taken to have changed equally: it lies within the margin if the implementation does. An implementation within
    the margin has the verdict of the cells that changed beyond it, if any. `changed`: implementations whose code did,
    which are counted apart, so that testing others costs no sensitivity; `default`: the margin of this kind of comparison.
    """
    least = MINIMUM * max(margin, default)
    counts = Counter(impl for impl, _ in cells)
    alone = {impl: it for (impl, _), it in cells.items() if counts[impl] == 1}
    wholes = {impl: alone.get(impl, it) for impl, it in implementations.items()}
    among = Counter(impl in changed for impl, it in wholes.items() if it.testable)
    found = {impl: _verdict(it, margin, least, among[impl in changed]) for impl, it in wholes.items()}
    testable = Counter(impl in changed for (impl, _), it in cells.items() if it.testable)
    verdicts = {}
    for (impl, case), cell in cells.items():
        same_way = impl in found and found[impl].way * cell.mean > 0
        inherits = impl in wholes and _overlaps(cell, wholes[impl], margin)
        tests = counts[impl] if same_way else testable[impl in changed]
        verdicts[impl, case] = _verdict(cell, margin, least, tests, inherits)
    for impl, it in found.items():
        words = {own.word for key, own in verdicts.items() if key[0] == impl}
        if it.word in (SLIGHT, UNCHANGED) and (moved := [word for word in CHANGED if word in words]):
            found[impl] = replace(it, word=moved[0])
    return verdicts, found


def of_replicates(
    logs: Mapping[Key, ArrayLike],
    workloads: Mapping[str, ArrayLike],
    ends: Collection[int] = (),
    margin: float = MARGIN,
) -> Verdicts:
    """Return `of_effects` of replicates (`effects.of_replicates`). Drift of the reference workload voids all verdicts."""
    cells, implementations = of_effects(*effects.of_replicates(logs, ends), margin)
    if why := drifted(workloads):
        return {key: replace(it, word=INCONCLUSIVE, reason=why) for key, it in cells.items()}, {}
    return cells, implementations


def drifted(workloads: Mapping[str, ArrayLike]) -> str:
    """Explain why no verdict is possible, or '': a reference workload's median time over the replicates changed, more than
    by their scatter.
    """
    for name, logs in workloads.items():
        middle = float(np.median(np.asarray(logs)))  # a single disturbed replicate is no machine drift
        low, high = estimate.of_replicates(logs).interval()
        if abs(middle) > math.log1p(MAX_DRIFT) and low * high > 0:
            return f"machine drift: the time of the reference workload {name!r} changed by {signed(middle)}"
    return ""


def _verdict(effect: Estimate, margin: float, least: float, among: int, inherits: bool = False) -> Verdict:
    """Return a verdict; `among` is the number of tests; `inherits`: if changed, its implementation's margin applies."""
    if not effect.testable:
        return Verdict(INCONCLUSIVE, "measured too rarely for an interval", math.exp(effect.mean))
    level = FALSE_ALARMS / among
    (low, high), (least_low, most_high) = effect.interval(), effect.interval(level)
    way = (least_low > math.log1p(least)) - (most_high < -math.log1p(least))
    within = _within(low, high, margin) or (inherits and way != 0)
    word = SLIGHT if way and within else {1: REGRESSED, -1: IMPROVED}.get(way, UNCHANGED if within else INCONCLUSIVE)
    needed = estimate.quantile(effect.df, 1 - effect.levels(level)[-1] / 2) + estimate.quantile(effect.df, POWER)
    detectable = math.log1p(least) + effect.error * needed
    ratio, low, high = (estimate.exp_or_inf(log) for log in (min(max(effect.mean, low), high), low, high))
    reasons = []
    if word == INCONCLUSIVE:
        beyond = low > 1 + least or high < 1 / (1 + least)
        reasons.append(bound(low, high) + (", not significant at 1 % over all comparisons" if beyond else ""))
    reasons += [CONTRADICTED] * (len(effect.intervals()) < len(effect.analyses))
    return Verdict(word, "; ".join(reasons), ratio, low, high, estimate.exp_or_inf(detectable) - 1)


def _within(low: float, high: float, margin: float) -> bool:
    return max(-low, high) < math.log1p(margin)


def _overlaps(cell: Estimate, own: Estimate, margin: float) -> bool:
    """Whether the cell's interval overlaps that of its implementation at the interim analysis that first showed the
    implementation to be within the margin. Later analyses retract nothing.
    """
    for count, (low, high) in enumerate(own.intervals(), 1):
        if _within(low, high, margin):
            of_cell = cell.intervals()[:count][-1]
            return max(low, of_cell[0]) <= min(high, of_cell[1])
    return False
