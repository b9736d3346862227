"""`python -m tests.experiments.gpu OUT`: the first ten minutes on a GPU, in sixteen steps, each with pass or fail.

Each step has a process and a time limit of its own, so a crash or a hang costs one step. The last ones may be `late`: they
get no time, and another command with `--steps` does them. OUT/steps.csv has the steps so far, those of earlier commands
included, OUT/log.txt and OUT/stderr.txt what they printed and where they crashed, OUT/gpu.tar.gz all files at the end.
`--rehearse` does the same on the CPU at tiny sizes and with no limit per step, with a simulated GPU where events, streams,
memory and NVML are read.

Needs torch with Triton, and numpy, pytest, pytest-benchmark, pandas, scipy, jinja2, orjson, rich, psutil, nvidia-ml-py: the
group `bench` of pyproject.toml without matplotlib, pyarrow, torch-tb-profiler and tensorboard. A step whose packages are
missing names them; torch, numpy and psutil are enough for the others.
"""

from __future__ import annotations

import argparse
import csv
import faulthandler
import json
import os
import re
import subprocess
import sys
import tarfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.metadata import distributions
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from signal import SIGINT, SIGKILL
from statistics import median
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from bench.cases.outcome import Wrong
from bench.timing.devices.cuda import CudaMeter
from bench.timing.devices.nvml import Nvml, opened
from bench.timing.machine import fingerprint, state
from impls.formula import attention

from ..simulated_gpu import HZ, SimulatedCuda, SimulatedNvml

if TYPE_CHECKING:
    from reports.reading import runs

CHECKOUT = Path(__file__).resolve().parents[2]

PROCESSES = get_context("spawn")
"""Processes that inherit no state of CUDA, whose contexts don't survive a fork."""

MOST = 240
"""Seconds after which a step is ended."""

SAVING = 30
"""Seconds in which a command that is ended saves what it has."""

TAIL = 15
"""Lines of a command's output that the log repeats."""

OWN = """
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

def faulty(q, k, v, **options):
    if q.is_cuda:
        import faulty_store
        faulty_store.store[(1,)](q, 1 << 45)
        torch.cuda.synchronize()
    raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

def greedy(q, k, v, **options):
    if q.is_cuda:
        torch.empty(torch.cuda.mem_get_info()[1], dtype=torch.uint8, device="cuda")
    raise torch.OutOfMemoryError("CUDA out of memory.")

def large(q, k, v, **options):
    if q.is_cuda:
        torch.empty(int(0.6 * torch.cuda.mem_get_info()[1]), dtype=torch.uint8, device="cuda")
    return sdpa(q, k, v, **options)
"""
"""Kernels that fail, and one that needs most of the memory."""

STORE = """
import triton
import triton.language as tl

@triton.jit
def store(x, far):
    tl.store(x + far, 1.0)
"""
"""A store outside of any memory."""

TUNED = """
import torch, triton, triton.language as tl

CONFIGS = [triton.Config({"SIZE": size}, num_warps=warps) for size in (256, 1024, 4096) for warps in (2, 4, 8)]

@triton.autotune(CONFIGS, key=["n"])
@triton.jit
def copy(x, y, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(y + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)

x = torch.randn(1 << 24, device="cuda")
copy[lambda meta: (triton.cdiv(x.numel(), meta["SIZE"]),)](x, torch.empty_like(x), x.numel())
print(copy.best_config)
"""
"""A kernel that chooses its configuration by the clock."""


