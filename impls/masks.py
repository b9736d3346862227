"""Masks as tensors. Boolean ones are named by what is True in them."""

from __future__ import annotations

import torch
from torch import Tensor

from .rules import Device, Rules, bias_of


def causal_visible(T: int, T_kv: int, device: Device = None) -> Tensor:
    """(T, T_kv), True where query i may see key j: j <= i, aligned top left, as SDPA's `is_causal`."""
    return torch.ones(T, T_kv, dtype=torch.bool, device=device).tril()


def rows_of(mask: Tensor, rules: Rules, T: int, T_kv: int) -> Tensor:
    """What a mask that was made for more queries and keys says of these."""
    first = rules.offset(T, T_kv) - rules.offset(*mask.shape[-2:])
    return mask[..., first : first + T, :T_kv]


def mask_of(rules: Rules, H: int, T: int, T_kv: int) -> Tensor | None:
    """All but the padding, as SDPA takes it: (T, T_kv), True where a query may see a key; with a bias (1, H, T, T_kv), which is
    added, -inf where it may not. None where every key is visible and nothing added.

    SDPA's flash kernel on the CPU takes masks of two or four axes alone.
    """
    span, bias = rules.span(T, T_kv), bias_of(rules, H, T, T_kv)
    i, j = torch.arange(T)[:, None], torch.arange(T_kv)
    visible = span(i, j).expand(T, T_kv) if span else None
    if bias is None:
        return None if visible is None else visible.contiguous()
    added = bias(torch.arange(H)[:, None, None], i, j)[None]
    return added if visible is None else added.masked_fill(~visible, -torch.inf)
