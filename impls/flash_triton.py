"""FlashAttention's forward pass as a kernel written by hand, in Triton: the algorithm of `online.py` for a GPU.

A program computes one block of queries of one head. It reads keys and values block by block, and holds a running maximum, a
running sum and its part of the output in registers: scores are never written to memory.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from .registry import register

triton: Any = import_module("triton") if find_spec("triton") else None
tl: Any = import_module("triton.language") if triton else None
jit: Callable[[Callable[..., Any]], Any] = triton.jit if triton else lambda kernel: kernel  # which is refused then

QUERIES, KEYS = 64, 64
"""Queries per program; keys per iteration."""

LOG2_E = 1.4426950408889634
"""exp(x) = 2 ** (x * LOG2_E): a GPU has an instruction for powers of two."""


@jit
def _block(  # type: ignore[no-untyped-def]
    x, of, head, rows, row_count, stride_b, stride_h, stride_t, D: tl.constexpr, WIDTH: tl.constexpr
):
    """Load rows of one head of x (B, H, T, D) with contiguous features: (rows, WIDTH); zeros beyond T and D."""
    features = tl.arange(0, WIDTH)
    places = of * stride_b + head * stride_h + rows[:, None].to(tl.int64) * stride_t + features[None, :]
    return tl.load(x + places, mask=(rows[:, None] < row_count) & (features[None, :] < D), other=0.0)


@jit
def _forward(  # type: ignore[no-untyped-def]
    q, k, v, o, T, T_kv, H, groups, scale,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, o_b, o_h, o_t,
    D_h: tl.constexpr, D_v: tl.constexpr, WIDTH: tl.constexpr, WIDTH_V: tl.constexpr,
    CAUSAL: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Compute one block of QUERIES queries of one head; `groups` query heads share keys."""
    blocks = tl.cdiv(T, QUERIES)
    first, program = tl.program_id(0) % blocks * QUERIES, tl.program_id(0) // blocks
    of, head = (program // H).to(tl.int64), (program % H).to(tl.int64)  # as are places in large tensors
    rows = first + tl.arange(0, QUERIES)
    queries = _block(q, of, head, rows, T, q_b, q_h, q_t, D_h, WIDTH)

    top = tl.full([QUERIES], float("-inf"), tl.float32)  # largest score so far
    total = tl.zeros([QUERIES], tl.float32)  # sum of 2 ** (score - top) so far
    output = tl.zeros([QUERIES, WIDTH_V], tl.float32)

    end = T_kv
    if CAUSAL:  # blocks after the last query's own key are entirely masked
        end = tl.minimum(T_kv, first + QUERIES)
    for start in range(0, end, KEYS):
        columns = start + tl.arange(0, KEYS)
        keys = _block(k, of, head // groups, columns, T_kv, k_b, k_h, k_t, D_h, WIDTH)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        visible = columns[None, :] < T_kv
        if CAUSAL:
            visible = visible & (columns[None, :] <= rows[:, None])
        scores = tl.where(visible, scores, float("-inf"))

        highest = tl.maximum(top, tl.max(scores, 1))  # never -inf: every query sees the first key
        powers, rescale = tl.exp2(scores - highest[:, None]), tl.exp2(top - highest)
        total = total * rescale + tl.sum(powers, 1)
        values = _block(v, of, head // groups, columns, T_kv, v_b, v_h, v_t, D_v, WIDTH_V)
        output = output * rescale[:, None] + tl.dot(powers.to(values.dtype), values, input_precision="ieee")
        top = highest

    features = tl.arange(0, WIDTH_V)
    places = of * o_b + head * o_h + rows[:, None].to(tl.int64) * o_t + features[None, :]
    kept = (rows[:, None] < T) & (features[None, :] < D_v)
    tl.store(o + places, (output / total[:, None]).to(queries.dtype), mask=kept)


@register("flash_triton", common=False, package="triton", devices=("cuda",),
          dtypes=("float32", "float16", "bfloat16"), modes=("forward", "decode"), masks=("none", "causal"),
          dropout=False, compiles=False, autocasts=False)  # fmt: skip
def flash_triton(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False, scale: float | None = None,
                 enable_gqa: bool = False) -> Tensor:  # fmt: skip
    """FlashAttention's forward pass, written by hand in Triton.

    Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023, algorithm 1.
    """
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    (B, H, T, D_h), T_kv, D_v = q.shape, k.shape[-2], v.shape[-1]
    o = torch.empty((B, H, T, D_v), dtype=q.dtype, device=q.device)
    width, width_v = (max(16, triton.next_power_of_2(D)) for D in (D_h, D_v))  # of a tensor core's tiles
    strides = [stride for x in (q, k, v, o) for stride in x.stride()[:3]]
    _forward[(triton.cdiv(T, QUERIES) * B * H,)](  # other dimensions of a grid have at most 65,535 programs
        q, k, v, o, T, T_kv, H, H // k.shape[1], (D_h**-0.5 if scale is None else scale) * LOG2_E, *strides,
        D_h, D_v, width, width_v, is_causal, QUERIES, KEYS,
    )  # fmt: skip
    return o
