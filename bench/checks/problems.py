"""Test problems of a case: ordinary ones, stress patterns, and those whose outputs expose probs or dropout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import astuple, replace
from functools import lru_cache, partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from impls import weights as canonical

from ..cases.case import Case
from . import data, decoders, patterns, reference
from .bounds import WIDE, expected_of
from .patterns import APART, DEEPEST, FEATURES, PATTERN_FEATURES, SPREAD
from .problem import Errors, Expected, Problem, written_to

TOKEN = 16.0
"""Size of the feature that identifies a token where probs are shown: as large as all other features together."""

LOWER = 16
"""Distances by which scores are lower than the first key's, in equal steps from 0 to just below the farthest."""

FARTHEST, FARTHEST_OF_NARROW = 16.0, 9.0
"""End of these distances: there exponentials are normal numbers of float32, or of float16."""

LARGE_ADDEND, LATE_ADDEND = 64.0, 255
"""Size of two values that cancel where sums are shown, and the second one's key: the last of a tile."""

LOST = 1 / 256
"""Size of other values over that, in epsilons: 127 together are less than half of an epsilon."""

FLOOR_OF_SUMS = 0.05
"""Error allowed where sums are shown: float32 rounds each of the other values by up to 0.016 of it, all alike in a row."""

LARGE_VALUE, LARGE_VALUE_OF_FLOAT16 = 2.0**17, 256.0
"""A value beyond float16's range, and one whose sum over 512 keys float16 can't hold, though it holds their mean."""

SAMPLED = 2 * 3 * 5 * 7
"""Numbers stay where numbers are exchanged if their place has a divisor in common with this."""

SMALL = 1 << 21
"""Scores up to which many problems are cached: those of the probes, which every implementation gets."""


Made = TypeVar("Made")


def _cached(make: Callable[..., Made]) -> Callable[..., Made]:
    """Cache 32 small problems and 8 large ones."""
    many, few = lru_cache(maxsize=32)(make), lru_cache(maxsize=8)(make)

    def problem(case: Case, *input_set: int) -> Made:
        return (many if case.B * case.H * case.T * case.T_kv <= SMALL else few)(case, *input_set)

    return problem


def without_dropout(case: Case) -> Case:
    """Return the case without dropout, by which a problem's numbers are drawn and its weights with them."""
    return replace(case, threads=None, dropout=0.0, out_dropout=0.0)


def problem_of(case: Case, input_set: int = 0) -> Problem:
    """Return the test problem of a case, the same for every implementation.

    `scope="core"`: q (B, H, T, D_h), k (B, H_kv, T_kv, D_h), v (B, H_kv, T_kv, D_v). `scope="layer"`: x (B, T, d_model)
    with the weights of the case, the same in every input set; in `decode` also the cache, k and v as above or latents
    (B, 1, T_kv, latent + rope), its last position free, or pools of pages (`impls/paging.py`).

    Input set 0 is ordinary, and is timed. In input set 1 each query belongs to one softmax pattern with its own
    tolerance, and a few values are outliers (`OUTLIER`); heads too narrow for the pattern features get ordinary inputs.
    Input set 2 is like 0, with other numbers and other padding.
    """
    case = without_dropout(case)
    if case.in_model:
        return decoders.problem_of(case, input_set)
    if not patterns.possible(case):
        return _ordinary(case, input_set)
    if case.scope == "layer":
        return _layer_patterns(case)[input_set]
    return _kernel_patterns(case) if input_set == 1 else _ordinary(case, input_set)


@_cached
@torch.inference_mode(False)  # tensors made here are used in inference and in training
def _ordinary(case: Case, input_set: int) -> Problem:
    generator = data.seeded(case, input_set + (case.scope == "layer"))  # the first one is that of a layer's weights
    return _problem_of(case, _drawn(case, generator), _weights(case), generator, input_set)


