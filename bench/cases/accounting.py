"""Time accounting of a run: checking, compiling, timing, profiling."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

_spent: dict[str, float] = {}
_inner: list[float] = []


@contextmanager
def accounted(purpose: str) -> Iterator[None]:
    """Count the seconds of the block under `purpose`, excluding nested blocks, which count under their own purpose."""
    start = perf_counter()
    _inner.append(0.0)
    try:
        yield
    finally:
        whole = perf_counter() - start
        count(purpose, whole - _inner.pop())
        if _inner:
            _inner[-1] += whole


def spent() -> dict[str, float]:
    """Return seconds by purpose, including earlier processes of a resumed run."""
    return dict(_spent)


def add_spent(seconds: dict[str, float]) -> None:
    """Add seconds spent by an earlier process of the same run, or by one of its workers."""
    for purpose, s in seconds.items():
        count(purpose, s)


def count(purpose: str, seconds: float) -> None:
    """Add seconds measured elsewhere."""
    _spent[purpose] = _spent.get(purpose, 0.0) + seconds
