"""Adapts kernels with an explicit mask and scale to SDPA's signature."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from .masks import causal_visible


def explicit(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Give f(q, k, v, visible, scale, dropout_p) the signature of SDPA, and f's further options: `softcap`, `sinks`.

    `visible` is (..., T, T_kv), True where a query may see a key, or None for everything; `is_causal` becomes such a
    mask, `scale` defaults to 1 / sqrt(D_h), and with `enable_gqa` each key-value head is repeated for its group of
    query heads. A mask of numbers, which are added to the scores, becomes `bias`.
    """

    @wraps(kernel)
    def with_options(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        **others: Any,
    ) -> Any:
        if enable_gqa:
            k, v = (share_heads(x, q.shape[-3]) for x in (k, v))
        if is_causal:
            attn_mask = causal_visible(q.shape[-2], k.shape[-2], q.device)
        if attn_mask is not None and attn_mask.is_floating_point():
            attn_mask, others["bias"] = None, attn_mask
        return kernel(q, k, v, attn_mask, q.shape[-1] ** -0.5 if scale is None else scale, dropout_p, **others)

    return with_options


def share_heads(x: Tensor, H: int) -> Tensor:
    """Repeat each key-value head for its group of neighbouring query heads: (..., H_kv, T_kv, D) -> (..., H, T_kv, D)."""
    return torch.repeat_interleave(x, H // x.shape[-3], dim=-3)
