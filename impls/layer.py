"""Base of all attention layers: shape, mask, and the projections around a kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .masks import mask_of, rows_of
from .paging import in_order, places, write
from .rules import Rules


@dataclass(frozen=True)
class LayerShape(Rules):
    """Arguments of a layer, besides the rules of attention. Widths are numbers of features."""

    d_model: int
    H: int
    D_h: int
    H_kv: int
    D_v: int
    d_out: int
    """Width of the output projection."""
    max_T: int
    """Longest sequence; the mask buffer is made once for it and sliced to the actual length."""
    T: int
    """Largest number of queries."""
    source: str = "self"
    """`self`, or `cross`: queries from one sequence, keys and values from another."""
    qkv_bias: bool = False
    out_bias: bool = False
    out_proj: bool = True
    scale: float | None = None
    """Factor on the scores; 1 / sqrt(D_h) when None."""
    dropout: float = 0.0
    out_dropout: float = 0.0
    latent: int | None = None
    """Width of the latent from which keys and values are rebuilt (`impls/latent.py`); None if they are projected."""
    rope: int | None = None
    """Features of a head that are rotated by position, beside a latent; their key is shared by all heads."""
    page: int | None = None
    """Tokens per page of the cache (`impls/paging.py`); None if each request's cache is contiguous."""


Cache = tuple[Tensor, ...]
"""Keys and values of earlier tokens, (B, H_kv, T_kv, D_h) and (B, H_kv, T_kv, D_v), or latents; the last positions are free."""


class Masked(nn.Module):
    """Module with a shape and a mask, which is made once for the longest sequence and sliced to the actual length."""

    visible: Tensor | None

    def __init__(self, shape: LayerShape, *, owns_mask: bool = True):
        super().__init__()
        self.shape, self.is_causal = shape, shape.is_causal
        buffer = mask_of(shape, shape.H, shape.T, shape.max_T) if owns_mask else None
        self.register_buffer("visible", buffer, persistent=False)  # (T, max_T), with a bias (1, H, T, max_T)

    def attn_mask(self, T: int, T_kv: int, padding: Tensor | None) -> Tensor | None:
        """Return the mask, True where a query may see a key: (T, T_kv), (B, 1, T_kv) or (B, T, T_kv); None if all are
        visible.

        With a bias, returns numbers to be added: (1, H, T, T_kv), -inf for masked keys. `padding`: (B, T_kv), or (B, 1,
        T_kv) to broadcast over heads, True where a key is a token and not padding.
        """
        mask = None if self.visible is None else rows_of(self.visible, self.shape, T, T_kv)
        if padding is None:
            return mask
        padding = padding.unsqueeze(-2)  # (B, 1, T_kv)
        if mask is None:
            return padding
        return torch.where(padding, mask, -torch.inf) if mask.is_floating_point() else mask & padding

    def kernel_options(self, mask: Tensor | None, sinks: Tensor | None = None) -> dict[str, Any]:
        """Return the keywords of a kernel call: those that differ from SDPA's defaults, and those that SDPA lacks."""
        options: dict[str, Any] = {}
        if mask is not None:
            options["attn_mask"] = mask
        elif self.is_causal:
            options["is_causal"] = True
        if self.shape.scale is not None:
            options["scale"] = self.shape.scale
        if self.shape.H_kv != self.shape.H:
            options["enable_gqa"] = True
        if self.shape.dropout and self.training:
            options["dropout_p"] = self.shape.dropout
        if self.shape.softcap is not None:
            options["softcap"] = self.shape.softcap
        if sinks is not None:
            options["sinks"] = sinks
        return options


class KernelCore(Masked):
    """Attention without projections: a kernel and its mask."""

    def __init__(
        self, shape: LayerShape, kernel: Callable[..., Tensor], *, takes_mask: bool = False, owns_mask: bool = True
    ):
        """`takes_mask`: pass a mask even if `is_causal` would do; `owns_mask`: store a mask at all."""
        needed = takes_mask or shape.in_mask or shape.mask == "causal+padding"
        super().__init__(shape, owns_mask=owns_mask and needed)
        self.kernel = kernel
        self.sinks: nn.Parameter | None = nn.Parameter(torch.zeros(shape.H)) if shape.sinks else None
        size = shape.H, shape.T, shape.max_T
        self.score_bias = nn.Parameter(torch.zeros(size)) if shape.bias == "learned" else None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, padding: Tensor | None = None) -> Tensor:
        """(..., H, T, D_h), (..., H_kv, T_kv, D_h), (..., H_kv, T_kv, D_v) -> (..., H, T, D_v)"""
        by_head = None if padding is None else padding.unsqueeze(-2)
        mask = self.attn_mask(q.shape[-2], k.shape[-2], by_head)  # with padding (B, 1, T or 1, T_kv)
        if self.score_bias is not None:
            # without gradients as a constant: SDPA chooses the math kernel for a mask that requires one
            table = self.score_bias if torch.is_grad_enabled() else self.score_bias.detach()
            bias = rows_of(table, self.shape, q.shape[-2], k.shape[-2])[None]
            mask = bias if mask is None else torch.where(mask, bias, -torch.inf)
        return self.kernel(q, k, v, **self.kernel_options(mask, self.sinks))


