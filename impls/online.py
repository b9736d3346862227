"""The idea of FlashAttention in plain torch: softmax block by block, so that the scores are never stored."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .explicit import explicit
from .registry import register

Seen = tuple[Tensor, Tensor, Tensor]
"""Of the keys so far: the largest score (..., T, 1), the sum of exp(score - largest), and the values weighted by these exps."""

BLOCK = 128
"""Keys per block."""


@register("online", takes_mask=True, dropout=False, common=False, autocasts=False)
@explicit
def online(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, scale: float, dropout_p: float) -> Tensor:
    """Softmax over blocks of keys with a running maximum and sum; scores are recomputed for the gradient."""
    return OnlineSoftmax.apply(q, k, v, visible, scale)  # type: ignore[no-untyped-call]


class OnlineSoftmax(Function):
    """softmax(q kᵀ · scale) v with memory that grows with T, not T².

    Forward: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018. Backward: Dao et al.,
    "FlashAttention", 2022, algorithm 4. Accumulated in float32 at least.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, scale: float) -> Tensor:
        """(..., T, D_h), (..., T_kv, D_h), (..., T_kv, D_v) -> (..., T, D_v)"""
        wide = torch.promote_types(q.dtype, torch.float32)
        seen = nothing_seen(q, v, wide)
        for keys in _blocks(k):
            scores = _scores(q, k, visible, scale, keys, wide)  # (..., T, block)
            seen = with_block(seen, scores, v[..., keys, :].to(wide))
        top, total, o = seen
        o = o / total
        ctx.save_for_backward(q, k, v, visible, o, top + total.log())
        ctx.scale = scale
        return o.to(q.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Recompute each block's probs from the stored logarithm of their sum."""
        q, k, v, visible, o, log_total = ctx.saved_tensors
        grad = gradients[0].to(o.dtype)
        through_sum = (grad * o).sum(-1, keepdim=True)  # (..., T, 1): the gradient through softmax's sum
        grad_q = torch.zeros_like(q, dtype=o.dtype)
        grad_k, grad_v = torch.empty_like(k), torch.empty_like(v)
        for keys in _blocks(k):
            probs = torch.exp(_scores(q, k, visible, ctx.scale, keys, o.dtype) - log_total)  # (..., T, block)
            grad_v[..., keys, :] = (probs.mT @ grad).to(v.dtype)
            grad_scores = probs * (grad @ v[..., keys, :].to(o.dtype).mT - through_sum) * ctx.scale
            grad_q += grad_scores @ k[..., keys, :].to(o.dtype)
            grad_k[..., keys, :] = (grad_scores.mT @ q.to(o.dtype)).to(k.dtype)
        return grad_q.to(q.dtype), grad_k, grad_v, None, None


def nothing_seen(q: Tensor, v: Tensor, wide: torch.dtype) -> Seen:
    """Return what a softmax begins with, in the dtype in which it is accumulated."""
    top = q.new_full((*q.shape[:-1], 1), -torch.inf, dtype=wide)
    return top, torch.zeros_like(top), q.new_zeros((*q.shape[:-1], v.shape[-1]), dtype=wide)


def with_block(seen: Seen, scores: Tensor, values: Tensor) -> Seen:
    """Add a block of keys to a softmax: scores (..., T, block), values (..., block, D_v)."""
    top, total, o = seen
    highest = torch.maximum(top, scores.amax(-1, keepdim=True))
    finite = highest.masked_fill(highest == -torch.inf, 0)  # a row that has seen no key yet
    rescale, exps = torch.exp(top - finite), torch.exp(scores - finite)
    total = total * rescale + exps.sum(-1, keepdim=True)
    return highest, total, o * rescale + (exps.to(values.dtype) @ values).to(o.dtype)


def _blocks(k: Tensor) -> list[slice]:
    return [slice(start, start + BLOCK) for start in range(0, k.shape[-2], BLOCK)]


def _scores(q: Tensor, k: Tensor, visible: Tensor | None, scale: float, keys: slice, wide: torch.dtype) -> Tensor:
    """Return the scores of one block of keys, masked ones -inf: (..., T, block)."""
    scores = (q @ k[..., keys, :].mT).to(wide) * scale
    return scores if visible is None else scores.masked_fill(~visible[..., keys], -torch.inf)
