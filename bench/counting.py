"""Operations and bytes of a case by formula: the same denominator for every implementation."""

from __future__ import annotations

from .sweep import Case

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

    Core: 2 · B · H · pairs · (D_h + D_v). Projections: 2 · tokens · width in · width out each.
    """
    core = 2 * case.B * case.H * visible_pairs(case) * (case.D_h + case.D_v)
    queries = 2 * case.B * case.T * case.d_model * case.H * (case.D_h + case.D_v)  # W_q and W_o
    keys = 2 * case.B * case.T_kv * case.d_model * case.H_kv * (case.D_h + case.D_v)  # W_k and W_v
    return core + queries + keys


def least_bytes(case: Case) -> int:
    """Fewest bytes that must move: inputs and weights read once, the output written once."""
    tokens_in = case.T if case.source == "self" else case.T + case.T_kv
    weights = case.d_model * (case.H + case.H_kv) * (case.D_h + case.D_v)
    biases = case.qkv_bias * (case.H * case.D_h + case.H_kv * (case.D_h + case.D_v)) + case.out_bias * case.d_model
    items = case.B * (tokens_in + case.T) * case.d_model + weights + biases
    return items * ITEM_BYTES[case.dtype]
