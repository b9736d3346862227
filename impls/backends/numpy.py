"""NumPy: the plain formula, whose products are those of its BLAS."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from ..explicit import explicit
from ..packages import BACKEND
from ..registry import every_score, register


@register("numpy", package="numpy threadpoolctl", takes_mask=True, dtypes=("float32", "float64"),
          scores=every_score, **BACKEND | {"modes": ("forward", "decode"), "masks": None})  # fmt: skip
@explicit
def numpy(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, scale: float, dropout_p: float) -> Tensor:
    """The plain formula by NumPy, on the tensors' own memory. (..., T, D_h), (..., T_kv, D_h), (..., T_kv, D_v)"""
    _use_threads(torch.get_num_threads())
    scores = q.numpy() @ k.mT.numpy() * scale  # (..., T, T_kv)
    if visible is not None:
        scores = np.where(visible.numpy(), scores, -np.inf)
    exps = np.exp(scores - scores.max(-1, keepdims=True))
    probs = exps / exps.sum(-1, keepdims=True)
    return torch.from_numpy(probs @ v.numpy())


@lru_cache(maxsize=1)  # set only when the number changes
def _use_threads(count: int) -> None:
    from threadpoolctl import threadpool_limits

    threadpool_limits(count, user_api="blas")