def _drawn(case: Case, generator: torch.Generator) -> list[Tensor]:
    return [data.randn(size, generator) for size in data.sizes_of_inputs(case)]


@_cached
@torch.inference_mode(False)
def _kernel_patterns(case: Case) -> Problem:
    generator, sizes = data.seeded(case, 2), patterns.query_sizes(case)
    (q, k, v), pattern = _drawn(case, generator), patterns.pattern_of(case, heads=True)
    query_features = patterns.query_features(pattern) * torch.tensor(sizes)
    if case.softcap and case.softcap <= patterns.large_scores(case):  # a larger cap applies to larger scores only
        q[pattern == APART] *= case.softcap / 2  # spread scores across the cap
    q = torch.cat([query_features, patterns.zero_where_equal(q[..., PATTERN_FEATURES:], pattern)], -1)
    k[..., :PATTERN_FEATURES] = patterns.key_features(case, generator, case.H_kv) * SPREAD
    v = v * data.outliers(case, generator).abs().clamp(min=1.0)
    return _problem_of(case, [q, k, v], _weights(case), generator, 1, pattern.to(case.device))


@_cached
@torch.inference_mode(False)
def _layer_patterns(case: Case) -> tuple[Problem, Problem, Problem]:
    """Return three problems whose weights copy a token's first features to those of every head's queries and keys."""
    generator, sizes = data.seeded(case, 2), patterns.query_sizes(case)
    drawn = canonical.draw(case.layer_shape, generator)
    _take(drawn["W_q"], case.H, 0, sizes, FEATURES + 1)
    if case.latent is None:
        _take(drawn["W_k"], case.H_kv, PATTERN_FEATURES, (SPREAD,) * PATTERN_FEATURES, FEATURES + 1)
        drawn["W_v"][:, FEATURES] *= case.d_model**0.5
    else:  # its first features are those of its token's key, followed by the feature that sets its value
        _take(drawn["W_c"], 1, PATTERN_FEATURES, (1.0,) * (PATTERN_FEATURES + 1), FEATURES + 1)
        _take(drawn["W_k"], case.H, 0, (SPREAD,) * PATTERN_FEATURES, PATTERN_FEATURES + 1)
        drawn["W_v"][:, PATTERN_FEATURES] *= case.latent**0.5
    weights = _in_dtype(drawn, case)
    pattern, key_features = patterns.pattern_of(case, heads=False), patterns.key_features(case, generator)[:, 0]
    ordinary, shown, other = (_drawn(case, generator) for _ in range(3))
    for exact in (ordinary, other):
        exact[0][..., : FEATURES + 1] = 0.0
    shown[0] = patterns.zero_where_equal(shown[0], pattern)
    shown[0][..., : FEATURES + 1] = 0.0
    shown[0][..., :PATTERN_FEATURES] = patterns.query_features(pattern)
    outliers = data.outliers(case, generator)
    if case.does.cached:
        shown[0][..., PATTERN_FEATURES:FEATURES] = key_features[:, -case.T :]
        if case.latent is None:
            shown[1][..., :PATTERN_FEATURES] = key_features[:, None] * SPREAD
            shown[2] = shown[2] * outliers.abs().clamp(min=1.0)
        else:
            shown[1][..., :PATTERN_FEATURES], shown[1][..., PATTERN_FEATURES] = key_features[:, None], outliers[:, 0]
    else:
        ordinary[-1][..., : FEATURES + 1] = other[-1][..., : FEATURES + 1] = 0.0
        shown[-1][..., PATTERN_FEATURES:FEATURES] = key_features
        shown[-1][..., FEATURES] = outliers[:, 0]
    return (
        _problem_of(case, ordinary, weights, generator, 0),
        _problem_of(case, shown, weights, generator, 1, pattern.to(case.device)),
        _problem_of(case, other, weights, generator, 2),
    )


