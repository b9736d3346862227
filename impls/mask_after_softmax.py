"""A detour that tutorials take: softmax over every key, then masking and a second normalisation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import dropout

from .explicit import explicit
from .registry import every_score, register


def _unfit(case: Any) -> str | None:
    """No backward in half precision."""
    if case.mode == "backward" and case.dtype in ("float16", "bfloat16"):
        return "computes inaccurate gradients in half precision where a query sees few keys, since it normalises twice"
    return None


@register("mask_after_softmax", takes_mask=True, unless=_unfit, scores=every_score)
@explicit
def mask_after_softmax(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, scale: float, dropout_p: float
) -> Tensor:
    """Softmax over every key, masked ones set to zero afterwards, rows normalised again."""
    probs = torch.softmax(q @ k.transpose(-2, -1) * scale, dim=-1)  # (..., T, T_kv)
    if visible is not None:
        probs = probs * visible
        probs = probs / probs.sum(dim=-1, keepdim=True)
    if dropout_p:
        probs = dropout(probs, dropout_p)
    return probs @ v
