"""FLOPs and bytes of a case by formula, the same for every implementation; and the least memory of a cell."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import torch

from impls import Impl
from impls.weights import sizes

from . import decoders
from .case import Case

ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def visible_pairs(case: Case) -> int:
    """Count visible pairs of a query and a key per head and batch entry; padding is counted in full."""
    first, last = case.ends
    return int((last - first + 1).sum())


def seen_keys(case: Case) -> int:
    """Count the keys visible to some query: a cache entry outside every window need not be read."""
    first, last = case.ends
    begun = torch.bincount(first, minlength=case.T_kv + 1) - torch.bincount(last + 1, minlength=case.T_kv + 1)
    return int((begun.cumsum(0) > 0).sum())  # keys between two requests' windows are visible to no query


def flops(case: Case) -> int:
    """Count floating-point operations of the formula; a multiply-add counts as two. Softmax and modifications of scores
    are excluded.

    Core: 2 · B · H · pairs · (D_h + D_v). Projections: 2 · tokens · width in · width out each; in `decode` only those
    of new tokens. `backward` counts three times the forward: each product has two gradients, each a product of the same
    size. With a latent, keys and values of visible tokens are rebuilt or absorbed, whichever is cheaper. A block of a
    model includes its MLP; a model consists of two blocks and a head.
    """
    attention = case.H * visible_pairs(case) * (case.D_h + case.D_v)
    if case.latent:
        attention = _latent_products(case)
    forward = attention + (_projections(case) if case.scope == "layer" else 0)
    if case.in_model:
        block, head = decoders.matrices(case)
        windows = decoders.windows(case) if case.windowed else [None] * decoders.BLOCKS[case.scope]
        pairs = sum(visible_pairs(replace(case, window=it)) for it in windows)
        forward = case.H * pairs * (case.D_h + case.D_v) + case.T * (len(windows) * block + head)
    return 2 * case.B * forward * (3 if case.does.gradients else 1)


def _projections(case: Case) -> int:
    """Count multiply-adds of W_q and W_o, and of W_k and W_v or the latent projection; for one batch entry."""
    queries = case.T * case.d_model * case.H * (case.D_h + case.D_v)
    return queries + (case.T if case.does.cached else case.T_kv) * case.d_model * _cached_per_token(case)


def _cached_per_token(case: Case) -> int:
    """Count numbers that a cache stores per token: key and value, or latent."""
    return case.latent + (case.rope or 0) if case.latent else case.H_kv * (case.D_h + case.D_v)


def _latent_products(case: Case) -> int:
    """Count multiply-adds from projected queries to head outputs per batch entry, keys and values rebuilt or absorbed,
    whichever is cheaper.
    """
    assert case.latent is not None
    rope, latent, pairs, seen = case.rope or 0, case.latent, visible_pairs(case), seen_keys(case)
    cheaper = (
        min((seen * latent + pairs) * width, (case.T * width + pairs) * latent) for width in (case.D_h - rope, case.D_v)
    )
    return case.H * (sum(cheaper) + pairs * rope)


def least_bytes(case: Case) -> int:
    """Count the fewest bytes moved: inputs and weights read once, output written once.

    `decode` reads the cache entries visible to some query, and writes those of the new tokens. `backward` also reads
    the gradient of the output and writes a gradient for all that was read. A dense or learned bias is read where a key is
    visible; a dense one has no gradient. Under autocast only the output is narrow.
    """
    if case.in_model:
        return _bytes_of_decoder(case)
    o = case.B * case.T * (case.H * case.D_v if case.scope == "core" else case.d_model)
    cached = case.B * _cached_per_token(case)  # cache entries of one token
    if case.scope == "core":
        read = case.B * case.T * case.H * case.D_h + seen_keys(case) * cached + case.sinks * case.H
    else:
        tokens = case.T if case.source == "self" else case.T + case.T_kv
        read = case.B * tokens * case.d_model
        read += sum(prod(size) for name, size in sizes(case.layer_shape).items() if name != "score_bias")
        read += seen_keys(case) * cached if case.does.cached else 0  # earlier entries read, new ones written
    bias = case.H * visible_pairs(case) * ITEM_BYTES[case.dtype]
    learned, dense = (bias if case.bias == name else 0 for name in ("learned", "dense"))
    moved = read * ITEM_BYTES[case.dtype] + o * ITEM_BYTES[case.computes] + learned
    return (2 * moved if case.does.gradients else moved) + dense


def _bytes_of_decoder(case: Case) -> int:
    """Count the fewest bytes moved by decoder blocks. An untied embedding counts only its tokens' rows."""
    block, head = decoders.matrices(case)
    seen = seen_keys(case) * _cached_per_token(case) if case.does.cached else 0
    read = decoders.BLOCKS[case.scope] * (block + case.B * seen) + head + case.B * case.T * case.d_model
    moved = (read + case.B * case.T * decoders.output_width(case)) * ITEM_BYTES[case.dtype]
    return 2 * moved if case.does.gradients else moved


def cache_bytes(case: Case) -> int | None:
    """Return the bytes of cache per token and batch entry; None without a cache."""
    return _cached_per_token(case) * ITEM_BYTES[case.dtype] if case.does.cached else None


def least_memory(impl: Impl, case: Case) -> int:
    """Return the least memory of a cell in bytes: the bytes moved, the scores that the implementation stores, and those of the
    reference model.
    """
    scores = (impl.scores(case) if impl.scores else 0) * ITEM_BYTES[case.computes]
    return least_bytes(case) + scores + (bytes_of_reference(case) if case.in_model else 0)


def bytes_of_reference(case: Case) -> int:
    """Return the bytes of the float64 reference model, its gradients for two input sets, and the generated weights."""
    of_weights = decoders.weights(case) * (8 + ITEM_BYTES[case.dtype] + (24 if case.does.gradients else 0))
    return of_weights + 2 * 8 * case.B * case.T * case.d_model


def padding_share(impl: Impl, case: Case) -> float:
    """Return the share of computed queries that are padding added by the implementation."""
    return 1 - case.B * case.T / impl.tokens(case) if impl.tokens else 0.0


def bytes_text(size: float) -> str:
    """Format a number of bytes: `768.0 KiB`, `66.0 MiB`."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 2**power:
            return f"{size / 2**power:.1f} {unit}"
    return f"{size:.0f} B"


def held_bytes(case: Case) -> int:
    """Estimate the bytes held by a cell between calls: inputs and weights, mask, outputs."""
    width = decoders.output_width(case) if case.in_model else max(case.d_model, case.H * case.D_v)
    of_pair = case.H * ITEM_BYTES[case.dtype] if case.bias else int(case.mask != "none")
    return least_bytes(case) + case.T * case.T_kv * of_pair + 4 * case.B * case.T * width * ITEM_BYTES[case.dtype]
