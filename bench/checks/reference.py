"""Reference implementation: attention by the formula in float64, in blocks so that long sequences fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import linear, pad

from impls import LayerShape
from impls.rules import Rules, bias_of
from impls.weights import core_sizes

Tensors: TypeAlias = dict[str, Tensor]
"""Tensors by name: inputs, weights, outputs."""

Way: TypeAlias = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Maps scores (B, T, T_kv), values (B, T_kv, D_v), and factors on probs, to (B, T, D_v)."""

BLOCK, BLOCK_IN_TRAINING = 1 << 18, 1 << 22
"""Scores computed at a time: as many as caches hold; with gradients as many as fit, since gradients of keys are summed over
blocks in the inputs' dtype.
"""


def attention(
    q: Tensor, k: Tensor, v: Tensor, rules: Rules, *, sinks: Tensor | None = None, score_bias: Tensor | None = None,
    padding: Tensor | None = None, rows: Tensor | None = None, dropped: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Compute softmax(q kᵀ / sqrt(D_h)) v with `rules` in the inputs' dtype: float64 for the reference, others to
    measure rounding.

    q (B, H, T, D_h), k (B, H_kv, T_kv, D_h), v (B, H_kv, T_kv, D_v); `padding` (B, T_kv), True where a key is a token.
    `sinks` (H,): scores of a further key, whose value is zero. `score_bias` (H, T, T_kv or more) is added to the scores,
    as the bias of `rules` is. `rows` selects queries: (B, H, len(rows), D_v).
    `dropped` (B, H, T, T_kv): factor on each prob, 0 or 1 / (1 - p).
    """
    B, H, T, D_h = q.shape
    group = H // k.shape[1]
    rows = torch.arange(T, device=q.device) if rows is None else rows
    keys = torch.arange(k.shape[2], device=q.device)
    span, bias = rules.span(T, len(keys), q.device), bias_of(rules, H, T, len(keys), q.device)
    size = max(1, (BLOCK_IN_TRAINING if q.requires_grad else BLOCK) // (B * len(keys)))
    blocks = []
    for block in rows.split(size):
        hidden = ~span(block[:, None], keys) if span else None  # (block, T_kv)
        if padding is not None:
            hidden = ~padding[:, None, :] if hidden is None else hidden | ~padding[:, None, :]
        heads = []
        for h in range(H):
            scores = q[:, h, block] @ k[:, h // group].mT / D_h**0.5  # (B, block, T_kv)
            if rules.softcap is not None:
                scores = rules.softcap * torch.tanh(scores / rules.softcap)
            if bias is not None:
                scores = scores + bias(torch.tensor(h), block[:, None], keys).to(scores.dtype)
            if score_bias is not None:
                scores = scores + score_bias[h, block, : len(keys)].to(scores.dtype)
            if hidden is not None:
                scores = scores.masked_fill(hidden, -torch.inf)
            v_h, kept = v[:, h // group], None if dropped is None else dropped[:, h, block]
            if sinks is not None:
                scores = torch.cat([scores, sinks[h].expand(*scores.shape[:-1], 1)], dim=-1)
                v_h, kept = pad(v_h, (0, 0, 0, 1)), None if kept is None else pad(kept, (0, 1))
            heads.append(_attend(scores, v_h, kept))
        blocks.append(torch.stack(heads, dim=1))  # (B, H, block, D_v)
    return torch.cat(blocks, dim=2)


def _softmax_times(scores: Tensor, v: Tensor, dropped: Tensor | None) -> Tensor:
    """(B, T, T_kv), (B, T_kv, D_v) -> (B, T, D_v)"""
    return _without(dropped, torch.softmax(scores, dim=-1)) @ v


def _without(dropped: Tensor | None, probs: Tensor) -> Tensor:
    return probs if dropped is None else probs * dropped.to(probs.dtype)


class _SummedOverFeatures(Function):
    """Softmax times values, with a gradient computed from o as in flash kernels, not from the probs.

    Both gradients are equal in exact arithmetic; where a query sees few keys, nearly everything cancels, and rounding
    shows.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, v: Tensor, dropped: Tensor | None) -> Tensor:
        probs = torch.softmax(scores, dim=-1)
        o = _without(dropped, probs) @ v
        ctx.save_for_backward(probs, v, o)
        ctx.dropped = dropped
        return o

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (grad,) = gradients  # of o's dtype, which under autocast is narrower than that of probs or v
        probs, v, o = ctx.saved_tensors
        of_probs = _without(ctx.dropped, grad @ v.to(grad.dtype).mT)
        of_scores = probs * (of_probs - (grad * o).sum(-1, keepdim=True))
        return of_scores, _without(ctx.dropped, probs).to(grad.dtype).mT @ grad, None


