"""Traces a call, and identifies the kernel that ran from the trace."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch._C._autograd import _enable_record_function
from torch._C._profiler import _ExperimentalConfig
from torch.autograd.profiler import profile

from ..cases.outcome import Skip

OPERATORS = (
    (b'"aten::_scaled_dot_product_flash_attention', "flash"),
    (b'"aten::_scaled_dot_product_efficient_attention', "efficient"),
    (b'"aten::_scaled_dot_product_cudnn_attention', "cudnn"),
    (b'"aten::_scaled_dot_product_attention_math', "math"),
    (b'"aten::_flash_attention_forward', "flash"),  # alone with nested tensors, as the next two
    (b'"aten::_efficient_attention_forward', "efficient"),
    (b'"aten::_cudnn_attention_forward', "cudnn"),
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
"""Names in a trace and the kernels that they identify; the first match counts.

Attention operators come before compiled regions, so that a `fused+compile` that was compiled to SDPA is reported as
SDPA.
"""


def kernel_in(trace: bytes) -> str:
    """Return the kernel that a Chrome trace of one call shows, or `other` for an unknown one."""
    return next((kernel for name, kernel in OPERATORS if name in trace), "other")


def traced(call: Callable[[], Any], operators: bool = True, memory: bool = True) -> tuple[bytes, Any]:
    """Return the Chrome trace of a call's `operators` and allocations (`memory`) on the host, and the call's output.

    Uses the recording part of torch's profiler only: its wrapper imports the whole compiler, which takes seconds and
    slows down every later garbage collection.
    """
    with profile(profile_memory=memory, experimental_config=_TRACE_ALONE) as profiler:
        _enable_record_function(operators)
        try:
            output = call()
        finally:
            _enable_record_function(True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        trace = path.read_bytes() if path.exists() else b""
        if b'"traceName"' not in trace:  # its last entry: the profiler doesn't report a full disk
            raise Skip(f"the profiler can't write to {tempfile.gettempdir()}: free some space there, or set TMPDIR")
        return trace, output


def _trace_alone() -> _ExperimentalConfig | None:
    """Return a configuration without Python objects for events, halving the cost of loops. None before torch 2.12."""
    try:
        return _ExperimentalConfig(trace_only=True)
    except TypeError:
        return None


_TRACE_ALONE = _trace_alone()


def operators_in(trace: bytes) -> int:
    """Return the number of operators in a Chrome trace, nested ones included."""
    return trace.count(b'"cat": "cpu_op"')
