"""The sentences of a page, against the stored run's numbers."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import synthetic_runs as synthetic

from reports.judging import findings, frame
from reports.reading.runs import Run


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


def test_who_takes_least_energy(turns_data: dict[str, Any], as_run: Any) -> None:
    assert not any("energy" in sentence for sentence in said(as_run(turns_data)))
    for row in turns_data["benchmarks"]:
        row["extra_info"]["energy_j"] = (
            0.05 * row["stats"]["median"] * (2 if row["extra_info"]["impl"] == "fused" else 1)
        )
    [sentence] = [sentence for sentence in said(as_run(turns_data)) if "energy" in sentence]
    assert "sdpa takes least energy at B=1 H=8 D_h=64 T=1024 fp32 causal" in sentence
    assert "J a call, of the whole package; fused takes" in sentence


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


def test_front_holds_those_nobody_beats_in_both() -> None:
    rows = pd.DataFrame({"impl": ["a", "b", "c"], "median": [1.0, 2.0, 3.0], "peak_bytes": [10.0, 20.0, 5.0]})
    assert findings.front(rows) == ["a", "c"]


def test_dtypes_are_compared_cell_by_cell(as_run: Any) -> None:
    rows = [
        synthetic.row("a", synthetic.case(T=T, dtype=dtype), [seconds])
        for T, dtype, seconds in [(64, "float32", 2.0), (64, "bfloat16", 1.0), (128, "float32", 1.0),
                                  (128, "bfloat16", 2.0), (256, "float32", 1.0)]
    ]  # fmt: skip
    tidy = frame.tidy(as_run(synthetic.document(rows)))
    assert findings.dtypes(tidy) == "bf16 is faster than fp32 in 1 of 2 pairs of cells, slower in 1."


@pytest.mark.parametrize("axis", ["T", "H"])
def test_growth_compares_the_two_ends(axis: str, as_run: Any) -> None:
    ends = {"T": (64, 128), "H": (1, 2)}[axis]
    rows = [synthetic.row(n, synthetic.case(**{axis: v}), [s])
            for n, s0 in (("a", 2.0), ("b", 3.0)) for v, s in zip(ends, (1.0, s0), strict=True)]  # fmt: skip
    tidy = frame.tidy(as_run(synthetic.document(rows)))
    assert findings.growth(tidy, axis) == (
        f"From {axis} = {ends[0]} to {axis} = {ends[1]}, a takes 2.0 times as long, b 3.0 times."
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
        "In 1 of 4 cells the system maps fresh memory at every call, and page faults take 10 % of the time or more "
        "(at 1 µs each): about 31 % of fused at B=1 H=8 D_h=64 T=128 fp32 causal, 40,000 a call."
    )


def test_few_page_faults_are_no_finding(tiny: Run, as_run: Any) -> None:
    rows = [synthetic.row("fused", synthetic.case(), [1e-3], page_faults=99.0)]
    for run in (tiny, as_run(synthetic.document(rows))):
        assert not [text for text in said(run) if "page faults" in text]


def test_more_page_faults_than_a_call_has_time_for_are_most_of_it(as_run: Any) -> None:
    rows = [synthetic.row("fused", synthetic.case(), [1e-3], page_faults=2000.0)]
    assert any(
        ": most of fused at " in text and "2,000 a call." in text for text in said(as_run(synthetic.document(rows)))
    )


def test_a_dtype_that_is_not_shown_to_be_faster_counts_for_neither(as_run: Any) -> None:
    rows = [
        synthetic.row("a", synthetic.case(dtype="float32"), [2.0], UNEQUAL),
        synthetic.row("a", synthetic.case(dtype="bfloat16"), [1.9]),
    ]
    tidy = frame.tidy(as_run(synthetic.document(rows)))
    assert findings.dtypes(tidy) == "bf16 is faster than fp32 in 0 of 1 pair of cells, slower in 0."


def test_growth_that_is_not_shown_is_not_told(as_run: Any) -> None:
    rows = [
        synthetic.row(name, synthetic.case(T=T), [seconds], UNEQUAL if T > 64 and name == "b" else (1, 1, 1))
        for name, grown in (("a", 2.0), ("b", 1.2)) for T, seconds in ((64, 1.0), (128, grown))
    ]  # fmt: skip
    assert findings.growth(frame.tidy(as_run(synthetic.document(rows))), "T") == (
        "From T = 64 to T = 128, a takes 2.0 times as long."
    )
    assert findings.growth(frame.tidy(as_run(synthetic.as_old(synthetic.document(rows)))), "T") == ""


def test_the_front_of_time_and_memory_is_the_judges(as_run: Any) -> None:
    """`b` has the smaller median and less memory, but isn't shown to be faster than `a`; `c` is beaten in both."""
    rows = [
        synthetic.row("a", synthetic.case(), [2.0], UNEQUAL, peak_bytes=20),
        synthetic.row("b", synthetic.case(), [1.9], peak_bytes=10),
        synthetic.row("c", synthetic.case(), [9.0], peak_bytes=30),
    ]
    document = synthetic.document(rows)
    tidy = frame.tidy(as_run(document))
    assert findings.front(tidy) == ["b", "a"]
    assert findings.unbeaten(tidy).endswith("nobody is shown to beat b and a in both time and memory.")
    assert findings.unbeaten(frame.tidy(as_run(synthetic.as_old(document)))) == ""


def test_who_is_fastest_and_leanest_is_called_both(as_run: Any) -> None:
    rows = [
        synthetic.row(name, synthetic.case(), [s], peak_bytes=peak)
        for name, s, peak in (("a", 2.0, 20), ("b", 1.0, 10))
    ]
    assert findings.unbeaten(frame.tidy(as_run(synthetic.document(rows)))).endswith(
        "b is both the fastest and the leanest."
    )


def test_a_lone_speedup_that_is_not_shown_is_only_the_closest(as_run: Any) -> None:
    at = synthetic.case()
    rows = [synthetic.row("fused", at, [2e-3], UNEQUAL), synthetic.row("sdpa", at, [1.8e-3])]
    text = said(as_run(synthetic.document(rows)))
    assert any(
        s.startswith("Nothing here is shown to be faster than fused; sdpa comes closest, 1.1× (") for s in text
    ), text
