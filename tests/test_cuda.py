"""Cold calls, graphs and throttling, against a simulated device; and what can be checked, on a real one."""

from __future__ import annotations

import gc
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import bench.timing.cell
from bench.cases.case import Case
from bench.runs import doctor
from bench.timing import machine
from bench.timing.devices import nvml
from bench.timing.devices.cpu import CpuMeter
from bench.timing.devices.cuda import COLD_BELOW, GRAPH_BELOW, CudaMeter
from bench.timing.devices.graphs import captured
from bench.timing.devices.nvml import Nvml, Reading, words
from bench.workers.tasks import Tasks

from .experiments import gpu
from .simulated import UUID, SimulatedCuda, SimulatedNvml

KERNEL = 0.005  # milliseconds
IDLE, POWER, HOT, BRAKE = 0x1, 0x4, 0x20, 0x80


def more(cuda: SimulatedCuda, call: Callable[[], Any], graph: bool = True) -> tuple[float, float | None, float | None]:
    """Seconds hot, cold and by its graph."""
    meter = CudaMeter(cuda, empty=cuda.empty)
    hot = meter.seconds(call, 50) / 50
    found = meter.more(call, hot, graph)
    assert found.keys() == CpuMeter().more(call, hot, graph).keys()
    return hot, found["cold_s"], found["graph_s"]


def test_a_cold_call_finds_an_empty_cache() -> None:
    """2 ms of work and 0.3 ms for what the L2 doesn't hold; the 7 ms that flushing takes are in neither."""
    cuda = SimulatedCuda(miss=0.3)
    assert more(cuda, lambda: cuda.work(2)) == (pytest.approx(2e-3), pytest.approx(2.3e-3), None)


def test_a_device_that_does_not_report_its_cache_has_no_cold_calls() -> None:
    cuda = SimulatedCuda(miss=0.3, l2=0)
    assert more(cuda, lambda: cuda.work(2))[1] is None


def test_a_call_that_outlasts_the_cache_is_not_flushed_for() -> None:
    cuda = SimulatedCuda()
    assert more(cuda, lambda: cuda.work(COLD_BELOW * 1e3 - 1))[1] is not None
    assert more(cuda, lambda: cuda.work(COLD_BELOW * 1e3 + 1))[1] is None


def test_replays_of_a_graph_cost_no_launches() -> None:
    cuda = SimulatedCuda(launch=0.01)
    hot, _, graph = more(cuda, lambda: [cuda.work(KERNEL) for _ in range(3)])
    assert (hot, graph) == (pytest.approx(45e-6), pytest.approx(15e-6))
    assert len(cuda.captures[0].kernels) == 3  # of one call


def test_the_streams_wait_for_each_other() -> None:
    cuda = SimulatedCuda()
    assert captured(cuda, lambda: cuda.work(KERNEL)) is not None
    assert len(cuda.default.waited_for) == 1
    assert cuda.default.waited_for[0].waited_for == [cuda.default]


@pytest.mark.parametrize("why", ["too long", "backward"])
def test_what_is_not_captured(why: str) -> None:
    cuda = SimulatedCuda()
    call = {"too long": GRAPH_BELOW * 1e3 + 0.01, "backward": KERNEL}[why]
    assert more(cuda, lambda: cuda.work(call), graph=why != "backward")[2] is None
    assert not cuda.captures


def untouched(cuda: SimulatedCuda) -> bool:
    """What comes next finds the device as it was."""
    cuda.default_generators[0].draw()
    return (cuda.current_stream(), cuda.get_sync_debug_mode(), cuda.capturing) == (cuda.default, 0, None)


def test_a_call_that_waits_for_the_device_has_no_graph_and_is_found_before_the_capture() -> None:
    cuda = SimulatedCuda()

    def call() -> None:
        cuda.work(KERNEL)
        cuda.item()

    hot, cold, graph = more(cuda, call)
    assert (hot, cold, graph) == (pytest.approx(5e-6), pytest.approx(5e-6), None)
    assert not cuda.captures
    assert untouched(cuda)


