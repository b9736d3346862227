"""OpenVINO: `ScaledDotProductAttention` of its opset 13, compiled for its CPU plugin."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..packages import BACKEND
from ..registry import register


@register("openvino", package="openvino", dtypes=("float32",), grouped=False, **BACKEND)
def openvino(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False, scale: float | None = None) -> Tensor:
    """`ScaledDotProductAttention` of OpenVINO, on the tensors' own memory; a layer's, tokens before heads, are copied."""
    from openvino import Tensor as Shared

    inputs = [x.contiguous() for x in (q, k, v)]
    o = q.new_empty(*q.shape[:-1], v.shape[-1])
    request = _request(q.shape, k.shape, v.shape, is_causal, scale, torch.get_num_threads())
    for i, x in enumerate(inputs):
        request.set_input_tensor(i, Shared(x.numpy(), shared_memory=True))
    request.set_output_tensor(0, Shared(o.numpy(), shared_memory=True))
    request.infer(share_outputs=True)
    return o


@cache
def _request(q: torch.Size, k: torch.Size, v: torch.Size, is_causal: bool, scale: float | None, threads: int) -> Any:
    """Build a graph of the single operator for these shapes, in float32 even if the processor prefers others."""
    from openvino import Core, Model, opset13

    inputs = [opset13.parameter(list(shape), np.float32) for shape in (q, k, v)]
    known = None if scale is None else opset13.constant(np.float32(scale))
    o = opset13.scaled_dot_product_attention(*inputs, scale=known, causal=is_causal)
    options = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32",
        "ENABLE_HYPER_THREADING": True,  # a virtual machine's cores may be hyper-threads
        "ENABLE_CPU_PINNING": False,
    }
    return Core().compile_model(Model([o], inputs), "CPU", options).create_infer_request()
