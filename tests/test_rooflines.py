"""The share of the roofline, on a simulated machine."""

from dataclasses import replace
from unittest import mock

import pytest
import torch

from bench.cases.case import Case
from bench.cases.counting import flops, least_bytes
from bench.cases.outcome import Skip
from bench.timing.rooflines import Rooflines

BUSY = Case.of(T=512, H=8, D_h=64)


class Machine:
    """A meter that counts operations: float32 products and copies at known rates, bfloat16 ten times slower. Products of less
    than `least` rows reach half the rate.
    """

    clock, bandwidth = "wall", 1e10

    def __init__(self, rate=1e11, least=0):
        self.rate, self.least = rate, least

    def seconds(self, call, times):
        o = call()
        if o.dtype == torch.uint8:
            return times * 2 * o.numel() / self.bandwidth
        if not o.dim():  # a sum: its output doesn't show of how many numbers
            return float("inf")
        slower = (10 if o.dtype == torch.bfloat16 else 1) * (2 if o.shape[0] < self.least else 1)
        return times * slower * 2 * o.shape[0] ** 3 / self.rate


def share(rooflines, case, machine, seconds):
    """Return the share of a case that takes this long on this machine."""
    with mock.patch("bench.timing.rooflines.meter_for", return_value=machine):
        return rooflines.share(case, seconds)


@pytest.fixture
def small_products(monkeypatch):
    monkeypatch.setattr("bench.timing.rooflines.SIZES", (16, 32, 64, 128))


def test_the_share_is_that_of_the_lower_ceiling(small_products):
    idle = Case.of(T=1, T_kv=4096, H=8, D_h=64, mask="none", mode="decode")
    narrow = replace(BUSY, dtype="bfloat16")  # may be computed in float32
    for case, seconds in ((BUSY, flops(BUSY) / 1e11), (idle, least_bytes(idle) / 1e10), (narrow, flops(BUSY) / 1e11)):
        assert share(Rooflines(), case, Machine(), 1.0) == pytest.approx(seconds)


def test_a_ceiling_measured_on_a_busy_machine_is_measured_again_before_a_row_is_refused(small_products):
    rooflines, operations = Rooflines(), flops(BUSY)
    share(rooflines, BUSY, Machine(rate=1e10), 100.0)
    assert share(rooflines, BUSY, Machine(rate=1e11), operations / 5e10) == pytest.approx(0.5)
    worse = Machine(rate=1e9)  # takes nothing back
    assert share(rooflines, BUSY, worse, operations / 1.05e11) == 1.0
    for times in (1.15, 2.0):
        with pytest.raises(Skip, match=f"^{times:.0%} of this machine's measured roofline"):
            share(rooflines, BUSY, worse, operations / (times * 1e11))
    assert [row["flops_per_s"] for row in rooflines.table() if "dtype" in row] == [pytest.approx(1e11)]


def test_a_refused_row_is_above_every_measurement_of_its_ceiling(small_products):
    """The last one, too, on a machine that is twice as fast from measurement to measurement."""

    class Rising(Machine):
        last = 0

        def seconds(self, call, times):
            size = call().shape[0]
            self.rate *= 2 if size < self.last else 1
            self.last = size
            return super().seconds(call, times)

    rooflines = Rooflines()
    with pytest.raises(Skip, match="measurement error"):
        share(rooflines, BUSY, Rising(rate=1e10), flops(BUSY) / 2.4e11)
    assert max(row["flops_per_s"] for row in rooflines.table() if "dtype" in row) < 2.4e11


def test_a_ceiling_is_then_measured_thoroughly(small_products):
    """By larger products, which alone reach the rate."""
    machine, rooflines = Machine(rate=1e12, least=64), Rooflines(1e-9)
    share(rooflines, BUSY, machine, 100.0)
    assert share(rooflines, BUSY, machine, flops(BUSY) / 0.9e12) == pytest.approx(0.9)


class Gpu(Machine):
    """Float32 products take ten times as long as those of TF32; a sum of 2 MiB half as long as a copy that moves them."""

    def seconds(self, call, times):
        if not call().dim():
            return times * (2 << 20) / self.bandwidth / 2
        return super().seconds(call, times) / (10 if torch.backends.cuda.matmul.fp32_precision == "tf32" else 1)


def test_on_a_gpu_float32_may_be_three_products_of_tf32_and_reading_is_no_copy(monkeypatch):
    before, gpu = torch.get_float32_matmul_precision(), Gpu()
    busy = replace(BUSY, device="meta")
    assert share(Rooflines(), busy, gpu, 1.0) == pytest.approx(flops(busy) / (gpu.rate * 10 / 3))
    assert torch.get_float32_matmul_precision() == before
    monkeypatch.setattr("bench.timing.rooflines.meter_for", lambda device: gpu)
    for device, times in (("meta", 2), ("cpu", 1)):
        assert Rooflines()._peak_bytes(device, 2 << 20) == pytest.approx(times * gpu.bandwidth)


def test_copies_need_little_of_the_memory(monkeypatch):
    monkeypatch.setattr("bench.timing.rooflines.LARGEST", 1 << 20)
    monkeypatch.setattr("bench.timing.rooflines.meter_for", lambda device: Machine())
    assert Rooflines()._peak_bytes("cpu", 1 << 40) == pytest.approx(Machine.bandwidth)
