"""Boolean masks, named by what is True in them."""

from __future__ import annotations

import torch
from torch import Tensor


def causal_visible(T: int, T_kv: int, device: torch.device | str | None = None) -> Tensor:
    """(T, T_kv), True where query i may see key j: j <= i, aligned top left, as SDPA's `is_causal`."""
    return torch.ones(T, T_kv, dtype=torch.bool, device=device).tril()
