"""Drift of the reference workload, on a simulated clock."""

import pytest

from bench.runs.progress import drifting
from bench.timing import reference_workload
from bench.timing.reference_workload import ReferenceWorkload


class Clock:
    """Work takes `each` seconds."""

    now, each = 0.0, 1e-3

    def __call__(self):
        return self.now

    def work(self):
        self.now += self.each


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    reference_workload.workload.cache_clear()
    monkeypatch.setattr(reference_workload, "WORK", {"fixed": lambda: clock.work})
    monkeypatch.setattr("bench.timing.devices.cpu.perf_counter", clock)
    return clock


def test_machine_drift_is_reported(clock):
    seen = ReferenceWorkload()
    for clock.each, drift in ((1e-3, 0), (1e-3, 0), (1.2e-3, 0.2), (1.2e-3, 0.2)):
        seen.sample(clock.now, "cpu")
        assert seen.table()["drift"] == pytest.approx(drift)
    assert drifting(0.0) is None
    assert "changed by 20 % between" in (drifting(0.2) or "")
    assert "changed by a factor of 20 between" in (drifting(18.58) or "")


def test_it_samples_again_when_it_is_due(clock):
    seen = ReferenceWorkload()
    for clock.now in (0.0, 2.0, 2.25, 2.5, 40.0, 44.0, 46.0, 200.0, 219.0, 221.0):
        if seen.due(clock.now):
            seen.sample(clock.now, "cpu")
    assert [round(it["at"]) for it in seen.seen["fixed"]] == [0, 2, 2, 40, 46, 200, 221]


def test_a_product_on_the_cpu_is_no_drift_of_a_gpu(clock, monkeypatch):
    monkeypatch.setattr(reference_workload, "WORK", dict.fromkeys(("product", "python"), lambda: clock.work))
    seen = ReferenceWorkload()
    seen.sample(clock.now, "cuda")  # before the first worker starts
    seen.sample(clock.now, "cuda", {"gpu copy": 1e-3})
    assert {*seen.seen} == {"python", "gpu copy"}
