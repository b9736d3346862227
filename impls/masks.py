"""Masks as tensors. Boolean masks are named after what True means."""

from __future__ import annotations

import torch
from torch import Tensor

from .rules import Device, Rules, bias_of


def causal_visible(T: int, T_kv: int, device: Device = None) -> Tensor:
    """Return (T, T_kv), True where query i may see key j: j <= i, aligned top left, as SDPA's `is_causal`."""
    return torch.ones(T, T_kv, dtype=torch.bool, device=device).tril()


def rows_of(mask: Tensor, rules: Rules, T: int, T_kv: int) -> Tensor:
    """Slice a mask made for more queries and keys."""
    first = rules.offset(T, T_kv) - rules.offset(*mask.shape[-2:])
    return mask[..., first : first + T, :T_kv]


def mask_of(rules: Rules, H: int, T: int, T_kv: int) -> Tensor | None:
    """Return the mask without padding, in SDPA's format: (T, T_kv), True where a query may see a key; with a bias (1,
    H, T, T_kv), which is added, -inf for masked keys. None if every key is visible and nothing is added. A learned
    bias is not part of it.

    SDPA's flash kernel on the CPU accepts only masks of two or four axes.
    """
    span, bias = rules.span(T, T_kv), bias_of(rules, H, T, T_kv)
    i, j = torch.arange(T)[:, None], torch.arange(T_kv)
    visible = span(i, j).expand(T, T_kv) if span else None
    if bias is None:
        return None if visible is None else visible.contiguous()
    added = bias(torch.arange(H)[:, None, None], i, j)[None]
    return added if visible is None else added.masked_fill(~visible, -torch.inf)
