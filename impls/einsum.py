"""The plain formula, with the axes of every product written out."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import dropout

from .explicit import explicit
from .registry import every_score, register
from .rules import EVERY_RULE, capped, softmax


@register("einsum", takes_mask=True, beyond=EVERY_RULE, scores=every_score)
@explicit
def einsum(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, scale: float, dropout_p: float, *,
    bias: Tensor | None = None, softcap: float | None = None, sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The plain formula by `torch.einsum`: queries i, keys j, features d."""
    scores = torch.einsum("...id,...jd->...ij", q, k) * scale
    if softcap is not None:
        scores = capped(scores, softcap)
    if bias is not None:
        scores = scores + bias
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    probs = softmax(scores, sinks)
    if dropout_p:
        probs = dropout(probs, dropout_p)
    return torch.einsum("...ij,...jd->...id", probs, v)
