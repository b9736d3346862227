"""Packed documents (`--documents`) and a server's requests (`--requests`) by other methods than a mask over all of them."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence

from .layer import KernelCore, LayerShape
from .registry import register
from .rules import document_lengths, requests_of


def _no_documents(case: Any) -> str | None:
    """Only packed documents."""
    return None if case.documents else "computes packed documents only: --documents"


def _no_requests(case: Any) -> str | None:
    """Only batches of requests."""
    return None if case.requests else "computes requests in one batch only: --requests"


def _unfit_for_nested(case: Any) -> str | None:
    """Only packed documents; on the CPU no causal mask, for which torch 2.13 has no kernel."""
    if case.device == "cpu" and case.mask == "causal":
        return "does not support a causal mask on the CPU"
    return _no_documents(case)


DOCUMENTS: dict[str, Any] = {
    "common": False, "dropout": False, "modes": ("forward", "backward"), "masks": ("none", "causal"), "sources": ("self",),
    "beyond": ("documents",), "unless": _no_documents,
}  # fmt: skip
REQUESTS: dict[str, Any] = {
    "common": False, "dropout": False, "scopes": ("core",), "beyond": ("causal_br", "requests"), "unless": _no_requests,
}  # fmt: skip
WHOLE_VARLEN = torch.__version__ >= "2.13"  # by numbers
"""Whether `varlen_attn` takes grouped heads and page tables."""

VARLEN: dict[str, Any] = {
    "devices": ("cuda",), "dtypes": ("float16", "bfloat16"), "wide_values": False, "autocasts": False, "compiles": False,
    "grouped": WHOLE_VARLEN,
}  # fmt: skip
"""Requirements of `varlen_attn`."""


def lengths_of(it: Any) -> list[tuple[int, int]]:
    """Return the numbers of queries and keys of each document or request of a shape or case."""
    if it.requests:
        return requests_of(it.requests)
    return [(length, length) for length in document_lengths(it.documents, it.T)]


def padded_tokens(case: Any) -> int:
    """Return the number of queries of all sequences, each padded to the longest."""
    queries = [new for new, _ in lengths_of(case)]
    return int(case.B) * len(queries) * max(queries)


class RaggedCore(KernelCore):
    """Attention within sequences, documents or requests, whose lengths are known in advance."""

    def __init__(self, shape: LayerShape):
        super().__init__(shape, scaled_dot_product_attention, owns_mask=False)
        self.lengths = lengths_of(shape)
        self.new, self.all = map(list, zip(*self.lengths, strict=True))  # queries and keys of each
        self.options = {name: it for name, it in self.kernel_options(None).items() if name != "is_causal"}


@register("one_by_one", **DOCUMENTS)
class OneByOne(RaggedCore):
    """SDPA for one document after the other."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, padding: Tensor | None = None) -> Tensor:
        """(B, H, T, D_h), (B, H_kv, T, D_h), (B, H_kv, T, D_v) -> (B, H, T, D_v)"""
        documents = zip(*(x.split(self.new, dim=-2) for x in (q, k, v)), strict=True)
        options = self.options | {"is_causal": self.shape.causal}
        return torch.cat([scaled_dot_product_attention(*each, **options) for each in documents], dim=-2)


@register("padded", tokens=padded_tokens, **DOCUMENTS)
class Padded(RaggedCore):
    """Documents padded to the longest, SDPA with a mask over all of them at once, and the tokens picked out again."""

    queries: Tensor
    keys: Tensor
    tokens: Tensor
    mask: Tensor

    def __init__(self, shape: LayerShape):
        super().__init__(shape)
        queries, keys = (  # padding repeats token 0
            pad_sequence(torch.arange(sum(it)).split(it), batch_first=True) for it in (self.new, self.all)
        )  # (sequences, L or L_kv)
        new, all_ = (torch.tensor(it)[:, None] for it in (self.new, self.all))  # (sequences, 1) each
        i, last = torch.arange(queries.shape[1]), all_ - 1  # last key that a query sees
        if shape.causal:
            last = torch.minimum(last, all_ - new + i)
        visible = torch.arange(keys.shape[1]) <= last[..., None]
        self.register_buffer("queries", queries, persistent=False)
        self.register_buffer("keys", keys, persistent=False)
        self.register_buffer("tokens", (i < new).flatten().nonzero().flatten(), persistent=False)  # (T,)
        self.register_buffer("mask", visible[:, None], persistent=False)  # (sequences, 1, 1 or L, L_kv)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, padding: Tensor | None = None) -> Tensor:
        """(B, H, T, D_h), (B, H_kv, T_kv, D_h), (B, H_kv, T_kv, D_v) -> (B, H, T, D_v)"""
        mask = self.mask.expand(len(q), *self.mask.shape).flatten(0, 1)  # of a batch of one without a copy
        places = (self.queries, self.keys, self.keys)
        q, k, v = (x[:, :, where].transpose(1, 2).flatten(0, 1) for x, where in zip((q, k, v), places, strict=True))
        o = scaled_dot_product_attention(q, k, v, attn_mask=mask, **self.options)  # (B * sequences, H, L, D_v)
        by_sequence = o.unflatten(0, (-1, len(self.lengths))).transpose(1, 2).flatten(2, 3)
        return by_sequence[:, :, self.tokens]


