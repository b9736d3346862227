"""`python -m tests.experiments.gpu OUT`: everything that needs a GPU, in one call of under nine minutes.

It goes on after any failure, and leaves OUT/gpu.tar.gz: log, run files, tables. Needs torch, pandas, matplotlib,
pytest-benchmark, scipy, psutil, rich and orjson. `--rehearse` does the same on the CPU at tiny sizes, with a simulated device
where events and allocations are read: that the script itself works is found out before it meets a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tarfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGINT
from time import monotonic, perf_counter
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile

from bench.cases import published
from bench.timing.devices.cuda import CudaMeter
from bench.timing.devices.nvml import opened
from bench.timing.machine import fingerprint, state
from impls.formula import attention
from reports.reading import runs

from ..simulated_gpu import SimulatedCuda

CHECKOUT = Path(__file__).resolve().parents[2]

TAIL = 15
"""Lines of a command's output that the log repeats."""

SHEET = {"NVIDIA H200": {"bfloat16": 989e12, "float16": 989e12, "float32": 67e12, "copy": 4.8e12}}
"""Dense products without sparsity, and memory, a second: the vendor's data sheets."""

PUBLISHED = {it.case.id: it.seconds for it in published.PUBLISHED}
"""Seconds of a call by case."""


@dataclass
class Lab:
    """Where everything goes, on which device, and until when."""

    out: Path
    rehearsal: bool
    until: float
    steps: list[tuple[str, str, float]] = field(default_factory=list)
    """name, outcome, seconds"""

    def __post_init__(self) -> None:
        self.device = "cpu" if self.rehearsal else "cuda"
        self.cuda: Any = SimulatedCuda() if self.rehearsal else torch.cuda

    def meter(self) -> CudaMeter:
        return CudaMeter(self.cuda, empty=self.cuda.empty) if self.rehearsal else CudaMeter(nvml=opened())

    def watched(self, call: Callable[[], Any], allocates: int = 0) -> Callable[[], Any]:
        """The call itself; in a rehearsal also a kernel of the simulated device, which is what its meter sees."""
        return (lambda: (self.cuda.work(0.1, allocates), call())[1]) if self.rehearsal else call

    def say(self, text: str) -> None:
        print(text, flush=True)
        with (self.out / "log.txt").open("a", encoding="utf-8") as log:
            log.write(f"{text}\n")

    def table(self, name: str, rows: Sequence[dict[str, Any]]) -> None:
        """Print rows, and keep them as CSV."""
        import pandas as pd

        frame = pd.DataFrame(rows)
        frame.to_csv(self.out / f"{name}.csv", index=False)
        self.say(frame.to_string(index=False, float_format=lambda x: f"{x:.4g}"))

    def command(self, *arguments: str, most: float = 240, fine: tuple[int, ...] = (0,)) -> None:
        """Run a command of the suite in OUT, for so many seconds at most; raises where it ends otherwise than with `fine`."""
        where = os.environ | {"PYTHONPATH": os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")])}
        path = self.out / f"{len(list(self.out.glob('*.log'))):02}.log"
        self.say(f"$ python {' '.join(arguments)}  > {path.name}")
        left = max(1.0, min(most, self.until - monotonic()))
        with path.open("w", encoding="utf-8") as log:
            child = subprocess.Popen([sys.executable, *arguments], cwd=self.out, env=where, stdout=log, stderr=log)
            try:
                code: int | str = child.wait(left)
            except subprocess.TimeoutExpired:
                child.send_signal(SIGINT)  # a run saves what it has
                child.wait(30)
                code = f"stopped after {left:.0f} s"
        self.say("\n".join(path.read_text(encoding="utf-8").splitlines()[-TAIL:]))
        if code not in fine:
            raise RuntimeError(f"exit code {code}, {path.name}")

    def measure(self, name: str, *options: str, most: float = 240) -> None:
        """A run of the suite; it stays in OUT/results, also where it is cut off."""
        self.command(
            "-m", "pytest", "-q", str(CHECKOUT / "bench"), "--device", self.device, f"--benchmark-save={name}", *options,
            most=most,
        )  # fmt: skip

    def step(self, work: Callable[[Lab], None]) -> None:
        """Do one step; what it raises is logged, and the next one begins."""
        name, started = work.__name__, monotonic()
        self.say(f"\n## {name}, {self.until - started:.0f} s left")
        try:
            work(self)
            outcome = "done"
        except Exception as error:
            outcome = f"failed: {type(error).__name__}: {error}".splitlines()[0][:200]
            self.say(traceback.format_exc())
        self.steps.append((name, outcome, monotonic() - started))


def environment(lab: Lab) -> None:
    found = {"python": platform.python_version(), "machine": fingerprint(), "state": state()}
    (lab.out / "machine.json").write_text(json.dumps(found, indent=1, default=str), encoding="utf-8")
    lab.say(json.dumps(found["machine"], indent=1, default=str))


def cuda_tests(lab: Lab) -> None:
    """Those that a machine without a GPU skips."""
    lab.command("-m", "pytest", "-q", "-p", "no:cacheprovider", str(CHECKOUT / "tests"), "-m", "cuda",
                f"--rootdir={CHECKOUT}", "-c", str(CHECKOUT / "pyproject.toml"), most=100)  # fmt: skip


def roofs(lab: Lab) -> None:
    """Products and a copy, with what the device said of its clock and power meanwhile, beside the data sheet."""
    meter, rows = lab.meter(), []
    sheet = SHEET.get(torch.cuda.get_device_name() if torch.cuda.is_available() else "", {})
    sides = (64, 128) if lab.rehearsal else (2048, 4096, 8192, 16384)
    for dtype in ("bfloat16", "float16", "float32"):
        for n in sides if dtype != "float32" else sides[:-1]:
            a, b = (torch.randn(n, n, device=lab.device).to(getattr(torch, dtype)) for _ in range(2))
            rows.append(_roof(lab, meter, dtype, n, 2 * n**3, lambda a=a, b=b: a @ b, sheet))  # type: ignore[misc]
    size = 1 << (16 if lab.rehearsal else 32)
    source, target = (torch.ones(size, dtype=torch.uint8, device=lab.device) for _ in range(2))
    rows.append(_roof(lab, meter, "copy", size, 2 * size, lambda: target.copy_(source), sheet))
    lab.table("roofs", rows)


def _roof(
    lab: Lab, meter: CudaMeter, what: str, size: int, work: int, call: Callable[[], Any], sheet: dict[str, float]
) -> dict[str, Any]:
    watched = lab.watched(call)
    meter.seconds(watched, 3)
    best = min(meter.seconds(watched, 5) / 5 for _ in range(5))
    seen = meter.sensors()
    per_second = work / best
    return {
        "what": what, "size": size, "per_s": per_second, "of_sheet": per_second / sheet[what] if what in sheet else None,
        "sm_mhz": seen.sm_mhz if seen else None, "power_w": seen.power_w if seen else None,
    }  # fmt: skip


def memory(lab: Lab) -> None:
    """The plain formula against a count by hand: scores twice and the output; with the backward three scores, two outputs."""
    T, H, D = (64, 2, 16) if lab.rehearsal else (1024, 8, 64)
    q, k, v = (torch.randn(1, H, T, D, device=lab.device) for _ in range(3))
    scores, output = H * T * T * 4, H * T * D * 4

    def call() -> Any:
        with torch.inference_mode():
            return attention(q, k, v)

    found = lab.meter().profile_call(lab.watched(call, allocates=2 * scores + output)).peak_bytes
    lab.table("memory", [{"by hand": 2 * scores + output, "measured": found}])
    if found != 2 * scores + output:
        raise AssertionError(f"{found} bytes measured, {2 * scores + output} by hand")


def clocks(lab: Lab) -> None:
    """A call by events, by the wall clock around a synchronisation, and by the profiler's kernels; cold, and by its graph."""
    meter, rows = lab.meter(), []
    dtype = torch.float32 if lab.rehearsal else torch.bfloat16
    for T in (16, 32) if lab.rehearsal else (128, 512, 2048, 8192):
        q, k, v = (torch.randn(1, 8, T, 64, device=lab.device, dtype=dtype) for _ in range(3))
        call = lab.watched(lambda q=q, k=k, v=v: scaled_dot_product_attention(q, k, v))  # type: ignore[misc]
        meter.seconds(call, 10)
        hot = meter.seconds(call, 100) / 100
        rows.append({"T": T, "events_s": hot, "wall_s": _wall(lab, call), "profiler_s": _kernels(lab, call)}
                    | meter.more(call, hot, graph=True))  # fmt: skip
    lab.table("clocks", rows)


def _wall(lab: Lab, call: Callable[[], Any], times: int = 100) -> float:
    lab.cuda.synchronize()
    start = perf_counter()
    for _ in range(times):
        call()
    lab.cuda.synchronize()
    return (perf_counter() - start) / times


def _kernels(lab: Lab, call: Callable[[], Any], times: int = 20) -> float:
    """Seconds that the device's kernels of a call take, by the profiler (CUPTI)."""
    with profile(activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (not lab.rehearsal)) as seen:
        for _ in range(times):
            call()
        lab.cuda.synchronize()
    return sum(event.self_device_time_total for event in seen.key_averages()) / 1e6 / times


def sweeps(lab: Lab) -> None:
    """Proof and clock of every implementation at small sizes, in every mode."""
    small = ("--T", "16", "--impl", "fused,sdpa") if lab.rehearsal else ("--T", "128,512")
    hasty = ("--cell-time", "0.01" if lab.rehearsal else "0.1", "--H", "2" if lab.rehearsal else "8")
    sweeps = ("quick",) if lab.rehearsal else ("quick", "backward", "decode", "masks")
    for name in sweeps:
        try:
            lab.measure(name, "--sweep", name, *(small if name != "decode" else ()), *hasty, most=100)
        except RuntimeError as error:
            lab.say(f"{name}: {error}")


def kernels(lab: Lab) -> None:
    """SDPA's kernels and their rivals in bf16, beside what is published."""
    sizes = ("--T", "16", "--H", "4", "--H_kv", "2", "--D_h", "16") if lab.rehearsal else (
        "--T", "512,2048,8192,32768", "--H", "64", "--H_kv", "8", "--D_h", "64,128")  # fmt: skip
    try:
        lab.measure(
            "kernels", "--scope", "core", "--dtype", "bfloat16", "--mask", "none,causal", *sizes, "--cell-time", "0.1",
            "--impl", "sdpa,sdpa_math" if lab.rehearsal else "sdpa,sdpa_flash,sdpa_efficient,sdpa_cudnn,flex,flash_attn",
        )  # fmt: skip
    finally:
        run = runs.one("kernels", lab.out / "results")
        lab.table("kernels", [_beside_published(row) for row in run.rows])


def _beside_published(row: dict[str, Any]) -> dict[str, Any]:
    facts = row["extra_info"]
    reached = facts["flops"] / row["stats"]["median"] / 1e12
    seconds = PUBLISHED.get(facts["id"])
    known = seconds and facts["flops"] / seconds / 1e12
    return {
        "impl": facts["impl"], "mask": facts["mask"], "D_h": facts["D_h"], "T": facts["T"], "TFLOP/s": reached,
        "published": known, "of_published": reached / known if known else None, "kernel": facts["kernel"],
    }  # fmt: skip


def repeated(lab: Lab) -> None:
    """A second run of the first sweep, and what a comparison of unchanged code says."""
    lab.measure("again", "--sweep", "quick", *(("--T", "16", "--H", "2") if lab.rehearsal else ("--T", "128,512", "--H", "8")),
                "--impl", "fused,sdpa", "--cell-time", "0.05", most=100)  # fmt: skip
    lab.command("-m", "reports", "compare", "quick", "again", most=60, fine=(0, 2))  # 1: a false alarm


def planted(lab: Lab) -> None:
    """`ab` with two percent planted."""
    lab.command("-m", "bench", "ab", "--self-test", "1", "--plant", "sdpa=0.02", "--impl", "sdpa,fused", "--device", lab.device,
                "--T", "16" if lab.rehearsal else "1024", "--H", "2", "--dtype", "float32", "--budget",
                "0.2" if lab.rehearsal else "1.0", most=120)  # fmt: skip


STEPS = (environment, roofs, clocks, memory, cuda_tests, kernels, sweeps, planted, repeated)
"""The dearest to know first: the last may find no time."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 every step done; 1 some failed, which the table at the end names."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", type=Path, help="folder, made where it isn't there")
    options.add_argument("--minutes", type=float, default=9.0)
    options.add_argument("--rehearse", action="store_true", help="on the CPU, with a simulated device")
    options.add_argument("--steps", default=",".join(it.__name__ for it in STEPS), help="a comma list")
    asked = options.parse_args(arguments)
    if not asked.rehearse and not torch.cuda.is_available():
        options.error("torch finds no CUDA device here; --rehearse does without")
    asked.out.mkdir(parents=True, exist_ok=True)
    lab = Lab(asked.out.resolve(), asked.rehearse, monotonic() + 60 * asked.minutes)
    for work in STEPS:
        if work.__name__ in asked.steps.split(","):
            lab.step(work)
    lab.say("\n" + "\n".join(f"{name:12} {seconds:6.1f} s  {outcome}" for name, outcome, seconds in lab.steps))
    with tarfile.open(lab.out / "gpu.tar.gz", "w:gz") as archive:
        for path in sorted(lab.out.iterdir()):
            if path.name != "gpu.tar.gz":
                archive.add(path, path.name)
    return int(any(outcome != "done" for _, outcome, _ in lab.steps))


if __name__ == "__main__":
    sys.exit(main())