def test_a_capture_that_fails_gives_no_graph_and_leaves_nothing_behind() -> None:
    cuda = SimulatedCuda()

    def call() -> None:
        cuda.work(KERNEL)
        cuda.forbidden_in_a_capture()

    assert more(cuda, call)[2] is None
    assert len(cuda.captures) == 1
    assert untouched(cuda)


def test_the_simulated_capture_needs_a_stream_that_is_warm() -> None:
    """Otherwise no test would notice that the calls before the capture are missing."""
    cuda = SimulatedCuda()
    with pytest.raises(RuntimeError, match="previous error"), cuda.graph(cuda.CUDAGraph(), stream=cuda.Stream()):
        cuda.work(KERNEL)
    with pytest.raises(RuntimeError, match="Offset increment"):
        untouched(cuda)


def test_a_reading() -> None:
    reader = Nvml(SimulatedNvml(POWER | IDLE))
    (reading,) = reader.all()
    assert reading == Reading(1755, 1980, 612.5, 61, 3, POWER | IDLE) == reader.of(f"GPU-{UUID}")
    assert (reading.throttling, reading.held_back) == (POWER, False)
    assert reader.of("GPU-of-somebody-else") is None
    assert CudaMeter(SimulatedCuda(), reader).sensors() == reading


@pytest.mark.parametrize(
    ("without", "field"),
    [
        ("nvmlDeviceGetPowerUsage", "power_w"),
        ("nvmlDeviceGetUtilizationRates", "busy_percent"),
        ("nvmlDeviceGetTemperature", "temperature_c"),
    ],
)
def test_what_a_gpu_does_not_report(without: str, field: str) -> None:
    (reading,) = Nvml(SimulatedNvml(without=without)).all()
    assert getattr(reading, field) is None
    assert reading.sm_mhz == 1755


def test_reasons_in_words() -> None:
    assert words(HOT | POWER) == ["power cap", "software thermal slowdown"]
    assert words(BRAKE | 0x4000) == ["power brake", "0x4000"]
    assert words(0) == []


def test_the_bits_are_those_of_nvml() -> None:
    pynvml = pytest.importorskip("pynvml")
    names = {
        "GpuIdle": "idle", "ApplicationsClocksSetting": "application clocks", "SwPowerCap": "power cap",
        "HwSlowdown": "hardware slowdown", "SyncBoost": "sync boost", "SwThermalSlowdown": "software thermal slowdown",
        "HwThermalSlowdown": "hardware thermal slowdown", "HwPowerBrakeSlowdown": "power brake",
        "DisplayClockSetting": "display clocks",
    }  # fmt: skip
    assert {getattr(pynvml, f"nvmlClocksEventReason{name}"): word for name, word in names.items()} == nvml.REASONS


def test_the_state_of_a_machine_holds_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "readings", Nvml(SimulatedNvml(HOT)).all)
    (gpu,) = machine.state()["gpus"]
    assert gpu == {
        "sm_mhz": 1755, "sm_mhz_most": 1980, "power_w": 612.5, "temperature_c": 61, "busy_percent": 3,
        "reasons": ["software thermal slowdown"],
    }  # fmt: skip
    monkeypatch.setattr(machine, "readings", list)
    assert machine.state()["gpus"] == []


@pytest.mark.parametrize(
    ("reasons", "advice"), [(IDLE, None), (HOT | IDLE, "its clocks are held back: let it cool down")]
)
def test_the_doctor_on_a_gpu(reasons: int, advice: str | None) -> None:
    (remark,) = doctor.gpus(Nvml(SimulatedNvml(reasons)).all)
    assert (remark.about, remark.advice) == ("GPU 0", advice)
    assert remark.found == f"1755 of 1980 MHz, 3 % busy, throttle reasons {reasons & ~IDLE:#x}"


