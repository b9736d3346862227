"""The sentences of a page, against the stored run's numbers."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import synthetic_runs as synthetic

from reports.judging import findings, frame
from reports.reading.runs import Run

MIB = 2**20


def said(run: Run) -> list[str]:
    return findings.findings(frame.tidy(run))


def retimed(data: dict[str, Any], impl: str, T: int, median: float, apart: tuple[float, ...] = (1, 1, 1)) -> None:
    """Lets an implementation take another time at one T, a process apart from the other."""
    for row in data["benchmarks"]:
        if (row["extra_info"]["impl"], row["extra_info"]["T"]) == (impl, T):
            row["stats"] |= {"median": median, "data": [0.99 * median, median, median, median, 1.01 * median]}
            synthetic.by_turns(row, apart)


UNEQUAL = (0.7, 1.0, 1.3)


def test_a_wide_interval_may_still_be_clearly_slower(turns_data: dict[str, Any], as_run: Any) -> None:
    retimed(turns_data, "fused", 256, 0.4, UNEQUAL)
    tidy = frame.tidy(as_run(turns_data))
    at = tidy[(tidy["impl"] == "fused") & (tidy["T"] == 256)].iloc[0]
    assert (at["rank_low"], at["standing"]) == (2, "slower")


def test_wrong_answers_are_warned_of(tiny: Run) -> None:
    [told] = findings.wrong(frame.tidy(tiny), frame.skipped(tiny))
    why = "packed ✗ did not pass the correctness check in 1 cell: error 0.3 exceeds its bound"
    assert told.startswith(why) and told.endswith(". Its numbers elsewhere are in doubt.")
    [told] = findings.wrong(frame.tidy(tiny).query("impl != 'packed'"), frame.skipped(tiny))
    assert told.startswith(why) and "elsewhere" not in told


def test_only_skips_say_so_and_nothing_else(as_run: Any) -> None:
    skipped = [{"impl": "a", "id": "B1", "reason": "out_of_memory", "detail": "too big"}]
    run = as_run(synthetic.document([], skipped=skipped))
    assert (
        said(run) == [] and findings.nothing(frame.skipped(run)) == "No cell of this run has a number: 1 out of memory."
    )


def test_page_faults_are_told_where_they_are_a_large_part(as_run: Any) -> None:
    rows = [
        synthetic.row(name, synthetic.case(T=T), [1e-3 * T], page_faults=faults)
        for name, T, faults in (
            ("fused", 64, 3.0),
            ("fused", 128, 40000.4),
            ("sdpa", 128, 12000.0),
            ("linear", 128, None),
        )
    ]
    [told] = [text for text in said(as_run(synthetic.document(rows))) if "page faults" in text]
    assert told == (
        "In 1 of 4 cells the system maps fresh memory at every call, and page faults take 10 % of the time or more, "
        "at 1 µs each: most of all for fused at B=1 H=8 D_h=64 T=128 fp32 causal, 40,000 a call."
    )


def test_few_page_faults_are_no_finding(tiny: Run, as_run: Any) -> None:
    rows = [synthetic.row("fused", synthetic.case(), [1e-3], page_faults=99.0)]
    for run in (tiny, as_run(synthetic.document(rows))):
        assert not [text for text in said(run) if "page faults" in text]


@pytest.mark.parametrize(
    ("counts", "says"),
    [((120, 600), "the outputs of 120 to 600 calls per cell"), ((700, 700), "the outputs of 700 calls per cell")],
)
def test_how_many_calls_were_compared(tidy_tiny: pd.DataFrame, counts: tuple[int, int], says: str) -> None:
    assert findings.calls(tidy_tiny) == ""
    tidy_tiny["calls_compared"] = [counts[0], *[counts[1]] * (len(tidy_tiny) - 1)]
    assert says in findings.calls(tidy_tiny)


def test_memory_that_torch_does_not_know_of(tidy_tiny: pd.DataFrame) -> None:
    assert findings.hidden_memory(tidy_tiny) == ""
    tidy_tiny["peak_bytes"] = 10.0 * MIB
    tidy_tiny["peak_rss_bytes"] = [27.5 * MIB, 12 * MIB, *[0] * (len(tidy_tiny) - 2)]
    said = findings.hidden_memory(tidy_tiny)
    assert said.startswith(f"Resident memory grew by much more than tensors account for in 1 of {len(tidy_tiny)} cells")
    assert ": 27.5 MiB, of which tensors take 10.0 MiB." in said
    assert tidy_tiny["impl"].iloc[0] in said


def test_what_malloc_keeps_is_no_news(tidy_tiny: pd.DataFrame) -> None:
    tidy_tiny["peak_bytes"] = [10.0 * MIB, *[100 * MIB] * (len(tidy_tiny) - 1)]
    tidy_tiny["peak_rss_bytes"] = [17.0 * MIB, *[150 * MIB] * (len(tidy_tiny) - 1)]
    assert findings.hidden_memory(tidy_tiny) == ""
