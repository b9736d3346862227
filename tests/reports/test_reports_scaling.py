"""Exponents, against curves whose exponent is known; intervals between processes; when compiling pays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import synthetic_runs as synthetic

from reports.judging import frame, processes, scaling
from reports.pages import more

LENGTHS = (64, 128, 256, 512, 1024, 2048)


def run_of(peaks: dict[int, float], **top: Any) -> Any:
    rows = [
        synthetic.row("a", synthetic.case(T=T), [1e-6 * T**1.5], peak_bytes=peak)  # median exactly T ** 1.5
        for T, peak in peaks.items()
    ]
    return synthetic.document(rows, **top)


def grown(run: Any) -> list[scaling.Growth]:
    return scaling.growths(frame.tidy(run))


@pytest.mark.parametrize("exponent", [1.0, 1.5, 2.0])
def test_a_power_law_gives_its_exponent(exponent: float) -> None:
    fit = scaling.power(LENGTHS, [3.0 * T**exponent for T in LENGTHS])
    assert fit is not None
    assert (fit.exponent, fit.low, fit.high) == pytest.approx((exponent,) * 3)


def test_only_the_upper_half_counts() -> None:
    fit = scaling.power(LENGTHS, [1e9, 1e9, 1e9, 512.0, 1024.0, 2048.0])
    assert fit is not None and fit.T == (512, 1024, 2048) and fit.exponent == pytest.approx(1)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    T = np.array([256, 512, 1024, 2048])
    fits = [scaling.power(T, T**2.0 * np.exp(rng.normal(0, 0.05, 4))) for _ in range(400)]
    share = np.mean([fit is not None and fit.low <= 2 <= fit.high for fit in fits])
    assert 0.91 <= share <= 0.98


@pytest.mark.parametrize(
    ("T", "y"), [((64, 128), (1, 2)), ((64, 64, 64), (1, 1, 1)), ((1, 2, 3), (0, 0, float("nan")))]
)
def test_fewer_than_three_lengths_say_nothing(T: Any, y: Any) -> None:
    assert scaling.power(T, y) is None


def test_an_exponent_that_is_not_resolved_is_not_told(as_run: Any) -> None:
    [growth] = grown(as_run(run_of({64: 1e3, 256: 1e6, 1024: 1e6})))
    assert growth.memory is None and growth.time is not None
    fit = scaling.power((64, 256, 1024), (1e3, 1e6, 1e6))
    assert fit and fit.high - fit.low > 1


def test_each_implementation_has_the_exponents_of_its_time_and_memory(as_run: Any) -> None:
    [growth] = grown(as_run(run_of({T: 1024 * T**2 for T in (64, 256, 1024)})))
    assert growth.memory and growth.memory.exponent == pytest.approx(2)
    assert growth.time and growth.time.exponent == pytest.approx(1.5)
    [short] = grown(as_run(run_of({64: 1, 256: 2})))
    assert short.memory is None and short.time is None
    assert grown(as_run(run_of({64: 1}))) == [] == grown(as_run(synthetic.document([])))


def test_an_interval_between_processes_needs_three() -> None:
    assert processes.interval([1e-3]) is None and processes.interval(None) is None and processes.interval("ab") is None
    low, high = processes.interval([1.0, 2.0, 4.0]) or (0, 0)
    assert high == pytest.approx(2 * 2 ** (4.30265 / 3**0.5), rel=1e-4)
    assert low * high == pytest.approx(2 * 2)  # of logarithms: as far below as above, and never below zero


@pytest.mark.parametrize(
    ("eager", "compiled", "pays"),
    [(2e-3, 1e-3, "3,000 calls"), (1e-3, 2e-3, "never"), (1.001e-3, 1e-3, "not significant")],
)
def test_when_compiling_pays(eager: float, compiled: float, pays: str, as_run: Any) -> None:
    rows = [
        synthetic.row(name, synthetic.case(), [0.99 * median, median, 1.01 * median], apart, compile_s=seconds)
        for name, median, seconds, apart in (
            ("a", eager, None, (1, 1, 1)),
            ("a+compile", compiled, 3.0, (0.99, 1, 1 / 0.99)),
        )
    ]
    [one] = more._compiling(frame.tidy(as_run(synthetic.document(rows)))).rows
    assert one[:4] == ("a+compile", "T=64", pays, "3.00 s")


def test_a_kernel_is_a_share_of_its_layer_where_all_else_is_equal(as_run: Any) -> None:
    cells = [
        ("sdpa", 64, "core", 1e-3),
        ("sdpa", 64, "layer", 4e-3),
        ("sdpa", 256, "core", 1e-3),
        ("a", 256, "layer", 1.0),
    ]
    rows = [synthetic.row(name, synthetic.case(T=T, scope=scope), [s], id=f"{T}{scope}") for name, T, scope, s in cells]
    made = more._shares(frame.tidy(as_run(synthetic.document(rows))), "", "scope", "core", "layer", ("a", "b", "share"))
    assert made.rows == [("sdpa", "T=64", "1.00 ms", "4.00 ms", "25.0 %")]
