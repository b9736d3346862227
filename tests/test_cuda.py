"""The CUDA meter and its surroundings on a simulated GPU; some tests on a real one."""

import faulthandler
import gc
import os
import sys
from contextlib import nullcontext
from dataclasses import replace
from subprocess import CalledProcessError
from time import monotonic
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch._C._autograd import _enable_record_function
from torch.overrides import TorchFunctionMode

import bench.timing.cell
import impls
from bench.ab.options import parser
from bench.ab.plan import plan_of
from bench.cases.case import Case
from bench.cases.cells import Cell
from bench.cases.outcome import Wrong, classify
from bench.cases.sweep import misfit
from bench.checks import calls, settings
from bench.checks.calls import recording
from bench.checks.dispatch import kernel_in
from bench.checks.module_checks import check_case, check_sums
from bench.runs import progress
from bench.runs.measuring import Measuring
from bench.runs.rows import UNMEASURED
from bench.selection.errors import UsageError
from bench.timing import machine, reference_workload
from bench.timing.devices import DEVICES, cuda, nvml
from bench.timing.devices.cuda import COLD_BELOW, GRAPH_BELOW, CudaMeter, captured
from bench.timing.devices.device import Memory
from bench.timing.devices.nvml import HELD_BACK, Nvml, words
from bench.timing.rooflines import Rooflines
from bench.workers import tasks as requests
from bench.workers import worker
from bench.workers.client import Variant, WorkerClient

from .conftest import python
from .experiments import gpu as script
from .simulated_gpu import ILLEGAL, UUID, SimulatedCuda, SimulatedNvml

KERNEL, LAUNCH = 5e-6, 10e-6
IDLE, POWER, HOT = 0x1, 0x4, 0x20


@pytest.fixture
def gpu():
    return SimulatedCuda(launch=LAUNCH)


def meter_of(gpu, reader=Nvml()):  # noqa: B008  without GPUs
    return CudaMeter(gpu, reader, gpu.empty, gpu.clock)


def columns(gpu, call, graph=True):
    """Return the seconds of a hot call, as `hot_s`, and what else is measured."""
    meter = meter_of(gpu)
    hot = meter.seconds(call, 50, warm=1) / 50
    found = meter.more(call, hot, graph, [])
    assert found.keys() < UNMEASURED.keys()
    return {"hot_s": hot, **found}


def adding(gpu, kernels=1, seconds=KERNEL):
    """Return a call that launches this many kernels, the last of which writes the output."""
    x = torch.ones(4)

    def call():
        output = torch.empty(4)
        for _ in range(kernels - 1):
            gpu.work(seconds)
        gpu.work(seconds, writes=lambda: output.copy_(x + 1))
        return output

    return call


# Blocks


