"""Published times with their cases: the sweep `published` measures the same cases here.

Copied from the `source` of each entry, which states how its setting differs from a measurement here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from .case import Case


@dataclass(frozen=True)
class Published:
    """One published time."""

    axes: Mapping[str, Any]
    seconds: float
    kernel: str
    """Name of the kernel given by its authors."""
    impl: str
    """Closest implementation here."""
    machine: str
    source: str
    """Location on GitHub."""
    differs: str

    @property
    def case(self) -> Case:
        return Case.of(**self.axes)


CORE = {"B": 1, "device": "cpu", "scope": "core", "mask": "none"}

ONNXRUNTIME = {
    "kernel": "CPU:Flash of onnxruntime, June 2024",
    "impl": "onnxruntime",
    "machine": "unnamed",
    "source": "microsoft/onnxruntime#20805",
    "differs": "threads not stated; q, k and v as (B, T, H, D_h), to which a core's inputs are copied here",
}
XEON = {
    "machine": "Intel Xeon, 4th generation, one socket",
    "source": "pytorch/pytorch#105131",
    "differs": "all cores of a socket; torch of July 2023",
}
AMX = {
    "machine": "unnamed, with AMX",
    "source": "pytorch/pytorch#191780",
    "differs": "threads not stated; the fastest of their calls, here the median",
}
H200 = {
    "kernel": "cuDNN 9.19.1",
    "impl": "sdpa_cudnn",
    "machine": "NVIDIA H200",
    "source": "NVIDIA/cudnn-frontend, benchmark/sdpa_benchmark_training/results/h200_919_only_cudnn",
    "differs": "10 calls; clock and power not stated",
}
LLAMA = CORE | {"device": "cuda", "dtype": "bfloat16", "H": 64, "H_kv": 8, "D_h": 128}
TUTORIAL = {"B": 8, "T": 1024, "d_model": 768, "H": 12, "D_h": 64, "dtype": "float32"}
"""Axes of causal layers, as in the sweep `tutorial`."""

NOTEBOOK = "rasbt/LLMs-from-scratch, ch03/02_bonus_efficient-multihead-attention/mha-implementations.ipynb"
GRADIENTS = "torch before 2.9, gradients recorded, a bias in the output projection"
M3 = {"machine": "Apple M3, of a MacBook Air", "source": NOTEBOOK, "differs": f"{GRADIENTS}; threads not stated"}
A100 = {"machine": "NVIDIA A100", "source": NOTEBOOK, "differs": f"{GRADIENTS}; products in TF32"}
WAYS = (  # published name, closest implementation here, and milliseconds on the M3 and on the A100
    ("MHA wrapper", "wrapper", 179, 4.68),
    ("MHA of chapter 3", "fused", 166, 3.08),
    ("MHA with combined QKV weights", "packed", 190, 3.81),
    ("MHA with einsum", "einsum", 196, 4.11),
    ("SDPA, after combined QKV weights", "sdpa", 110, 1.10),
    ("SDPA, after combined QKV weights, the mask as a tensor", "sdpa_efficient", 99.5, 1.80),
    ("nn.MultiheadAttention, and one more projection", "torch_mha_weights", 198, 3.04),
    ("nn.MultiheadAttention, need_weights=False, and one more projection", "torch_mha", 168, 2.13),
)

PUBLISHED = (
    *(Published(CORE | {"T": T, "H": 32, "D_h": 128, "dtype": "float32"}, seconds, **ONNXRUNTIME)
      for T, seconds in ((512, 8.28e-3), (1024, 26.43e-3), (2048, 88.92e-3))),
    *(Published(CORE | {"T": 1024, "H": 25, "D_h": 64, "dtype": "float32"}, seconds, kernel, impl, **XEON)
      for seconds, kernel, impl in ((1.665e-3, "flash attention", "sdpa_flash"), (3.081e-3, "unfused SDPA", "sdpa_math"))),
    *(Published(CORE | {"T": T, "H": 4, "D_h": 64, "dtype": "bfloat16"}, seconds, kernel, "sdpa_flash", **AMX)
      for T, of_torch, of_change in ((4096, 1.617829e-3, 1.335971e-3), (2048, 0.509853e-3, 0.434586e-3))
      for seconds, kernel in ((of_torch, "flash of torch"), (of_change, "flash of torch, with AMX and AVX overlapped"))),
    *(Published(LLAMA | {"T": T, "mask": mask}, seconds, **H200)
      for mask, times in (("causal", (0.142e-3, 0.465e-3, 1.708e-3, 6.531e-3, 25.566e-3)),
                          ("none", (0.217e-3, 0.819e-3, 3.182e-3, 12.524e-3, 50.769e-3)))
      for T, seconds in zip((2048, 4096, 8192, 16384, 32768), times, strict=True)),
    *(Published(TUTORIAL | {"device": device}, milliseconds / 1e3, kernel, impl, **where)
      for kernel, impl, *both in WAYS
      for milliseconds, device, where in zip(both, ("cpu", "cuda"), (M3, A100), strict=True)),
)  # fmt: skip


def grids() -> tuple[dict[str, tuple[Any, ...]], ...]:
    """Return the grids of their cases, merged where cases differ in T only."""
    lengths: dict[tuple[tuple[str, Any], ...], list[int]] = {}
    for it in PUBLISHED:
        others = tuple((axis, value) for axis, value in it.axes.items() if axis != "T")
        lengths.setdefault(others, []).append(it.axes["T"])
    return tuple(
        {axis: (value,) for axis, value in others} | {"T": tuple(dict.fromkeys(T))} for others, T in lengths.items()
    )


def published_of(ids: Collection[str]) -> list[dict[str, Any]]:
    """Return the published times of the given cases, for the run file."""
    found = ({"id": it.case.id, **vars(it)} for it in PUBLISHED)
    return [{name: it[name] for name in it if name != "axes"} for it in found if it["id"] in ids]
