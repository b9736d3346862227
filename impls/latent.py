"""Multi-head latent attention (DeepSeek-AI, "DeepSeek-V2", 2024): the cache stores a latent per token instead of key
and value.

The key of a head has two parts: one rebuilt from the latent, and a rotary one, cached beside it and shared by all
heads.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .layer import AttentionLayer, Cache, LayerShape, extend, split

BASE = 10000.0
"""Base of the wavelengths, as in the paper of rotary embeddings."""


class LatentLayer(AttentionLayer):
    """The naive form: keys and values of every head are rebuilt from the latents of all tokens, then attended to by a core."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: LayerShape, core: nn.Module):
        super().__init__(shape)
        assert shape.latent is not None
        self.latent, self.rope = shape.latent, shape.rope or 0
        self.W_q = nn.Linear(shape.d_model, shape.H * shape.D_h, bias=False)
        self.W_c = nn.Linear(shape.d_model, self.latent + self.rope, bias=False)
        self.W_k = nn.Linear(self.latent, shape.H * (shape.D_h - self.rope), bias=False)
        self.W_v = nn.Linear(self.latent, shape.H * shape.D_v, bias=False)
        self.core = core
        angles = rotary_angles(self.rope, shape.max_T)  # (max_T, rope / 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(
        self, x: Tensor, *, padding: Tensor | None = None, cache: Cache | None = None, pages: Tensor | None = None
    ) -> Tensor:
        """Map (B, T, d_model) to (B, T, d_out); `cache` holds (B, 1, T_kv, latent + rope), with the last positions free.

        With `pages` the cache is a pool, from which the latents of each request are copied in one piece.
        """
        q, latents = split(self.W_q(x), self.shape.H), split(self.W_c(x), 1)  # (B, H, T, D_h), (B, 1, T, latent + rope)
        tokens = x.shape[-2] if cache is None else cache[0].shape[-2] if pages is None else self.shape.max_T
        first = tokens - x.shape[-2]
        q, latents = self.rotated(q, first), self.rotated(latents, first)
        if cache is not None and pages is not None:
            (latents,) = self.in_one_piece(self.extend_pages(cache, (latents,), pages), pages)
        elif cache is not None:
            (latents,) = extend(cache, (latents,))
        o = self.attend(q, latents, padding)  # (B, H, T, D_v)
        return self.finish(o.transpose(-3, -2).flatten(-2))

    def attend(self, q: Tensor, latents: Tensor, padding: Tensor | None) -> Tensor:
        """(B, H, T, D_h), (B, 1, T_kv, latent + rope) -> (B, H, T, D_v)"""
        c, shared = latents.split([self.latent, self.rope], dim=-1)
        k, v = (split(W(c.squeeze(-3)), self.shape.H) for W in (self.W_k, self.W_v))
        k = torch.cat([k, shared.expand(*k.shape[:-1], -1)], dim=-1)  # (B, H, T_kv, D_h)
        return self.core(q, k, v, padding=padding)

    def rotated(self, x: Tensor, first: int) -> Tensor:
        """Rotate the last `rope` features of (..., T, width) by token positions, beginning at `first`."""
        if not self.rope:
            return x
        cos, sin = (it[first : first + x.shape[-2]].to(x.dtype) for it in (self.cos, self.sin))  # (T, rope / 2)
        plain, turning = x.split([x.shape[-1] - self.rope, self.rope], dim=-1)
        even, odd = turning[..., 0::2], turning[..., 1::2]
        turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)
        return torch.cat([plain, turned], dim=-1)


def rotary_angles(rope: int, T: int) -> Tensor:
    """Return the rotation angle of each feature pair at each position, (T, rope / 2); Su et al., "RoFormer", 2021."""
    frequencies = BASE ** (-torch.arange(0, rope, 2, dtype=torch.float64) / max(1, rope))
    return torch.arange(T)[:, None] * frequencies
