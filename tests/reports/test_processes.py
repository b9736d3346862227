"""Digits of a time."""

from __future__ import annotations

import pytest

from reports.judging import processes


@pytest.mark.parametrize(
    ("medians", "spread", "digits"),
    [
        ([1e-3], 0.09, 3),
        ([1e-3], 0.11, 2),
        ([1.0, 2.0], 0.09, 3),  # two processes are too few
        ([1.0, 1.015, 1.03], 9.0, 3),  # 1.015 times or over exp(4.30 * 0.0148 / 3**0.5)
        ([1.0, 1.03, 1.06], 0.0, 2),
    ],
)
def test_digits_follow_from_the_interval_between_processes_or_from_the_spread(
    medians: list[float], spread: float, digits: int
) -> None:
    assert processes.digits(medians, spread) == digits
