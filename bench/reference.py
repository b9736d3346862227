"""The truth: attention by the formula, in float64, in blocks so that long sequences fit."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import linear

Weights: TypeAlias = dict[str, Tensor]

BLOCK = 1 << 22
"""Scores that are held at a time."""


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, padding: Tensor | None = None, rows: Tensor | None = None
) -> Tensor:
    """softmax(q kᵀ / sqrt(D_h)) v, in the dtype of its inputs: the truth in float64, the yardstick of error in any other.

    q (B, H, T, D_h), k (B, H_kv, T_kv, D_h), v (B, H_kv, T_kv, D_v); `padding` (B, T_kv), True where a key is a token.
    Query i sees key j <= i under a causal mask. `rows` picks the queries that are wanted: (B, H, len(rows), D_v).
    """
    B, H, T, D_h = q.shape
    group = H // k.shape[1]
    rows = torch.arange(T, device=q.device) if rows is None else rows
    keys = torch.arange(k.shape[2], device=q.device)
    o = q.new_empty(B, H, len(rows), v.shape[-1])
    size = max(1, BLOCK // (B * len(keys)))
    for h in range(H):
        k_h, v_h = k[:, h // group], v[:, h // group]  # (B, T_kv, D)
        for start in range(0, len(rows), size):
            block = rows[start : start + size]
            scores = q[:, h, block] @ k_h.mT / D_h**0.5  # (B, block, T_kv)
            if causal:
                scores = scores.masked_fill(keys > block[:, None], -torch.inf)
            if padding is not None:
                scores = scores.masked_fill(~padding[:, None, :], -torch.inf)
            o[:, h, start : start + size] = torch.softmax(scores, dim=-1) @ v_h
    return o


def layer(
    x: Tensor, x_kv: Tensor, weights: Weights, *, H: int, H_kv: int, causal: bool, padding: Tensor | None = None,
    rows: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """A whole layer: projections, attention, output projection. x (B, T, d_model) -> (B, T or len(rows), d_model)."""
    q = linear(x, weights["W_q"], weights.get("b_q")).unflatten(-1, (H, -1)).transpose(1, 2)
    k = linear(x_kv, weights["W_k"], weights.get("b_k")).unflatten(-1, (H_kv, -1)).transpose(1, 2)
    v = linear(x_kv, weights["W_v"], weights.get("b_v")).unflatten(-1, (H_kv, -1)).transpose(1, 2)
    o = attention(q, k, v, causal=causal, padding=padding, rows=rows)
    return linear(o.transpose(1, 2).flatten(2), weights["W_o"], weights.get("b_o"))
