"""Energy per call, by simulated counters: which ones count, overflow, and messages without one."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from bench.cases.case import Case
from bench.timing.devices.energy import RAPL_SECONDS, Counter, joules_of_a_call, of_gpu, rapl
from bench.timing.devices.nvml import Nvml
from bench.workers.tasks import Tasks

from .simulated_gpu import UUID, SimulatedCuda, SimulatedNvml

RANGE = 262_143_328_850
ZONES = {"intel-rapl:0": "package-0", "intel-rapl:0:0": "core", "intel-rapl:0:1": "dram", "intel-rapl:1": "package-1",
         "intel-rapl:2": "psys", "intel-rapl-mmio:0": "package-0"}  # fmt: skip


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    """Return a folder of counters: two packages, of which the second is about to wrap around, a core, memory and `psys`."""
    for zone, name in ZONES.items():
        (tmp_path / zone).mkdir()
        for file, value in (("name", name), ("max_energy_range_uj", RANGE), ("energy_uj", 1_000)):
            (tmp_path / zone / file).write_text(f"{value}\n")
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text(f"{RANGE - 100}\n")
    return tmp_path


def counter_of(folder: Path) -> Counter:
    counter = rapl(folder)
    assert counter
    return counter


def spend(folder: Path, microjoules: int) -> None:
    """Advance every counter."""
    for zone in ZONES:
        path = folder / zone / "energy_uj"
        path.write_text(f"{(int(path.read_text()) + microjoules) % RANGE}\n")


def test_packages_are_summed_and_their_counters_wrap_around(powercap: Path) -> None:
    counter = counter_of(powercap)
    before = counter.read()
    spend(powercap, 3_000_000)
    assert counter.since(before) == pytest.approx(6.0)


def test_a_call_takes_its_share_of_all_calls(powercap: Path) -> None:
    made = []

    def run(calls: int) -> None:
        made.append(calls)
        spend(powercap, 500 * calls)

    assert joules_of_a_call(counter_of(powercap), run, hot_s=1e-3) == pytest.approx(1e-3)  # of both packages
    assert set(made) == {10}
    brief = replace(counter_of(powercap), seconds=0.0)
    assert joules_of_a_call(brief, run, hot_s=2.0) == pytest.approx(1e-3)
    assert made[-1] == 1


def test_a_counter_is_watched_for_longer_than_its_steps(powercap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(1000))
    monkeypatch.setattr("bench.timing.devices.energy.perf_counter", lambda: next(now) * RAPL_SECONDS / 8)
    made: list[int] = []
    joules_of_a_call(counter_of(powercap), made.append, hot_s=1e-3)
    assert len(made) == 8


def test_a_counter_that_stands_still_is_not_read(powercap: Path) -> None:
    assert joules_of_a_call(replace(counter_of(powercap), seconds=0.0), lambda calls: None, hot_s=1.0) is None


def test_where_no_counter_can_be_read_there_is_none(powercap: Path, tmp_path: Path) -> None:
    assert rapl(powercap) is not None
    (powercap / "intel-rapl:1" / "energy_uj").unlink()
    assert rapl(powercap) is None
    for zone in ZONES:
        (powercap / zone / "name").write_text("core\n")
    assert rapl(powercap) is rapl(tmp_path / "none") is None


def test_a_worker_measures_energy(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([[0.0], [4.0]])
    counter = Counter(0.0, lambda: next(readings), [math.inf])
    monkeypatch.setattr("bench.workers.tasks.energy_counter", lambda device: counter)
    tasks.prepare("it", "fused", Case.of(T=16, H=1, D_h=8).columns())
    assert tasks.more("it", hot_s=5e-3)["energy_j"] == 2.0
    monkeypatch.setattr("bench.workers.tasks.energy_counter", lambda device: replace(counter, read=unreadable))
    assert "energy_j" not in tasks.more("it", hot_s=5e-3)  # what was timed is kept


def unreadable() -> list[float]:
    raise OSError


def test_energy_of_a_gpu() -> None:
    nvml = SimulatedNvml(SimulatedCuda())
    counter = of_gpu(Nvml(nvml), UUID)
    assert counter
    before = counter.read()
    nvml.millijoules += 2_500
    assert counter.since(before) == 2.5
    assert of_gpu(Nvml(SimulatedNvml(SimulatedCuda(), without="nvmlDeviceGetTotalEnergyConsumption")), UUID) is None