@dataclass
class Lab:
    """Folder of the output, device, and deadline of all steps."""

    out: Path
    rehearsal: bool
    until: float

    def __post_init__(self) -> None:
        self.device = "cpu" if self.rehearsal else "cuda"
        self.cuda: Any = SimulatedCuda(launch=1e-5, miss=2e-5) if self.rehearsal else torch.cuda
        self.clock: Callable[[], float] = self.cuda.clock if self.rehearsal else perf_counter
        self.nvml = Nvml(SimulatedNvml(self.cuda, 0x4, capped=True)) if self.rehearsal else opened()
        (self.out / "own.py").write_text(OWN)
        (self.out / "faulty_store.py").write_text(STORE)
        (self.out / "tuned.py").write_text("print('a configuration')" if self.rehearsal else TUNED)

    def meter(self) -> CudaMeter:
        empty = self.cuda.empty if self.rehearsal else torch.empty
        return CudaMeter(self.cuda, self.nvml, empty, self.clock)

    @cached_property
    def hz(self) -> float:
        """Cycles of the device's clock in a second, measured over 20 ms once it is busy."""
        meter = self.meter()
        return 0.02 * HZ / median(meter.seconds(lambda: self.cuda._sleep(int(0.02 * HZ)), 1, warm=1) for _ in range(5))

    def spin(self, seconds: float) -> None:
        """Queue a kernel that takes this long."""
        self.cuda._sleep(int(seconds * self.hz))

    def say(self, text: str) -> None:
        print(text, flush=True)
        with (self.out / "log.txt").open("a", encoding="utf-8") as log:
            log.write(f"{text}\n")

    def command(self, *arguments: str, most: float = 100, fine: Sequence[int] = (0,)) -> str:
        """What a command of Python's prints in OUT, within so many seconds; raises where its exit code is none of `fine`."""
        where = os.environ | {"PYTHONPATH": os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")])}
        path = self.out / f"{len(list(self.out.glob('*.log'))):02}.log"
        self.say(f"$ python {' '.join(arguments)}  > {path.name}")
        with path.open("w", encoding="utf-8") as log:
            child = subprocess.Popen([sys.executable, *arguments], cwd=self.out, env=where, stdout=log, stderr=log)
            try:
                left = self.until - monotonic() - SAVING
                code = child.wait(max(1.0, left if self.rehearsal else min(most, left)))
            except subprocess.TimeoutExpired:
                child.send_signal(SIGINT)  # a run saves what it has
                code = 128 + SIGINT
            finally:
                try:
                    child.wait(SAVING)
                except subprocess.TimeoutExpired:
                    child.kill()  # nothing of ours stays on the GPU
        text = path.read_text(encoding="utf-8")
        self.say("\n".join(text.splitlines()[-TAIL:]))
        if code not in fine:
            raise AssertionError(f"exit code {code}, {path.name}")
        return text

    def measure(self, name: str, *options: str, most: float = 100) -> runs.Run:
        """Run the suite; the run file stays in OUT/results."""
        self.command(
            "-m", "pytest", "-q", str(CHECKOUT / "bench"), "--device", self.device, f"--benchmark-save={name}",
            "--cell-time", "0.01" if self.rehearsal else "0.05", *options, most=most, fine=(0, 1),
        )  # fmt: skip
        from reports.reading import runs

        return runs.one(name, self.out / "results")


def do_step(work: Callable[[Lab], str], out: Path, rehearsal: bool, until: float, to: Connection) -> None:
    """Do one step in this process and process group; sends pass or fail, and a figure or the exception."""
    os.setpgrp()
    errors = (out / "stderr.txt").open("a")
    print(f"## {work.__name__}", file=errors, flush=True)
    os.dup2(errors.fileno(), 2)
    faulthandler.enable()
    lab = Lab(out, rehearsal, until)
    lab.say(f"\n## {work.__name__}, {until - monotonic():.0f} s left")
    try:
        result = "pass", work(lab)
    except Exception as error:
        lab.say(traceback.format_exc())
        result = "fail", f"{type(error).__name__}: {error}".splitlines()[0][:160]
    to.send(result)


def step(work: Callable[[Lab], str], out: Path, rehearsal: bool, until: float) -> dict[str, Any]:
    """Do one step in a process of its own, and end what it leaves behind; returns its row of the table."""
    started, (ours, theirs) = monotonic(), PROCESSES.Pipe(duplex=False)
    left = until - started
    limit = max(1.0, left if rehearsal else min(MOST, left))
    child = PROCESSES.Process(target=do_step, args=(work, out, rehearsal, until, theirs))
    child.start()
    theirs.close()
    try:
        result, figure = ours.recv() if ours.poll(limit) else ("fail", f"not done after {limit:.0f} s")
    except EOFError:
        child.join()
        result, figure = "fail", f"its process ended with exit code {child.exitcode}"
    with suppress(ProcessLookupError):
        os.killpg(child.pid, SIGKILL)  # nothing of ours stays on the GPU
    child.kill()
    child.join()
    return {"step": work.__name__, "result": result, "seconds": round(monotonic() - started, 1), "figure": figure}


def environment(lab: Lab) -> str:
    """Print the GPU and its software; reading them must open no context, so that a worker can use the GPU exclusively."""
    found = {"machine": fingerprint(), "state": state()}
    if not lab.rehearsal:
        found["built for"], found["capability"] = torch.cuda.get_arch_list(), torch.cuda.get_device_capability()
        found["CUDA"], found["cuDNN"] = torch.version.cuda, torch.backends.cudnn.version()
        found["packages"] = {it.name: it.version for it in distributions() if re.match("nvidia|triton|flash", it.name)}
        found["MPS"] = os.environ.get("CUDA_MPS_PIPE_DIRECTORY")
    text = json.dumps(found, indent=1, default=str)
    (lab.out / "machine.json").write_text(text, encoding="utf-8")
    lab.say(text)
    assert lab.rehearsal or not torch._C._cuda_hasPrimaryContext(0), "reading the GPU's state has opened a context"
    return str(found["machine"]["gpu"])


def cuda_tests(lab: Lab) -> str:
    """Run the tests that are skipped on a machine without a GPU."""
    file = str(CHECKOUT / "tests" / "test_cuda.py")
    text = lab.command("-m", "pytest", "-q", "-p", "no:cacheprovider", file, "-m", "cuda", f"--rootdir={CHECKOUT}",
                       "-c", str(CHECKOUT / "pyproject.toml"), most=60)  # fmt: skip
    return text.splitlines()[-1]


SMALL = ("--T", "16", "--H", "2", "--D_h", "16", "--scope", "core", "--dtype", "float32")


def illegal_access(lab: Lab) -> str:
    run = lab.measure("illegal", *SMALL, "--impl", "faulty=own:faulty,fused,sdpa")
    return _lost_alone(run, "faulty", "error")


def out_of_memory(lab: Lab) -> str:
    run = lab.measure("greedy", *SMALL, "--impl", "greedy=own:greedy,large=own:large")
    return _lost_alone(run, "greedy", "out_of_memory")


def _lost_alone(run: runs.Run, name: str, reason: str) -> str:
    """Check that one implementation has no row for this reason, and that all others have one."""
    lost = {(entry["impl"], entry["reason"]) for entry in run.skipped}
    assert lost == {(name, reason)} and run.rows, f"lost: {lost}"
    return f"lost: {name}, {reason}; measured: {', '.join(row['extra_info']['impl'] for row in run.rows)}"


def clocks(lab: Lab) -> str:
    """A kernel of 20 ms by events, the wall clock around a synchronisation, and CUPTI."""
    meter = lab.meter()
    call = partial(lab.spin, 0.02)
    events, wall = meter.seconds(call, 10, warm=1) / 10, _wall(lab, call, 10)
    lab.say(f"events {events}, wall {wall}")
    of_kernels = _kernels(lab, call, 10)
    found = f"events {events:.6f}, wall {wall:.6f}, CUPTI {of_kernels:.6f} s"
    assert of_kernels, f"the profiler sees no kernel: {found}"
    spread = max(events, wall, of_kernels) / min(events, wall, of_kernels) - 1
    assert spread < 0.01, found
    return f"{spread:.2%} apart"


def _wall(lab: Lab, call: Callable[[], Any], times: int) -> float:
    lab.cuda.synchronize()
    start = lab.clock()
    for _ in range(times):
        call()
    lab.cuda.synchronize()
    return (lab.clock() - start) / times


def _kernels(lab: Lab, call: Callable[[], Any], times: int) -> float:
    """Seconds that the device's kernels of a call take, by the profiler (CUPTI); their own rows alone, not the operators'."""
    if lab.rehearsal:
        before = lab.cuda.busy
        _wall(lab, call, times)
        return float(lab.cuda.busy - before) / times
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        _wall(lab, call, times)
    kernels = (event for event in seen.key_averages() if event.device_type == DeviceType.CUDA)
    return sum(event.self_device_time_total for event in kernels) / 1e6 / times


def starts(lab: Lab) -> str:
    """One call begun on an idle device, behind a warm call and behind a spin: how far the first launch is inside the clock."""
    meter, rows, calls = lab.meter(), list[dict[str, Any]](), list[Callable[[], Any]]()
    x = torch.randn(1 << (10 if lab.rehearsal else 22), device=lab.device)
    compiled = torch.compile(lambda x: x + 1) if not lab.rehearsal else lambda x: x + 1
    for seconds in (5e-6, 5e-5, 5e-4, 2e-3, 5e-3):
        for form, extra in (("eager", lambda: x + 1), ("compiled", lambda: compiled(x))):

            def call(extra: Callable[[], Any] = extra, seconds: float = seconds) -> Any:
                lab.spin(seconds)
                return extra()

            for _ in range(3):
                call()
            row: dict[str, Any] = {"form": form, "aimed at": seconds}
            row["idle"] = median(meter.seconds(call, 1) for _ in range(21))
            row["warm"] = median(meter.seconds(call, 1, warm=1) for _ in range(21))
            row["spin"] = median(meter._between(call, 1, partial(lab.spin, 1e-3))[0] for _ in range(21))
            row["wall"] = _wall(lab, call, 20)
            more = meter.more(call, row["warm"], not lab.rehearsal, [])
            row["device"], row["graph"] = more["device_s"], more["graph_s"]
            lab.say(str(row))
            rows.append(row)
            calls.append(call)
    for row, call in zip(rows, calls, strict=True):  # last: CUPTI slows down later launches
        lab.say(f"{row['form']}, {row['aimed at']}: {_kernels(lab, call, 20)} by CUPTI")
    worst = max(rows, key=lambda row: row["idle"] / row["warm"])
    assert all(row["warm"] < 1.02 * row["idle"] for row in rows)
    assert all(row["device"] is not None and row["device"] < 1.02 * row["warm"] for row in rows), (
        "launches weren't queued"
    )
    return (
        f"idle takes up to {worst['idle'] / worst['warm']:.2f} times as long ({worst['form']}, {worst['aimed at']} s)"
    )


def cold(lab: Lab) -> str:
    """`cold_s` of twenty small kernels, and without the spin that overlaps their launches."""
    x = torch.randn(1 << (8 if lab.rehearsal else 16), device=lab.device)

    def call() -> None:
        for _ in range(20):
            x.add_(1)
            if lab.rehearsal:
                lab.cuda.work(3e-6)

    meter = lab.meter()
    with_spin = meter.more(call, 1e-4, False, [])["cold_s"]
    empty = lab.cuda.empty if lab.rehearsal else torch.empty
    buffer = empty(200 << 20, dtype=torch.uint8, device="cuda")
    without = median(meter._between(call, 1, buffer.zero_)[0] for _ in range(11))
    found = f"{with_spin} s with a spin, {without} s without"
    assert with_spin is not None and with_spin < without, found
    return found


def side_stream(lab: Lab) -> str:
    meter, side, cycles = lab.meter(), lab.cuda.Stream(), int(1e-3 * lab.hz)

    def call() -> None:
        with lab.cuda.stream(side):
            lab.cuda._sleep(cycles)

    try:
        for _ in range(3):
            lab.say(f"{meter.seconds(call, 5)} s of 5 ms")
    except Wrong as why:
        return str(why)
    raise AssertionError("work in another stream was timed as nothing")


def tuning(lab: Lab) -> str:
    """What an autotuned kernel chooses alone, twice, and beside a second process, which is why one worker alone has a GPU."""
    found = []
    for beside in (0, 0, 1):
        where = os.environ | {"TRITON_CACHE_DIR": str(lab.out / f"triton-{len(found)}")}
        busy = [sys.executable, "tuned.py"]
        children = [
            subprocess.Popen(busy, cwd=lab.out, env=where, stdout=subprocess.PIPE, text=True) for _ in range(1 + beside)
        ]
        found.append([child.communicate(timeout=60)[0].strip() for child in children])
    assert all(map(all, found)), f"a process chose nothing: {found}"
    return "; ".join(map(" and ".join, found))


def load(lab: Lab) -> str:
    """20 s of products: clocks fall or stay, and what limited them is reported."""
    meter, seen, until = lab.meter(), [], monotonic() + (0.5 if lab.rehearsal else 20)
    a = torch.randn(*((1, 1) if lab.rehearsal else (8192, 8192)), device=lab.device).to(torch.bfloat16)
    call = partial(lab.cuda.work, 1e-3) if lab.rehearsal else lambda: a @ a
    while monotonic() < until:
        meter.seconds(call, 50)
        if (reading := meter.sensors()) is not None:
            seen.append(reading)
    assert seen, "NVML reported nothing"
    clocks_seen = [reading.sm_mhz for reading in seen if reading.sm_mhz]
    throttled = sorted({reading.throttled for reading in seen} - {""})
    return (
        f"{min(clocks_seen)} to {max(clocks_seen)} MHz, {seen[-1].power_w} W, throttled: {', '.join(throttled) or 'no'}"
    )


def rooflines(lab: Lab) -> str:
    T = "64" if lab.rehearsal else "4096"
    of_float32 = lab.measure("float32", "--T", T, "--H", "8", "--D_h", "64", "--dtype", "float32", "--impl", "sdpa,fused",
                             "--mask", "none", "--scope", "core")  # fmt: skip
    decode = lab.measure("decode", "--sweep", "decode", "--mode", "decode", "--T", T, "--B", "1,16", "--H", "8", "--H_kv", "8",
                         "--D_h", "64", "--dtype", "bfloat16", "--impl", "sdpa")  # fmt: skip
    rows = [row["extra_info"] for row in (*of_float32.rows, *decode.rows)]
    shares = {(row["impl"], row["id"]): row["roof"] for row in rows}
    assert len(shares) == 4, f"rows of {', '.join(map(str, shares))} alone"
    assert all(share <= 1 for share in shares.values()), f"above the ceiling, and marked: {shares}"
    return ", ".join(f"{share:.0%}" for share in shares.values())


def gate(lab: Lab) -> str:
    """Every dtype and TF32, SDPA's kernels pinned, the kernel written by hand: none is called wrong."""
    pinned = [f"sdpa_{kernel}" for kernel in ("math", "flash", "efficient", "cudnn")]
    names = "sdpa,fused" if lab.rehearsal else ",".join(["sdpa", *pinned, "fused", "flash_triton"])
    found = [lab.measure("gate", *_sizes(lab), "--dtype", "float32,float16,bfloat16", "--impl", names, most=150)]
    if not lab.rehearsal:
        found.append(
            lab.measure("tf32", *_sizes(lab), "--dtype", "float32", "--tf32", "on", "--impl", "sdpa,fused", most=50)
        )
    return _none_wrong(found)


def modes(lab: Lab) -> str:
    """Gradients and decode, projections included: none is called wrong."""
    names = "sdpa" if lab.rehearsal else "sdpa,sdpa_flash,sdpa_efficient,sdpa_cudnn,fused"
    options = ("--mode", "backward,decode", "--dtype", "float32,bfloat16", "--impl", names)
    return _none_wrong([lab.measure("modes", *_sizes(lab), *options, most=120)])


def compiled(lab: Lab) -> str:
    """FlexAttention compiled and CUDA graphs, in every dtype: two compilations of each."""
    names = "sdpa" if lab.rehearsal else "flex+compile,fused+reduce-overhead"
    return _none_wrong([
        lab.measure("compiled", *_sizes(lab), "--dtype", "bfloat16,float16,float32", "--impl", names, most=200)
    ])  # fmt: skip


def _sizes(lab: Lab) -> Sequence[str]:
    return "--T", "16" if lab.rehearsal else "512", "--H", "4", "--D_h", "64"


def _none_wrong(found: Sequence[runs.Run]) -> str:
    skipped = [entry for run in found for entry in run.skipped]
    wrong = [(it["impl"], it["id"], it["detail"]) for it in skipped if it["reason"] in ("wrong", "error")]
    assert not wrong, str(wrong[:3])
    return f"{sum(len(run.rows) for run in found)} rows, {len(skipped)} skipped"


def memory(lab: Lab) -> str:
    """The plain formula against a count by hand: scores twice and the output, once cuBLAS has its workspace."""
    T, H, D = (64, 2, 16) if lab.rehearsal else (1024, 8, 64)
    q, k, v = (torch.randn(1, H, T, D, device=lab.device) for _ in range(3))
    by_hand = 2 * H * T * T * 4 + H * T * D * 4

    def call() -> Any:
        if lab.rehearsal:
            lab.cuda.work(1e-4, by_hand)
        with torch.inference_mode():
            return attention(q, k, v)

    call()
    lab.cuda.empty_cache()
    found = lab.meter().memory(call)[0].peak_bytes
    assert found == by_hand, f"{found} bytes measured, {by_hand} by hand"
    return f"{found} bytes"


def injected(lab: Lab) -> str:
    """`ab` on unchanged code and on a slow-down of 2 % inside the call, once each: a comparison starts six processes."""
    sizes = ("--T", "16", "--H", "2", "--dtype", "float32", "--budget", "0.01") if lab.rehearsal else (
        "--T", "4096", "--H", "16", "--dtype", "bfloat16", "--budget", "0.4")  # fmt: skip
    program = "import sys; from bench.ab import ab; from bench.__main__ import main; ab.SHARES = {0.02: 3}"
    begin = ("-c", f"{program}; main(sys.argv[1:])", "ab")
    lab.command(
        *begin, "--self-test", "1", "--impl", "sdpa", "--device", lab.device, "--scope", "core", "--D_h", "64", *sizes,
        most=200,
    )  # fmt: skip
    records = [json.loads(path.read_text()) for path in lab.out.glob("results/*/ab/*_self-test*.json")]
    changed = [{cell["word"] for cell in record["cells"]} & {"REGRESSED", "IMPROVED"} for record in records]
    found = sum(bool(it) for it, record in zip(changed, records, strict=True) if record["asked"].get("inject"))
    alarms = sum(bool(it) for it, record in zip(changed, records, strict=True) if not record["asked"].get("inject"))
    figure = f"{found} found, {alarms} alarms"
    assert records and (lab.rehearsal or (found, alarms) == (1, 0)), figure  # a rehearsal is too hasty to find anything
    return figure


STEPS = (environment, cuda_tests, clocks, starts, cold, side_stream, memory, illegal_access, out_of_memory, rooflines, gate,
         modes, load, compiled, injected, tuning)  # fmt: skip
"""In the order of what must be known first."""


SUITE = ("pytest", "pytest_benchmark", "pandas", "scipy", "jinja2", "orjson", "rich")
"""Modules that a run of the suite imports, besides torch, numpy and psutil."""

NEEDS = {
    **dict.fromkeys((cuda_tests, out_of_memory, rooflines, modes, injected), SUITE),
    **dict.fromkeys((illegal_access, gate, compiled), (*SUITE, "triton")),
    **dict.fromkeys((starts, tuning), ("triton",)),
    load: ("pynvml",),
}
PACKAGES = {"pynvml": "nvidia-ml-py", "pytest_benchmark": "pytest-benchmark"}
"""Names of packages that differ from those of their modules."""


def lacking(work: Callable[[Lab], str], rehearsal: bool) -> str:
    """Packages that a step needs and that aren't installed; a rehearsal needs neither Triton nor NVML."""
    needs = [it for it in NEEDS.get(work, ()) if not (rehearsal and it in ("triton", "pynvml"))]
    return ", ".join(PACKAGES.get(it, it) for it in needs if find_spec(it) is None)


def _rows(table: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of earlier commands, by step."""
    if not table.exists():
        return {}
    with table.open(newline="", encoding="utf-8") as file:
        return {row["step"]: row for row in csv.DictReader(file)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 every step passed; 1 some failed, lack packages or were late, as the table at the end says."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", type=Path, help="folder, made where it isn't there")
    options.add_argument("--minutes", type=float, default=9.0)
    options.add_argument("--rehearse", action="store_true", help="on the CPU, with a simulated GPU")
    options.add_argument("--steps", default=",".join(it.__name__ for it in STEPS), help="a comma list")
    asked = options.parse_args(arguments)
    if not asked.rehearse and not torch.cuda.is_available():
        options.error("torch finds no CUDA device here; --rehearse does without")
    names, wanted = [it.__name__ for it in STEPS], asked.steps.split(",")
    if unknown := {*wanted} - {*names}:
        options.error(f"no steps: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    asked.out.mkdir(parents=True, exist_ok=True)
    out, until = asked.out.resolve(), monotonic() + 60 * asked.minutes
    every, rows = _rows(out / "steps.csv"), []
    for work in STEPS:
        if work.__name__ in wanted:
            row = {"step": work.__name__, "result": "late", "seconds": 0.0, "figure": "no time left for it"}
            if absent := lacking(work, asked.rehearse):
                row |= {"result": "lacks", "figure": absent}
            elif monotonic() < until:
                row = step(work, out, asked.rehearse, until)
            rows.append(row)
            every[work.__name__] = row
            with (out / "steps.csv").open("w", newline="", encoding="utf-8") as file:
                table = csv.DictWriter(file, row)
                table.writeheader()
                table.writerows(every.values())
    print()
    for it in rows:
        print(f"{it['step']:15} {it['result']:5} {it['seconds']:6.1f} s  {it['figure']}")
    with tarfile.open(out / "gpu.tar.gz", "w:gz") as archive:
        for path in sorted(out.iterdir()):
            if path.name != "gpu.tar.gz":
                archive.add(path, path.name)
    return int(any(it["result"] != "pass" for it in rows))


if __name__ == "__main__":
    sys.exit(main())
