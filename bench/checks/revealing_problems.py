"""Test problems of cores and layers that reveal one fault: in probs, in small parts of a sum, in results kept too long."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import astuple, replace
from functools import lru_cache

import torch
from torch import Tensor

from impls import weights as canonical

from ..cases.case import Case
from . import data, patterns
from .attention_problems import attention_problem, drawn_inputs, drawn_weights, problem_of, weights_of
from .bounds import WIDE
from .probes import LONG_PROBE
from .problem import Errors, Expected, Problem

TOKEN = 16.0
"""Size of the feature that identifies a token where probs are shown: as large as all other features together."""

LOWER = 16
"""Number of equal steps by which scores are lower than the first key's, from 0 to just below the farthest: there all keys of
the long probe together weigh about an epsilon of the first one.
"""

CLOSER = 10
"""Number of spreads of scores, each half of the one before, among queries at which that step is 0."""

UNEQUAL = 1 / 16
"""Largest deviation of the other keys' scores from their mean, over the distance of that mean from the first key's score: a
tile of keys with one weight for all shows.
"""

FARTHEST_OF_FLOAT16 = 9.0
"""The farthest distance in float16: up to it, exponentials are normal numbers."""

OF_THE_LAST = 4.0
"""Factor on the gradient of the last query's output. Under a causal mask no other query sees the last key, whose gradient
would be small beside the others', which are sums.
"""

LARGE_ADDEND, LATE_ADDEND = 64.0, 511
"""Size of two values that cancel where sums are shown, and the second one's key: the last of a tile of 512, since torch's own
SDPA adds up gradients of such tiles in the narrow dtype.
"""

LOST = 1 / 512
"""Ratio of the other values to the large ones, in epsilons: 255 together are less than half of an epsilon."""

FLOOR_OF_SUMS = 0.1
"""Error allowed where sums are shown: float32 rounds each of the other values by up to 0.032 of it, all alike in a row."""

LARGE_VALUE, LARGE_VALUE_OF_FLOAT16 = 2.0**17, 256.0
"""A value beyond float16's range, and one whose sum over 512 keys float16 can't hold, though it holds their mean."""

SAMPLED = 2 * 3 * 5 * 7
"""Numbers whose index has a divisor in common with this are not exchanged."""


@lru_cache(maxsize=16)
def solved(make: Callable[[Case], Problem], case: Case) -> Problem:
    """Return a solved problem from a cache: its expected output was computed before a kernel could patch torch."""
    problem = make(case)
    problem.expected  # noqa: B018  computed here
    return problem


def showing_probs(case: Case, dropped: Tensor | None = None) -> Problem:
    """Return a problem whose output is every head's probs: (B, H, T, D_v) of a core, (B, T, H * D_v) of a layer.

    For a case whose D_v is a multiple of T_kv, by which each prob is repeated, and with d_model = H * D_v. `dropped`
    (B, H, T, T_kv): factor on each prob in training, 0 or 1 / (1 - p); None for evaluation.
    """
    generator = data.seeded(case, 3)
    unit = torch.eye(case.T_kv).repeat(1, case.D_v // case.T_kv)
    if case.scope == "core":
        q, k = (data.randn(size, generator) for size in [*data.sizes_of_inputs(case).values()][:2])
        v = unit.expand(case.B, case.H_kv, -1, -1)
        return attention_problem(case, [q, k, v], weights_of(case), generator, dropped=dropped)
    weights = canonical.draw(case.layer_shape, generator)
    values = torch.cat([unit.mT - float(case.qkv_bias), torch.zeros(case.D_v, case.d_model - case.T_kv)], 1)
    weights["W_v"] = values.repeat(case.H_kv, 1) / TOKEN
    weights["W_o"] = torch.eye(case.d_model)
    if case.qkv_bias:  # values are unit vectors with their bias alone, which is dropped with them
        weights["b_v"] = torch.ones_like(weights["b_v"])
    exact = drawn_inputs(case, generator)
    exact[-1][..., : case.T_kv] = torch.eye(case.T_kv) * TOKEN
    return attention_problem(case, exact, data.in_dtype(weights, case), generator, dropped=dropped)


def showing_tails(case: Case) -> Problem:
    """Return a problem of a core in which the first key has the largest score and the value zero.

    All other keys have lower scores, close together, and large values, in every other head very small ones and a large
    gradient of the output (one scale for the whole tensor doesn't fit), so that output and gradients are wrong if they are
    left out: as probs of a query are lower, its gradient is larger. The first feature of these values is the same, which the
    gradients ignore: it would cancel nearly everything. Two keys are equal, and one is zero. Every 16th query has ordinary
    scores, divided by powers of two. In the first head of 513 queries the last one has the lowest scores, and the largest
    gradient.
    """
    if case.scope == "layer":
        return _showing_tails_of_layer(case)
    generator = data.seeded(case, 5)
    queries = torch.arange(-1, case.B * case.H * case.T - 1).view(case.B, case.H, case.T)
    q = torch.zeros(*queries.shape, case.D_h)
    k, v = (data.randn((case.B, *size), generator) for size in data.cache_sizes(case))
    farthest, large = _farthest(case), _large_value(case)
    q[..., 0] = queries % LOWER / LOWER * farthest
    q[..., -1] += (queries % LOWER == 0) * case.D_h**0.5 / 2.0 ** (1 + queries // LOWER % CLOSER)
    k[..., 0].uniform_(-UNEQUAL, UNEQUAL, generator=generator).mul_(case.D_h**0.5)
    k[..., 0, 0] = case.D_h**0.5
    k[..., 2, :], k[..., 3, :] = k[..., 1, :], 0.0
    v[..., 0].uniform_(1, 1.25, generator=generator)
    v[..., 0, :] = 0.0
    odd = torch.arange(case.B * case.H_kv).view(case.B, case.H_kv, 1, 1) % 2 * (case.computes != "float16")
    sizes = large ** (1.0 - 2 * odd)
    v *= sizes
    emphasis = (torch.exp(q[..., :1]) + case.T_kv) / math.exp(farthest) * (torch.arange(case.D_v) > 0)  # 1 / prob
    emphasis[..., -1, :] *= OF_THE_LAST
    emphasis = emphasis * large / sizes.repeat_interleave(case.H // case.H_kv, 1)
    pattern = torch.full_like(queries, patterns.APART).to(case.device)
    keys = (torch.arange(case.T_kv) > 0).to(case.device).expand(case.B, case.H_kv, -1)  # the first one's are far larger
    problem = attention_problem(case, [q, k, v], weights_of(case), generator, 0, pattern, emphasis=emphasis, keys=keys)
    return _for_one_accumulator(problem)


def _for_one_accumulator(problem: Problem) -> Problem:
    """Return a problem of similar addends with bounds for kernels that add them up one by one: of n, each sum may be rounded by
    half an epsilon, all alike. Kernels add up narrow dtypes in float32.
    """
    case = problem.case
    more = case.T_kv / 2 * data.epsilon(case) if case.rounding_dtype in WIDE else 0.0
    return replace(problem, solve=lambda: tuple(_bounded(it, more) for it in problem.expected))


def _bounded(expected: Expected, more: float) -> Expected:
    """Return an expected output with a larger tolerance."""
    return replace(expected, tolerance=Errors(*(most + more for most in astuple(expected.tolerance))))


def _farthest(case: Case) -> float:
    return FARTHEST_OF_FLOAT16 if case.computes == "float16" else math.log(LONG_PROBE / data.epsilon(case))


def _large_value(case: Case) -> float:
    return LARGE_VALUE_OF_FLOAT16 if case.computes == "float16" else LARGE_VALUE


def _showing_tails_of_layer(case: Case) -> Problem:
    """Return `showing_tails` for a layer without a latent, whose biases are zero: a token's first feature sets how much
    lower the scores of its query are, the second one the key, and the others the value, of which one has the same sign in
    all tokens.
    """
    generator, large = data.seeded(case, 8), _large_value(case)
    weights, (x, *others) = canonical.draw(case.layer_shape, generator), drawn_inputs(case, generator)
    for name, H, feature, size in (("W_q", case.H, 0, _farthest(case) // 1), ("W_k", case.H_kv, 1, case.D_h**0.5)):
        weights[name].zero_().unflatten(0, (H, -1))[:, 0, feature] = size
    weights["W_v"][:, :2] = 0.0
    weights["W_v"][:, 2] *= case.d_model**0.5
    for bias in weights.keys() & {"b_q", "b_k", "b_v", "b_o"}:
        weights[bias].zero_()
    for tokens in (x, *others[: case.source == "cross"]):
        tokens[..., 2] = 1.0
        tokens[..., 2:] *= large
        tokens[..., :2] = tokens[:, 0] = 0.0
        tokens[..., 1].uniform_(-UNEQUAL, UNEQUAL, generator=generator)
        tokens[:, 0, 1] = 1.0
    if case.does.cached:  # the scores of the new tokens' keys are the lowest
        keys, values = others
        x[..., 1:3], x[..., 3:] = torch.tensor([-1.0, 1.0]), 0.0
        keys[...], values[..., 0, :] = 0.0, 0.0
        keys[..., 0].uniform_(-UNEQUAL, UNEQUAL, generator=generator).mul_(case.D_h**0.5)
        keys[..., 0, 0] = case.D_h**0.5
        values *= large
    x[..., 0] = (-torch.arange(1, case.B * case.T + 1).view(case.B, case.T) % LOWER) / LOWER
    pattern = torch.full((case.B, case.T), patterns.APART, device=case.device)
    return _for_one_accumulator(
        attention_problem(case, [x, *others], data.in_dtype(weights, case), generator, 0, pattern)
    )


def showing_sums(case: Case) -> Problem:
    """Return a problem of a core with equal scores, in which the values of the first key and of a later one are large and
    cancel: a sum in the case's own dtype leaves out what lies between them, from outputs and from gradients of queries.

    The first half of a value's features makes the output. The others have both signs, as keys have, and make gradients.
    """
    generator = data.seeded(case, 7)
    signs, late = 1.0 - 2 * (torch.arange(case.T_kv)[:, None] % 2), min(LATE_ADDEND, case.T_kv - 1)
    lost, of_output = LOST * torch.finfo(getattr(torch, case.dtype)).eps, torch.arange(case.D_v) < max(1, case.D_v // 2)
    q = torch.zeros(case.B, case.H, case.T, case.D_h)
    k, v = (torch.empty(case.B, H, 1, D).uniform_(1, 1.25, generator=generator) for H, _, D in data.cache_sizes(case))
    first, v = v[..., 0, :] * LARGE_ADDEND, torch.where(of_output, 1.0, v * signs) * LARGE_ADDEND * lost
    k = k * signs
    k[..., late, :] = k[..., 0, :]
    v[..., 0, :], v[..., late, :] = first, -first
    first_seen, last_seen = case.ends
    both = (first_seen == 0) & (last_seen >= late)
    emphasis = ~of_output & (both | ~both.any())[:, None]  # where no query sees both of them, gradients of all
    problem = attention_problem(case, [q, k, v], weights_of(case), generator, emphasis=emphasis)

    def solve() -> tuple[Expected, ...]:
        # not gradients of keys and values: torch's own SDPA sums those in the narrow dtype, too
        shown = (it for it in problem.expected if it.name in ("output", "gradient of q"))
        return tuple(_bounded(it, FLOOR_OF_SUMS) for it in shown)

    return replace(problem, solve=solve)


def with_numbers_exchanged(index: int, case: Case) -> Problem:
    """Return the ordinary problem with two numbers of one input exchanged, of neighbouring tokens in the middle, so that sums,
    norms, the first and the last tokens stay, and so does every second, third, fifth or seventh number. The cache's free
    positions hold numbers.
    """
    first = problem_of(case)
    exact = [it.clone() for it in first.inputs]
    it = exact[index]
    divisors = torch.gcd(torch.arange(it.numel()), torch.tensor(SAMPLED))  # on a GPU, gcd takes no number on the CPU
    sampled = (divisors > 1).view_as(it).to(it.device)
    middle = (it.shape[-2] - 1) // 2
    (one, stays), (other, stays_there) = (
        (x[0].view(-1, *x.shape[-2:])[-1, at] for x in (it, sampled))
        for at in (middle, max(0, middle - 1))  # of the last head of the first entry, which has no padding
    )
    i, j = one.masked_fill(stays, -torch.inf).argmax(), other.masked_fill(stays_there, torch.inf).argmin()
    one[i], other[j] = other[j].clone(), one[i].clone()
    problem = attention_problem(case, exact, first.weights, data.seeded(first.case, 6))
    if problem.free is not None:
        for cache in problem.inputs[1:]:
            cache.index_fill_(-2, problem.free, 1.0)
    return problem


def without_queries(case: Case) -> Problem:
    """Return an ordinary problem of a layer with queries of zero, whose scores are equal."""
    generator = data.seeded(case, 9)
    weights = {name: it * (name not in ("W_q", "b_q")) for name, it in problem_of(case).weights.items()}
    return attention_problem(case, drawn_inputs(case, generator), weights, generator)


def showing_output(case: Case, dropped: Tensor | None = None) -> Problem:
    """Return an ordinary problem with separate weights.

    `dropped` (B, 1, T, d_model): factor on the output of a layer in training, or None.
    """
    generator = data.seeded(case, 4)
    weights = drawn_weights(case, generator)
    if "score_bias" in weights:
        weights["score_bias"] /= 3  # multiples of 1/4 are the same in narrower dtypes
    out_dropped = None if dropped is None else dropped[:, 0]
    return attention_problem(case, drawn_inputs(case, generator), weights, generator, out_dropped=out_dropped)
