"""Test problems of cores and layers: ordinary ones and stress patterns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from impls import weights as canonical

from ..cases.case import Case
from . import data, patterns, reference
from .bounds import expected_of
from .decoder_problems import decoder_problem
from .patterns import APART, DEEPEST, FEATURES, PATTERN_FEATURES, SPREAD
from .problem import Problem, written_to
from .reference import Tensors

SMALL = 1 << 21
"""Scores up to which many problems are cached: those of the probes, which every implementation gets."""


Made = TypeVar("Made")

_CACHES: list[Any] = []
"""Caches of problems."""


def _cached(make: Callable[..., Made]) -> Callable[..., Made]:
    """Cache 32 small problems and 8 large ones, whose tensors are used in inference and in training."""
    make = torch.inference_mode(False)(make)
    many, few = lru_cache(maxsize=32)(make), lru_cache(maxsize=8)(make)
    _CACHES.extend((many, few))

    def problem(case: Case, *input_set: int) -> Made:
        return (many if case.pairs <= SMALL else few)(case, *input_set)

    return problem


def forget() -> None:
    """Release the cached problems, of which large caches of `decode` take gigabytes each."""
    for cache in _CACHES:
        cache.cache_clear()


def _without_dropout(case: Case) -> Case:
    """Return the case that seeds inputs and weights: dropout doesn't change them."""
    return replace(case, threads=None, dropout=0.0, out_dropout=0.0)


def problem_of(case: Case, input_set: int = 0) -> Problem:
    """Return the test problem of a case, the same for every implementation.

    `scope="core"`: q (B, H, T, D_h), k (B, H_kv, T_kv, D_h), v (B, H_kv, T_kv, D_v). `scope="layer"`: x (B, T, d_model)
    with the weights of the case, the same in every input set; in `decode` also the cache, k and v as above or latents
    (B, 1, T_kv, latent + rope), its last T positions free, or pools of pages (`impls/paging.py`).

    Input set 0 is ordinary, and is timed. In input set 1 each query belongs to one softmax pattern with its own
    tolerance, and a few values are outliers (`OUTLIER`); heads too narrow for the pattern features get ordinary inputs.
    Input set 2 is like 0, with other numbers and other padding.
    """
    case = _without_dropout(case)
    if case.in_model:
        return decoder_problem(case, input_set)
    if not patterns.possible(case):
        return _ordinary(case, input_set)
    if case.scope == "layer":
        return _layer_patterns(case)[input_set]
    return _kernel_patterns(case) if input_set == 1 else _ordinary(case, input_set)


@_cached
def _ordinary(case: Case, input_set: int) -> Problem:
    generator = data.seeded(case, input_set + (case.scope == "layer"))  # the first one is that of a layer's weights
    return attention_problem(case, drawn_inputs(case, generator), weights_of(case), generator, input_set)


def drawn_inputs(case: Case, generator: torch.Generator) -> list[Tensor]:
    return [data.randn(size, generator) for size in data.sizes_of_inputs(case).values()]


@_cached
def _kernel_patterns(case: Case) -> Problem:
    generator, sizes = data.seeded(case, 2), patterns.query_sizes(case)
    (q, k, v), pattern = drawn_inputs(case, generator), patterns.pattern_of(case, heads=True)
    query_features = patterns.query_features(pattern) * torch.tensor(sizes)
    if case.softcap and case.softcap <= patterns.large_scores(case):  # a larger cap applies to larger scores only
        q[pattern == APART] *= case.softcap / 2  # spread scores across the cap
    q = torch.cat([query_features, patterns.zero_where_equal(q[..., PATTERN_FEATURES:], pattern)], -1)
    k[..., :PATTERN_FEATURES] = patterns.key_features(case, generator, case.H_kv) * SPREAD
    v = v * data.outliers(case, generator).abs().clamp(min=1.0)
    return attention_problem(case, [q, k, v], weights_of(case), generator, 1, pattern.to(case.device))


@_cached
def _layer_patterns(case: Case) -> tuple[Problem, Problem, Problem]:
    """Return three problems whose weights copy a token's first features to those of every head's queries and keys."""
    generator = data.seeded(case, 2)
    weights = _copying_weights(case, generator)
    pattern, key_features = patterns.pattern_of(case, heads=False), patterns.key_features(case, generator)[:, 0]
    ordinary, shown, other = (drawn_inputs(case, generator) for _ in range(3))
    shown[0] = patterns.zero_where_equal(shown[0], pattern)
    for exact in (ordinary, shown, other):
        exact[0][..., : FEATURES + 1] = 0.0
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
        attention_problem(case, ordinary, weights, generator, 0),
        attention_problem(case, shown, weights, generator, 1, pattern.to(case.device)),
        attention_problem(case, other, weights, generator, 2),
    )


