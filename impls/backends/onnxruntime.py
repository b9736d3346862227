"""ONNX Runtime: `com.microsoft.MultiHeadAttention`, which has a flash kernel on the CPU for calls without a mask."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..packages import BACKEND, time_first
from ..registry import register


def _unfit(case: Any) -> str | None:
    """No causal mask where T_kv is not T: the last query would see every key (onnxruntime 1.32)."""
    return "masks no key of the last query when T_kv is not T" if case.causal and case.T_kv != case.T else None


@register("onnxruntime", package="onnxruntime onnx", install="pip install onnxruntime onnx", dtypes=("float32",),
          grouped=False, unless=_unfit, **BACKEND)  # fmt: skip
def onnxruntime(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False, scale: float | None = None) -> Tensor:
    """`MultiHeadAttention` of ONNX Runtime, bound to the tensors' memory; a core's inputs, heads before tokens, are copied."""
    H, width = q.shape[1], v.shape[-1]
    inputs = [x.flatten(2).contiguous() for x in time_first(q, k, v)]  # (B, T, H * D) each
    o = q.new_empty(q.shape[0], q.shape[2], H * width)
    session = _session(H, is_causal, scale, torch.get_num_threads())
    binding = session.io_binding()
    for name, x in zip("qkv", inputs, strict=True):
        binding.bind_input(name, "cpu", 0, np.float32, list(x.shape), x.data_ptr())
    binding.bind_output("o", "cpu", 0, np.float32, list(o.shape), o.data_ptr())
    session.run_with_iobinding(binding)
    return time_first(o.unflatten(2, (H, width)))[0]


@cache
def _session(H: int, is_causal: bool, scale: float | None, threads: int) -> Any:
    """Build a graph of the single operator. Its threads sleep between calls: spinning would disturb measurements."""
    from onnx import TensorProto, helper
    from onnxruntime import InferenceSession, SessionOptions

    known = {} if scale is None else {"scale": scale}
    node = helper.make_node(
        "MultiHeadAttention",
        list("qkv"),
        ["o"],
        domain="com.microsoft",
        num_heads=H,
        unidirectional=int(is_causal),
        **known,
    )
    q, k, v, o = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", f"T_{name}", f"width_{name}"]) for name in "qkvo"
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "attention", [q, k, v], [o])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    options = SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
