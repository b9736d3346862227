"""Mask efficiency, on simulated kernels that skip all masked work and none of it."""

import pytest
import synthetic_runs as synthetic

from reports.judging.rows import rows_of, tidy

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
