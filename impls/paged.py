"""Paged caches (`--page`) read by other methods than a contiguous copy, which works with any kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from .flex import BLOCK, kernel_options, own, unfit_compiled
from .formula import attention
from .layer import KernelCore, KernelLayer, LayerShape
from .online import nothing_seen, with_block
from .paging import by_page
from .ragged import VARLEN, WHOLE_VARLEN
from .registry import register
from .rules import BY_MASK


def _unfit(case: Any) -> str | None:
    """Only paged caches."""
    return None if case.page else "needs a paged cache: --page"


def _unfit_compiled(case: Any) -> str | None:
    """When compiled only pages of whole blocks, and what `flex` supports."""
    if case.device == "cpu" and case.page < BLOCK:
        return f"gives NaN on the CPU for very negative scores in pages shorter than {BLOCK} tokens (torch 2.13)"
    if case.page % BLOCK:
        return f"computes with whole blocks of {BLOCK} tokens, in which free pages may hold NaN: --page {BLOCK}"
    return unfit_compiled(case)


ROUTE: dict[str, Any] = {"common": False, "unless": _unfit, "dropout": False, "beyond": (*BY_MASK, "page")}


class PagedLayer(KernelLayer):
    """The shared layer with a core that owns only the mask: pages are read in place."""

    core: KernelCore

    def __init__(self, shape: LayerShape):
        super().__init__(shape, KernelCore(shape, attention))


@register("page_by_page", **ROUTE)
class PageByPage(PagedLayer):
    """One page after the other, of all requests at once, with a running maximum and sum of the softmax."""

    def over_pages(self, q: Tensor, k: Tensor, v: Tensor, pages: Tensor) -> Tensor:
        """(B, H, T, D_h), pools (1, H_kv, tokens, D) -> (B, H, T, D_v)"""
        (_, H, T, D_h), H_kv, wide = q.shape, k.shape[1], torch.promote_types(q.dtype, torch.float32)
        mask = self.core.attn_mask(T, self.shape.max_T, None)
        q = q.unflatten(1, (H_kv, -1)).flatten(2, 3)  # (B, H_kv, H / H_kv * T, D_h)
        seen = nothing_seen(q, v, wide)
        for n, first in enumerate(range(0, self.shape.max_T, self.page)):
            tokens = slice(first, min(first + self.page, self.shape.max_T))
            k_n, v_n = (by_page(x, self.page)[:, pages[:, n], : tokens.stop - first].transpose(0, 1) for x in (k, v))
            scores = (q @ k_n.mT).to(wide) * D_h**-0.5  # (B, H_kv, H / H_kv * T, tokens)
            if mask is not None:
                scores = scores.masked_fill(~mask[:, tokens].repeat(H // H_kv, 1), -torch.inf)
            seen = with_block(seen, scores, v_n)
        _, total, o = seen
        return (o / total).to(v.dtype).unflatten(2, (-1, T)).flatten(1, 2)


WHOLE = 256
"""Tokens of which a page of `varlen_attn` must be a multiple (torch 2.13)."""


def _unfit_varlen(case: Any) -> str | None:
    """Only paged caches with pages of a multiple of 256 tokens."""
    if not WHOLE_VARLEN:
        return "needs torch 2.13"
    return _unfit(case) or (None if case.page % WHOLE == 0 else f"needs pages of whole {WHOLE} tokens: --page {WHOLE}")


@register("varlen_paged", **VARLEN, **ROUTE | {"unless": _unfit_varlen, "beyond": ("causal_br", "page")})
class VarlenPaged(PagedLayer):
    """`torch.nn.attention.varlen.varlen_attn` with the page table: pages are read in place."""

    def over_pages(self, q: Tensor, k: Tensor, v: Tensor, pages: Tensor) -> Tensor:
        """(B, H, T, D), pools (1, H_kv, tokens, D) -> (B, H, T, D)"""
        from torch.nn.attention.varlen import varlen_attn

        (B, H, T, _), T_kv = q.shape, self.shape.max_T
        queries, keys = (torch.arange(B + 1, dtype=torch.int32, device=q.device) * n for n in (T, T_kv))
        rows = q.transpose(1, 2).flatten(0, 1)  # (B * T, H, D)
        k_, v_ = (by_page(x, self.page).permute(1, 2, 0, 3) for x in (k, v))  # (pages, page, H_kv, D)
        o: Any = varlen_attn(
            rows, k_, v_, queries, keys, T, T_kv, window_size=(-1, 0), enable_gqa=k.shape[1] != H,
            seqused_k=keys.diff(), block_table=pages.to(torch.int32),
        )  # fmt: skip
        return o.unflatten(0, (B, T)).transpose(1, 2)


@register("flex_paged", compiled_by_default=True, compiled_unless=_unfit_compiled, **ROUTE)
class FlexPaged(PagedLayer):
    """FlexAttention over the whole pool, with a block mask by the request of each page; not compiled, over copies."""

    def __init__(self, shape: LayerShape):
        super().__init__(shape)
        self.block_mask: BlockMask | None = None
        self.mask_of_copies: BlockMask | None = None

    def prepare(self, T: int, T_kv: int, padding: Tensor | None, device: str, *, pages: Tensor, pool: int) -> None:
        """Build the table of blocks for a page table, which a server does once for all layers of a step."""
        span = self.shape.span(T, T_kv, device)
        first = torch.full((len(pages), pool // self.page), T_kv, device=device)  # first token of a page
        first.scatter_(1, pages, torch.arange(0, T_kv, self.page, device=device).expand_as(pages))

        def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            token = first[b, j // self.page] + j % self.page
            return (token < T_kv) & span(i, token.clamp(max=T_kv - 1))

        self.block_mask = create_block_mask(visible, len(pages), None, T, pool, device=device)
        if span:
            self.mask_of_copies = create_block_mask(lambda b, h, i, j: span(i, j), None, None, T, T_kv, device=device)

    def over_pages(self, q: Tensor, k: Tensor, v: Tensor, pages: Tensor) -> Tensor:
        """(B, H, T, D_h), pools (1, H_kv, tokens, D) -> (B, H, T, D_v)"""
        mask = self.block_mask
        if not torch.compiler.is_compiling():  # free pages are computed too, and zero times NaN is NaN
            (k, v), mask = self.in_one_piece((k, v), pages), self.mask_of_copies
        grouped, options = self.shape.H_kv != self.shape.H, kernel_options(q, k)
        o: Any = flex_attention(own(q), k, v, block_mask=mask, enable_gqa=grouped, kernel_options=options)
        return o
