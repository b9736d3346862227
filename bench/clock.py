"""How long a call takes: warm up, time blocks of calls, hand the samples to pytest-benchmark as they are."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from .meters import Meter

BLOCK = 2e-3
"""Seconds that one timed block lasts at least, so that reading the clock doesn't count."""

FEWEST, FEWEST_SLOW, MOST = 5, 3, 500
"""Samples of one cell: at least, at least when one call takes longer than the cell has, at most."""


@dataclass(frozen=True)
class Samples:
    """Seconds per call, one number a timed block."""

    data: list[float]
    calls: int
    """Calls in a block."""


def sample(meter: Meter, call: Callable[[], Any], seconds: float) -> Samples:
    """Time `call` for about `seconds`, warm-up included; a few blocks however long they take.

    The gate has called the layer before, so calls that take longer than `seconds` are not warmed up once more.
    """
    start = perf_counter()
    warm = [meter.seconds(call, 1), meter.seconds(call, 1)]
    slow = min(warm) > seconds
    while not slow and perf_counter() - start < seconds / 5:
        warm.append(meter.seconds(call, 1))
    calls = max(1, math.ceil(BLOCK / max(min(warm), 1e-9)))
    data, fewest = (warm, FEWEST_SLOW) if slow else ([], FEWEST)
    with _uncollected():
        while len(data) < fewest or (not slow and len(data) < MOST and perf_counter() - start < seconds):
            data.append(meter.seconds(call, calls) / calls)
    return Samples(data, calls)


@contextmanager
def _uncollected() -> Iterator[None]:
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
