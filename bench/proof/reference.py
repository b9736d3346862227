"""The reference: attention by the formula, in float64, in blocks so that long sequences fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import linear

Weights: TypeAlias = dict[str, Tensor]

BLOCK = 1 << 22
"""Scores that are held at a time."""


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, padding: Tensor | None = None, rows: Tensor | None = None,
    dropped: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """softmax(q kᵀ / sqrt(D_h)) v, in the dtype of its inputs: the reference in float64, the measure of error in any.

    q (B, H, T, D_h), k (B, H_kv, T_kv, D_h), v (B, H_kv, T_kv, D_v); `padding` (B, T_kv), True where a key is a token.
    Query i sees key j <= i under a causal mask. `rows` picks the queries that are wanted: (B, H, len(rows), D_v). `dropped`
    (B, H, T, T_kv): what each prob is multiplied by, 0 or 1 / (1 - p).
    """
    B, H, T, D_h = q.shape
    group = H // k.shape[1]
    rows = torch.arange(T, device=q.device) if rows is None else rows
    keys = torch.arange(k.shape[2], device=q.device)
    heads = []
    size = max(1, BLOCK // (B * len(keys)))
    for h in range(H):
        k_h, v_h = k[:, h // group], v[:, h // group]  # (B, T_kv, D)
        blocks = []
        for start in range(0, len(rows), size):
            block = rows[start : start + size]
            scores = q[:, h, block] @ k_h.mT / D_h**0.5  # (B, block, T_kv)
            if causal:
                scores = scores.masked_fill(keys > block[:, None], -torch.inf)
            if padding is not None:
                scores = scores.masked_fill(~padding[:, None, :], -torch.inf)
            blocks.append(_weigh(scores, v_h, None if dropped is None else dropped[:, h, block]))
        heads.append(torch.cat(blocks, dim=1))  # (B, rows, D_v)
    return torch.stack(heads, dim=1)


def _softmax_times(scores: Tensor, v: Tensor, dropped: Tensor | None) -> Tensor:
    """(B, T, T_kv), (B, T_kv, D_v) -> (B, T, D_v)"""
    return _without(dropped, torch.softmax(scores, dim=-1)) @ v


def _without(dropped: Tensor | None, probs: Tensor) -> Tensor:
    return probs if dropped is None else probs * dropped.to(probs.dtype)


class _SummedOverFeatures(Function):
    """The same. Its gradient takes what softmax's sum gives back from o, as flash kernels do, not from the probs.

    Both are one number in exact arithmetic; where a query sees few keys it cancels nearly everything, and rounding shows.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, v: Tensor, dropped: Tensor | None) -> Tensor:
        probs = torch.softmax(scores, dim=-1)
        o = _without(dropped, probs) @ v
        ctx.save_for_backward(probs, v, o)
        ctx.dropped = dropped
        return o

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (grad,) = gradients
        probs, v, o = ctx.saved_tensors
        of_probs = _without(ctx.dropped, grad @ v.mT)
        of_scores = probs * (of_probs - (grad * o).sum(-1, keepdim=True))
        return of_scores, _without(ctx.dropped, probs).mT @ grad, None


_weigh: Callable[[Tensor, Tensor, Tensor | None], Tensor] = _softmax_times


@contextmanager
def summed_over_features() -> Iterator[None]:
    """Meanwhile gradients go the other of two plain ways."""
    global _weigh
    _weigh = _SummedOverFeatures.apply
    yield
    _weigh = _softmax_times


def layer(
    x: Tensor, x_kv: Tensor, weights: Weights, *, H: int, H_kv: int, causal: bool, padding: Tensor | None = None,
    rows: Tensor | None = None, dropped: Tensor | None = None, out_dropped: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """A whole layer: projections, attention, output projection. x (B, T, d_model) -> (B, T or len(rows), d_model)."""
    q, k, v = _project(x, weights, "q", H), _project(x_kv, weights, "k", H_kv), _project(x_kv, weights, "v", H_kv)
    o = _finish(attention(q, k, v, causal=causal, padding=padding, rows=rows, dropped=dropped), weights)
    return _without(out_dropped, o)


def decode(x: Tensor, k: Tensor, v: Tensor, weights: Weights, *, H: int, H_kv: int) -> list[Tensor]:
    """A layer for one new token x (B, 1, d_model), whose key and value go to the last place of the cache; all is visible.

    Gives o (B, 1, d_model), and what is written to the cache: (B, H_kv, 1, D_h), (B, H_kv, 1, D_v).
    """
    q, new_k, new_v = _project(x, weights, "q", H), _project(x, weights, "k", H_kv), _project(x, weights, "v", H_kv)
    k, v = torch.cat([k[..., :-1, :], new_k], dim=-2), torch.cat([v[..., :-1, :], new_v], dim=-2)
    return [_finish(attention(q, k, v, causal=False), weights), new_k, new_v]


def _project(x: Tensor, weights: Weights, n: str, H: int) -> Tensor:
    """(B, T, d_model) -> (B, H, T, D)"""
    heads: Tensor = linear(x, weights[f"W_{n}"], weights.get(f"b_{n}")).unflatten(-1, (H, -1))
    return heads.transpose(1, 2)


def _finish(o: Tensor, weights: Weights) -> Tensor:
    """(B, H, T, D_v) -> (B, T, d_model)"""
    return linear(o.transpose(1, 2).flatten(2), weights["W_o"], weights.get("b_o"))
