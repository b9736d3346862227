"""Many heads the simple way: single heads one after the other, their outputs concatenated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from .layer import AttentionLayer, Cache, LayerShape
from .registry import every_score, register
from .rules import BY_MASK
from .single_head import LinearHead
from .weights import Parts, named_parts, parts


@register("wrapper", grouped=False, beyond=BY_MASK, scores=lambda case: every_score(case) // case.H)
class Wrapper(AttentionLayer):
    """A list of `linear` heads, each with its own weights and mask, run one after the other."""

    def __init__(self, shape: LayerShape):
        super().__init__(shape)
        head = replace(shape, H=1, H_kv=1, out_proj=False, out_dropout=0.0)
        self.heads = nn.ModuleList(LinearHead(head) for _ in range(shape.H))

    def forward(
        self,
        x: Tensor,
        x_k: Tensor | None = None,
        *,
        padding: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """(..., T, d_model) -> (..., T, d_out)"""
        caches = [None] * self.shape.H if cache is None else list(zip(*(x.split(1, -3) for x in cache), strict=True))
        heads = zip(self.heads, caches, strict=True)
        return self.finish(torch.cat([head(x, x_k, padding=padding, cache=own) for head, own in heads], dim=-1))

    def parts(self, of: Callable[[Tensor], Tensor]) -> Parts:
        found: Parts = {}
        for head in self.heads:
            for name, pieces in parts(head, of).items():
                found.setdefault(name, []).extend(pieces)
        return found | named_parts(self, of)
