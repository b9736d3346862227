"""Kernels of packages that need a GPU, measured if installed; most use the layout (B, T, H, D).

Those with a compiler, a plan or a workspace of their own run in a separate process.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from .explicit import share_heads
from .formula import attention
from .layer import KernelCore, LayerShape
from .registry import register


def _aligned_bottom_right(case: Any) -> str | None:
    """No causal mask where T_kv is not T: it would be aligned bottom right."""
    return "aligns a causal mask bottom right when T_kv is not T" if case.causal and case.T_kv != case.T else None


CUDA: dict[str, Any] = {
    "common": False,
    "devices": ("cuda",),
    "masks": ("none", "causal"),
    "wide_values": False,
    "autocasts": False,
    "unless": _aligned_bottom_right,
}
HALF: dict[str, Any] = {"dtypes": ("float16", "bfloat16")}
BACKEND: dict[str, Any] = {
    "common": False,
    "alone": True,
    "own_memory": True,
    "devices": ("cpu",),
    "modes": ("forward",),
    "masks": ("none", "causal"),
    "dropout": False,
    "autocasts": False,
    "compiles": False,
}
"""Default declarations of third-party backends on the CPU (`impls/backends/`)."""


def time_first(*tensors: Tensor) -> list[Tensor]:
    """Transpose (B, H, T, D) to (B, T, H, D) or back, without a copy."""
    return [x.transpose(1, 2) for x in tensors]


@register("flash_attn", package="flash_attn", install="pip install flash-attn --no-build-isolation",
          dispatches="flash", compiles=False, **CUDA, **HALF)  # fmt: skip
def flash_attn(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False, scale: float | None = None,
               dropout_p: float = 0.0, enable_gqa: bool = False) -> Tensor:  # fmt: skip
    """`flash_attn_func` of the package flash-attn."""
    from flash_attn import flash_attn_func

    o = flash_attn_func(*time_first(q, k, v), dropout_p=dropout_p, softmax_scale=scale, causal=is_causal)
    return time_first(o)[0]


@register("xformers", package="xformers", **CUDA)
def xformers(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False, scale: float | None = None,
             dropout_p: float = 0.0, enable_gqa: bool = False) -> Tensor:  # fmt: skip
    """`memory_efficient_attention` of the package xformers."""
    from xformers.ops import LowerTriangularMask, memory_efficient_attention

    if enable_gqa:
        k, v = (share_heads(x, q.shape[-3]) for x in (k, v))
    bias = LowerTriangularMask() if is_causal else None
    o = memory_efficient_attention(*time_first(q, k, v), attn_bias=bias, p=dropout_p, scale=scale)
    return time_first(o)[0]


@register("sage", package="sageattention", modes=("forward", "decode"), dropout=False, compiles=False,
          **CUDA, **HALF)  # fmt: skip
def sage(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False, scale: float | None = None,
         enable_gqa: bool = False) -> Tensor:  # fmt: skip
    """`sageattn` of the package sageattention, which rounds queries and keys to 8 bits."""
    from sageattention import sageattn

    return sageattn(q, k, v, tensor_layout="HND", is_causal=is_causal, sm_scale=scale)


ALONE: dict[str, Any] = CUDA | HALF | {"alone": True, "dropout": False, "compiles": False}


@register("flash_attn_4", package="flash_attn.cute cutlass", install="pip install --pre flash-attn-4", **ALONE)
def flash_attn_4(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False, scale: float | None = None,
                 enable_gqa: bool = False) -> Tensor:  # fmt: skip
    """`flash_attn_func` of the package flash-attn-4, in the CuTe DSL, for Hopper and Blackwell."""
    from flash_attn.cute import flash_attn_func

    o = flash_attn_func(*time_first(q, k, v), softmax_scale=scale, causal=is_causal)
    return time_first(o[0] if isinstance(o, tuple) else o)[0]


@register("flashinfer", package="flashinfer", install="pip install flashinfer-python", modes=("forward",),
          **ALONE)  # fmt: skip
class FlashInfer(KernelCore):
    """`BatchPrefillWithRaggedKVCacheWrapper` of the package flashinfer, planned once for the sizes of a batch."""

    def __init__(self, shape: LayerShape):
        super().__init__(shape, attention, owns_mask=False)
        self.plans: dict[Any, Any] = {}

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, padding: Tensor | None = None) -> Tensor:
        """(B, H, T, D), (B, H_kv, T_kv, D), (B, H_kv, T_kv, D) -> (B, H, T, D)"""
        (B, _, T, _), T_kv = q.shape, k.shape[-2]
        key = B, T, T_kv, q.dtype
        if key not in self.plans:
            self.plans[key] = self._planned(q, T_kv)
        rows = (x.flatten(0, 1) for x in time_first(q, k, v))  # (B * T, H, D)
        return self.plans[key].run(*rows).unflatten(0, (B, T)).transpose(1, 2)

    def _planned(self, q: Tensor, T_kv: int) -> Any:
        from flashinfer import BatchPrefillWithRaggedKVCacheWrapper

        (B, H, T, D), shape = q.shape, self.shape
        first, last = (torch.arange(0, (B + 1) * n, n, dtype=torch.int32, device=q.device) for n in (T, T_kv))
        plan = BatchPrefillWithRaggedKVCacheWrapper(_workspace(q.device), "NHD")
        plan.plan(first, last, H, shape.H_kv, D, causal=shape.is_causal, sm_scale=shape.scale, q_data_type=q.dtype)
        return plan


@cache
def _workspace(device: torch.device, size: int = 128 << 20) -> Tensor:
    """Return the workspace of a library: 128 MiB as in flashinfer's documentation."""
    return torch.empty(size, dtype=torch.uint8, device=device)