def _take(weight: Tensor, H: int, first: int, scales: tuple[float, ...], apart: int) -> None:
    """Map the input's features from `first` on, times `scales`, to every head's first features; all other outputs
    ignore the first `apart` input features.
    """
    by_head = weight.unflatten(0, (H, -1))  # (H, width of a head, inputs)
    by_head[:, : len(scales)] = by_head[..., :apart] = 0.0
    for feature, scale in enumerate(scales):
        by_head[:, feature, first + feature] = scale


def _problem_of(
    case: Case, exact: list[Tensor], weights: dict[str, Tensor], generator: torch.Generator, input_set: int = 0,
    pattern: Tensor | None = None, *, emphasis: Tensor | None = None, keys: Tensor | None = None, **dropped: Tensor | None,
) -> Problem:  # fmt: skip
    """Return the test problem of a core or a layer with these inputs and weights.

    `pattern` (B, H, T) of a core, (B, T) of a layer; None for ordinary inputs. `emphasis` (B, H, T, D_v): factor on the
    gradient of the output; `keys` as in `expected_of`; `dropped` as in `reference.attention` and `reference.layer`.
    """
    core, caches = case.scope == "core", case.does.cached and case.scope == "layer"
    if caches:
        for cache in exact[1:]:
            cache[..., -case.T :, :] = torch.nan  # reading before writing gives NaN
    inputs = tuple(x.to(case.device, getattr(torch, case.dtype)) for x in exact)
    padding, rows, names = data.padding(case, input_set), data.rows(case, input_set), _names(case)
    compared = data.compared(case, padding, rows)
    size = (case.B, case.H, case.T, case.D_v) if core else (case.B, case.T, case.d_model)
    grad = data.grad(case, size, rows, compared, generator)
    if grad is not None and pattern is not None:
        grad = grad * (pattern != DEEPEST)[..., None]  # otherwise their gradients dominate all others
    if grad is not None and emphasis is not None:
        grad = grad * emphasis.to(grad)

    def formula(dtype: torch.dtype) -> dict[str, Tensor]:
        leaves = _leaves(inputs, dtype, case)
        learned = dict(zip(weights, _leaves(weights.values(), dtype, case), strict=True))
        if caches:
            x, *cache = leaves
            o, *written = reference.decode(x, cache, learned, case.layer_shape, rows)
            return {"output": o} | dict(zip(map(written_to, names[1:]), written, strict=True))
        with autocasting(case):
            o = _output(case, leaves, learned, padding=padding, rows=rows, **dropped)
        return {"output": o.detach()} | reference.gradients(
            o, dict(zip(names, leaves, strict=True)) | learned, grad, rows
        )

    pages, given = data.pages(case, input_set), inputs
    if pages is not None:
        given = (inputs[0], *(data.in_pool(x, pages, case) for x in inputs[1:]))
    solve = partial(expected_of, formula, case, rows, compared, pattern, keys)
    return Problem(case, names, given, padding, grad, weights, solve, pages)


def _names(case: Case) -> tuple[str, ...]:
    if case.scope == "core":
        return "q", "k", "v"
    if case.does.cached:
        return ("x", "keys", "values") if case.latent is None else ("x", "latents")
    return ("x",) if case.source == "self" else ("x", "x_kv")


def _output(
    case: Case, inputs: Sequence[Tensor], weights: dict[str, Tensor], out_dropped: Tensor | None = None,
    **options: Tensor | None,
) -> Tensor:  # fmt: skip
    if case.scope == "core":
        q, k, v = inputs
        return reference.attention(q, k, v, case.layer_shape, **weights, **options)
    return reference.layer(inputs[0], inputs[-1], weights, case.layer_shape, out_dropped=out_dropped, **options)


def output_of(problem: Problem, dtype: torch.dtype = torch.float64, **options: Tensor) -> Tensor:
    """Return the output of a core or a layer by the reference, in a dtype; `options` as in `reference.attention`."""
    inputs, weights = [it.to(dtype) for it in problem.inputs], {n: it.to(dtype) for n, it in problem.weights.items()}
    return _output(problem.case, inputs, weights, padding=problem.padding, **options)


