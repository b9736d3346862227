"""The plain formula, with the axes of every product written out."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import dropout

from .explicit import explicit
from .registry import every_score, register


@register("einsum", takes_mask=True, scores=every_score)
@explicit
def einsum(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, scale: float, dropout_p: float) -> Tensor:
    """The plain formula by `torch.einsum`: queries i, keys j, features d."""
    scores = torch.einsum("...id,...jd->...ij", q, k) * scale
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    probs = scores.softmax(dim=-1)
    if dropout_p:
        probs = dropout(probs, dropout_p)
    return torch.einsum("...ij,...jd->...id", probs, v)