@register("cudnn_frontend", package="cudnn", install="pip install nvidia-cudnn-frontend", modes=("forward",),
          **ALONE | {"unless": None})  # fmt: skip
def cudnn_frontend(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False, scale: float | None = None,
                   enable_gqa: bool = False) -> Tensor:  # fmt: skip
    """The attention of cuDNN by a graph of the package nvidia-cudnn-frontend, built once for sizes and strides."""
    import cudnn

    o = torch.empty_like(q)  # (B, H, T, D)
    sizes = tuple((tuple(x.shape), x.stride()) for x in (q, k, v, o))
    graph, tensors = _cudnn_graph(sizes, q.dtype, is_causal, scale or q.shape[-1] ** -0.5)
    cudnn.set_stream(handle=_cudnn_handle(), stream=torch.cuda.current_stream().cuda_stream)
    workspace = _workspace(q.device, graph.get_workspace_size())
    graph.execute(dict(zip(tensors, (q, k, v, o), strict=True)), workspace, handle=_cudnn_handle())
    return o


@cache
def _cudnn_handle() -> Any:
    import cudnn

    return cudnn.create_handle()


@cache
def _cudnn_graph(sizes: tuple[Any, ...], dtype: torch.dtype, is_causal: bool, scale: float) -> tuple[Any, list[Any]]:
    """Build the graph; returns it with its tensors q, k, v and o."""
    import cudnn

    half = {torch.float16: cudnn.data_type.HALF, torch.bfloat16: cudnn.data_type.BFLOAT16}[dtype]
    wide = cudnn.data_type.FLOAT
    graph = cudnn.pygraph(
        handle=_cudnn_handle(), io_data_type=half, intermediate_data_type=wide, compute_data_type=wide
    )
    q, k, v = (graph.tensor(dim=list(dim), stride=list(stride), data_type=half) for dim, stride in sizes[:3])
    o, _ = graph.sdpa(q=q, k=k, v=v, generate_stats=False, attn_scale=scale, use_causal_mask=is_causal)
    o.set_output(True).set_dim(list(sizes[3][0])).set_stride(list(sizes[3][1])).set_data_type(half)
    graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    return graph, [q, k, v, o]
