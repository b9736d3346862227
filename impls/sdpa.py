"""PyTorch's own: `scaled_dot_product_attention`, which picks a kernel by itself."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from .registry import register


@register("sdpa", compiled_by_default=True)
def sdpa(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`, which picks a kernel by itself."""
    return scaled_dot_product_attention(q, k, v, **options)
