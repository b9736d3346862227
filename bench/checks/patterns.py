"""Stress patterns of a softmax: query and key features that make scores large, equal, far apart or far below zero."""

from __future__ import annotations

import torch
from torch import Tensor

from ..cases.case import Case
from . import data

NEAR = 1 / 32
"""Distance between keys in the feature that sets the first key apart, twice as far as scores are large."""

LARGE = {"float64": 800.0, "float32": 200.0}
"""Distance of scores from zero in patterns of large scores: beyond 88 (709 in float64) an exponential overflows, and
below -104 that of float32 is zero.
"""

LARGE_OF_NARROW = 100.0
"""Distance for other dtypes, in which scores of 200 may be rounded by one."""

WRAPPED, WRAPPED_OF_FLOAT64 = 65.0, 500.0
"""Half of the distance of a core's scores to its late key's. There an exponential computed from its bits wraps: from 88 to
176 in float32 (709 to 1420 in float64) the result is large. Farther away it is small again.
"""

DEEP = 16384.0
"""How far below zero scores lie in the deepest pattern: a mask that writes -10,000 excludes no key there."""

DEEPER = 1.5
"""Ratio of the late key's depth in that pattern to the other keys', which are equal. Clamped, all would be equal."""

RISE = 1.6
"""Feature of the key before a late one where scores rise to it in equal steps: they grow by more than an exponential's range,
though no tile's largest score is far above that of the tile before.
"""

SPREAD = 16.0
"""Size of the key features that make a pattern: a power of two, so that scores meant to be equal are exactly equal."""

PATTERNS = (
    "where ordinary scores are mixed with extreme ones: ",
    "where scores are very large: ",
    "where scores are very negative: ",
    "where one key dominates: ",
    "where scores are far apart: ",
    "where all scores are equal: ",
    "where scores are far below zero: ",
    "where a late key dominates: ",
)
"""Names of the patterns, worded as the start of a sentence. Each query belongs to one of them."""

ORDINARY, HIGH, LOW, DOMINATED, APART, EQUAL, DEEPEST, LATE = range(len(PATTERNS))

PATTERN_FEATURES = 4
"""Pattern features of a query, and of a key: size of scores, first key, depth, late key."""

FEATURES = 2 * PATTERN_FEATURES
"""Pattern features of a token: first those of its query, then those of its key."""


def possible(case: Case) -> bool:
    """Whether the head is wide enough for the pattern features and one more."""
    of_latent = case.latent is None or case.latent > PATTERN_FEATURES + 1
    return (
        case.D_h - (case.rope or 0) > PATTERN_FEATURES
        and of_latent
        and (case.scope == "core" or case.d_model > FEATURES + 1)
    )


def query_sizes(case: Case) -> tuple[float, ...]:
    """Return the size of each pattern feature of a query."""
    width, large = case.D_h**0.5 / SPREAD, large_scores(case)
    deep = -DEEP if has_depth(case) else 0.0
    if case.computes == "float16":
        deep = max(deep, -32768 / case.D_h**0.5)  # so that products are finite before scaling
    wrapped = WRAPPED_OF_FLOAT64 if case.computes == "float64" else WRAPPED
    late = wrapped if case.scope == "core" else large
    return large * width, large * width, deep * width, late * width


def has_depth(case: Case) -> bool:
    """Whether there are scores far below zero: biases make them unequal, and they dominate a layer's gradients."""
    return not (case.qkv_bias or (case.does.gradients and case.scope == "layer"))


def large_scores(case: Case) -> float:
    """Return how far from zero scores lie in patterns of large scores."""
    return LARGE.get(case.computes, LARGE_OF_NARROW)


