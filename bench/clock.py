"""How long a call takes: warm up, time blocks of calls, hand the samples to pytest-benchmark as they are."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

from .meters import Meter

BLOCK = 2e-3
"""Seconds that one timed block lasts at least, so that reading the clock doesn't count."""

FEWEST, FEWEST_SLOW, FEWEST_KNOWN, MOST = 3, 2, 6, 500
"""Samples of one cell: at least, at least when one call takes longer than the cell has, before the median is known, at most."""

WARM = 1 / 3
"""Share of a cell's time that warming up may take."""


@dataclass(frozen=True)
class Samples:
    """Seconds per call, one number a timed block."""

    data: list[float]
    calls: int
    """Calls in a block."""


def sample(
    meter: Meter,
    call: Callable[[], Any],
    seconds: float,
    precision: float = 0.02,
    first: float | None = None,
    proof: Callable[[], float] | None = None,
) -> Samples:
    """Time `call` until the median is known to `precision` (a share of it) or `seconds` are spent, warm-up included.

    A few blocks are timed however long they take. Calls that take longer than `seconds` are not warmed up; `first` is what
    an earlier call took, and then the first sample. `proof` makes such a call too, holds its answer to the reference and
    gives its seconds: the second sample of long calls, and otherwise none, but under the same conditions, so that what was
    timed can't be another thing than what was proved.
    """
    start = perf_counter()
    warm = [meter.seconds(call, 1) if first is None or first <= seconds else first]
    if warm[0] > seconds:
        warm.append(proof() if proof else meter.seconds(call, 1))  # the first may have made something that stays
    slow = min(warm) > seconds
    while not slow and not _steady(warm, precision) and perf_counter() - start < WARM * seconds:
        warm.append(meter.seconds(call, 1))
    calls = max(1, math.ceil(BLOCK / max(min(warm), 1e-9)))
    data = warm if slow else []
    with uncollected():
        while _wanted(data, precision, slow) and (len(data) < FEWEST or perf_counter() - start < seconds):
            data.append(meter.seconds(call, calls) / calls)
        if proof and not slow:
            proof()
    return Samples(data, calls)


def _wanted(data: list[float], precision: float, slow: bool) -> bool:
    """Whether one more sample would tell something: of slow calls a third, where two disagree."""
    fewest, most = (FEWEST_SLOW, FEWEST) if slow else (FEWEST_KNOWN, MOST)
    return len(data) < fewest or (len(data) < most and halfwidth(data) > precision)


def _steady(warm: list[float], precision: float) -> bool:
    """Two halves of the calls so far agree."""
    half = len(warm) // 2
    return half >= 2 and abs(median(warm[:half]) / median(warm[half:]) - 1) <= precision


def halfwidth(data: list[float]) -> float:
    """Half of the median's 95 % interval, as a share of the median: between two ordered samples, by their ranks.

    The interval of the sign test: as many samples are left out on either side as heads in n throws of a coin are seldom
    fewer than. Of fewer than six samples none is left out. Looking again after every sample makes it narrower than it says,
    and samples of one process are not independent: it ends timing, and is no interval to report.
    """
    ordered, n = sorted(data), len(data)
    outside, tail = 0, 0.5**n
    while tail + math.comb(n, outside + 1) * 0.5**n <= 0.025:
        outside += 1
        tail += math.comb(n, outside) * 0.5**n
    outside = outside if n >= 6 else 0
    return (ordered[n - 1 - outside] - ordered[outside]) / 2 / median(data)


@contextmanager
def uncollected() -> Iterator[None]:
    """Without garbage collection, which would fall into some blocks and not into others."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


_now = 0.0


def replayed() -> float:
    """The timer of a test whose samples are replayed: reads 0 before a sample, and the sample after it."""
    return _now


def replay(benchmark: Any, data: list[float]) -> None:
    """Hand samples to pytest-benchmark by its public means: `benchmark.stats` holds exactly `data` afterwards."""
    rest = iter(data)

    def rewind() -> None:
        global _now
        _now = 0.0

    def advance() -> None:
        global _now
        _now = next(rest)

    benchmark.pedantic(advance, setup=rewind, rounds=len(data))
