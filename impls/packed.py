"""One projection for queries, keys and values together."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from .formula import attention
from .layer import KernelCore, KernelLayer, LayerShape, split
from .registry import every_score, register
from .rules import EVERY_RULE
from .weights import Parts, named_parts, packed_parts


@register("packed", beyond=(*EVERY_RULE, "page"), scores=every_score)
class Packed(KernelLayer):
    """The plain formula behind one packed projection W_qkv (W_kv when keys come from another sequence)."""

    def __init__(self, shape: LayerShape):
        super().__init__(shape, KernelCore(shape, attention, takes_mask=True))
        self.widths = [layer.out_features for layer in (self.W_q, self.W_k, self.W_v)]
        del self.W_k, self.W_v
        if shape.source == "self":
            del self.W_q
            self.W_qkv = nn.Linear(shape.d_model, sum(self.widths), bias=shape.qkv_bias)
        else:
            self.W_kv = nn.Linear(shape.d_model, sum(self.widths[1:]), bias=shape.qkv_bias)

    def project(self, x: Tensor, x_k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.shape.source == "self":
            q, k, v = self.W_qkv(x).split(self.widths, dim=-1)
        else:
            q, (k, v) = self.W_q(x), self.W_kv(x_k).split(self.widths[1:], dim=-1)
        return split(q, self.shape.H), split(k, self.shape.H_kv), split(v, self.shape.H_kv)

    def parts(self, of: Callable[[Tensor], Tensor]) -> Parts:
        names, packed = ("qkv", self.W_qkv) if self.shape.source == "self" else ("kv", self.W_kv)
        return named_parts(self, of) | packed_parts(names, packed.weight, packed.bias, self.widths[-len(names) :], of)
