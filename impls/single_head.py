"""One head with trainable weights, first as plain matrices, then as `nn.Linear`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .formula import attention
from .layer import AttentionLayer, Cache, LayerShape, Masked, extend
from .registry import every_score, register
from .rules import BY_MASK
from .weights import Parts, named_parts


class SingleHead(AttentionLayer):
    """Base of single heads: queries, keys and values without a head axis."""

    def __init__(self, shape: LayerShape):
        super().__init__(shape)
        self.mask = Masked(shape)

    def project(self, x: Tensor, x_k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        raise NotImplementedError

    def forward(
        self,
        x: Tensor,
        x_k: Tensor | None = None,
        *,
        padding: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """(..., T, d_model) -> (..., T, d_out)"""
        q, k, v = self.project(x, x if x_k is None else x_k)  # (..., T, D_h) each
        if cache is not None:
            k, v = extend((cache[0].squeeze(-3), cache[1].squeeze(-3)), (k, v))  # (..., T_kv, D_h), (..., T_kv, D_v)
        mask = self.mask.attn_mask(q.shape[-2], k.shape[-2], padding)
        return self.finish(attention(q, k, v, **self.mask.kernel_options(mask)))


@register("parameter", heads=1, beyond=BY_MASK, scores=every_score)
class ParameterHead(SingleHead):
    """One head; projections are plain `nn.Parameter` matrices (d_model, D_h), applied as x W."""

    def __init__(self, shape: LayerShape):
        super().__init__(shape)
        self.W_q = nn.Parameter(torch.rand(shape.d_model, shape.D_h))
        self.W_k = nn.Parameter(torch.rand(shape.d_model, shape.D_h))
        self.W_v = nn.Parameter(torch.rand(shape.d_model, shape.D_v))
        if shape.qkv_bias:
            self.b_q, self.b_k = nn.Parameter(torch.zeros(shape.D_h)), nn.Parameter(torch.zeros(shape.D_h))
            self.b_v = nn.Parameter(torch.zeros(shape.D_v))

    def project(self, x: Tensor, x_k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = x @ self.W_q, x_k @ self.W_k, x_k @ self.W_v
        return (q + self.b_q, k + self.b_k, v + self.b_v) if self.shape.qkv_bias else (q, k, v)

    def parts(self, of: Callable[[Tensor], Tensor]) -> Parts:
        found = {f"W_{n}": [of(getattr(self, f"W_{n}")).T] for n in "qkv"}
        if self.shape.qkv_bias:
            found |= {f"b_{n}": [of(getattr(self, f"b_{n}"))] for n in "qkv"}
        return found | named_parts(self, of)


@register("linear", heads=1, beyond=BY_MASK, scores=every_score)
class LinearHead(SingleHead):
    """One head; projections are `nn.Linear`."""

    def __init__(self, shape: LayerShape):
        super().__init__(shape)
        self.W_q = nn.Linear(shape.d_model, shape.D_h, bias=shape.qkv_bias)
        self.W_k = nn.Linear(shape.d_model, shape.D_h, bias=shape.qkv_bias)
        self.W_v = nn.Linear(shape.d_model, shape.D_v, bias=shape.qkv_bias)

    def project(self, x: Tensor, x_k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.W_q(x), self.W_k(x_k), self.W_v(x_k)
