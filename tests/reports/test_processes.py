"""Intervals between processes."""

from __future__ import annotations

import pytest

from reports.judging import processes


def test_an_interval_between_processes_needs_three() -> None:
    assert processes.interval([1e-3]) is None
    low, high = processes.interval([1.0, 2.0, 4.0]) or (0, 0)
    assert high == pytest.approx(2 * 2 ** (4.30265 / 3**0.5), rel=1e-4)
    assert low * high == pytest.approx(2 * 2)  # of logarithms: as far below as above, and never below zero
