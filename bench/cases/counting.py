"""Operations and bytes of a case by formula: the same denominator for every implementation."""

from __future__ import annotations

from math import prod

import torch

from impls import Impl
from impls.weights import sizes

from . import decoders
from .case import Case

ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def visible_pairs(case: Case) -> int:
    """Pairs of a query and a key that the mask leaves visible, per head and batch entry; padding is counted in full."""
    first, last = case.layer_shape.span(case.T, case.T_kv).ends(case.T, case.T_kv)
    return int((last - first + 1).sum())


def seen_keys(case: Case) -> int:
    """Keys that some query sees: what a window leaves out need not be read from a cache."""
    first, last = case.layer_shape.span(case.T, case.T_kv).ends(case.T, case.T_kv)
    begun = torch.bincount(first, minlength=case.T_kv + 1) - torch.bincount(last + 1, minlength=case.T_kv + 1)
    return int((begun.cumsum(0) > 0).sum())  # what lies between two requests' windows is seen by none


def flops(case: Case) -> int:
    """Floating-point operations of the formula, a multiplication and an addition counted as two (softmax, and what changes
    a score before it, not counted).

    Core: 2 · B · H · pairs · (D_h + D_v). Projections: 2 · tokens · width in · width out each; in `decode` those of the new
    token alone. `backward` counts three times the forward: each product has two gradients, each a product of the same size.
    With a latent keys and values are rebuilt from those that some query sees, or absorbed, whichever is less.
    A block of a model has an MLP besides; a model two blocks and a head.
    """
    attention = case.H * visible_pairs(case) * (case.D_h + case.D_v)
    if case.latent:
        attention = _latent_products(case)
    forward = attention + (_projections(case) if case.scope == "layer" else 0)
    if case.in_model:
        block, head = decoders.matrices(case)
        forward = decoders.BLOCKS[case.scope] * (attention + case.T * block) + case.T * head
    return 2 * case.B * forward * (3 if case.does.gradients else 1)


def _projections(case: Case) -> int:
    """Products of W_q and W_o, and of W_k and W_v or of that which gives their latent; for one batch entry."""
    queries = case.T * case.d_model * case.H * (case.D_h + case.D_v)
    return queries + (case.T if case.does.cached else case.T_kv) * case.d_model * _projected(case)


def _projected(case: Case) -> int:
    """Numbers that a layer keeps of a token: of its key and value, or of their latent."""
    return case.latent + (case.rope or 0) if case.latent else case.H_kv * (case.D_h + case.D_v)


def _latent_products(case: Case) -> int:
    """Products from projected queries to heads' outputs, for one batch entry: keys and values each in their cheaper form."""
    assert case.latent is not None
    rope, latent, pairs, seen = case.rope or 0, case.latent, visible_pairs(case), seen_keys(case)
    cheaper = (
        min((seen * latent + pairs) * width, (case.T * width + pairs) * latent) for width in (case.D_h - rope, case.D_v)
    )
    return case.H * (sum(cheaper) + pairs * rope)


def least_bytes(case: Case) -> int:
    """Fewest bytes that must move: what goes in and the weights read once, the output written once.

    `decode` reads of the cache what some query sees, and writes the new tokens to it. `backward` reads the gradient of the
    output too, and writes one for all that was read. A dense bias is read where a key is visible. Under autocast the output
    alone is narrow.
    """
    if case.in_model:
        return _bytes_of_decoder(case)
    o = case.B * case.T * (case.H * case.D_v if case.scope == "core" else case.d_model)
    cached = case.B * _projected(case)  # what is kept of one token
    if case.scope == "core":
        read = case.B * case.T * case.H * case.D_h + seen_keys(case) * cached + case.sinks * case.H
    else:
        tokens = case.T if case.source == "self" else case.T + case.T_kv
        read = case.B * tokens * case.d_model + sum(map(prod, sizes(case.layer_shape).values()))
        read += seen_keys(case) * cached if case.does.cached else 0  # the others read, the new ones written
    read += case.H * visible_pairs(case) if case.bias == "dense" else 0
    moved = read * ITEM_BYTES[case.dtype] + o * ITEM_BYTES[case.computes]
    return 2 * moved if case.does.gradients else moved


def _bytes_of_decoder(case: Case) -> int:
    """The same of decoder blocks. Of an embedding the tokens' rows are read, unless it is the head as well."""
    block, head = decoders.matrices(case)
    seen = seen_keys(case) * _projected(case) if case.does.cached else 0
    read = decoders.BLOCKS[case.scope] * (block + case.B * seen) + head + case.B * case.T * case.d_model
    moved = (read + case.B * case.T * decoders.output_width(case)) * ITEM_BYTES[case.dtype]
    return 2 * moved if case.does.gradients else moved


def cache_bytes(case: Case) -> int | None:
    """Bytes that a cache holds of one token, in one batch entry; None where there is no cache."""
    return _projected(case) * ITEM_BYTES[case.dtype] if case.does.cached else None


def least_memory(impl: Impl, case: Case) -> int:
    """Fewest bytes that a cell holds at once: what must move anyway, and the scores that the implementation declares."""
    scores = (impl.scores(case) if impl.scores else 0) * ITEM_BYTES[case.computes]
    return least_bytes(case) + scores + (_bytes_of_reference(case) if case.in_model else 0)


def _bytes_of_reference(case: Case) -> int:
    """Of the float64 model that a model is checked against, with its gradients for two input sets, and of the weights drawn."""
    of_weights = decoders.weights(case) * (8 + ITEM_BYTES[case.dtype] + (24 if case.does.gradients else 0))
    return of_weights + 2 * 8 * case.B * case.T * case.d_model


def padding_share(impl: Impl, case: Case) -> float:
    """Share of the queries that an implementation computes that are padding of its own."""
    return 1 - case.B * case.T / impl.tokens(case) if impl.tokens else 0.0


def held_bytes(case: Case) -> int:
    """About what a cell holds between its calls: inputs and weights, its mask, answers."""
    width = decoders.output_width(case) if case.in_model else max(case.d_model, case.H * case.D_v)
    mask = (
        case.T * case.T_kv * (case.H * ITEM_BYTES[case.dtype] if case.bias else 1)
        if case.mask != "none" or case.bias
        else 0
    )
    return least_bytes(case) + mask + 4 * case.B * case.T * width * ITEM_BYTES[case.dtype]
