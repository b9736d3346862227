"""Intervals between processes; when compiling pays."""

from __future__ import annotations

from typing import Any

import pytest
import synthetic_runs as synthetic

from reports.drawing import anatomy
from reports.judging import frame, processes


def test_an_interval_between_processes_needs_three() -> None:
    assert processes.interval([1e-3]) is None and processes.interval(None) is None and processes.interval("ab") is None
    low, high = processes.interval([1.0, 2.0, 4.0]) or (0, 0)
    assert high == pytest.approx(2 * 2 ** (4.30265 / 3**0.5), rel=1e-4)
    assert low * high == pytest.approx(2 * 2)  # of logarithms: as far below as above, and never below zero


@pytest.mark.parametrize(
    ("eager", "compiled", "pays_after", "tied"),
    [(2e-3, 1e-3, 3000, False), (1e-3, 2e-3, None, False), (1.001e-3, 1e-3, 3_000_000, True)],
)
def test_when_compiling_pays(eager: float, compiled: float, pays_after: int | None, tied: bool, as_run: Any) -> None:
    rows = [
        synthetic.row(name, synthetic.case(), [0.99 * median, median, 1.01 * median], apart, compile_s=seconds)
        for name, median, seconds, apart in (
            ("a", eager, None, (1, 1, 1)),
            ("a+compile", compiled, 3.0, (0.99, 1, 1 / 0.99)),
        )
    ]
    [one] = anatomy.compilings(frame.tidy(as_run(synthetic.document(rows))))
    assert (one.tied, one.impl) == (tied, "a+compile")
    assert one.pays_after == (pays_after if pays_after is None else pytest.approx(pays_after, rel=1e-3))