@pytest.mark.parametrize(
    ("kernel", "calls", "expected"),
    [
        pytest.param(KERNEL, 200, LAUNCH, id="launches take longer than kernels"),
        pytest.param(50e-6, 40, 50e-6, id="kernels take longer"),
        pytest.param(2e-3, 1, 2e-3, id="one long call"),
    ],
)
def test_a_block_begins_on_a_busy_device(gpu, kernel, calls, expected):
    """On an idle device, a block of 2 ms with one call takes 0.5 % longer."""
    meter = meter_of(gpu)
    assert meter.seconds(lambda: gpu.work(kernel), calls, warm=max(1, calls // 8)) / calls == pytest.approx(expected)
    assert meter.seconds(lambda: gpu.work(2e-3), 1) == pytest.approx(2e-3 + LAUNCH)  # idle: the launch is part of it


@pytest.fixture
def on_gpu(monkeypatch, gpu, tasks):
    """A worker whose cells run on the CPU, with a kernel of 2 ms of the simulated GPU's beside each call."""
    meter = meter_of(gpu, Nvml(SimulatedNvml(gpu, POWER)))
    timed = meter._between

    def beside(call, times, behind):
        return timed(lambda: (gpu.work(2e-3), call())[1], times, behind)

    monkeypatch.setattr(meter, "_between", beside)
    monkeypatch.setattr(bench.timing.cell, "meter_for", lambda device: meter)
    return tasks


def test_a_block_on_a_gpu_has_one_slice_and_never_begins_on_an_idle_device(on_gpu):
    """Even if `ab` requests slices, and no warm call."""
    on_gpu.prepare("x", "sdpa", Case.of(T=16, H=2, D_h=16, mask="none").columns())
    meter = on_gpu._ready["x"].meter
    with mock.patch.object(meter, "timed", wraps=meter.timed) as timed:
        reply = on_gpu.time("x", calls=5, slices=4, warm=2)
        on_gpu.time("x", calls=1)
    assert reply["fastest"] == reply["seconds"] == pytest.approx(2e-3, rel=0.02)
    assert [block.args[1:] for block in timed.call_args_list] == [(20, 2), (1, 1)]


@pytest.mark.parametrize(
    ("operator", "kernel"),
    [
        ("torch_attn::_varlen_attn", "flash"),
        ("flash_attn::_flash_attn_forward", "flash"),
        ("flash_attn_3::fwd", "flash"),
        ("xformers_flash::flash_fwd", "flash"),
        ("xformers_flash3::flash_fwd", "flash"),
        ("xformers::efficient_attention_forward_cutlass", "efficient"),
        ("aten::_flash_attention_forward", "flash"),
        ("aten::_efficient_attention_forward", "efficient"),
        ("aten::_cudnn_attention_forward", "cudnn"),
    ],
)
def test_operators_beside_those_of_sdpa(operator, kernel):
    assert kernel_in(f'{{"name": "{operator}", "cat": "cpu_op"}}'.encode()) == kernel


def test_a_slowed_kernel_takes_longer_by_the_clock(gpu):
    meter = meter_of(gpu)
    slowed = meter.slowed(lambda: gpu.work(1e-3), 0.02)
    assert meter.seconds(slowed, 10, warm=1) / 10 == pytest.approx(1.02e-3, rel=1e-4)


def test_work_in_another_stream_is_refused(gpu):
    meter, side = meter_of(gpu), gpu.Stream()

    def block(joined):
        def call():
            gpu.work(KERNEL)
            with gpu.stream(side):
                gpu.work(250e-6)
            if joined:
                gpu.current_stream().wait_stream(side)

        meter.seconds(call, 20)

    for joined in (True, True, True, True, True, False, True, False, False):  # once may be an interruption of the host
        block(joined)
    with pytest.raises(Wrong, match="another CUDA stream"):
        block(joined=False)


# Cold calls and graphs


def test_cold_calls_device_only_time_and_graphs_exclude_flushing_and_launches():
    """20 kernels of 5 µs, and 35 µs for each that misses the L2. A backward call can't be captured."""
    found = columns(gpu := SimulatedCuda(launch=LAUNCH, miss=35e-6), adding(gpu, kernels=20))
    cold = dict.fromkeys(("cold_s", "cold_low", "cold_high"), 135e-6)
    assert found == pytest.approx(cold | {"hot_s": 200e-6, "device_s": 100e-6, "graph_s": 100e-6})
    assert columns(gpu, adding(gpu, kernels=20), graph=False) == pytest.approx(found | {"graph_s": None})


@pytest.mark.parametrize("why", ["it waits for the device", "the queue is full"])
def test_launches_that_cannot_be_queued_give_no_device_only_time(why):
    gpu = SimulatedCuda(launch=LAUNCH, queue=10 if why == "the queue is full" else 1024)
    kernels = adding(gpu, kernels=20)

    def call():
        output = kernels()
        if why == "it waits for the device":
            gpu.item()
        return output

    found = columns(gpu, call, graph=False)
    assert (found["device_s"], found["cold_s"]) == (None, None)


def test_long_calls_are_not_captured_and_those_that_outlast_the_cache_or_whose_cache_is_unknown_are_not_cold():
    gpu = SimulatedCuda()
    assert columns(gpu, adding(gpu, seconds=GRAPH_BELOW + 1e-5))["graph_s"] is None and not gpu.captures
    assert columns(gpu, lambda: gpu.work(COLD_BELOW - 1e-3))["cold_s"]
    assert columns(gpu, lambda: gpu.work(COLD_BELOW + 1e-3))["cold_s"] is None
    gpu = SimulatedCuda(miss=0.3, l2=0)
    assert columns(gpu, adding(gpu))["cold_s"] is None


def test_a_graph_that_leaves_too_little_memory_for_a_call_costs_no_other_column(gpu):
    add = adding(gpu)

    def call():
        if gpu.captures and not gpu.capturing:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return add()

    found = columns(gpu, call)
    assert found["graph_s"] is None and found["device_s"] and found["cold_s"]


def test_the_launch_of_a_graph_is_not_counted(gpu):
    """One kernel of 1 µs: launching its graph takes 10 µs."""
    assert columns(gpu, adding(gpu, seconds=1e-6))["graph_s"] == pytest.approx(1e-6)
    assert len(gpu.captures[0].kernels) == 50


@pytest.mark.parametrize("is_right", [True, False])
def test_every_output_of_a_graph_is_compared(gpu, is_right):
    """Of a model in decode, which returns new keys and values, too. Work on the host happens once, during the capture."""
    logits, keys = adding(gpu), adding(gpu) if is_right else lambda: torch.ones(4)
    assert columns(gpu, lambda: (logits(), keys()))["graph_s"] == (pytest.approx(2 * KERNEL) if is_right else None)
    assert gpu.captures


@pytest.mark.parametrize(
    ("forbidden", "captures"),
    [
        pytest.param(SimulatedCuda.item, 0, id="waits for the device, as is found before"),
        pytest.param(SimulatedCuda.forbidden_in_a_capture, 1, id="fails"),
    ],
)
def test_a_call_that_cannot_be_captured_has_no_graph_and_leaves_nothing_behind(forbidden, captures):
    gpu = SimulatedCuda()

    def call():
        gpu.work(KERNEL)
        forbidden(gpu)

    assert columns(gpu, call)["graph_s"] is None
    assert len(gpu.captures) == captures
    gpu.default_generators[0].draw()
    assert (gpu.current_stream(), gpu.get_sync_debug_mode(), gpu.capturing) == (gpu.default, 0, None)


def graphs(eager, **_):
    """Compile as torch does with CUDA graphs: a call's output is valid until the next one, and replays have no operators."""
    kept, captured = [], set()

    def run(*inputs, **options):
        for output in kept:
            output.data.fill_(torch.nan)
        _enable_record_function(eager.training not in captured)
        captured.add(eager.training)
        kept[:] = [eager(*inputs, **options)]
        _enable_record_function(True)
        return kept[0]

    return run


@pytest.fixture
def compiled(monkeypatch):
    monkeypatch.setattr(torch, "compile", graphs)
    for module in (calls, bench.timing.cell, requests):  # tensors here are on the CPU
        monkeypatch.setattr(module, "graphed", lambda module, case: getattr(module, "graphed", False))
    monkeypatch.setattr(bench.timing.cell, "_compile", lambda *_: {})
    monkeypatch.setattr(bench.timing.cell, "_compiled", lambda _: (0, 0, 0))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    ("name", "allocator", "peak"),
    [("sdpa", "native", 7 + 5), ("sdpa", "cudaMallocAsync", None), ("sdpa+max-autotune", "native", None)],
)
def test_a_peak_that_the_allocator_does_not_count_is_unknown(gpu, on_gpu, name, allocator, peak):
    """The trace is that of the call in which a graph is captured: a replay has no operators, which name the kernel."""
    gpu.allocator = allocator
    on_gpu.probe("x", name, Case.of(T=16, H=2, D_h=16).columns())
    meter = on_gpu._ready["x"].meter
    traced, sizes = meter.memory, iter([Memory(9, 5), Memory(7, 0)])
    with mock.patch.object(meter, "memory", lambda *of, **how: (next(sizes), *traced(*of, **how)[1:])):
        columns = on_gpu.check("x")["columns"]
    assert (columns["peak_bytes"], columns["kept_bytes"]) == (peak, peak and 5)
    assert len([*sizes]) == (peak is None)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(("dropout", "kernel"), [(0.0, "flash"), (0.1, "math")])
def test_the_kernel_is_read_where_a_graph_is_captured(on_gpu, dropout, kernel):
    on_gpu.probe("x", "sdpa+max-autotune", Case.of(T=16, H=2, D_h=16, dropout=dropout).columns())
    assert on_gpu.check("x")["columns"]["kernel"] == kernel


@pytest.mark.usefixtures("compiled")
def test_a_form_with_cuda_graphs_may_overwrite_its_last_output(tasks):
    """As torch says: outputs of earlier calls can't be read."""
    case = Case.of(T=16, H=2, D_h=16)
    tasks.probe("x", "sdpa+max-autotune", case.columns())
    tasks.check("x")
    tasks.time("x", calls=2)
    with pytest.raises(Wrong, match="share one buffer"):
        check_case(impls.get("sdpa+compile"), case)


def test_on_the_cpu_no_form_may_overwrite_its_last_output(monkeypatch):
    monkeypatch.setattr(torch, "compile", graphs)
    with pytest.raises(Wrong, match="share one buffer"):
        check_case(impls.get("sdpa+max-autotune"), Case.of(T=16, H=2, D_h=16))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    ("name", "axes", "expected"),
    [
        ("sdpa", {}, True),
        ("sdpa", {"dropout": 0.1}, False),
        ("sdpa", {"mode": "backward"}, False),
        ("sdpa+max-autotune", {}, False),
    ],
)
def test_no_graph_is_captured_of_a_graph_of_gradients_or_of_calls_that_never_agree(tasks, name, axes, expected):
    tasks.prepare("x", name, Case.of(T=16, H=2, D_h=16, **axes).columns())
    with mock.patch.object(tasks._ready["x"].meter, "more", return_value={}) as more:
        tasks.more("x", hot_s=1e-4)
    assert more.call_args.args[2] is expected


