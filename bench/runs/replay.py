"""Passes recorded samples to pytest-benchmark unchanged."""

from __future__ import annotations

from typing import Any

_now = 0.0


def replayed() -> float:
    """Timer of a replayed test: reads 0 before a sample, and the sample after it."""
    return _now


def replay(benchmark: Any, data: list[float]) -> None:
    """Pass samples to pytest-benchmark through its public interface: `benchmark.stats` then holds exactly `data`."""
    rest = iter(data)

    def rewind() -> None:
        global _now
        _now = 0.0

    def advance() -> None:
        global _now
        _now = next(rest)

    benchmark.pedantic(advance, setup=rewind, rounds=len(data))