class Telling(CpuMeter):
    """A meter of this machine that tells what a GPU's would."""

    def more(self, call: Callable[[], Any], hot_s: float, graph: bool) -> dict[str, float | None]:
        call()
        return {"cold_s": 2 * hot_s, "graph_s": hot_s / 2 if graph else None}

    def sensors(self) -> Reading | None:
        return Reading(1755, 1980, 612.5, 61, 3, POWER)


@pytest.mark.parametrize("mode", ["forward", "backward", "decode"])
def test_a_worker_reports_it(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.timing.cell, "meter_for", lambda device: Telling())
    sizes = {"T": 1, "T_kv": 16} if mode == "decode" else {"T": 16}
    tasks = Tasks(".")
    try:
        tasks.prepare("x", "sdpa", Case.of(**sizes, H=2, D_h=16, mode=mode, mask="none").columns())
        answer = tasks.time("x", calls=2, warm=1)
        more = tasks.more("x", answer["seconds"])
    finally:
        gc.enable()
        gc.unfreeze()
    assert more["cold_s"] > 0
    assert (more["graph_s"] is None) is (mode == "backward")
    assert (answer["sm_mhz"], answer["power_w"], answer["temperature_c"]) == (1755, 612.5, 61)
    assert (answer["throttled"], answer["held_back"]) == (["power cap"], False)


ON_A_DEVICE = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.cuda
@ON_A_DEVICE
def test_more_on_a_device() -> None:
    x = torch.randn(1 << 10, device="cuda")
    meter = CudaMeter(nvml=nvml.opened())
    meter.seconds(lambda: x + 1, 10)
    found = meter.more(lambda: x + 1, 1e-5, graph=True)
    assert all(seconds is not None and seconds > 0 for seconds in found.values())
    if nvml.opened():
        reading = meter.sensors()
        assert reading is not None and reading.sm_mhz


@pytest.mark.cuda
@ON_A_DEVICE
@pytest.mark.parametrize("wait", [lambda x: x.sum().item(), lambda x: torch.cuda.synchronize()])
def test_a_capture_that_fails_on_a_device_leaves_it_usable(wait: Callable[[torch.Tensor], Any]) -> None:
    x = torch.randn(1 << 10, device="cuda")
    stream = torch.cuda.current_stream()
    assert captured(torch.cuda, lambda: wait(x + 1)) is None
    assert torch.cuda.current_stream() == stream
    assert torch.randn(4, device="cuda").isfinite().all()
    assert captured(torch.cuda, lambda: x + 1) is not None


@pytest.mark.cuda
@ON_A_DEVICE
def test_a_graph_is_of_the_same_call_on_a_device() -> None:
    x, total = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")
    graph = captured(torch.cuda, lambda: total.add_(x))
    total.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert total.tolist() == [1.0] * 4


def test_the_gpus_script_is_rehearsed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([str(tmp_path), "--rehearse", "--steps", "environment,roofs,clocks,memory"]) == 0
    assert (tmp_path / "gpu.tar.gz").stat().st_size > 500
    (clocks,) = [line.split(",") for line in (tmp_path / "clocks.csv").read_text().splitlines()[1:2]]
    assert float(clocks[1]) == pytest.approx(1e-4)  # by events of a device whose call takes 0.1 ms


@pytest.mark.slow
def test_the_gpus_script_is_rehearsed_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    assert gpu.main([str(tmp_path), "--rehearse"]) == 0, (tmp_path / "log.txt").read_text()
    assert "in common" not in (tmp_path / "log.txt").read_text()  # both runs measured the same cells
    with tarfile.open(tmp_path / "gpu.tar.gz") as archive:
        assert {"log.txt", "clocks.csv", "memory.csv", "roofs.csv", "kernels.csv", "results"} <= {*archive.getnames()}


def test_a_step_that_fails_does_not_end_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(lab: gpu.Lab) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(gpu, "STEPS", (broken, gpu.memory))
    assert gpu.main([str(tmp_path), "--rehearse", "--steps", "broken,memory"]) == 1
    assert "failed: RuntimeError: no such kernel" in (tmp_path / "log.txt").read_text()
    assert (tmp_path / "memory.csv").exists()