# Errors


@pytest.mark.parametrize(
    ("T", "H_kv", "device", "options"),
    [(37, 2, "meta", {"BACKEND": "TRITON"}), (37, 4, "meta", None), (32, 2, "meta", None), (37, 2, "cpu", None)],
)
def test_flex_excludes_a_kernel_without_tiles_for_grouped_heads(T, H_kv, device, options, monkeypatch):
    """Probes of grouped heads have such lengths: https://github.com/pytorch/pytorch/pull/185349."""
    called = mock.Mock()
    monkeypatch.setattr("impls.flex.flex_attention", called)
    q, k = (torch.empty(1, H, T, 16, device=device) for H in (8, H_kv))
    impls.get("flex").core(Case.of(T=T, H=8, H_kv=H_kv, D_h=16, scope="core").layer_shape)(q, k, k)
    assert called.call_args.kwargs["kernel_options"] == options


def checked_ones(gpu):
    def ones(size, device):
        gpu.work(KERNEL)
        return torch.zeros(size) + 1

    return ones


@pytest.mark.parametrize("faults", [False, True])
def test_an_illegal_access_makes_its_process_unusable(faults, monkeypatch):
    gpu = SimulatedCuda()
    monkeypatch.setattr(torch, "cuda", gpu)
    monkeypatch.setattr(torch, "ones", checked_ones(gpu))
    gpu.work(KERNEL, faults=faults)
    reply = worker._failure(torch.AcceleratorError(ILLEGAL) if faults else ValueError("no such shape"))
    assert (reply["failed"], reply["unusable"]) == ("error", faults)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        ("No CUDA GPUs are available", "--device cuda can't be used: RuntimeError: No CUDA GPUs are available"),
        ("CUDA error: out of memory", None),
    ],
)
def test_a_new_process_reports_that_its_gpu_is_lost_but_not_that_it_is_full(tasks, monkeypatch, error, why):
    lost = mock.Mock(side_effect=RuntimeError(error))
    monkeypatch.setitem(DEVICES, "cuda", replace(DEVICES["cuda"], present=lambda: True, free_bytes=lost))
    assert tasks.cases(["sdpa"], [{"device": "cuda", "H": 1, "D_h": 16}], [])["unusable"] == why
    assert [tasks.cells(["sdpa"], device)["unusable"] for device in ("cpu", "cuda")] == [None, why]