def showing_probs(case: Case, dropped: Tensor | None = None) -> Problem:
    """Return a problem whose output is every head's probs: (B, H, T, D_v) of a core, (B, T, H * D_v) of a layer.

    For a case whose D_v is a multiple of T_kv, by which each prob is repeated, and with d_model = H * D_v. `dropped`
    (B, H, T, T_kv): factor on each prob in training, 0 or 1 / (1 - p); None for evaluation.
    """
    case, generator = without_dropout(case), data.seeded(case, 3)
    unit = torch.eye(case.T_kv).repeat(1, case.D_v // case.T_kv)
    if case.scope == "core":
        q, k = (data.randn(size, generator) for size in data.sizes_of_inputs(case)[:2])
        v = unit.expand(case.B, case.H_kv, -1, -1)
        return _problem_of(case, [q, k, v], _weights(case), generator, dropped=dropped)
    weights = canonical.draw(case.layer_shape, generator)
    weights["W_v"] = (
        torch.cat([unit.mT, torch.zeros(case.D_v, case.d_model - case.T_kv)], 1).repeat(case.H_kv, 1) / TOKEN
    )
    weights["W_o"] = torch.eye(case.d_model)
    if case.qkv_bias:
        weights["b_v"] = torch.zeros_like(weights["b_v"])
    exact = _drawn(case, generator)
    exact[-1][..., : case.T_kv] = torch.eye(case.T_kv) * TOKEN
    return _problem_of(case, exact, _in_dtype(weights, case), generator, dropped=dropped)


def showing_tails(case: Case) -> Problem:
    """Return a problem of a core in which the first key has the largest score and the value zero.

    All other keys share a lower score and have large values, in every other head very small ones (one scale for the whole
    tensor doesn't fit), so that output and gradients are wrong if they are left out: as probs of a query are lower, its
    gradient is larger. The first feature of these values is the same, which the gradients ignore: it would cancel nearly
    everything.
    """
    case, generator = without_dropout(case), data.seeded(case, 5)
    queries = torch.arange(case.B * case.H * case.T).view(case.B, case.H, case.T)
    q = torch.zeros(*queries.shape, case.D_h)
    k, v = (data.randn((case.B, *size), generator) for size in data.cache_sizes(case))
    farthest = FARTHEST if case.rounding_dtype in WIDE else FARTHEST_OF_NARROW
    q[..., 0] = queries % LOWER / LOWER * farthest
    k[..., 0] = 0.0
    k[..., 0, 0] = case.D_h**0.5
    v[..., 0] = 1.0
    v[..., 0, :] = 0.0
    odd = torch.arange(case.B * case.H_kv).view(case.B, case.H_kv, 1, 1) % 2
    v *= LARGE_VALUE_OF_FLOAT16 if case.computes == "float16" else LARGE_VALUE ** (1.0 - 2 * odd)
    emphasis = torch.exp(q[..., :1] - farthest) * (torch.arange(case.D_v) > 0)
    pattern = torch.full_like(queries, patterns.APART).to(case.device)
    keys = (torch.arange(case.T_kv) > 0).to(case.device)  # the first one's gradients are far larger
    return _problem_of(case, [q, k, v], _weights(case), generator, 0, pattern, emphasis=emphasis, keys=keys)


def showing_sums(case: Case) -> Problem:
    """Return a problem of a core with equal scores, in which the values of the first key and of a later one are large and
    cancel: a sum in the case's own dtype leaves out what lies between them, from outputs and from gradients of queries.

    The first half of a value's features makes the output. The others have both signs, as keys have, and make gradients.
    """
    case, generator = without_dropout(case), data.seeded(case, 7)
    signs, late = 1.0 - 2 * (torch.arange(case.T_kv)[:, None] % 2), min(LATE_ADDEND, case.T_kv - 1)
    lost, of_output = LOST * torch.finfo(getattr(torch, case.dtype)).eps, torch.arange(case.D_v) < max(1, case.D_v // 2)
    q = torch.zeros(case.B, case.H, case.T, case.D_h)
    k, v = (torch.empty(case.B, H, 1, D).uniform_(1, 1.25, generator=generator) for H, _, D in data.cache_sizes(case))
    first, v = v[..., 0, :] * LARGE_ADDEND, torch.where(of_output, 1.0, v * signs) * LARGE_ADDEND * lost
    k = k * signs
    k[..., late, :] = k[..., 0, :]
    v[..., 0, :], v[..., late, :] = first, -first
    problem = _problem_of(case, [q, k, v], _weights(case), generator, emphasis=~of_output)

    def solve() -> tuple[Expected, ...]:
        # not gradients of keys and values: torch's own SDPA sums those in the narrow dtype, too
        shown = (it for it in problem.expected if it.name in ("output", "gradient of q"))
        return tuple(
            replace(it, tolerance=Errors(*(most + FLOOR_OF_SUMS for most in astuple(it.tolerance)))) for it in shown
        )

    return replace(problem, solve=solve)


def with_numbers_exchanged(case: Case) -> Problem:
    """Return the ordinary problem with two numbers of each input exchanged, of neighbouring tokens in the middle, so that
    sums, norms, the first and the last tokens stay, and so does every second, third, fifth or seventh number.
    """
    case = without_dropout(case)
    first = problem_of(case)
    exact = [it.clone() for it in first.inputs]
    for it in exact:
        sampled = torch.gcd(torch.arange(it.numel(), device=it.device), torch.tensor(SAMPLED)).view_as(it) > 1
        middle = (it.shape[-2] - 1) // 2
        (one, stays), (other, stays_there) = (
            (x[0].view(-1, *x.shape[-2:])[-1, at] for x in (it, sampled))
            for at in (middle, max(0, middle - 1))  # of the last head of the first entry, which has no padding
        )
        i, j = one.masked_fill(stays, -torch.inf).argmax(), other.masked_fill(stays_there, torch.inf).argmin()
        one[i], other[j] = other[j].clone(), one[i].clone()
    return _problem_of(case, exact, first.weights, data.seeded(case, 6))


def showing_output(case: Case, dropped: Tensor | None = None) -> Problem:
    """Return an ordinary problem with separate weights.

    `dropped` (B, 1, T, d_model): factor on the output of a layer in training, or None.
    """
    case, generator = without_dropout(case), data.seeded(case, 4)
    weights = _draw_weights(case, generator)
    out_dropped = None if dropped is None else dropped[:, 0]
    return _problem_of(case, _drawn(case, generator), weights, generator, out_dropped=out_dropped)


@lru_cache(maxsize=4)
@torch.inference_mode(False)
def _weights(case: Case) -> dict[str, Tensor]:
    """Return the weights, the same in every input set."""
    return _draw_weights(case, data.seeded(case, -3 if case.scope == "core" else 0))


def _draw_weights(case: Case, generator: torch.Generator) -> dict[str, Tensor]:
    draw = canonical.draw_core if case.scope == "core" else canonical.draw
    return _in_dtype(draw(case.layer_shape, generator), case)


def _in_dtype(weights: dict[str, Tensor], case: Case) -> dict[str, Tensor]:
    return {name: w.to(case.device, getattr(torch, case.dtype)) for name, w in weights.items()}


def autocasting(case: Case) -> Any:
    """Return the context of a module's call, usable as a decorator: the case's autocast, or a null context."""
    return torch.autocast(case.device, getattr(torch, case.autocast)) if case.autocast else nullcontext()


def _leaves(tensors: Iterable[Tensor], dtype: torch.dtype, case: Case) -> list[Tensor]:
    return [x.detach().to(dtype).requires_grad_(case.does.gradients) for x in tensors]
