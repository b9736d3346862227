"""zentorch: AMD's torch plugin, which has its own SDPA for the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from ..packages import BACKEND
from ..registry import register


@register("zentorch", package="zentorch", install="pip install zentorch==2.13.* (the build for the same torch)",
          dtypes=("float32", "bfloat16"), grouped=False, wide_values=False, **BACKEND | {"own_memory": False})  # fmt: skip
def zentorch(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False, scale: float | None = None) -> Tensor:
    """`zentorch_sdpa` of zentorch."""
    import zentorch  # noqa: F401  (registers its operators)

    return torch.ops.zentorch.zentorch_sdpa(q, k, v, 0.0, is_causal, scale=scale)[0]
