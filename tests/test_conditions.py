"""Machine conditions during a run: what is reported, and what isn't."""

import numpy as np
import pytest

from stats import conditions


def samples(change, scatter, count=20):
    steps = np.random.default_rng(0).normal(0, scatter, count) + np.log1p(change) * (np.arange(count) >= count // 2)
    return list(1e-3 * np.exp(steps))


@pytest.mark.parametrize("count", [10, 100, 1000])
def test_a_long_run_drifts_no_more_than_a_short_one(count):
    assert conditions.drift({"product": samples(0, 0.05, count)}) < conditions.DRIFT
    assert conditions.drift({"product": samples(0.5, 0.05, count)}) == pytest.approx(0.5, abs=0.1)


def test_drift_shows_from_two_samples_on():
    assert conditions.drift({"product": [1e-3], "python": []}) == 0
    assert conditions.drift({"product": [1e-3, 1.2e-3]}) == pytest.approx(0.2)


def row(switches, scatter):
    data = 1e-3 * np.exp(np.random.default_rng(1).normal(0, scatter, 60))
    extra = {"switches_involuntary": switches, "sample_visits": [i // 10 for i in range(60)]}
    return {"extra_info": extra, "stats": {"median": 1e-3, "data": list(data)}}


def test_a_run_beside_other_work_says_so_and_what_to_do():
    assert conditions.disturbed([row(0.05, 0.03)] * 3, {}) == ""
    assert "interrupted 500 times a second" in conditions.disturbed([row(0.5, 0.03)] * 3, {})
    said = conditions.disturbed([row(0.05, 0.2)] * 3, {})
    assert said.startswith("the run was disturbed: successive blocks differed by ")
    assert said.endswith("stop other work and measure it again")


def test_a_gpu_whose_clocks_were_held_back_in_any_row_disturbs_a_run_and_a_power_cap_does_not():
    cool, hot = row(0.05, 0.03), row(0.05, 0.03)
    cool["extra_info"]["throttled"] = "power cap"
    hot["extra_info"]["throttled"] = "power cap, software thermal slowdown"
    assert conditions.disturbed([cool] * 3, {}) == ""
    said = conditions.disturbed([cool, hot, row(0.05, 0.03)], {})
    assert "clocks were held back (software thermal slowdown), for want of cooling or power; " in said


def test_interruptions_of_the_host_do_not_disturb_a_run_on_a_gpu():
    on_gpu = row(0.5, 0.03)
    on_gpu["extra_info"]["device"] = "cuda"
    assert conditions.disturbed([on_gpu] * 3, {}) == ""


def test_a_run_that_was_disturbed_for_a_quarter_of_its_time_says_so():
    quiet, part = row(0.05, 0.03), row(0.05, 0.03)
    data = np.array(part["stats"]["data"])
    data[20:30] *= np.exp(np.random.default_rng(2).normal(0, 0.5, 10))
    part["stats"]["data"] = list(data)
    assert "in a quarter of its visits" in conditions.disturbed([part] * 24, {})
    assert conditions.disturbed([quiet] * 13 + [part] * 11, {}) == ""
    assert conditions.disturbed([part] * 3, {}) == ""  # too few to tell


def test_one_odd_cell_is_no_disturbed_run():
    assert conditions.disturbed([row(0.05, 0.03)] * 9 + [row(5, 0.5)], {}) == ""


@pytest.mark.parametrize(
    ("loop", "said"),
    [
        ([14, 2, 2, 2, 14], "a tenth of the reference workload's loops took at least 7.0 times"),
        ([2] * 19 + [14], ""),
        ([2, 2.2, 2, 2], ""),
        ([2], ""),
    ],
)
def test_calls_that_run_rarely_are_interrupted_rarely_and_a_loop_shows_it(loop, said):
    looks = {"python": [{"seconds": 1e-3 * it} for it in loop], "product": [{"seconds": 1.0}, {"seconds": 9.0}]}
    found = conditions.disturbed([row(0.13, 0.03)] * 3, {"looks": looks})
    assert said in found and bool(said) == bool(found)