def test_a_process_without_cuda_or_whose_memory_is_full_is_usable(monkeypatch):
    gpu = SimulatedCuda(total=1 << 21)
    monkeypatch.setattr(torch, "cuda", gpu)
    monkeypatch.setattr(torch, "ones", lambda *_, **__: pytest.fail("CUDA is initialised"))
    assert cuda.works()
    gpu.work(KERNEL)
    monkeypatch.setattr(torch, "ones", lambda *_, **__: gpu.allocate(1 << 21))
    assert cuda.works()


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("Deterministic behavior was enabled with either `torch.use_deterministic_algorithms(True)` or `at::Context::"
         "setDeterministicAlgorithms(true)`, but this operation is not deterministic because it uses CuBLAS and you have "
         "CUDA >= 10.2.", "unsupported"),
        ("put_ does not have a deterministic implementation, but you set ...", "unsupported"),
        ("CUDA error: out of memory", "out_of_memory"),
        ("HIP error: out of memory", "out_of_memory"),
        ("CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`", "out_of_memory"),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "out_of_memory"),
        ("cuDNN Frontend error: [cudnn_frontend] Error: No execution plans support the graph.", "unsupported"),
        ("cuDNN Frontend error: [cudnn_frontend] Error: No valid execution plans built.", "unsupported"),
        ("out of resource: shared memory, Required: 163840, Hardware limit: 101376. Reducing block sizes or `num_stages` "
         "may help.", "unsupported"),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "error"),
        (ILLEGAL, "error"),
    ],
)  # fmt: skip
def test_messages_of_cuda(message, reason):
    outcome = classify(RuntimeError(message))
    assert outcome.reason == reason
    assert message[:60] in str(outcome)


