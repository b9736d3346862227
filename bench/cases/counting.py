"""Operations and bytes of a case by formula: the same denominator for every implementation."""

from __future__ import annotations

from impls import Impl

from .case import Case

ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def visible_pairs(case: Case) -> int:
    """Pairs of a query and a key that a causal mask leaves visible, per head and batch entry; padding is counted in full.

    Aligned top left: query i sees min(i + 1, T_kv) keys.
    """
    if not case.causal:
        return case.T * case.T_kv
    short = min(case.T, case.T_kv)
    return short * (short + 1) // 2 + max(0, case.T - case.T_kv) * case.T_kv


def flops(case: Case) -> int:
    """Floating-point operations of the formula, a multiplication and an addition counted as two (softmax not counted).

    Core: 2 · B · H · pairs · (D_h + D_v). Projections: 2 · tokens · width in · width out each; in `decode` those of the new
    token alone. `backward` counts three times the forward: each product has two gradients, each a product of the same size.
    """
    forward = 2 * case.B * case.H * visible_pairs(case) * (case.D_h + case.D_v)
    if case.scope == "layer":
        forward += 2 * case.B * case.T * case.d_model * case.H * (case.D_h + case.D_v)  # W_q and W_o
        forward += 2 * case.B * _projected_keys(case) * case.d_model * case.H_kv * (case.D_h + case.D_v)  # W_k and W_v
    return 3 * forward if case.does.gradients else forward


def least_bytes(case: Case) -> int:
    """Fewest bytes that must move: what goes in and the weights read once, the output written once.

    `decode` reads the cache and writes one token to it. `backward` reads the gradient of the output too, and writes one
    for all that was read.
    """
    o = case.B * case.T * (case.H * case.D_v if case.scope == "core" else case.d_model)
    cached = case.B * case.H_kv * (case.D_h + case.D_v)  # one token's key and value
    if case.scope == "core":
        read = case.B * case.T * case.H * case.D_h + case.T_kv * cached
    else:
        tokens = case.T if case.source == "self" else case.T + case.T_kv
        read = case.B * tokens * case.d_model + _weights(case)
        read += case.T_kv * cached if case.does.cached else 0  # the others read, the new one written
    return (2 * (read + o) if case.does.gradients else read + o) * ITEM_BYTES[case.dtype]


def least_memory(impl: Impl, case: Case) -> int:
    """Fewest bytes that a cell holds at once: what must move anyway, and the scores that the implementation declares."""
    return least_bytes(case) + (impl.scores(case) if impl.scores else 0) * ITEM_BYTES[case.dtype]


def held_bytes(case: Case) -> int:
    """About what a cell holds between its calls: inputs and weights twice, its mask, an answer or two."""
    mask = case.keys**2 if case.causal or case.padded else 0
    return (
        2 * least_bytes(case)
        + mask
        + 4 * case.B * case.T * max(case.d_model, case.H * case.D_v) * ITEM_BYTES[case.dtype]
    )


def _projected_keys(case: Case) -> int:
    """Tokens that go through W_k and W_v."""
    return case.T if case.does.cached else case.T_kv


def _weights(case: Case) -> int:
    """Numbers that the projections hold."""
    matrices = case.d_model * (case.H + case.H_kv) * (case.D_h + case.D_v)
    biases = case.qkv_bias * (case.H * case.D_h + case.H_kv * (case.D_h + case.D_v)) + case.out_bias * case.d_model
    return matrices + biases
