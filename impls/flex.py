"""FlexAttention: mask and scores as functions, with a table of the mask's blocks built in advance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from .layer import KernelCore, LayerShape
from .registry import every_score, register
from .rules import EVERY_RULE, bias_of, capped

QUERIES = 4096
"""Queries whose blocks are found together: a multiple of a block's 128."""

BLOCK = 128
"""Queries and keys of a block of the mask."""

NARROWEST = 16
"""Features of the narrowest tile that Triton's products on a GPU have."""


def _unfit(case: Any) -> str | None:
    """No backward on the CPU."""
    if case.device == "cpu" and case.mode == "backward":
        return "does not support backward on the CPU"
    return None


def unfit_compiled(case: Any) -> str | None:
    """When compiled no sinks on the CPU, and no heads of less than 16 features on a GPU."""
    if case.device != "cpu" and min(case.D_h, case.D_v) < NARROWEST:
        return f"needs heads of at least {NARROWEST} features on a GPU, the width of its tiles (torch 2.13)"
    if case.device == "cpu" and case.sinks:
        return "does not support sinks on the CPU: compiled by torch, it returns no sums of the softmax there"
    return None


@register(
    "flex",
    common=False,
    compiled_by_default=True,
    dropout=False,
    unless=_unfit,
    compiled_unless=unfit_compiled,
    beyond=tuple(rule for rule in EVERY_RULE if rule != "learned_bias"),
    scores=every_score,
)
class Flex(KernelCore):
    """`flex_attention` with a block mask that is built in advance; only its compiled form never stores the scores."""

    typed: Tensor

    def __init__(self, shape: LayerShape):
        super().__init__(shape, flex_attention, owns_mask=False)
        self.block_mask: BlockMask | None = None
        self.score_mod: Callable[..., Tensor] | None = None
        self.register_buffer("typed", torch.empty(0), persistent=False)  # converted to the core's dtype

    def prepare(self, T: int, T_kv: int, padding: Tensor | None, device: str) -> None:
        """Build the table of blocks for these lengths, which a training loop does once per batch or for all steps."""
        span, softcap = self.shape.span(T, T_kv, device), self.shape.softcap
        # compiled by torch 2.13 for the CPU, adding float64 to float32 scores gives NaN
        dtype = torch.promote_types(self.typed.dtype, torch.float32)
        bias = bias_of(self.shape, self.shape.H, T, T_kv, device, dtype)

        def changed(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            score = score if softcap is None else capped(score, softcap)
            return score if bias is None else score + bias(h, i, j)

        def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            seen = span(i, j)
            return seen if padding is None else seen & padding[b, j]

        self.score_mod = None if bias is None and softcap is None else changed
        if span or padding is not None:
            B = None if padding is None else len(padding)
            self.block_mask = blocks_of(visible, B, T, T_kv, device)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, padding: Tensor | None = None) -> Tensor:
        """(..., H, T, D_h), (..., H_kv, T_kv, D_h), (..., H_kv, T_kv, D_v) -> (..., H, T, D_v)"""
        if q.device.type == "cpu":  # the compiled form can't read a projection's output through a view (torch 2.13)
            q, k, v = own(q), own(k), own(v)
        o: Any = flex_attention(
            q,
            k,
            v,
            score_mod=self.score_mod,
            block_mask=self.block_mask,
            kernel_options=kernel_options(q, k),
            scale=self.shape.scale,
            enable_gqa=self.shape.H_kv != self.shape.H,
            return_aux=None if self.sinks is None else AuxRequest(lse=True),
        )
        if self.sinks is None:
            return o
        found, aux = o
        share = torch.sigmoid(aux.lse - self.sinks[:, None])  # (..., H, T): logarithm of the sum that includes the sink
        return (found * share[..., None]).to(found.dtype)


def kernel_options(q: Tensor, k: Tensor) -> Any:
    """Return options that exclude the GPU's kernel for few queries where those of all heads that share keys exceed a block of
    the mask: torch 2.13 finds no tile for them (pytorch/pytorch#185349).
    """
    rows = q.shape[1] // k.shape[1] << (q.shape[2] - 1).bit_length()
    return {"BACKEND": "TRITON"} if rows > BLOCK and q.device.type != "cpu" else None


def blocks_of(visible: Callable[..., Tensor], B: int | None, T: int, T_kv: int, device: str) -> BlockMask:
    """Return `create_block_mask` for chunks of queries; in one piece it would build a mask of T times T_kv."""

    def from_query(first: int) -> BlockMask:
        rows = min(QUERIES, T - first)
        return create_block_mask(lambda b, h, i, j: visible(b, h, i + first, j), B, None, rows, T_kv, device=device)

    parts = [from_query(first) for first in range(0, T, QUERIES)]
    if len(parts) == 1:
        return parts[0]
    names = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
    some, some_at, full, full_at = (torch.cat([getattr(part, name) for part in parts], dim=2) for name in names)
    return BlockMask.from_kv_blocks(some, some_at, full, full_at, mask_mod=visible, seq_lengths=(T, T_kv))


def own(x: Tensor) -> Tensor:
    """Copy to separate memory with four axes; a single token or head can look contiguous without being so."""
    return x.clone(memory_format=torch.contiguous_format) if 1 in x.shape[-3:-1] else x.contiguous()