def _copying_weights(case: Case, generator: torch.Generator) -> Tensors:
    drawn, sizes = canonical.draw(case.layer_shape, generator), patterns.query_sizes(case)
    _take(drawn["W_q"], case.H, 0, sizes, FEATURES + 1)
    drawn["W_q"].unflatten(0, (case.H, -1))[1::2, 0] *= -1  # a head's large scores are its neighbours' negative ones
    if case.latent is None:
        _take(drawn["W_k"], case.H_kv, PATTERN_FEATURES, (SPREAD,) * PATTERN_FEATURES, FEATURES + 1)
        drawn["W_v"][:, FEATURES] *= case.d_model**0.5
    else:  # its first features are those of its token's key, followed by the feature that sets its value
        _take(drawn["W_c"], 1, PATTERN_FEATURES, (1.0,) * (PATTERN_FEATURES + 1), FEATURES + 1)
        _take(drawn["W_k"], case.H, 0, (SPREAD,) * PATTERN_FEATURES, PATTERN_FEATURES + 1)
        drawn["W_v"][:, PATTERN_FEATURES] *= case.latent**0.5
    return data.in_dtype(drawn, case)


def _take(weight: Tensor, H: int, first: int, scales: tuple[float, ...], apart: int) -> None:
    """Map the input's features from `first` on, times `scales`, to every head's first features; all other outputs
    ignore the first `apart` input features.
    """
    by_head = weight.unflatten(0, (H, -1))  # (H, width of a head, inputs)
    by_head[:, : len(scales)] = by_head[..., :apart] = 0.0
    for feature, scale in enumerate(scales):
        by_head[:, feature, first + feature] = scale


def attention_problem(
    case: Case, exact: list[Tensor], weights: Tensors, generator: torch.Generator, input_set: int = 0,
    pattern: Tensor | None = None, *, emphasis: Tensor | None = None, keys: Tensor | None = None, **dropped: Tensor | None,
) -> Problem:  # fmt: skip
    """Return the test problem of a core or a layer with these inputs and weights.

    `pattern` (B, H, T) of a core, (B, T) of a layer; None for ordinary inputs. `emphasis` (B, H, T, D_v): factor on the
    gradient of the output; `keys` as in `expected_of`; `dropped` as in `reference.attention` and `reference.layer`.
    """
    case = _without_dropout(case)
    if case.writes_cache:
        for cache in exact[1:]:
            cache[..., -case.T :, :] = torch.nan if input_set < 2 else 1.0  # reading before writing gives NaN
    inputs = data.in_dtype(dict(zip(data.sizes_of_inputs(case), exact, strict=True)), case)
    padding, rows = data.padding(case, input_set), data.rows(case, input_set)
    compared = data.compared(case, padding, rows)
    size = (case.B, case.H, case.T, case.D_v) if case.scope == "core" else (case.B, case.T, case.d_model)
    grad = data.grad(case, size, rows, compared, generator)
    if grad is not None and pattern is not None:
        grad = grad * (pattern != DEEPEST)[..., None]  # otherwise their gradients dominate all others
    if grad is not None and emphasis is not None:
        grad = grad * emphasis.to(grad)

    def formula(dtype: torch.dtype) -> Tensors:
        every = (inputs | weights).items()
        leaves = {name: x.detach().to(dtype).requires_grad_(case.does.gradients) for name, x in every}
        own, learned = [leaves[name] for name in inputs], {name: leaves[name] for name in weights}
        if case.writes_cache:
            x, *cache = own
            found = reference.decode(x, cache, learned, case.layer_shape, rows)
            return dict(zip(("output", *map(written_to, [*inputs][1:])), found, strict=True))
        with autocasting(case):
            o = _output(case, own, learned, padding=padding, rows=rows, **dropped)
        return {"output": o.detach()} | reference.gradients(o, leaves, grad, rows)

    given, pages = tuple(inputs.values()), data.pages(case, input_set)
    if pages is not None:
        given = (given[0], *(data.in_pool(x, pages, case) for x in given[1:]))
    solve = partial(expected_of, formula, case, rows, compared, pattern, keys)
    return Problem(case, tuple(inputs), given, padding, grad, weights, solve, pages)


def _output(
    case: Case, inputs: Sequence[Tensor], weights: Tensors, out_dropped: Tensor | None = None,
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


@lru_cache(maxsize=4)
@torch.inference_mode(False)
def weights_of(case: Case) -> Tensors:
    """Return the weights, the same in every input set."""
    return drawn_weights(case, data.seeded(_without_dropout(case), -3 if case.scope == "core" else 0))


def drawn_weights(case: Case, generator: torch.Generator) -> Tensors:
    draw = canonical.draw_core if case.scope == "core" else canonical.draw
    return data.in_dtype(draw(case.layer_shape, generator), case)


def autocasting(case: Case) -> Any:
    """Return the context of a module's call, usable as a decorator: the case's autocast, or a null context."""
    return torch.autocast(case.device, getattr(torch, case.autocast)) if case.autocast else nullcontext()