class Jagged(RaggedCore):
    """Base of methods that take concatenated tokens, (B * T, H, D), and the offsets of sequences."""

    queries: Tensor
    keys: Tensor

    def __init__(self, shape: LayerShape):
        super().__init__(shape)
        for name, lengths in (("queries", self.new), ("keys", self.all)):
            ends = torch.tensor([0, *lengths]).cumsum(0)
            self.register_buffer(name, ends.to(torch.int32), persistent=False)  # (sequences + 1,)

    def offsets(self, B: int) -> tuple[Tensor, Tensor]:
        """Return the offsets among queries and among keys of the sequences of all batch entries, (B * sequences + 1,)."""
        if B == 1:
            return self.queries, self.keys
        entry = torch.arange(B, dtype=torch.int32, device=self.keys.device)[:, None]
        ends = (self.queries, self.keys)
        first, last = (torch.cat([(entry * it[-1] + it[:-1]).flatten(), B * it[-1:]]) for it in ends)
        return first, last


@register("nested", compiles=False, grouped=False, **DOCUMENTS | {"unless": _unfit_for_nested})
class Nested(Jagged):
    """SDPA of `torch.nested` tensors in the jagged layout."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, padding: Tensor | None = None) -> Tensor:
        """(B, H, T, D_h), (B, H_kv, T, D_h), (B, H_kv, T, D_v) -> (B, H, T, D_v)"""
        offsets, shortest, longest = self.offsets(len(q))[0], min(self.new), max(self.new)
        q_, k_, v_ = (
            torch.nested.nested_tensor_from_jagged(
                x.transpose(1, 2).flatten(0, 1).contiguous(), offsets, min_seqlen=shortest, max_seqlen=longest
            ).transpose(1, 2)
            for x in (q, k, v)
        )
        o = scaled_dot_product_attention(q_, k_, v_, is_causal=self.shape.causal, **self.options)
        return o.transpose(1, 2).values().unflatten(0, (len(q), -1)).transpose(1, 2)


@register("varlen", **VARLEN, **DOCUMENTS)
class Varlen(Jagged):
    """`torch.nn.attention.varlen.varlen_attn` of all documents, concatenated."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, padding: Tensor | None = None) -> Tensor:
        """(B, H, T, D), (B, H_kv, T_kv, D), (B, H_kv, T_kv, D) -> (B, H, T, D)"""
        from torch.nn.attention.varlen import varlen_attn  # imports the whole compiler

        window = (-1, 0 if self.shape.causal else -1)
        q_, k_, v_ = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))  # (B * T or B * T_kv, H, D)
        longest = max(self.new), max(self.all)
        o: Any = varlen_attn(q_, k_, v_, *self.offsets(len(q)), *longest, window_size=window, **self.options)
        return o.unflatten(0, (len(q), -1)).transpose(1, 2)


@register("by_kind", **REQUESTS)
class ByKind(RaggedCore):
    """SDPA of all requests of one kind at once: they are a batch."""

    def __init__(self, shape: LayerShape):
        super().__init__(shape)
        self.kinds = self.grouped()
        for n, (_, new, tokens) in enumerate(self.kinds):
            visible = torch.ones(new, tokens, dtype=torch.bool).tril(tokens - new)  # bottom right
            self.register_buffer(f"visible_{n}", visible if 1 < new < tokens else None, persistent=False)

    def grouped(self) -> list[tuple[int, int, int]]:
        """Return how many requests are computed at once, their new tokens, and all their tokens."""
        return [(len([*same]), *lengths) for lengths, same in groupby(self.lengths)]

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, padding: Tensor | None = None) -> Tensor:
        """(1, H, T, D_h), (1, H_kv, T_kv, D_h), (1, H_kv, T_kv, D_v) -> (1, H, T, D_v)"""
        queries = q.split([count * new for count, new, _ in self.kinds], dim=-2)
        keys, values = (x.split([count * tokens for count, _, tokens in self.kinds], dim=-2) for x in (k, v))
        found = []
        for n, (count, new, tokens) in enumerate(self.kinds):
            batch = [_batch(x[n], count) for x in (queries, keys, values)]  # (count, H, new or tokens, D)
            options = self.options | {"attn_mask": getattr(self, f"visible_{n}"), "is_causal": 1 < new == tokens}
            o = self.kernel(*batch, **options)
            found.append(o.transpose(0, 1).flatten(1, 2))  # (H, count * new, D_v)
        return torch.cat(found, dim=1)[None]


@register("by_request", **REQUESTS)
class ByRequest(ByKind):
    """SDPA of one request after the other."""

    def grouped(self) -> list[tuple[int, int, int]]:
        return [(1, *lengths) for lengths in self.lengths]


@register("padded_requests", tokens=padded_tokens, **REQUESTS)
class PaddedRequests(Padded):
    """Queries and keys padded to the longest, SDPA with a mask over all requests, and the new tokens picked out again."""


@register("varlen_requests", **VARLEN, **REQUESTS)
class VarlenRequests(Varlen):
    """`torch.nn.attention.varlen.varlen_attn` of all requests, concatenated; its causal mask is aligned bottom right."""


def _batch(x: Tensor, count: int) -> Tensor:
    """View (1, H, count * L, D) as (count, H, L, D), without a copy."""
    return x[0].unflatten(1, (count, -1)).transpose(0, 1)
