"""Multi-head latent attention without keys and values: the weights that would rebuild them are absorbed on both sides.

q · (W_k c) = (W_kᵀ q) · c, and Σ p (W_v c) = W_v Σ p c: each query attends to the latents themselves, which all heads share.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .einsum import einsum
from .latent import LatentLayer
from .layer import KernelCore, LayerShape
from .registry import AROUND, every_score, register
from .rules import BY_MASK, EVERY_RULE
from .sdpa import sdpa


def _unfit(case: Any) -> str | None:
    """Only with a latent."""
    return None if case.latent else "is a form of multi-head latent attention: --latent"


FORM: dict[str, Any] = {"common": False, "unless": _unfit}


@register("absorbed", beyond=(*EVERY_RULE, *AROUND), scores=every_score, **FORM)
class Absorbed(LatentLayer):
    """The plain formula on queries multiplied by W_k; its output is multiplied by W_v."""

    def __init__(self, shape: LayerShape):
        width = (shape.latent or 0) + (shape.rope or 0)
        inside = replace(shape, D_h=width, D_v=width, scale=shape.D_h**-0.5)
        super().__init__(shape, self.core_of(inside))

    def core_of(self, inside: LayerShape) -> KernelCore:
        """Return a core with the kernel `einsum`, which broadcasts one key head over all query heads without a copy."""
        return KernelCore(inside, einsum, takes_mask=True)

    def attend(self, q: Tensor, latents: Tensor, padding: Tensor | None) -> Tensor:
        W_k, W_v = (W.weight.unflatten(0, (self.shape.H, -1)) for W in (self.W_k, self.W_v))  # (H, D, latent)
        own, shared = q.split([self.shape.D_h - self.rope, self.rope], dim=-1)
        q = torch.cat([by_head(own, W_k), shared], dim=-1)  # (B, H, T, latent + rope)
        return by_head(self.over(q, latents, padding), W_v.mT)

    def over(self, q: Tensor, latents: Tensor, padding: Tensor | None) -> Tensor:
        """(B, H, T, latent + rope), (B, 1, T_kv, latent + rope) -> (B, H, T, latent)"""
        return self.core(q, latents, latents[..., : self.latent], padding=padding)


@register("absorbed_sdpa", beyond=(*BY_MASK, "bias", *AROUND), **FORM)
class AbsorbedSDPA(Absorbed):
    """`absorbed` with SDPA: whole latents are keys and values, since its fused kernels need equal widths."""

    def core_of(self, inside: LayerShape) -> KernelCore:
        return KernelCore(replace(inside, H_kv=1), sdpa)

    def over(self, q: Tensor, latents: Tensor, padding: Tensor | None) -> Tensor:
        return self.core(q, latents, latents, padding=padding)[..., : self.latent]


def by_head(x: Tensor, W: Tensor) -> Tensor:
    """(B, H, T, D), (H, D, C) -> (B, H, T, C); `x @ W` would copy W for every batch entry."""
    return (x.transpose(0, 1).flatten(1, 2) @ W).unflatten(1, (len(x), -1)).transpose(0, 1)
