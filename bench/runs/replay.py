"""Samples handed to pytest-benchmark as they are."""

from __future__ import annotations

from typing import Any

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
