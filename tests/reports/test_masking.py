"""Mask efficiency, on simulated kernels that skip all masked work and none of it."""

import math

import pytest
import synthetic_runs as synthetic

from reports.judging.rows import rows_of, tidy
from reports.pages.more import tables_of
from reports.pages.report import report

SHARE = 0.505  # of a causal mask over 100 tokens


def timed(impl, share, seconds, **axes):
    """A row of a core that has this share of 10⁹ operations left."""
    at = synthetic.case(T=100, scope="core", **axes)
    return synthetic.row(impl, at, [seconds], flops=round(share * 1e9))


@pytest.fixture
def masked(as_run):
    rows = [
        timed("skips_all", 1, 1e-3, mask="none"),
        timed("skips_all", SHARE, SHARE * 1e-3),
        timed("skips_none", 1, 2e-3, mask="none"),
        timed("skips_none", SHARE, 2e-3),
    ]
    return as_run(synthetic.document(rows, registry=["skips_all", "skips_none"]))


def efficiency(run, impl):
    frame = tidy(rows_of(run))
    row = frame[(frame["impl"] == impl) & (frame["mask"] != "none")].iloc[0]
    return row["mask_efficiency"], row["mask_efficiency_low"], row["mask_efficiency_high"]


def test_efficiency_is_1_if_all_is_skipped_and_the_visible_share_if_nothing_is(masked):
    assert efficiency(masked, "skips_all") == (pytest.approx(1), pytest.approx(1), pytest.approx(1))
    assert efficiency(masked, "skips_none") == (pytest.approx(SHARE), pytest.approx(SHARE), pytest.approx(SHARE))
    frame = tidy(rows_of(masked))
    assert list(frame["work_share"].dropna()) == [SHARE, SHARE]
    assert frame.loc[frame["mask"] == "none", "mask_efficiency"].isna().all()


@pytest.mark.parametrize("processes", [1, 3])
def test_cases_of_a_cluster_which_other_nodes_may_have_measured_have_no_ratio(processes, masked, as_run):
    for number, row in enumerate(masked.rows):
        synthetic.sampled(row, row["stats"]["data"][:processes], processes)
        columns = row["extra_info"]
        columns["sample_processes"] = [1000 * number + process for process in columns["sample_processes"]]
        columns["process_nodes"] = ["n0"] * processes
    layers = [timed(row["extra_info"]["impl"], 2, 4e-3, mask="none") for row in masked.rows[::2]]
    for row in layers:
        row["extra_info"] |= {"scope": "layer", "id": "layer", "process_nodes": ["n1"] * 3}
    this = report(as_run(synthetic.document(masked.rows + layers)))
    assert all(math.isnan(row["mask_efficiency"]) for row in this.rows)
    assert not {"Mask efficiency", "The kernel as a share of its layer"} & {it.title for it in tables_of(this)}
