"""What a page says of the proof behind its rows."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from reports.judging import frame as fr
from reports.judging import proofs
from reports.reading.runs import Run

MIB = 2**20


@pytest.fixture
def rows(tiny: Run) -> pd.DataFrame:
    return fr.tidy(tiny)


def test_of_an_old_run_nothing_is_said(rows: pd.DataFrame) -> None:
    said = [proofs.calls(rows), proofs.rounds(rows), proofs.unrepeated(rows), proofs.hidden_memory(rows)]
    assert said == [""] * 4


@pytest.mark.parametrize(
    ("counts", "says"),
    [((120, 600), "the outputs of 120 to 600 calls per cell"), ((700, 700), "the outputs of 700 calls per cell")],
)
def test_how_many_calls_were_compared(rows: pd.DataFrame, counts: tuple[int, int], says: str) -> None:
    rows["calls_compared"] = [counts[0], *[counts[1]] * (len(rows) - 1)]
    enough = sum(count >= proofs.ENOUGH for count in rows["calls_compared"])
    assert says in proofs.calls(rows)
    assert proofs.calls(rows).endswith(f"600 comparisons: {enough} cells of {len(rows)} had as many.")
    assert pytest.approx(0.95, abs=0.001) == 1 - (1 - 1 / proofs.RARE) ** proofs.ENOUGH


def test_who_was_proved_at_round_lengths_alone(rows: pd.DataFrame) -> None:
    rows["proved_ragged"] = rows["impl"] != "sdpa"
    assert proofs.rounds(rows) == "sdpa was proved at round lengths alone: the declared limits allow no others."


def test_whose_answers_differ_from_call_to_call(rows: pd.DataFrame) -> None:
    rows["repeats"] = [None if impl == "fused" else impl != "sdpa" for impl in rows["impl"]]
    said = "Calls on the same inputs differ in their last bits for sdpa: the order of some sum varies."
    assert proofs.unrepeated(rows) == said
    rows["repeats"] = True
    assert proofs.unrepeated(rows) == ""


def test_memory_that_torch_does_not_know_of(rows: pd.DataFrame) -> None:
    rows["peak_bytes"] = 10 * MIB
    rows["peak_rss_bytes"] = [27.5 * MIB, 12 * MIB, *[0] * (len(rows) - 2)]
    said = proofs.hidden_memory(rows)
    assert said.startswith(f"Resident memory grew by much more than tensors account for in 1 of {len(rows)} cells")
    assert ": 27.5 MiB, of which tensors take 10.0 MiB." in said
    assert rows["impl"].iloc[0] in said


def test_what_malloc_keeps_is_no_news(rows: pd.DataFrame, as_run: Any) -> None:
    rows["peak_bytes"] = [10 * MIB, *[100 * MIB] * (len(rows) - 1)]
    rows["peak_rss_bytes"] = [17 * MIB, *[150 * MIB] * (len(rows) - 1)]
    assert proofs.hidden_memory(rows) == ""
