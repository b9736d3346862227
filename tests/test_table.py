"""The table at the end of a run, as it stands in a terminal."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from bench.cases.units import time_text
from bench.runs.table import _speed_up, rankings
from stats.ratios import Ratio


def row(impl: str, seconds: float) -> dict[str, Any]:
    columns = {
        "impl": impl, "id": "case", "peak_bytes": 1 << 20, "kernel": "inductor", "error": 1e-7,
        "sample_rounds": list(range(40)), "sample_visits": [i // 5 for i in range(40)], "sample_processes": [0] * 40,
    }  # fmt: skip
    data = [seconds * (1 + 0.001 * (i % 3)) for i in range(40)]
    return {"stats": {"median": seconds, "data": data}, "extra_info": columns}


ROWS = [row("fused", 1.0), row("mask_after_softmax", 1.0005), row("loop", 61.4), row("sdpa", 0.5)]


@pytest.mark.parametrize(("width", "kernels"), [(80, False), (100, True)])
def test_it_fits_the_terminal_and_says_everything_it_has_room_for(width: int, kernels: bool) -> None:
    console = Console(width=width)
    with console.capture() as text:
        for table in rankings(ROWS, [], "fused", width):
            console.print(table)
    lines = [line.rstrip() for line in text.get().splitlines()]
    assert max(map(len, lines)) <= width
    assert ("  inductor" in text.get()) is kernels
    assert (f"left out, since the terminal has {width} columns: kernel" in " ".join(text.get().split())) is not kernels
    assert ("\nkernel " in text.get()) is kernels  # its line of the legend
    assert all(line.endswith("1.0e-07") for line in lines if "MiB" in line)  # the last column is whole
    places = [line.split()[:2] for line in lines if "MiB" in line]
    assert places == [["1", "sdpa"], ["2–3", "fused"], ["2–3", "mask_after_softmax"], ["4", "loop"]]
    assert "2.00 (1.88–2.13)" in text.get()


def test_without_the_baseline_there_is_no_column_for_it() -> None:
    console = Console(width=100)
    with console.capture() as text:
        for table in rankings(ROWS[1:], [], "fused", 100):
            console.print(table)
    assert "  over fused" not in text.get()
    assert "no speed-ups: fused was not measured; --baseline NAME takes another" in text.get()


def test_an_interval_that_is_only_wide_is_not_printed() -> None:
    """As where other load takes most of the machine: `0 (0–275018782)` tells nobody anything."""
    noisy = row("sdpa", 1.0)
    noisy["stats"]["data"] = [1000.0 ** ((i // 5) % 2) for i in range(40)]  # visits on a busy machine
    console = Console(width=100)
    with console.capture() as text:
        for table in rankings([row("fused", 1.0), noisy], [], "fused", 100):
            console.print(table)
    assert "< 0.69" in text.get() and "(" not in text.get().split("#            rank")[0]


@pytest.mark.parametrize(
    ("low", "high", "shown"), [(3.6, 40.0, "> 3.6"), (0.02, 0.28, "< 0.28"), (0.5, 40.0, "not resolved")]
)
def test_of_a_wide_interval_that_excludes_1_one_end_is_printed(low: float, high: float, shown: str) -> None:
    assert _speed_up(Ratio(12.0, low, high, 1, 8)) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(1.234e-3, "1.23 ms"), (0.9996e-3, "1 ms"), (0.9996, "1 s"), (2345.6, "2346 s"), (0.4e-9, "0.4 ns")],
)
def test_a_time_has_three_digits_and_no_exponent(seconds: float, shown: str) -> None:
    assert time_text(seconds) == shown


def test_rows_stand_in_the_order_of_time_and_what_is_wrong_elsewhere_has_no_rank() -> None:
    rows = [row("fused", 1.0), row("sdpa", 0.99), row("loop", 0.9)]
    console = Console(width=100)
    with console.capture() as text:
        for table in rankings(rows, [{"impl": "loop", "reason": "wrong", "id": "other", "detail": ""}], "fused", 100):
            console.print(table)
    ranks = [line.split()[:2] for line in text.get().splitlines() if "MiB" in line]
    assert ranks == [["1–2", "sdpa"], ["1–2", "fused"], ["–", "loop"]]