def pattern_of(case: Case, heads: bool) -> Tensor:
    """Return the pattern of every query: (B, H, T) or, for a layer, whose heads are mixed, (B, T).

    Lone queries, as in decode, begin with the pattern of a late key; the first input set covers ordinary ones. Not with
    gradients: those of a lone query dominated by one key cancel to zero.
    """
    b, h, t = torch.arange(case.B)[:, None, None], torch.arange(case.H)[:, None], torch.arange(case.T)
    shift = LATE if case.T == 1 and not case.does.gradients else ORDINARY
    pattern = (b + h + t + shift) % len(PATTERNS) if heads else (b + t + shift)[:, 0] % len(PATTERNS)
    if case.padded:  # an entry may have the first key alone, and masked ones far above it
        alone = _lengths(case).view(-1, *[1] * (pattern.dim() - 1)) == 1
        pattern = torch.where(((pattern == APART) | (pattern == DEEPEST)) & alone, ORDINARY, pattern)
    if case.span:
        first, last = case.ends
        pattern = torch.where((pattern == APART) & (last == 0), ORDINARY, pattern)  # queries of the first key alone
        pattern = torch.where(((pattern == APART) | (pattern == DOMINATED)) & (first > 0), ORDINARY, pattern)
        late = _late(case, case.H_kv).repeat_interleave(case.H // case.H_kv, 1) if heads else _late(case)
        seen = (first <= late[..., None]) & (late[..., None] <= last)  # (B, H, T) or (B, 1, T)
        seen = seen if heads else seen[:, 0]
        earliest = seen & (seen.cumsum(-1) == 1)
        pattern = torch.where((pattern == LATE) & ~seen, ORDINARY, pattern)
        pattern = torch.where((pattern == DEEPEST) & seen & (first == last), ORDINARY, pattern)
        if case.T > 1:  # lone queries have it alternately
            pattern = torch.where(earliest, LATE, pattern)
    return pattern if has_depth(case) else torch.where(pattern == DEEPEST, ORDINARY, pattern)


def query_features(pattern: Tensor) -> Tensor:
    """Return the features of a query for its pattern: (..., PATTERN_FEATURES)."""
    large = (pattern == HIGH).float() - (pattern == LOW).float()
    by_key = (pattern == DOMINATED).float() - (pattern == APART).float()
    return torch.stack([large, by_key, (pattern == DEEPEST).float(), (pattern == LATE).float()], -1)


def key_features(case: Case, generator: torch.Generator, heads: int = 1) -> Tensor:
    """Return the features of a key, (B, heads, T_kv, PATTERN_FEATURES): equal for all keys, except the second feature, which
    sets the first key apart, and the last two, which set a late key apart. In every other batch entry the last feature rises
    to that key (a soft cap would make it equal to those before).

    The other keys lie close together, so that no masked key is far above all visible ones. Otherwise a mask applied
    after the softmax, which is correct though wasteful, would leave only zeros.
    """
    features = torch.ones(case.B, heads, case.T_kv, PATTERN_FEATURES)
    for apart in (1, 3):
        features[..., apart] = torch.rand(case.B, 1, case.T_kv, generator=generator) * NEAR
    features[..., 0, 1] = 2.0
    late = _late(case, heads)[..., None]  # (B, heads, 1)
    share = torch.arange(case.T_kv) / late.clamp(min=1)  # (B, heads, T_kv), 1 at the late key
    if not case.softcap:
        features[1::2, :, :, 3] += RISE * (share * (share < 1))[1::2]
    at_late = torch.arange(case.T_kv) == late
    features[..., 2][at_late], features[..., 3][at_late] = DEEPER, 2.0
    return features


def _late(case: Case, heads: int = 1) -> Tensor:
    """Return the last key that any query sees: (B, heads); in later heads another one, where a maximum may skip others.

    A mask excludes that key for most queries: there every other head uses the last key seen by a middle query, or, if there is
    only one batch entry and head, every even length.
    """
    last = (_lengths(case) - 1)[:, None].repeat(1, heads)
    if case.span:
        _, seen = case.ends
        alone = case.B == heads == 1
        odd = (torch.arange(case.B)[:, None] + torch.arange(heads) + alone * case.T) % 2 == 1
        return last.clamp(max=torch.where(odd, seen.max(), seen[min(case.T, case.T_kv) // 2]))
    last[:, (heads + 1) // 2 :] //= 3
    return last


def _lengths(case: Case) -> Tensor:
    """Return how many keys of each batch entry are not padding: (B,)."""
    padding = data.padding(case, 1)
    return torch.full((case.B,), case.T_kv) if padding is None else padding.sum(-1).cpu()


def zero_where_equal(x: Tensor, pattern: Tensor) -> Tensor:
    """Set x to zero where all scores must be exactly equal."""
    return x * ((pattern != EQUAL) & (pattern != DEEPEST))[..., None]
