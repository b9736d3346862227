"""Requests of a server in one batch (`--requests`), computed by other methods than a mask over all of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from .documents import VARLEN
from .layer import KernelCore, LayerShape, kernel_options
from .registry import register
from .rules import kinds_of, requests_of


def _unfit(case: Any) -> str | None:
    """Only batches of requests."""
    return None if case.requests else "computes requests in one batch only: --requests"


ROUTE: dict[str, Any] = {
    "common": False,
    "dropout": False,
    "beyond": ("causal_br", "requests"),
    "scopes": ("core",),
    "unless": _unfit,
}


class RequestCore(KernelCore):
    """Attention within requests whose lengths are known in advance."""

    def __init__(self, shape: LayerShape):
        super().__init__(shape, scaled_dot_product_attention, owns_mask=False)
        self.options = {name: it for name, it in kernel_options(shape, None).items() if name != "is_causal"}
        self.requests = shape.requests or f"1x{shape.T or shape.max_T}:{shape.max_T}"


@register("by_kind", **ROUTE)
class ByKind(RequestCore):
    """SDPA of all requests of one kind at once: they are a batch."""

    def __init__(self, shape: LayerShape):
        super().__init__(shape)
        self.kinds = self.kinds_of(self.requests)
        for n, (_, new, tokens) in enumerate(self.kinds):
            visible = torch.ones(new, tokens, dtype=torch.bool).tril(tokens - new)  # bottom right
            self.register_buffer(f"visible_{n}", visible if 1 < new < tokens else None, persistent=False)

    def kinds_of(self, requests: str) -> list[tuple[int, int, int]]:
        return kinds_of(requests)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, padding: Tensor | None = None) -> Tensor:
        """(1, H, T, D_h), (1, H_kv, T_kv, D_h), (1, H_kv, T_kv, D_v) -> (1, H, T, D_v)"""
        queries = q.split([count * new for count, new, _ in self.kinds], dim=-2)
        keys, values = (x.split([count * tokens for count, _, tokens in self.kinds], dim=-2) for x in (k, v))
        found = []
        for n, (count, new, tokens) in enumerate(self.kinds):
            batch = [_batch(x[n], count) for x in (queries, keys, values)]  # (count, H, new or tokens, D)
            options = self.options | {"attn_mask": getattr(self, f"visible_{n}"), "is_causal": 1 < new == tokens}
            o: Tensor = self.kernel(*batch, **options)
            found.append(o.transpose(0, 1).flatten(1, 2))  # (H, count * new, D_v)
        return torch.cat(found, dim=1)[None]


@register("by_request", **ROUTE)
class ByRequest(ByKind):
    """SDPA of one request after the other."""

    def kinds_of(self, requests: str) -> list[tuple[int, int, int]]:
        return [(1, new, tokens) for new, tokens in requests_of(requests)]


def _padded_tokens(case: Any) -> int:
    requests = requests_of(case.requests)
    return len(requests) * max(new for new, _ in requests)


@register("padded_requests", tokens=_padded_tokens, **ROUTE)
class Padded(RequestCore):
    """Queries and keys padded to the longest, SDPA with a mask over all requests, and the new tokens picked out again."""

    queries: Tensor
    keys: Tensor
    tokens: Tensor
    mask: Tensor

    def __init__(self, shape: LayerShape):
        super().__init__(shape)
        requests = requests_of(self.requests)
        new, all_ = (torch.tensor(lengths) for lengths in zip(*requests, strict=True))  # (requests,) each
        is_query, is_key = (torch.arange(int(it.max())) < it[:, None] for it in (new, all_))
        for name, length, there in (("queries", new, is_query), ("keys", all_, is_key)):
            first = (length.cumsum(0) - length)[:, None]
            place = (first + torch.arange(there.shape[1])) * there  # padding repeats token 0
            self.register_buffer(name, place, persistent=False)  # (requests, L)
        self.register_buffer("tokens", is_query.flatten().nonzero().flatten(), persistent=False)  # (T,)
        last = (all_ - new)[:, None] + torch.arange(is_query.shape[1])  # position of a query in its request
        visible = torch.arange(is_key.shape[1]) <= torch.minimum(last, all_[:, None] - 1)[..., None]
        self.register_buffer("mask", visible[:, None], persistent=False)  # (requests, 1, L, L_kv)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, padding: Tensor | None = None) -> Tensor:
        """(1, H, T, D_h), (1, H_kv, T_kv, D_h), (1, H_kv, T_kv, D_v) -> (1, H, T, D_v)"""
        places = (self.queries, self.keys, self.keys)
        q, k, v = (x[0][:, where].transpose(0, 1) for x, where in zip((q, k, v), places, strict=True))
        o = scaled_dot_product_attention(q, k, v, attn_mask=self.mask, **self.options)  # (requests, H, L, D_v)
        picked: Tensor = o.transpose(0, 1).flatten(1, 2)[None, :, self.tokens]
        return picked


@register("varlen_requests", compiles=False, **VARLEN, **ROUTE)
class VarlenRequests(RequestCore):
    """`torch.nn.attention.varlen.varlen_attn` of all requests in a row; its causal mask is aligned bottom right."""

    queries: Tensor
    keys: Tensor

    def __init__(self, shape: LayerShape):
        super().__init__(shape)
        new, all_ = zip(*requests_of(self.requests), strict=True)
        self.longest = max(new), max(all_)
        for name, lengths in (("queries", new), ("keys", all_)):
            ends = torch.tensor([0, *lengths]).cumsum(0)
            self.register_buffer(name, ends.to(torch.int32), persistent=False)  # (requests + 1,)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, padding: Tensor | None = None) -> Tensor:
        """(1, H, T, D), (1, H_kv, T_kv, D), (1, H_kv, T_kv, D) -> (1, H, T, D)"""
        from torch.nn.attention.varlen import varlen_attn  # imports the whole compiler

        q_, k_, v_ = (x[0].transpose(0, 1) for x in (q, k, v))  # (T or T_kv, H, D)
        o = varlen_attn(q_, k_, v_, self.queries, self.keys, *self.longest, window_size=(-1, 0), **self.options)
        assert isinstance(o, Tensor)
        return o.transpose(0, 1)[None]


def _batch(x: Tensor, count: int) -> Tensor:
    """View (1, H, count * L, D) as (count, H, L, D), without a copy."""
    requests: Tensor = x[0].unflatten(1, (count, -1))
    return requests.transpose(0, 1)
