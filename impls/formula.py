"""The plain formula. `fused` registers it; the single heads and `packed` use it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import dropout

from .explicit import explicit
from .rules import capped, softmax


def attention_scores(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """q kᵀ · scale: (..., T, D_h), (..., T_kv, D_h) -> (..., T, T_kv)"""
    return q @ k.transpose(-2, -1) * scale


@explicit
def attention(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, scale: float, dropout_p: float, *,
    bias: Tensor | None = None, softcap: float | None = None, sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The plain formula, softmax(q kᵀ · scale) v; the scores are stored.

    (..., T, D_h), (..., T_kv, D_h), (..., T_kv, D_v) -> (..., T, D_v)
    """
    scores = attention_scores(q, k, scale)
    if softcap is not None:
        scores = capped(scores, softcap)
    if bias is not None:
        scores = scores + bias
    if visible is not None:
        scores = torch.where(visible, scores, -torch.inf)
    probs = softmax(scores, sinks)
    if dropout_p:
        probs = dropout(probs, dropout_p)
    return probs @ v
