"""Kernels of packages that need a GPU, measured where they are installed. Their layout is (B, T, H, D)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .explicit import share_heads
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
}
HALF: dict[str, Any] = {"dtypes": ("float16", "bfloat16")}


def time_first(*tensors: Tensor) -> list[Tensor]:
    """(B, H, T, D) -> (B, T, H, D), without a copy; the same way back."""
    return [x.transpose(1, 2) for x in tensors]


@register("flash_attn", package="flash_attn", install="pip install flash-attn --no-build-isolation",
          dispatches="flash", compiles=False, unless=_aligned_bottom_right, **CUDA, **HALF)  # fmt: skip
def flash_attn(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False, scale: float | None = None,
               dropout_p: float = 0.0, enable_gqa: bool = False) -> Tensor:  # fmt: skip
    """`flash_attn_func` of the package flash-attn."""
    from flash_attn import flash_attn_func

    o = flash_attn_func(*time_first(q, k, v), dropout_p=dropout_p, softmax_scale=scale, causal=is_causal)
    return time_first(o)[0]


@register("xformers", package="xformers", install="pip install xformers", unless=_aligned_bottom_right, **CUDA)
def xformers(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False, scale: float | None = None,
             dropout_p: float = 0.0, enable_gqa: bool = False) -> Tensor:  # fmt: skip
    """`memory_efficient_attention` of the package xformers."""
    from xformers.ops import LowerTriangularMask, memory_efficient_attention

    if enable_gqa:
        k, v = (share_heads(x, q.shape[-3]) for x in (k, v))
    bias = LowerTriangularMask() if is_causal else None
    o = memory_efficient_attention(*time_first(q, k, v), attn_bias=bias, p=dropout_p, scale=scale)
    return time_first(o)[0]


@register("sage", package="sageattention", install="pip install sageattention", modes=("forward", "decode"),
          dropout=False, compiles=False, unless=_aligned_bottom_right, **CUDA, **HALF)  # fmt: skip
def sage(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False, scale: float | None = None,
         enable_gqa: bool = False) -> Tensor:  # fmt: skip
    """`sageattn` of the package sageattention, which rounds queries and keys to 8 bits."""
    from sageattention import sageattn

    o: Tensor = sageattn(q, k, v, tensor_layout="HND", is_causal=is_causal, sm_scale=scale)
    return o