summed_over_features = _SummedOverFeatures.apply


def log_sum(scores: Tensor, v: Tensor, dropped: Tensor | None) -> Tensor:
    """Return the natural logarithm of the sum of exponentials of the scores, in float32 at least: (B, T, 1)."""
    return torch.logsumexp(scores.to(torch.promote_types(scores.dtype, torch.float32)), dim=-1, keepdim=True)


def spread(scores: Tensor, v: Tensor, dropped: Tensor | None) -> Tensor:
    """Return the standard deviation of the output if every score has an error of standard deviation 1: (B, T, D_v).

    That is the norm of the output's derivatives p_j (v_j - o).
    """
    probs = _without(dropped, torch.softmax(scores, dim=-1))
    o, squares = probs @ v, probs.square()
    variance = squares @ v.square() - 2 * o * (squares @ v) + o.square() * squares.sum(-1, keepdim=True)
    return variance.clamp_min(0.0).sqrt()


_attend: Way = _softmax_times
_absorbing = False


@contextmanager
def attending(way: Way = _softmax_times, absorbed: bool = False) -> Iterator[None]:
    """Replace the final step of attention within the block, as by `summed_over_features`, `log_sum` or `spread`; `absorbed`:
    attend to latents directly, the absorbed form of latent attention.
    """
    global _attend, _absorbing
    _attend, _absorbing = way, absorbed
    try:
        yield
    finally:
        _attend, _absorbing = _softmax_times, False