@pytest.mark.parametrize("deterministic", [False, True])
def test_cublas_is_configured_before_the_first_product_of_a_worker_with_deterministic_cells(
    deterministic, tmp_path, monkeypatch
):
    """Torch reads the variable once: a cell without deterministic algorithms may come first."""
    begin = mock.Mock()
    monkeypatch.setattr("bench.workers.client.start", begin)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    more = ["--deterministic", "off,on"] * deterministic
    plan = plan_of(parser().parse_args(["--base-impl", "fused", "--head-impl", "sdpa", *more]), tmp_path)
    WorkerClient(Variant(), plan.setting).close()
    environment = begin.call_args.kwargs["env"]
    assert environment.get("CUBLAS_WORKSPACE_CONFIG") == (":4096:8" if deterministic else None)


def test_a_worker_uses_one_gpu_and_float32_products_despite_the_containers_setting():
    """NVIDIA's containers set the variable; torch reads both the older and the newer setting, so both must agree."""
    code = (
        "from bench.workers.tasks import Tasks; import os, torch\n"
        "assert torch.backends.cuda.matmul.fp32_precision == 'tf32'\n"
        "Tasks('.')\n"
        "print(torch.backends.cuda.matmul.fp32_precision, torch.backends.cuda.matmul.allow_tf32,"
        " os.environ['CUDA_VISIBLE_DEVICES'])"
    )
    given = {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1", "CUDA_VISIBLE_DEVICES": "3,1"}
    assert python("-c", code, env=os.environ | given).stdout == "ieee False 3\n"


@pytest.mark.parametrize(
    ("visible", "one"),
    [
        ({}, {"CUDA_VISIBLE_DEVICES": "0"}),
        ({"CUDA_VISIBLE_DEVICES": "MIG-abc"}, {"CUDA_VISIBLE_DEVICES": "MIG-abc"}),
        ({"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": ""}),
        ({"HIP_VISIBLE_DEVICES": "2,3"}, {"HIP_VISIBLE_DEVICES": "2"}),
    ],
)
def test_the_gpu_that_is_timed_is_visible_and_no_second_one(visible, one, monkeypatch):
    """Work on another GPU would not be synchronised."""
    monkeypatch.setattr(os, "environ", dict(visible))
    cuda.see_one_gpu()
    assert os.environ == one


def test_rocm_is_measured_as_far_as_torch_has_its_api_and_says_what_it_lacks(monkeypatch):
    class Instinct(SimulatedCuda):
        def empty(self, size, dtype, device):
            """Twice the size of the L2 would fit into the cache behind it."""
            return super().empty(0 if size < 512 << 20 else size, dtype, device)

    gpu = Instinct(launch=LAUNCH, miss=35e-6, l2=4 << 20)
    monkeypatch.setattr(torch.version, "hip", "7.1")
    monkeypatch.setattr(cuda, "opened", Nvml)
    monkeypatch.setattr(nvml, "opened", Nvml)
    monkeypatch.setitem(DEVICES, "cuda", replace(DEVICES["cuda"], present=lambda: True))
    monkeypatch.setattr(torch, "cuda", gpu)
    assert cuda.identity() == {"gpu": "GPU 1", "driver": "unknown, ROCm 7.1"}
    found = columns(gpu, adding(gpu, kernels=20))
    assert (found["cold_s"], found["graph_s"]) == pytest.approx((135e-6, 100e-6))
    assert meter_of(gpu).sensors() is None
    assert "ROCm: no clocks, power, temperature or throttling" in str(progress.unverified("cuda"))


# Memory


def test_memory_that_the_allocator_keeps_is_free_and_that_of_others_is_not(monkeypatch):
    gpu = SimulatedCuda(total=1000_000_000, others=100_000_000)
    monkeypatch.setattr(torch, "cuda", gpu)
    gpu.work(KERNEL, allocates=600_000_000)
    assert cuda.free_bytes() == 900_000_000 - gpu.allocated


# One process at a time


def test_one_worker_at_a_time_has_a_gpu_and_this_process_has_none(monkeypatch):
    """Kernels tuned beside other work are tuned for a busy device, and exclusive mode allows one process only."""
    monkeypatch.setitem(DEVICES, "cuda", replace(DEVICES["cuda"], free_bytes=lambda: pytest.fail("a context")))
    asked = mock.Mock(return_value=mock.Mock(stdout=b"1000000000\n"))
    monkeypatch.setattr("bench.timing.devices.subprocess.run", asked)
    cases = [Case.of(T=T, H=1, D_h=8, device="cuda") for T in (16, 32)]
    cells = [Cell(impls.get("fused"), case) for case in cases] * 9
    run = SimpleNamespace(selection=SimpleNamespace(device="cuda"), processes=3, timing={"cell_time": 0.25}, seed=0)
    measuring = Measuring(run, cells, lambda: pytest.fail("no process"))
    assert measuring._batches() == [[0], [1], [2]]
    assert asked.call_args.args[0][2].endswith("print(free_bytes('cuda'))")
    printed = b"torch.AcceleratorError: CUDA error: all CUDA-capable devices are busy or unavailable\nSearch for ...\n"
    asked.side_effect = CalledProcessError(1, "python", stderr=b"Traceback ...\n" + printed)
    with pytest.raises(
        UsageError, match=r"^--device cuda can't be used: CUDA error: all CUDA-capable devices are busy"
    ):
        Measuring(run, cells, lambda: pytest.fail("no process"))


def test_the_roofline_of_a_gpu_is_measured_in_a_worker_and_marks_what_is_above(on_gpu, monkeypatch):
    """Decode reads only, and tensor cores may compute float32: a row above 1 is no measurement error."""
    case = Case.of(T=16, H=1, D_h=16, device="cuda")
    on_gpu.prepare("x", "sdpa", replace(case, device="cpu").columns())
    on_gpu._ready["x"].cell = Cell(impls.get("sdpa"), case)
    monkeypatch.setattr(Rooflines, "_peak_flops", lambda self, *of: self._best.setdefault((*of[:2], 1), 1e6))
    monkeypatch.setattr(Rooflines, "_peak_bytes", lambda self, *of: 1e6)
    more = on_gpu.more("x", hot_s=1e-4)
    assert more["roof"] > 1
    assert {ceiling["device"] for ceiling in more["rooflines"]} == {"cuda"}


def test_a_gpu_has_its_own_reference_workload(gpu, tasks, monkeypatch):
    kernels = {"gpu product": 1e-4, "gpu copy": 4e-5, "gpu launch": 1e-6}
    work = {name: lambda seconds=seconds: lambda: gpu.work(seconds) for name, seconds in kernels.items()}
    assert reference_workload.GPU_WORK.keys() == kernels.keys() <= reference_workload.software().keys()
    monkeypatch.setattr(reference_workload, "GPU_WORK", work)
    monkeypatch.setattr(reference_workload, "meter_for", lambda device: meter_of(gpu))
    assert tasks.gpu_workloads() == pytest.approx(kernels | {"gpu launch": LAUNCH})


# NVML


def test_a_mig_instance_reports_the_sensors_of_its_gpu():
    """Its UUID has another format, and NVML supports no clocks of its handle."""
    whole, part = (Nvml(SimulatedNvml(SimulatedCuda(), kind=kind)) for kind in ("GPU", "MIG"))
    assert part.of(UUID) == whole.of(UUID)


def test_a_power_cap_between_two_readings_is_seen():
    gpu = SimulatedCuda()
    reader = Nvml(SimulatedNvml(gpu, capped=True))
    assert [reading.reasons for reading in (reader.of(UUID), reader.of(UUID)) if reading] == [IDLE, IDLE]
    gpu.work(1.0)
    gpu.synchronize()
    reading = reader.of(UUID)
    assert reading is not None and reading.throttled == "power cap"


def test_the_bits_are_those_of_nvml():
    pynvml = pytest.importorskip("pynvml")
    names = {
        "GpuIdle": "idle", "ApplicationsClocksSetting": "application clocks", "SwPowerCap": "power cap",
        "HwSlowdown": "hardware slowdown", "SyncBoost": "sync boost", "SwThermalSlowdown": "software thermal slowdown",
        "HwThermalSlowdown": "hardware thermal slowdown", "HwPowerBrakeSlowdown": "power brake",
        "DisplayClockSetting": "display clocks",
    }  # fmt: skip
    assert {getattr(pynvml, f"nvmlClocksEventReason{name}"): word for name, word in names.items()} == nvml.REASONS
    assert words(pynvml.nvmlClocksEventReasonSwPowerCap | 0x4000) == ["power cap", "0x4000"]


def test_without_nvml_there_are_no_readings(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    nvml.opened.cache_clear()
    try:
        absent = nvml.opened()
        assert (absent.all(), absent.state(), absent.driver(), absent.of(UUID)) == ([], [], None, None)
        assert machine.fingerprint()["gpu"] == (torch.cuda.get_device_name() if torch.cuda.is_available() else None)
    finally:
        nvml.opened.cache_clear()


def test_the_state_of_a_machine_holds_its_gpus(monkeypatch):
    gpu = SimulatedCuda()
    gpu.work(1.0)
    reader = Nvml(SimulatedNvml(gpu, HOT | IDLE))
    (reading,) = reader.all()
    assert reading == reader.of(UUID) and reading.reasons & HELD_BACK == HOT
    assert reading.throttled == "software thermal slowdown"
    assert reader.of("of-somebody-else") is None
    monkeypatch.setattr(nvml, "opened", lambda: reader)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")  # as a scheduler's jobs have another one each
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    (found,), variables = machine.state().values()
    assert variables["CUDA_LAUNCH_BLOCKING"] == "1" and "CUDA_VISIBLE_DEVICES" not in variables
    assert found == {
        "sm_mhz": 1755, "sm_mhz_most": 1980, "power_w": 612.5, "temperature_c": 61, "busy_percent": 3,
        "reasons": ["idle", "software thermal slowdown"], "uuid": f"GPU-{UUID}", "sm_mhz_chosen": 1500, "memory_mhz": 2619,
        "power_limit_w": 700.0, "compute_mode": 0, "mig": True,
    }  # fmt: skip


def test_a_worker_reports_the_state_of_its_gpu(gpu, on_gpu):
    on_gpu.prepare("x", "sdpa", Case.of(T=16, H=2, D_h=16, mode="backward", mask="none").columns())
    gpu.host += 1.0
    columns = on_gpu.time("x", calls=2, warm=1)["columns"]
    assert columns == {"sm_mhz": 1755, "power_w": 612.5, "temperature_c": 61, "throttled": "power cap"}
    assert not on_gpu.time("x", calls=2, warm=1)["columns"]  # no reading since then
    gc.unfreeze()


ON_A_DEVICE = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.cuda
@ON_A_DEVICE
@pytest.mark.parametrize("wait", [lambda x: x.sum().item(), lambda x: torch.cuda.synchronize()])
def test_a_capture_that_fails_on_a_device_leaves_it_usable(wait):
    x, total = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")
    stream = torch.cuda.current_stream()
    assert captured(torch.cuda, lambda: wait(x + 1), 1) is None
    assert torch.cuda.current_stream() == stream
    assert torch.randn(4, device="cuda").isfinite().all() and cuda.works()
    graph, *_ = captured(torch.cuda, lambda: total.add_(x), 3)
    total.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert total.tolist() == [3.0] * 4


STARTING = (script.cuda_tests, script.tuning, script.injected)
"""Steps that start processes: `python -m tests.experiments.gpu OUT --rehearse` rehearses them, too."""


@pytest.mark.parametrize("work", [work for work in script.STEPS if work not in STARTING])
def test_steps_of_the_gpu_script_run_on_the_simulated_gpu(work, tmp_path, in_process, suite, monkeypatch):
    def command(lab, *arguments, most, fine):
        suite(*arguments[4:], fine=fine)

    monkeypatch.setattr(script.Lab, "command", command)
    work(script.Lab(tmp_path, rehearsal=True, until=monotonic() + 60))


def crashing(lab):
    faulthandler._sigsegv()


def test_a_step_of_the_gpu_script_that_crashes_leaves_the_place(tmp_path):
    row = script.step(crashing, tmp_path, True, monotonic() + 60)
    assert (row["result"], row["figure"]) == ("fail", "its process ended with exit code -11")
    assert f"line {crashing.__code__.co_firstlineno + 1} in crashing" in (tmp_path / "stderr.txt").read_text()


def test_the_gpu_script_keeps_rows_of_earlier_commands_and_names_steps_without_time(tmp_path, monkeypatch):
    def steps(names, *options):
        code = script.main([str(tmp_path), "--rehearse", "--steps", names, *options])
        return code, [line.split(",")[:2] for line in (tmp_path / "steps.csv").read_text().splitlines()[1:]]

    passed = {"result": "pass", "seconds": 1.0, "figure": ""}
    monkeypatch.setattr(script, "step", lambda work, *_: {"step": work.__name__} | passed)
    assert steps("cold,clocks") == (0, [["clocks", "pass"], ["cold", "pass"]])
    assert steps("clocks,memory", "--minutes", "0") == (1, [["clocks", "late"], ["cold", "pass"], ["memory", "late"]])
    with pytest.raises(SystemExit):
        steps("cold,clock")


def test_products_that_cublas_may_split_are_not_judged_by_narrow_sums():
    """On the CPU torch's products have no parts: the kernel splits them where cuBLAS may."""

    def split(q, k, v):
        probs, half = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1), k.shape[-2] // 2
        if torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction:
            return probs[..., :half] @ v[..., :half, :] + probs[..., half:] @ v[..., half:, :]
        return probs @ v

    case = Case.of(T=513, H=1, D_h=16, dtype="bfloat16", mask="none", scope="core")
    check_sums(impls.make("split_by_cublas", split), case)


# TF32


class Rounded(TorchFunctionMode):
    """Products of inputs rounded to this many bits, as tensor cores round float32 to 10."""

    PRODUCTS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm, torch.nn.functional.linear)

    def __init__(self, bits):
        super().__init__()
        self.dropped = 23 - bits

    def round(self, x):
        if not isinstance(x, torch.Tensor) or x.dtype != torch.float32:
            return x
        nearest = (x.detach().view(torch.int32) + (1 << self.dropped - 1)) & -(1 << self.dropped)
        return x + (nearest.view(torch.float32) - x.detach()).nan_to_num()  # gradients as of x

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*(map(self.round, args) if func in self.PRODUCTS else args), **kwargs or {})


