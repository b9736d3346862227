"""Packed documents (`--documents`), computed by other methods than a mask over all of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from .layer import KernelCore, LayerShape, kernel_options
from .registry import register
from .rules import document_lengths


def _unfit(case: Any) -> str | None:
    """Only packed documents."""
    return None if case.documents else "computes packed documents only: --documents"


ROUTE: dict[str, Any] = {
    "common": False,
    "dropout": False,
    "modes": ("forward", "backward"),
    "masks": ("none", "causal"),
    "sources": ("self",),
    "beyond": ("documents",),
    "unless": _unfit,
}


class DocumentCore(KernelCore):
    """Attention within documents whose lengths are known in advance."""

    def __init__(self, shape: LayerShape):
        super().__init__(shape, scaled_dot_product_attention, owns_mask=False)
        T = shape.T or shape.max_T
        self.lengths = document_lengths(shape.documents, T) if shape.documents else [T]
        self.is_causal = shape.mask == "causal"

        self.options = {name: it for name, it in kernel_options(shape, None).items() if name != "is_causal"}


@register("one_by_one", **ROUTE)
class OneByOne(DocumentCore):
    """SDPA for one document after the other."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, padding: Tensor | None = None) -> Tensor:
        """(B, H, T, D_h), (B, H_kv, T, D_h), (B, H_kv, T, D_v) -> (B, H, T, D_v)"""
        documents = zip(*(x.split(self.lengths, dim=-2) for x in (q, k, v)), strict=True)
        options = self.options | {"is_causal": self.is_causal}
        return torch.cat([scaled_dot_product_attention(*each, **options) for each in documents], dim=-2)


def _padded_tokens(case: Any) -> int:
    lengths = document_lengths(case.documents, case.T)
    return int(case.B) * len(lengths) * max(lengths)


@register("padded", tokens=_padded_tokens, **ROUTE)
class Padded(DocumentCore):
    """Documents padded to the longest, SDPA with a mask over all of them at once, and the tokens picked out again."""

    places: Tensor
    tokens: Tensor
    mask: Tensor

    def __init__(self, shape: LayerShape):
        super().__init__(shape)
        lengths, longest = torch.tensor(self.lengths), torch.arange(max(self.lengths))
        is_token = longest < lengths[:, None]  # (documents, L)
        starts = lengths.cumsum(0) - lengths
        self.register_buffer(
            "places", (starts[:, None] + longest) * is_token, persistent=False
        )  # padding repeats token 0
        self.register_buffer("tokens", is_token.flatten().nonzero().flatten(), persistent=False)  # (T,)
        visible = is_token[:, None, None, :]
        if self.is_causal:
            visible = visible & (longest <= longest[:, None])
        self.register_buffer("mask", visible, persistent=False)  # (documents, 1, 1 or L, L)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, padding: Tensor | None = None) -> Tensor:
        """(B, H, T, D_h), (B, H_kv, T, D_h), (B, H_kv, T, D_v) -> (B, H, T, D_v)"""
        q, k, v = (x[:, :, self.places].transpose(1, 2).flatten(0, 1) for x in (q, k, v))  # (B * documents, H, L, D)
        mask = self.mask.repeat(len(q) // len(self.lengths), 1, 1, 1)
        o: Tensor = scaled_dot_product_attention(q, k, v, attn_mask=mask, **self.options)
        by_document = (
            o.unflatten(0, (-1, len(self.lengths))).transpose(1, 2).flatten(2, 3)
        )  # (B, H, documents * L, D_v)
        picked: Tensor = by_document[:, :, self.tokens]
        return picked


class Jagged(DocumentCore):
    """Base of methods that take concatenated tokens, (B * T, H, D), and the offsets of documents."""

    offsets: Tensor

    def __init__(self, shape: LayerShape):
        super().__init__(shape)
        ends = torch.tensor([0, *self.lengths]).cumsum(0)
        self.register_buffer("offsets", ends, persistent=False)  # (documents + 1,)

    def offsets_of(self, B: int) -> Tensor:
        """Return the offsets of the documents of all batch entries, (B * documents + 1,)."""
        firsts = torch.arange(B, device=self.offsets.device)[:, None] * self.offsets[-1] + self.offsets[:-1]
        return torch.cat([firsts.flatten(), B * self.offsets[-1:]])


def _unfit_for_nested(case: Any) -> str | None:
    """Only packed documents; on the CPU no causal mask and no grouped heads, for which torch 2.13 has no kernel."""
    if case.device == "cpu" and (case.mask == "causal" or case.H_kv != case.H):
        return "supports neither a causal mask nor grouped heads on the CPU"
    return _unfit(case)


@register("nested", compiles=False, **ROUTE | {"unless": _unfit_for_nested})
class Nested(Jagged):
    """SDPA of `torch.nested` tensors in the jagged layout."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, padding: Tensor | None = None) -> Tensor:
        """(B, H, T, D_h), (B, H_kv, T, D_h), (B, H_kv, T, D_v) -> (B, H, T, D_v)"""
        offsets, shortest, longest = self.offsets_of(len(q)), min(self.lengths), max(self.lengths)
        q_, k_, v_ = (
            torch.nested.nested_tensor_from_jagged(
                x.transpose(1, 2).flatten(0, 1).contiguous(), offsets, min_seqlen=shortest, max_seqlen=longest
            ).transpose(1, 2)
            for x in (q, k, v)
        )
        o = scaled_dot_product_attention(q_, k_, v_, is_causal=self.is_causal, **self.options)
        in_batch: Tensor = o.transpose(1, 2).values().unflatten(0, (len(q), -1))
        return in_batch.transpose(1, 2)


VARLEN: dict[str, Any] = {
    "devices": ("cuda",), "dtypes": ("float16", "bfloat16"), "wide_values": False, "autocasts": False,
}  # fmt: skip
"""Requirements of `varlen_attn`."""


@register("varlen", compiles=False, **VARLEN, **ROUTE)
class Varlen(Jagged):
    """`torch.nn.attention.varlen.varlen_attn`, of all documents in a row."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, padding: Tensor | None = None) -> Tensor:
        """(B, H, T, D_h), (B, H_kv, T, D_h), (B, H_kv, T, D_v) -> (B, H, T, D_v)"""
        from torch.nn.attention.varlen import varlen_attn

        offsets, longest = self.offsets_of(len(q)).to(torch.int32), max(self.lengths)
        window = (-1, 0 if self.is_causal else -1)
        q_, k_, v_ = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
        o = varlen_attn(q_, k_, v_, offsets, offsets, longest, longest, window_size=window, **self.options)
        assert isinstance(o, Tensor)
        in_batch: Tensor = o.unflatten(0, (len(q), -1))
        return in_batch.transpose(1, 2)
