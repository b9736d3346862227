"""Torch's own settings: what one implementation sets would change the numbers of all others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import backends
from torch.backends import cuda

Setting = tuple[Callable[[], Any], Callable[[Any], Any]]
"""How it is read, and how it is written."""


def _attribute(of: Any, name: str) -> Setting:
    return partial(getattr, of, name), partial(setattr, of, name)


def _precision() -> str | None:
    """None where it was set by the newer means, which the older one doesn't tell of."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def _set_precision(precision: str | None) -> None:
    if precision:
        torch.set_float32_matmul_precision(precision)


SETTINGS: dict[str, Setting] = {
    "number of threads": (torch.get_num_threads, torch.set_num_threads),
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "default device": (torch.get_default_device, lambda device: torch.set_default_device(None)),  # as it is at first
    "recording of gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
    "deterministic algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    "precision of float32 products": (_precision, _set_precision),  # before the next three, which it sets too
    "precision of float32": _attribute(backends, "fp32_precision"),
    "precision of float32 products on CUDA": _attribute(cuda.matmul, "fp32_precision"),
    "precision of float32 products on the CPU": _attribute(backends.mkldnn.matmul, "fp32_precision"),  # type: ignore[attr-defined]
    "reduced sums of bfloat16": _attribute(cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    "reduced sums of float16": _attribute(cuda.matmul, "allow_fp16_reduced_precision_reduction"),
    "reduced sums of SDPA's formula": (
        cuda.fp16_bf16_reduction_math_sdp_allowed,
        cuda.allow_fp16_bf16_reduction_math_sdp,
    ),
    "choice of SDPA's flash kernel": (cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
    "choice of SDPA's efficient kernel": (cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp),
    "choice of SDPA's cuDNN kernel": (cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp),
    "choice of SDPA's formula": (cuda.math_sdp_enabled, cuda.enable_math_sdp),
}

FULL = {"none": "ieee"}
"""Two names of one precision: that a backend has none of its own, and float32 as it is."""


def read() -> dict[str, Any]:
    """What is set now."""
    return {name: get() for name, (get, _) in SETTINGS.items()}


def put_back(before: dict[str, Any]) -> list[str]:
    """Set everything as it was, and tell what had changed: `default dtype: torch.float32 → torch.float64`."""
    now = read()
    changed = {name: value for name, value in before.items() if now[name] != value}
    for name, value in changed.items():
        SETTINGS[name][1](value)
    return [
        f"{name}: {value} → {now[name]}"
        for name, value in changed.items()
        if FULL.get(value, value) != FULL.get(now[name], now[name])
    ]