class AttentionLayer(nn.Module):
    """Base of layers with an output projection. Subclasses project, attend, and end in `finish`."""

    def __init__(self, shape: LayerShape):
        super().__init__()
        self.shape, self.page = shape, shape.page or shape.max_T
        if shape.out_proj:
            self.W_o = nn.Linear(shape.H * shape.D_v, shape.d_out, bias=shape.out_bias)
        self.drop = nn.Dropout(shape.out_dropout)

    @property
    def prepare(self) -> Callable[..., None] | None:
        """Return its core's preparation before the first call, for a contiguous cache; None if it needs none."""
        make = getattr(getattr(self, "core", None), "prepare", None)
        return make and (lambda *sizes, **pages: make(*sizes))

    def finish(self, o: Tensor) -> Tensor:
        """(..., T, H * D_v) -> (..., T, d_out)"""
        o = self.W_o(o) if self.shape.out_proj else o
        return self.drop(o) if self.shape.out_dropout else o

    def extend_pages(self, pools: Cache, newest: Cache, pages: Tensor) -> Cache:
        """Write the entries of the newest tokens into the pages of their requests."""
        last = self.shape.max_T
        where = places(pages, self.page, last - newest[0].shape[-2], last)
        for pool, new in zip(pools, newest, strict=True):
            write(pool, new, where)
        return pools

    def in_one_piece(self, pools: Cache, pages: Tensor) -> Cache:
        """Return contiguous copies of each request's entries in a pool: (B, H_kv, T_kv, D) each."""
        return tuple(in_order(pool, pages, self.page, self.shape.max_T) for pool in pools)


class KernelLayer(AttentionLayer):
    """The shared multi-head layer: three projections, heads by view and transpose, a core, the output projection."""

    def __init__(self, shape: LayerShape, core: nn.Module):
        super().__init__(shape)
        self.W_q = nn.Linear(shape.d_model, shape.H * shape.D_h, bias=shape.qkv_bias)
        self.W_k = nn.Linear(shape.d_model, shape.H_kv * shape.D_h, bias=shape.qkv_bias)
        self.W_v = nn.Linear(shape.d_model, shape.H_kv * shape.D_v, bias=shape.qkv_bias)
        self.core = core

    def project(self, x: Tensor, x_k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        s = self.shape
        return split(self.W_q(x), s.H), split(self.W_k(x_k), s.H_kv), split(self.W_v(x_k), s.H_kv)

    def forward(
        self,
        x: Tensor,
        x_k: Tensor | None = None,
        *,
        padding: Tensor | None = None,
        cache: Cache | None = None,
        pages: Tensor | None = None,
    ) -> Tensor:
        """Map (..., T, d_model) to (..., T, d_out); keys and values come from x_k, or are appended to the cache, if given.

        With `pages` the cache is a pool of pages.
        """
        q, k, v = self.project(x, x if x_k is None else x_k)  # (..., H, T, D_h) each
        if cache is not None:
            k, v = extend(cache, (k, v)) if pages is None else self.extend_pages(cache, (k, v), pages)
        # (..., H, T, D_v)
        o = self.core(q, k, v, padding=padding) if pages is None else self.over_pages(q, k, v, pages)
        return self.finish(o.transpose(-3, -2).flatten(-2))

    def over_pages(self, q: Tensor, k: Tensor, v: Tensor, pages: Tensor) -> Tensor:
        """Attend (B, H, T, D_h) to pools (1, H_kv, tokens, D) through contiguous copies: (B, H, T, D_v)."""
        return self.core(q, *self.in_one_piece((k, v), pages))


def extend(cache: Cache, newest: Cache) -> Cache:
    """Write the entries of the newest tokens into the last positions of a preallocated cache; returns the whole cache."""
    for known, new in zip(cache, newest, strict=True):
        known[..., -new.shape[-2] :, :] = new
    return cache


def split(x: Tensor, H: int) -> Tensor:
    """(..., T, H * D) -> (..., H, T, D), without a copy."""
    return x.unflatten(-1, (H, -1)).transpose(-3, -2)
