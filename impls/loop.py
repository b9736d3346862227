"""Attention as first explained in tutorials: one query at a time, one key at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from .explicit import explicit
from .registry import register


@register("loop", max_T=256, max_pairs=65_536, loops=True, compiles=False, dropout=False, autocasts=False)
@explicit
def loop(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, scale: float, dropout_p: float) -> Tensor:
    """Python loops over queries and keys, accumulated in float32 (float64 for float64)."""
    heads = q.shape[:-2]
    seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool) if visible is None else visible
    seen = seen.expand(*heads, q.shape[-2], k.shape[-2])
    q_, k_, v_, seen_ = (x.reshape(-1, *x.shape[-2:]) for x in (q, k, v, seen))  # (heads, T, D) each
    rows = torch.stack([_one_head(q_[h], k_[h], v_[h], seen_[h], scale) for h in range(len(q_))])
    return rows.reshape(*heads, q.shape[-2], v.shape[-1])


def _one_head(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float) -> Tensor:
    """(T, D_h), (T_kv, D_h), (T_kv, D_v), (T, T_kv) -> (T, D_v)"""
    accumulator = torch.promote_types(q.dtype, torch.float32)
    queries, keys, values = (x.to(accumulator).unbind() for x in (q, k, v))
    rows = []
    for query, visible_row in zip(queries, visible.tolist(), strict=True):
        seen = [j for j, is_seen in enumerate(visible_row) if is_seen]
        scores = torch.stack([torch.dot(query, keys[j]) for j in seen]) * scale
        row = values[0].new_zeros(v.shape[-1])
        for prob, j in zip(torch.softmax(scores, dim=0), seen, strict=True):
            row = torch.addcmul(row, prob, values[j])  # row + prob * value
        rows.append(row)
    return torch.stack(rows).to(q.dtype)
