"""The tidy frame of a stored run, against numbers worked out by hand."""

import math
import re

import pandas as pd
import pytest
import synthetic_runs as synthetic

from reports import CHECKOUT
from reports.judging.grid import grid
from reports.judging.rows import rows_of, tidy
from reports.reading.run_format import SAMPLES


def tidied(run):
    return tidy(rows_of(run))


def cell(tidy, impl, T):
    return tidy[(tidy["impl"] == impl) & (tidy["T"] == T)].iloc[0]


def ranked_at_64(tidy):
    rows = tidy[tidy["T"] == 64]
    return {row["impl"]: (row["rank_low"], row["rank_high"], row["standing"]) for _, row in rows.iterrows()}


def test_frames_of_all_runs_have_the_documented_columns():
    documented = re.findall(r"^\|([^|]+)\|", (CHECKOUT / "docs" / "columns.md").read_text(), re.MULTILINE)
    in_run_files_alone = {*SAMPLES, "sample_times", "sample_fastest"}
    assert {*re.findall(r"`(\w+)`", "".join(documented))} - in_run_files_alone == {*tidy([])}


def test_ranks_are_ranges_where_several_are_possible(interleaved_data, as_run):
    wrong, interleaved_data["skipped"] = interleaved_data["skipped"], []
    tidy = tidied(as_run(interleaved_data))
    assert ranked_at_64(tidy) == {"packed": (1, 1, "fastest"), "sdpa": (2, 2, "slower"), "fused": (3, 3, "slower")}
    for row in interleaved_data["benchmarks"]:
        if row["extra_info"]["impl"] == "sdpa" and row["extra_info"]["T"] == 64:
            row["stats"]["data"] = row["stats"]["data"][:5]
            synthetic.interleaved(row, (0.8, 1.0, 1.2))
    tidy = tidied(as_run(interleaved_data))
    assert ranked_at_64(tidy) == {
        "packed": (1, 2, "not resolved"), "sdpa": (1, 3, "not resolved"), "fused": (2, 3, "slower")
    }  # fmt: skip
    interleaved_data["skipped"] = wrong
    packed = cell(tidied(as_run(interleaved_data)), "packed", 64)
    assert packed["wrong"] and pd.isna(packed["standing"]) and not packed["leads"]


def test_one_with_too_few_rounds_for_an_interval_may_be_the_fastest(interleaved_data, as_run):
    interleaved_data["skipped"] = []
    for row in interleaved_data["benchmarks"]:
        if row["extra_info"]["impl"] == "sdpa":
            row["stats"]["data"] = row["stats"]["data"][:1]
            row["extra_info"] |= {name: row["extra_info"][name][:1] for name in SAMPLES}
    assert ranked_at_64(tidied(as_run(interleaved_data))) == {
        "packed": (1, 2, "not resolved"), "sdpa": (1, 3, "not resolved"), "fused": (2, 3, "slower")
    }  # fmt: skip


def test_the_ratio_to_the_baseline_has_its_interval(as_run):
    at = synthetic.case()
    rows = [synthetic.row("fused", at, [2e-3]), synthetic.row("sdpa", at, [1e-3], (0.9, 1.0, 1 / 0.9))]
    sdpa = tidied(as_run(synthetic.document(rows))).iloc[1]
    half = 4.30265 * -math.log(0.9) / 3**0.5  # Student's, 2 degrees of freedom
    assert sdpa["ratio"] == pytest.approx(0.5) and sdpa["speedup"] == pytest.approx(2)
    assert (sdpa["ratio_low"], sdpa["ratio_high"]) == (
        pytest.approx(0.5 * math.exp(-half), rel=1e-5),
        pytest.approx(0.5 * math.exp(half), rel=1e-5),
    )


def test_sizes_follow_from_the_models_that_a_run_names(as_run):
    cases = [synthetic.case(H=H, D_h=D_h, T=T) for H, D_h in ((12, 64), (32, 128)) for T in (64, 128)]
    data = synthetic.document([synthetic.row(impl, at, [1e-3]) for at in cases for impl in ("fused", "sdpa")])
    data["models"] = {synthetic.case_id(at): "gpt2" if at["H"] == 12 else "llama3-8b" for at in cases}
    made = grid(rows_of(as_run(data)))
    assert made.axes == ["layer", "T"] and made.cases[3].setting == {"layer": "llama3-8b", "T": 128}
    assert made.cases[0].title == "gpt2 B=1 H=12 D_h=64 T=64 fp32 causal"
