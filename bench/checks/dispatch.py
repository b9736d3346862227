"""Which kernel really ran, read from the profiler's operators."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch._C._autograd import _enable_record_function
from torch._C._profiler import _ExperimentalConfig
from torch.autograd.profiler import profile

OPERATORS = (
    (b'"aten::_scaled_dot_product_flash_attention', "flash"),
    (b'"aten::_scaled_dot_product_efficient_attention', "efficient"),
    (b'"aten::_scaled_dot_product_cudnn_attention', "cudnn"),
    (b'"aten::_scaled_dot_product_attention_math', "math"),
    (b'"torch_attn::_varlen_attn', "flash"),
    (b'"flash_attn', "flash"),  # and flash_attn_3
    (b'"xformers_flash', "flash"),  # and xformers_flash3
    (b'"xformers::', "efficient"),
    (b'"aten::_native_multi_head_attention"', "native_mha"),
    (b'"## Call CompiledFxGraph', "inductor"),
    (b'"aten::bmm"', "gemm"),
    (b'"aten::baddbmm"', "gemm"),
    (b'"aten::dot"', "dot"),
)
"""Names in a trace, and the kernel that they give away; the first that is there counts.

An attention operator inside a compiled region stands before the region: `fused+compile` that became SDPA says so.
"""


def kernel_in(trace: bytes) -> str:
    """The kernel that a Chrome trace of one call shows; `other` when none is known."""
    return next((kernel for name, kernel in OPERATORS if name in trace), "other")


def operators_of(call: Callable[[], Any]) -> tuple[bytes, Any]:
    """The Chrome trace of a call's operators on the host's side, and its answer.

    By the part of torch's profiler that records: the one around it imports the whole compiler, which takes seconds, and makes
    every garbage collection slower from then on.
    """
    with profile(experimental_config=_TRACE_ALONE) as profiler:
        answer = call()
    return trace_of(profiler), answer


def allocations_of(call: Callable[[], Any]) -> tuple[bytes, Any]:
    """The Chrome trace of a call's allocations without its operators, and its answer: a loop makes 268,000 of them in 0.3 s,
    which take 1.4 s more to write and to read.
    """
    with profile(profile_memory=True, experimental_config=_TRACE_ALONE) as profiler:
        _enable_record_function(False)
        try:
            answer = call()
        finally:
            _enable_record_function(True)
    return trace_of(profiler), answer


def _trace_alone() -> _ExperimentalConfig | None:
    """No Python object an event: half of what a trace of a Python loop takes. None where torch is older than this (2.12)."""
    try:
        return _ExperimentalConfig(trace_only=True)
    except TypeError:
        return None


_TRACE_ALONE = _trace_alone()


def operators_in(trace: bytes) -> int:
    """How many operators a Chrome trace holds, those within others included."""
    return trace.count(b'"cat": "cpu_op"')


def trace_of(profiler: Any) -> bytes:
    """A profiler's Chrome trace."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        return path.read_bytes()
