"""The reference workload, which no implementation can change: when its time varies, the machine drifts."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from statistics import median
from typing import Any

import numpy as np
import torch

from stats import conditions

from .devices import meter_for
from .devices.device import Work

EVERY, SHARE = 20.0, 1 / 8
"""Most seconds between two samples, and their share of the time so far, so that a short run has several."""

BLOCKS = 5
"""Blocks of one sample, of which the median counts."""


def _product() -> Work:
    a = np.random.default_rng(0).standard_normal((384, 384)).astype(np.float32)
    return lambda: a @ a


def _loop() -> Work:
    return lambda: sum(i * i for i in range(40_000))


WORK: dict[str, Callable[[], Work]] = {"product": _product, "python": _loop}
"""CPU workloads: a matrix product by NumPy, and a loop in plain Python; 0.5 to 5 ms each."""


def _product_on_gpu() -> Work:
    a = torch.ones(2048, 2048, dtype=torch.bfloat16, device="cuda")
    return lambda: a @ a


def _copy_on_gpu() -> Work:
    source, target = (torch.ones(1 << 26, dtype=torch.uint8, device="cuda") for _ in range(2))
    return lambda: target.copy_(source)


def _launch() -> Work:
    a = torch.ones(1, device="cuda")
    return lambda: a.add_(0)


GPU_WORK: dict[str, Callable[[], Work]] = {
    "gpu product": _product_on_gpu, "gpu copy": _copy_on_gpu, "gpu launch": _launch,
}  # fmt: skip
"""GPU workloads: products, memory, and the host's cost of a launch. They are timed in workers."""

OF_GPU_RUNS = ("python", *GPU_WORK)
"""Workloads of a run on a GPU: of the host's, the loop alone, since launches depend on Python."""


def software() -> dict[str, str]:
    """Return the version of each workload's library, since another version is another workload."""
    versions = {"product": np.__version__, "python": platform.python_version()}
    return versions | dict.fromkeys(GPU_WORK, str(torch.__version__))


class Workload:
    """One part of the reference workload, timed like a cell."""

    varies, page_faults = False, 0.0

    def __init__(self, name: str):
        self._run, self.meter = (WORK | GPU_WORK)[name](), meter_for("cuda" if name in GPU_WORK else "cpu")

    def time(self, calls: int, slices: int = 1, warm: int = 0) -> tuple[float, float]:
        """Return the same times as `Built.time`."""
        return self.meter.block(self._run, calls, slices, warm)[:2]


workload = cache(Workload)
"""Returns the workload of a name, the same one whenever it is sampled."""


@dataclass
class ReferenceWorkload:
    """Samples so far: for each workload its seconds, and when they were taken, in seconds since the run began."""

    seen: dict[str, list[dict[str, float]]] = field(default_factory=dict)

    def sample(self, at: float, device: str, elsewhere: Mapping[str, float] = {}) -> None:
        """Time the CPU workloads of a run on this device now, `at` seconds after it began; `elsewhere`: seconds of GPU
        workloads that a worker has just timed.
        """
        names = [name for name in WORK if device == "cpu" or name in OF_GPU_RUNS]
        here = {name: median(workload(name).time(1, warm=not i)[0] for i in range(BLOCKS)) for name in names}
        for name, seconds in {**here, **elsewhere}.items():
            self.seen.setdefault(name, []).append({"at": at, "seconds": seconds})

    def due(self, at: float) -> bool:
        """Whether the last sample is old enough, `at` seconds after the run began."""
        last = max((samples[-1]["at"] for samples in self.seen.values()), default=0.0)
        return at - last >= min(EVERY, SHARE * at)

    def table(self) -> dict[str, Any]:
        """Return the samples and their drift for the run file."""
        seconds = {name: [sample["seconds"] for sample in samples] for name, samples in self.seen.items()}
        return {"drift": conditions.drift(seconds), "looks": self.seen}
