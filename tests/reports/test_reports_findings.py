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
    return findings.findings(frame.tidy(run), run.baseline_impl, frame.skipped(run))


def retimed(data: dict[str, Any], impl: str, T: int, median: float, apart: tuple[float, ...] = (1, 1, 1)) -> None:
    """Lets an implementation take another time at one T, a process apart from the other."""
    for row in data["benchmarks"]:
        if (row["extra_info"]["impl"], row["extra_info"]["T"]) == (impl, T):
            row["stats"] |= {"median": median, "data": [0.99 * median, median, median, median, 1.01 * median]}
            synthetic.by_turns(row, apart)


UNEQUAL = (0.7, 1.0, 1.3)


def test_leanest_and_largest_gain(turns_data: dict[str, Any], as_run: Any) -> None:
    retimed(turns_data, "fused", 1024, 3.6e-3, (0.99, 1.0, 1.01))
    text = said(as_run(turns_data))
    where = "B=1 H=8 D_h=64 T=1024 fp32 causal"
    assert f"sdpa needs least memory at {where}: 2.50 MiB; fused needs 72.0 MiB, 29 times as much." in text
    assert f"The largest speed-up over fused is 4.00× (3.90 to 4.10), by sdpa at {where}." in text


def test_a_gain_that_is_not_shown_is_no_finding(turns_data: dict[str, Any], as_run: Any) -> None:
    retimed(turns_data, "sdpa", 1024, 0.9e-3, (0.1, 1.0, 10.0))
    [gain] = [sentence for sentence in said(as_run(turns_data)) if "speed-up over" in sentence]
    assert "2.00×, by sdpa" in gain and "T=256" in gain


def test_a_wide_interval_may_still_be_clearly_slower(turns_data: dict[str, Any], as_run: Any) -> None:
    retimed(turns_data, "fused", 256, 0.4, UNEQUAL)
    tidy = frame.tidy(as_run(turns_data))
    at = tidy[(tidy["impl"] == "fused") & (tidy["T"] == 256)].iloc[0]
    assert (at["rank_low"], at["standing"]) == (2, "slower")


def test_wrong_answers_are_warned_of(tiny: Run) -> None:
    assert any(text.startswith("packed ✗ did not pass the correctness check in 1 cell:") for text in said(tiny))


def test_compiling_that_brings_nothing_shown_is_not_told(as_run: Any) -> None:
    at = synthetic.case()
    rows = [synthetic.row("mine", at, [3e-3], UNEQUAL), synthetic.row("mine+compile", at, [2.8e-3])]
    assert not [text for text in said(as_run(synthetic.document(rows))) if text.startswith("Compiled")]


def test_what_compiling_brings(as_run: Any) -> None:
    at = synthetic.case()
    rows = [synthetic.row("mine", at, [3e-3]), synthetic.row("mine+compile", at, [2e-3])]
    assert "Compiled: mine+compile takes 0.67× the time of mine." in said(as_run(synthetic.document(rows)))


def test_only_skips_say_so_and_nothing_else(as_run: Any) -> None:
    skipped = [{"impl": "a", "id": "B1", "reason": "out_of_memory", "detail": "too big"}]
    run = as_run(synthetic.document([], skipped=skipped))
    assert said(run) == ["No cell of this run has a number: 1 out of memory."]


def test_nobody_faster_than_the_yardstick_is_said(as_run: Any) -> None:
    at = synthetic.case()
    rows = [synthetic.row("fused", at, [1e-3]), synthetic.row("slow", at, [2e-3])]
    text = said(as_run(synthetic.document(rows)))
    assert any(s.startswith("Nothing here is shown to be faster than fused; slow comes closest, 0.500×") for s in text)


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


def test_a_lone_speedup_that_is_not_shown_is_only_the_closest(as_run: Any) -> None:
    at = synthetic.case()
    rows = [synthetic.row("fused", at, [2e-3], UNEQUAL), synthetic.row("sdpa", at, [1.8e-3])]
    text = said(as_run(synthetic.document(rows)))
    assert any(
        s.startswith("Nothing here is shown to be faster than fused; sdpa comes closest, 1.1× (") for s in text
    ), text


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