@pytest.mark.parametrize(("mode", "scope"), [("forward", "core"), ("backward", "layer")])
def test_tf32_is_judged_by_what_it_rounds(mode, scope, monkeypatch):
    case = Case.of(T=48, H=2, D_h=16, mode=mode, scope=scope)
    monkeypatch.setattr(settings, "tf32_products", lambda tf32: Rounded(bits=10) if tf32 else nullcontext())
    check_case(impls.get("fused"), case)
    check_case(impls.get("fused"), replace(case, tf32=True))

    def coarse(q, k, v, **options):
        with Rounded(bits=bits):
            return impls.get("fused").kernel(q, k, v, **options)

    bits = 10
    check_case(impls.make("coarse", coarse), replace(case, tf32=True))
    with pytest.raises(Wrong):
        check_case(impls.make("coarse", coarse), case)
    bits = 6
    with pytest.raises(Wrong):
        check_case(impls.make("coarse", coarse), replace(case, tf32=True))


def test_tf32_is_set_for_calls_alone():
    """Both by torch's newer API and by its older one."""
    products, case = torch.backends.cuda.matmul, Case.of(T=16, H=2, D_h=16)
    for tf32 in (False, True, False):
        with recording(replace(case, tf32=tf32)):
            assert (products.fp32_precision == "tf32", products.allow_tf32) == (tf32, tf32)
        assert (products.fp32_precision == "tf32", products.allow_tf32) == (False, False)


@pytest.mark.parametrize("axes", [{"device": "cpu"}, {"dtype": "bfloat16"}, {"autocast": "bfloat16"}])
def test_tf32_is_of_float32_on_a_gpu(axes):
    case = Case.of(T=16, H=2, D_h=16, device="cuda", tf32=True)
    assert misfit(case) is None
    assert "--tf32 needs --device cuda and --dtype float32" in str(misfit(replace(case, **axes)))