def layer(
    x: Tensor, x_kv: Tensor, weights: Tensors, shape: LayerShape, *, padding: Tensor | None = None, rows: Tensor | None = None,
    dropped: Tensor | None = None, out_dropped: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Compute a whole layer: projections, attention, output. x (B, T, d_model) -> (B, T or len(rows), d_model)."""
    q, kept = _queries(x, weights, shape), _kept(x_kv, weights, shape)
    o = _attention_to(kept, q, weights, shape, padding=padding, rows=rows, dropped=dropped)
    return _without(out_dropped, _finish(o, weights))


def decode(
    x: Tensor, cache: list[Tensor], weights: Tensors, shape: LayerShape, rows: Tensor | None = None
) -> list[Tensor]:
    """Compute a layer for new tokens x (B, T, d_model), whose entries take the last positions of the cache.

    Returns o (B, T or len(rows), d_model), and the entries written to the cache: (B, H_kv, T, D_h), (B, H_kv, T, D_v),
    or latents.
    """
    first = cache[0].shape[-2] - x.shape[1]
    written = _kept(x, weights, shape, first)
    cache = [torch.cat([known[..., :first, :], new], dim=-2) for known, new in zip(cache, written, strict=True)]
    o = _attention_to(cache, _queries(x, weights, shape, first), weights, shape, rows=rows)
    return [_finish(o, weights), *written]


def _queries(x: Tensor, weights: Tensors, shape: LayerShape, first: int = 0) -> Tensor:
    """Project queries (B, H, T, D_h); the first token has position `first`."""
    return _turned(_project(x, weights, "q", shape.H), shape, first)


def _kept(x: Tensor, weights: Tensors, shape: LayerShape, first: int = 0) -> list[Tensor]:
    """Return the cache entries of tokens: (B, H_kv, T, D_h), (B, H_kv, T, D_v), or (B, 1, T, latent + rope)."""
    if shape.latent is None:
        return [_project(x, weights, n, shape.H_kv) for n in "kv"]
    return [_turned(_project(x, weights, "c", 1), shape, first)]


def _attention_to(
    kept: list[Tensor], q: Tensor, weights: Tensors, shape: LayerShape, **options: Tensor | None
) -> Tensor:
    """Attend from q (B, H, T, D_h) to cache entries: (B, H, T or len(rows), D_v)."""
    options |= {name: weights[name] for name in core_sizes(shape)}
    if shape.latent is None:
        k, v = kept
        return attention(q, k, v, shape, **options)
    (latents,), rope = kept, shape.rope or 0
    c, rotary = latents.split([shape.latent, rope], dim=-1)  # (B, 1, T_kv, latent), (B, 1, T_kv, rope)
    if not _absorbing:
        k, v = (_project(c[:, 0], weights, n, shape.H) for n in "kv")
        return attention(q, torch.cat([k, rotary.expand(*k.shape[:-1], -1)], dim=-1), v, shape, **options)
    W_k, W_v = (weights[f"W_{n}"].unflatten(0, (shape.H, -1)) for n in "kv")  # (H, D, latent)
    own, turned = q.split([shape.D_h - rope, rope], dim=-1)
    q = torch.cat([own @ W_k, turned], dim=-1) * (latents.shape[-1] / shape.D_h) ** 0.5  # which `attention` takes away
    o: Tensor = attention(q, latents, c, shape, **options) @ W_v.mT
    return o


def _turned(x: Tensor, shape: LayerShape, first: int) -> Tensor:
    """Rotate the last features, as pairs, by position · 10000^(-2 pair / rope): Su et al., "RoFormer", 2021."""
    if not shape.rope:
        return x
    places = torch.arange(first, first + x.shape[-2], dtype=torch.float64, device=x.device)
    pair = torch.arange(shape.rope // 2, dtype=torch.float64, device=x.device)
    angle = places[:, None, None] / 10000 ** (2 * pair[:, None] / shape.rope)  # (T, rope / 2, 1)
    points = x[..., -shape.rope :].unflatten(-1, (-1, 2))
    quarter = torch.stack([-points[..., 1], points[..., 0]], dim=-1)  # each further rotated by a quarter turn
    turned = points * angle.cos().to(x.dtype) + quarter * angle.sin().to(x.dtype)
    return torch.cat([x[..., : -shape.rope], turned.flatten(-2)], dim=-1)


def _project(x: Tensor, weights: Tensors, n: str, H: int) -> Tensor:
    """(B, T, width) -> (B, H, T, D)"""
    heads: Tensor = linear(x, weights[f"W_{n}"], weights.get(f"b_{n}")).unflatten(-1, (H, -1))
    return heads.transpose(1, 2)


def _finish(o: Tensor, weights: Tensors) -> Tensor:
    """(B, H, T, D_v) -> (B, T, d_model)"""
    return linear(o.transpose(1, 2).flatten(2), weights["W_o"], weights.get("b_o"))


def gradients(o: Tensor, leaves: Tensors, grad: Tensor | None, rows: Tensor | None) -> Tensors:
    """Return the gradients of every leaf; empty if the case has no backward, or none are recorded."""
    if grad is None or not torch.is_grad_enabled():
        return {}
    picked = grad if rows is None else grad.index_select(-2, rows)
    found = torch.autograd.grad(o, list(leaves.values()), picked.to(o.dtype))
    return {f"gradient of {name}": x for name, x in zip(leaves, found, strict=True)}
