"""Two calls with disjoint keys, merged by the logarithms of their sums: split-K, or a cascade with a shared prefix."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .explicit import explicit
from .registry import register

Part = tuple[Tensor, Tensor]
"""o (..., T, D_v), and the natural logarithm of the sum of exponentials by which it was divided, (..., T)."""


@register(
    "split",
    takes_mask=True,
    dropout=False,
    common=False,
    autocasts=False,
    modes=("forward", "decode"),
    returns_lse=math.e,
)
@explicit
def split(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, scale: float, dropout_p: float) -> Part:
    """Attention to each half of the keys separately, merged by their log-sum-exps."""
    half = (k.shape[-2] + 1) // 2
    of_keys = zip(k.split(half, -2), v.split(half, -2), strict=True)
    masks = [None, None] if visible is None else visible.split(half, -1)
    parts = [attend(q, *part, mask, scale) for part, mask in zip(of_keys, masks, strict=False)]
    o, lse = merge(*parts) if len(parts) > 1 else parts[0]
    return o.to(q.dtype), lse


def attend(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, scale: float) -> Part:
    """Attend to some of the keys, in float32 at least; zero for queries that see none of them."""
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = (q @ k.mT).to(wide) * scale
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    lse = torch.logsumexp(scores, -1)
    probs = torch.exp(scores - lse.masked_fill(lse == -torch.inf, 0.0)[..., None])
    return probs @ v.to(wide), lse


def merge(one: Part, other: Part) -> Part:
    """Merge attention to two disjoint sets of keys."""
    lse = torch.logaddexp(one[1], other[1])
    return one[0] * torch.exp(one[1] - lse)[..., None] + other[0] * torch.exp(other[1] - lse)[..., None], lse
