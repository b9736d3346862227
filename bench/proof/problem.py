"""Inputs of one call, what must come out, and how far off it may be."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from impls import weights as canonical
from impls.paging import places, write

from ..cases.case import Case
from ..cases.ledger import spending
from . import reference

WIDE = ("float32", "float64")
"""Dtypes in which kernels compute what they are given in them; of narrower ones most is computed in float32."""

FACTOR = 2.0
"""How many times the plain formula's own error is allowed: the rule that FlashAttention's tests use."""

FACTOR_OF_GRADIENTS = 3.0
"""The same for gradients, as in those tests."""

FLOOR_OF_GRADIENTS = 2.0
"""Added to it, in units of the dtype's epsilon, except in float64: the rows that cancel nearly everything are few.

In float32 a row's is larger by the root of the number of keys: a query that sees a single key has a gradient of zero, which is
the difference of two terms larger than the usual gradient by that much, and flash attention computes them apart.
"""

FLOOR = {"float64": 256.0, "float32": 2.0}
"""Added to it, in units of the dtype's epsilon: in float64, whose reference is no better, nearly all of the bound. In float32
what it costs to merge parts of the keys by the logarithms of their sums: between 4 and 8 those are rounded by two.
"""

SMALL_FLOOR = 0.25
"""The floor of every other dtype, for cases that the plain formula happens to get exactly right."""

MANY_ROWS, FLOOR_OF_FEW_ROWS = 64, 4.0
"""Queries below which the plain formula's largest error is a matter of luck, and the floor then."""

FLOOR_OF_FEW_NARROW_ROWS = 1.0
"""The same of narrow dtypes, whose errors are those of rounding numbers that lie far apart: luck is a small part of them. What
adds up a cache in such a dtype is off by two epsilons and more.
"""

SANE = 32.0
"""The plain formula's own error, in units of epsilon, above which the reference itself is at fault."""

SANE_OF_GRADIENTS = 256.0
"""The same for gradients, which add up more."""

NEEDLE = 64.0
"""Size of a few values: in bfloat16 a key that is forgotten is lost among thousands, unless its value is large."""

NEAR = 1 / 32
"""How far apart keys lie in the feature by which the first one is apart from them, twice as far as scores are large."""

SANE_OF_REGIMES = 128.0
"""The same where scores reach every regime, times as far as they lie from zero."""

LARGE, LARGE_OF_FLOAT64 = 100.0, 800.0
"""How far from zero scores lie in the regimes that are called so: beyond 88, or 709 in float64, an exponential overflows."""

DEEP = 16384.0
"""How far below zero scores lie in the deepest regime: a mask that only adds or writes -10,000 hides nothing there."""

SPREAD = 16.0
"""Size of the keys' features that make a regime: a power of two, so that scores which are to be equal are exactly so."""

REGIMES = (
    "where ordinary scores lie beside extreme ones: ",
    "where scores are very large: ",
    "where scores are very negative: ",
    "where one key dominates: ",
    "where scores are far apart: ",
    "where all scores are equal: ",
    "where all scores are equal and far below zero: ",
    "where a late key dominates: ",
)
"""The regimes of a softmax, as a sentence begins. A query belongs to one of them."""

ORDINARY, HIGH, LOW, DOMINATED, APART, EQUAL, DEEPEST, LATE = range(len(REGIMES))

FLOOR_OF_REGIMES = 8.0
"""The least floor of a regime, in units of epsilon: few rows are in each, and some the plain formula gets exactly right."""

FLOOR_OF_DOMINATED = 2.0
"""The same where one key dominates: its value is the answer, to the last bits."""

FLOOR_OF_REGIMES_GRADIENTS = 16.0
"""The same for gradients of narrow dtypes, which most kernels compute in a wider one."""

FLOOR_OF_WIDE_GRADIENTS = 64.0
"""The same for other gradients, times as far as scores lie from zero: honest ways differ by 25 of them. What goes wrong
altogether shows in spite of it, and the ordinary draw has tight bounds.
"""

VANISHING = 1e-3
"""Size of a gradient's row, for inputs of variance 1, below which it is zero by nature (a softmax over one key)."""

WHOLE, WHOLE_WITH_GRADIENTS = 1 << 33, 1 << 31
"""Operations of the reference's forward up to which every row is compared; above it as many rows as that allows."""

SECOND_DRAW_ROWS = 64
"""The second draw only shows whether anything was remembered, so fewer rows are compared."""

ROWS: dict[int, tuple[str, ...]] = {
    4: ("batch entry", "head", "t"),
    3: ("batch entry", "t"),
    2: ("output feature",),  # of a projection's weights
    1: (),
}


@dataclass(frozen=True)
class Errors:
    """norm(o - ref) / norm(ref): over everything, and the largest over the rows."""

    overall: float
    row: float


@dataclass(frozen=True, eq=False)
class Expected:
    """One tensor that must come out of a call, and how far off it may be."""

    name: str
    """`output`, `gradient of q`, `key written to the cache`, ..."""
    reference: Tensor
    """float64"""
    rows: Tensor | None = None
    """The queries that are compared, and that `reference` holds; None for all."""
    compared: Tensor | None = None
    """(B, rows) or (B, H, rows), True where a row is compared: padded queries are not. None for all."""
    norm_floor: float = 1e-30
    """The smallest size that a row's error is relative to, since a gradient's row may vanish by nature, and so does one of an
    output of which dropout keeps nothing."""
    tolerance: Errors = Errors(0.0, 0.0)
    regime: int | None = None
    """The regime that all compared rows belong to, an index into `REGIMES`; None where only one is asked about."""

    @property
    def axes(self) -> tuple[str, ...]:
        """What its rows are: every axis but the last."""
        return ROWS[self.reference.dim()]

    def errors(self, o: Tensor) -> Errors:
        o = self._pick(o)
        row = self._row_errors(o).max().item()
        reference = self.reference
        if self.compared is not None:
            shown = self._like(self.compared)
            o, reference = o[shown], reference[shown]  # (rows that are compared, width)
        return Errors(((o - reference).norm() / reference.norm().clamp_min(self.norm_floor)).item(), row)

    def row_errors(self, o: Tensor) -> Tensor:
        """Relative error of each compared row: the shape of `reference` without its last axis."""
        return self._row_errors(self._pick(o))

    def shown(self, o: Tensor) -> Tensor:
        """What is compared of an answer, and nothing else of it."""
        o = o if self.rows is None else o.index_select(-2, self.rows)
        return o if self.compared is None else o[self._like(self.compared)]

    def _pick(self, o: Tensor) -> Tensor:
        return (o if self.rows is None else o.index_select(-2, self.rows)).double()

    def _row_errors(self, o: Tensor) -> Tensor:
        size = self.reference.norm(dim=-1).clamp_min(self.norm_floor)
        errors = (o - self.reference).norm(dim=-1) / size
        return errors if self.compared is None else torch.where(self._like(self.compared), errors, 0.0)

    def _like(self, compared: Tensor) -> Tensor:
        """`compared` in the shape of the rows, (B, rows) or (B, H, rows)."""
        return compared if len(self.axes) == compared.dim() else compared[:, None, :].expand(self.reference.shape[:-1])


@dataclass(frozen=True, eq=False)
class Problem:
    """One question to an implementation, with its answers."""

    case: Case
    names: tuple[str, ...]
    inputs: tuple[Tensor, ...]
    """q, k, v for a core; x, or x and the other sequence, or x and the cache's keys and values, or latents, for a layer."""
    padding: Tensor | None
    """(B, T_kv), True where a key is a token."""
    grad: Tensor | None
    """The gradient of the output, where the mode goes back: zero in rows that are not compared."""
    weights: dict[str, Tensor]
    solve: Callable[[], tuple[Expected, ...]]
    """Works the answers out: for the first who asks."""
    pages: Tensor | None = None
    """(B, pages of a request), where the cache is a pool of pages."""

    @cached_property
    def answers(self) -> tuple[Expected, ...]:
        with torch.inference_mode(False), spending("reference"):
            return self.solve()

    @property
    def output(self) -> Expected:
        return self.answers[0]

    @property
    def options(self) -> dict[str, Tensor]:
        """What a call is given by name."""
        named = {"padding": self.padding, "pages": self.pages}
        return {name: it for name, it in named.items() if it is not None}

    @property
    def free(self) -> Tensor:
        """Places of a cache that are there to be written to: those of the newest tokens."""
        first, last = self.case.T_kv - self.case.T, self.case.T_kv
        if self.pages is None:
            return torch.arange(first, last, device=self.case.device)
        return places(self.pages, self.case.page or 1, first, last).flatten()


@dataclass(frozen=True, eq=False)
class Inputs:
    """What one call reads: tensors of its own, into which other numbers can be put."""

    names: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    options: dict[str, Tensor]
    grad: Tensor | None

    def perturb(self) -> None:
        """Change every number of every input a little, so that no digest of them stays; all of it can be computed with."""
        for buffer in self.tensors:
            buffer.data.mul_(1.02)

    def refill(self, problem: Problem) -> None:
        """Put other numbers into the same buffers, through `.data`: what caches by address and version must not notice."""
        for buffer, fresh in zip(self.tensors, problem.inputs, strict=True):
            buffer.data.copy_(fresh)
        if self.grad is not None and problem.grad is not None:
            self.grad.data.copy_(problem.grad)
        for name, fresh in problem.options.items():
            if not torch.equal(fresh, self.options[name]):
                # A tensor of its own: what keeps a mask for the tensor that it was given keeps the right one.
                self.options[name] = fresh.clone()


@torch.inference_mode(False)
def inputs_of(problem: Problem) -> Inputs:
    """Fresh copies, no inference tensors: a compiled layer would make another graph for those."""
    inputs = copies(problem.inputs)
    if problem.grad is not None:
        inputs = tuple(x.requires_grad_() for x in inputs)
    options = {name: it.clone() for name, it in problem.options.items()}
    return Inputs(problem.names, inputs, options, None if problem.grad is None else problem.grad.clone())


@torch.inference_mode(False)
def strided(numbers: Inputs) -> Inputs:
    """The same q, k and v as they are in a model: heads between the tokens of a batch entry in memory."""
    apart = (x.detach().transpose(1, 2).contiguous().transpose(1, 2) for x in numbers.tensors)
    return replace(
        numbers,
        tensors=tuple(x.requires_grad_(old.requires_grad) for x, old in zip(apart, numbers.tensors, strict=True)),
        grad=None if numbers.grad is None else numbers.grad.transpose(1, 2).contiguous().transpose(1, 2),
    )


@torch.inference_mode(False)
def elsewhere(numbers: Inputs, problem: Problem) -> Inputs:
    """The numbers of a problem, in tensors of their own that lie in memory as these do."""
    apart = replace(
        numbers,
        tensors=tuple(torch.empty_like(x, requires_grad=x.requires_grad) for x in numbers.tensors),
        options={name: it.clone() for name, it in problem.options.items()},
        grad=None if numbers.grad is None else torch.empty_like(numbers.grad),
    )
    apart.refill(problem)
    return apart


@torch.inference_mode(False)
def copies(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    return tuple(x.detach().clone() for x in tensors)


def problem_of(case: Case, draw: int = 0) -> Problem:
    """The question that belongs to a case, the same for every implementation.

    `scope="core"`: q (B, H, T, D_h), k (B, H_kv, T_kv, D_h), v (B, H_kv, T_kv, D_v). `scope="layer"`: x (B, T, d_model) with
    the weights of the case, the same in every draw; in `decode` also the cache, k and v as above or latents
    (B, 1, T_kv, latent + rope), its last place free, or pools of pages (`impls/paging.py`).

    Draw 0 is an ordinary one, and is timed. In draw 1 each query belongs to one regime of the softmax, with a bound of that
    regime's own, and a few values are large (`NEEDLE`); sizes that leave no room for the features that make a regime get an
    ordinary one. Draw 2 is as draw 0, on other numbers and with another padding.
    """
    case = replace(case, threads=None, dropout=0.0, out_dropout=0.0)
    with spending("reference"):
        if case.scope == "core":
            return _kernel_regimes(case) if draw == 1 and _room(case) else _kernel_problem(case, draw)
        return _layer_regimes(case)[draw] if _room(case) else _layer_problem(case, draw)


def _room(case: Case) -> bool:
    """Whether there are features to make regimes of, and one for anything else."""
    of_latent = case.latent is None or case.latent > ASKED + 1
    return case.D_h - (case.rope or 0) > ASKED and of_latent and (case.scope == "core" or case.d_model > FEATURES + 1)


@lru_cache(maxsize=8)
@torch.inference_mode(False)  # what is made here is used in inference and in training
def _kernel_problem(case: Case, draw: int) -> Problem:
    generator = _generator(case, draw)
    exact = [_randn((case.B, *size), generator) for size in ((case.H, case.T, case.D_h), *_cache_sizes(case))]
    return _kernel_question(case, exact, generator, draw)


def _kernel_question(
    case: Case, exact: list[Tensor], generator: torch.Generator, draw: int, regime: Tensor | None = None,
    dropped: Tensor | None = None,
) -> Problem:  # fmt: skip
    """About a core with these q, k and v; `regime` (B, H, T), or None for ordinary ones. Sinks are the same in every draw."""
    sinks = {"sinks": canonical.draw_sinks(case.H, case.keys, _generator(case, -3))} if case.sinks else {}
    weights = _in_dtype(sinks, case)
    inputs = tuple(x.to(case.device, getattr(torch, case.dtype)) for x in exact)
    padding, rows = _padding(case, draw), _rows(case, draw)
    compared = _compared(case, padding, rows)
    grad = _grad(case, (case.B, case.H, case.T, case.D_v), rows, compared, generator)
    if grad is not None and regime is not None:
        grad = grad * (regime != DEEPEST)[..., None]  # or all that is written back drowns in theirs

    def formula(dtype: torch.dtype) -> dict[str, Tensor]:
        q, k, v = leaves = _leaves(inputs, dtype, case)
        learned = dict(zip(weights, _leaves(weights.values(), dtype, case), strict=True))
        with autocasting(case):
            o = reference.attention(
                q, k, v, case.layer_shape, sinks=learned.get("sinks"), padding=padding, rows=rows, dropped=dropped
            )
        return {"output": o.detach()} | _gradients(o, dict(zip("qkv", leaves, strict=True)) | learned, grad, rows)

    solve = _solved(formula, case, rows, compared, regime)
    return Problem(case, ("q", "k", "v"), inputs, padding, grad, weights, solve)


@lru_cache(maxsize=8)
@torch.inference_mode(False)
def _layer_problem(case: Case, draw: int) -> Problem:
    generator = _generator(case, draw + 1)
    exact = [_randn(size, generator) for size in _sizes_of_inputs(case)]
    return _layer_question(case, exact, _weights(case), generator, draw)


@lru_cache(maxsize=4)
def _weights(case: Case) -> dict[str, Tensor]:
    """The same in every draw."""
    return _in_dtype(canonical.draw(case.layer_shape, _generator(case, 0)), case)


def _in_dtype(weights: dict[str, Tensor], case: Case) -> dict[str, Tensor]:
    return {name: w.to(case.device, getattr(torch, case.dtype)) for name, w in weights.items()}


def autocasting(case: Case) -> Any:
    """The context in which a module is called, which also decorates: what its case says of autocast, or nothing."""
    return torch.autocast(case.device, getattr(torch, case.autocast)) if case.autocast else nullcontext()


def _solved(
    formula: Callable[[torch.dtype], dict[str, Tensor]], case: Case, rows: Tensor | None, compared: Tensor | None,
    regime: Tensor | None,
) -> Callable[[], tuple[Expected, ...]]:  # fmt: skip
    if regime is None:
        return partial(_answers, formula, case, rows, compared)
    return partial(_answers_by_regime, formula, case, rows, compared, regime)


def showing_probs(case: Case, dropped: Tensor | None = None) -> Problem:
    """A question whose output is every head's probs: (B, H, T, T_kv) of a core, (B, T, H * T_kv) of a layer.

    For a case with D_v = T_kv and d_model = H * T_kv. `dropped` (B, H, T, T_kv): what each prob is multiplied by in training,
    0 or 1 / (1 - p); None for evaluation.
    """
    case, generator = replace(case, threads=None, dropout=0.0, out_dropout=0.0), _generator(case, 3)
    unit = torch.eye(case.T_kv)
    if case.scope == "core":
        q, k = (_randn((case.B, H, T, case.D_h), generator) for H, T in ((case.H, case.T), (case.H_kv, case.T_kv)))
        v = unit.expand(case.B, case.H_kv, -1, -1)
        return _kernel_question(case, [q, k, v], generator, 0, dropped=dropped)
    weights = canonical.draw(case.layer_shape, generator)
    weights["W_v"] = torch.cat([unit, torch.zeros(case.T_kv, case.d_model - case.T_kv)], 1).repeat(case.H_kv, 1) / TOKEN
    weights["W_o"] = torch.eye(case.d_model)
    if case.qkv_bias:
        weights["b_v"] = torch.zeros_like(weights["b_v"])
    exact = [_randn(size, generator) for size in _sizes_of_inputs(case)]
    exact[-1][..., : case.T_kv] = unit * TOKEN
    return _layer_question(case, exact, _in_dtype(weights, case), generator, 0, dropped=dropped)


def showing_output(case: Case, dropped: Tensor | None = None) -> Problem:
    """An ordinary question to a layer, with weights of its own.

    `dropped` (B, T, d_model): what the output is multiplied by in training, or None.
    """
    case, generator = replace(case, threads=None, dropout=0.0, out_dropout=0.0), _generator(case, 4)
    weights = _in_dtype(canonical.draw(case.layer_shape, generator), case)
    exact = [_randn(size, generator) for size in _sizes_of_inputs(case)]
    return _layer_question(case, exact, weights, generator, 0, out_dropped=dropped)


TOKEN = 16.0
"""Size of the one feature that tells a token from the others where probs are shown: as large as the others together."""

ASKED = 4
"""Features of a query, and of a key, that make a regime: how large scores are, the first key, how deep, the late key."""

FEATURES = 2 * ASKED
"""Features of a token that do: those that its query is made of, then those that its key is."""


@dataclass(frozen=True)
class _Sizes:
    """Of the features by which a regime is made."""

    large: float
    deep: float

    @property
    def of_queries(self) -> tuple[float, ...]:
        return self.large, self.large, self.deep, self.large

    @classmethod
    def of(cls, case: Case) -> _Sizes:
        width = case.D_h**0.5 / SPREAD
        large = _large(case)
        deep = (
            min(DEEP, 32768 / case.D_h**0.5) if case.computes == "float16" else DEEP
        )  # a product before the scale is finite
        exact = case.qkv_bias or (
            case.does.gradients and case.scope == "layer"
        )  # there these are not, or drown the rest
        return cls(large * width, 0.0 if exact else -deep * width)


def _large(case: Case) -> float:
    return LARGE_OF_FLOAT64 if case.computes == "float64" else LARGE


def _regime(case: Case, heads: bool) -> Tensor:
    """The regime of every query: (B, H, T) or, for a layer, whose heads are mixed, (B, T).

    Lone queries, as in decode, begin with that of a late key: an ordinary one has the first draw.
    """
    b, h, t = torch.arange(case.B)[:, None, None], torch.arange(case.H)[:, None], torch.arange(case.T)
    shift = LATE if case.T == 1 else ORDINARY
    drawn = (b + h + t + shift) % len(REGIMES) if heads else (b + t + shift)[:, 0] % len(REGIMES)
    if case.layer_shape.span(case.T, case.T_kv):
        first, last = _ends(case)
        drawn = torch.where((drawn == APART) & (last == 0), ORDINARY, drawn)  # a query that sees the first key alone
        drawn = torch.where(((drawn == APART) | (drawn == DOMINATED)) & (first > 0), ORDINARY, drawn)
        late = _late(case)[:, None]
        seen = (first <= late) & (late <= last)  # (B, T)
        earliest = seen & (seen.cumsum(-1) == 1)
        seen, earliest = (it[:, None] if heads else it for it in (seen, earliest))
        drawn = torch.where((drawn == LATE) & ~seen, ORDINARY, drawn)
        if case.T > 1:  # lone ones have it by turns
            drawn = torch.where(earliest, LATE, drawn)
    return torch.where(drawn == DEEPEST, ORDINARY, drawn) if _Sizes.of(case).deep == 0 else drawn


def _asking(regime: Tensor) -> Tensor:
    """The features of a query, by its regime: (..., ASKED)"""
    large = (regime == HIGH).float() - (regime == LOW).float()
    by_key = (regime == DOMINATED).float() - (regime == APART).float()
    return torch.stack([large, by_key, (regime == DEEPEST).float(), (regime == LATE).float()], -1)


def _answering(case: Case, generator: torch.Generator) -> Tensor:
    """The features of a key, (B, T_kv, ASKED): the same for all, but of the second, where the first key is far off, and of the
    last, where a late one is.

    The others lie near each other, so that none that a mask hides is far above all that are visible: there a mask after the
    softmax, which is right though wasteful, has nothing left.
    """
    features = torch.ones(case.B, case.T_kv, ASKED)
    features[..., 1] = torch.rand(case.B, case.T_kv, generator=generator) * NEAR
    features[..., 3] = torch.rand(case.B, case.T_kv, generator=generator) * NEAR
    features[:, 0, 1] = 2.0
    features[torch.arange(case.B), _late(case), 3] = 2.0
    return features


def _late(case: Case) -> Tensor:
    """(B,): the last key that can be seen.

    A mask hides that one from most queries: there the first entry has the last one of a query in the middle.
    """
    padding = _padding(case, 1)
    last = torch.full((case.B,), case.T_kv - 1) if padding is None else padding.sum(-1).cpu() - 1
    if case.layer_shape.span(case.T, case.T_kv):
        _, seen = _ends(case)
        last = last.clamp(max=int(seen.max()))
        last[0] = last[0].clamp(max=int(seen[min(case.T, case.T_kv) // 2 if case.T > 1 else 0]))
    return last


def _ends(case: Case) -> tuple[Tensor, Tensor]:
    """The first and the last key that each query sees, padding aside: (T,) each."""
    return case.layer_shape.span(case.T, case.T_kv).ends(case.T, case.T_kv)


def _quiet(x: Tensor, regime: Tensor) -> Tensor:
    """Zero where all scores are to be exactly equal."""
    return x * ((regime != EQUAL) & (regime != DEEPEST))[..., None]


@lru_cache(maxsize=8)
@torch.inference_mode(False)
def _kernel_regimes(case: Case) -> Problem:
    generator, sizes = _generator(case, 2), _Sizes.of(case)
    q, k, v = (_randn((case.B, *size), generator) for size in ((case.H, case.T, case.D_h), *_cache_sizes(case)))
    regime = _regime(case, heads=True)
    asking = _asking(regime) * torch.tensor(sizes.of_queries)
    q = torch.cat([asking, _quiet(q[..., ASKED:], regime)], -1)
    k[..., :ASKED] = _answering(case, generator)[:, None] * SPREAD
    v = v * _needles(case, generator).abs().clamp(min=1.0)
    return _kernel_question(case, [q, k, v], generator, 1, regime.to(case.device))


@lru_cache(maxsize=8)
@torch.inference_mode(False)
def _layer_regimes(case: Case) -> tuple[Problem, Problem, Problem]:
    """Weights that take a token's first features to the first of every head's queries and keys, and three draws of x."""
    generator, sizes = _generator(case, 2), _Sizes.of(case)
    drawn = canonical.draw(case.layer_shape, generator)
    _take(drawn["W_q"], case.H, 0, sizes.of_queries, FEATURES + 1)
    if case.latent is None:
        _take(drawn["W_k"], case.H_kv, ASKED, (SPREAD,) * ASKED, FEATURES + 1)
        drawn["W_v"][:, FEATURES] *= case.d_model**0.5
    else:  # whose first features are those of its token's key, and then the one that shows in its value
        _take(drawn["W_c"], 1, ASKED, (1.0,) * (ASKED + 1), FEATURES + 1)
        _take(drawn["W_k"], case.H, 0, (SPREAD,) * ASKED, ASKED + 1)
        drawn["W_v"][:, ASKED] *= case.latent**0.5
    weights = _in_dtype(drawn, case)
    regime, key_features = _regime(case, heads=False), _answering(case, generator)
    ordinary, shown, other = ([_randn(size, generator) for size in _sizes_of_inputs(case)] for _ in range(3))
    for exact in (ordinary, other):
        exact[0][..., : FEATURES + 1] = 0.0
    shown[0] = _quiet(shown[0], regime)
    shown[0][..., : FEATURES + 1] = 0.0
    shown[0][..., :ASKED] = _asking(regime)
    needles = _needles(case, generator)
    if case.does.cached:
        shown[0][..., ASKED:FEATURES] = key_features[:, -case.T :]
        if case.latent is None:
            shown[1][..., :ASKED] = key_features[:, None] * SPREAD
            shown[2] = shown[2] * needles.abs().clamp(min=1.0)
        else:
            shown[1][..., :ASKED], shown[1][..., ASKED] = key_features[:, None], needles[:, 0]
    else:
        ordinary[-1][..., : FEATURES + 1] = other[-1][..., : FEATURES + 1] = 0.0
        shown[-1][..., ASKED:FEATURES] = key_features
        shown[-1][..., FEATURES] = needles[:, 0]
    return (
        _layer_question(case, ordinary, weights, generator, 0),
        _layer_question(case, shown, weights, generator, 1, regime.to(case.device)),
        _layer_question(case, other, weights, generator, 2),
    )


def _take(weight: Tensor, H: int, first: int, scales: tuple[float, ...], apart: int) -> None:
    """Let every head's first features be those of the input from `first` on, times `scales`; of the others none is made of an
    input's features that are kept `apart`, the first so many.
    """
    by_head = weight.unflatten(0, (H, -1))  # (H, width of a head, inputs)
    by_head[:, : len(scales)] = by_head[..., :apart] = 0.0
    for feature, scale in enumerate(scales):
        by_head[:, feature, first + feature] = scale


def _needles(case: Case, generator: torch.Generator) -> Tensor:
    """(T_kv, 1): NEEDLE or -NEEDLE at the first and last keys, at both sides of every power of two and at a few others, else 0.

    A kernel that leaves one of them out is off by a quarter of everything, however many keys there are.
    """
    edges = [1 << power for power in range(4, 24)]
    wanted = {0, 1, case.T_kv - 2, case.T_kv - 1, *edges, *(edge - 1 for edge in edges)}
    wanted |= set(torch.randint(case.T_kv, (3,), generator=generator).tolist())
    found = torch.zeros(case.T_kv, 1)
    if not case.does.gradients:  # whose gradients would be those of the needles
        found[[place for place in wanted if 0 <= place < case.T_kv]] = NEEDLE
    return found * torch.where(torch.rand(found.shape, generator=generator) < 0.5, -1.0, 1.0)


def _sizes_of_inputs(case: Case) -> list[tuple[int, ...]]:
    """Of what a layer is given: x, and what comes with it."""
    sizes: list[tuple[int, ...]] = [(case.B, case.T, case.d_model)]
    if case.source == "cross":
        sizes.append((case.B, case.T_kv, case.d_model))
    if case.does.cached:
        sizes += [(case.B, *size) for size in _cache_sizes(case)]
    return sizes


def _layer_question(
    case: Case, exact: list[Tensor], weights: dict[str, Tensor], generator: torch.Generator, draw: int,
    regime: Tensor | None = None, dropped: Tensor | None = None, out_dropped: Tensor | None = None,
) -> Problem:  # fmt: skip
    """About a layer with these weights and inputs; `regime` (B, T), or None for ordinary ones."""
    names = {"cross": ("x", "x_kv"), "self": ("x",)}[case.source]
    if case.does.cached:
        names = ("x", "keys", "values") if case.latent is None else ("x", "latents")
        for cache in exact[1:]:
            cache[..., -case.T :, :] = torch.nan  # a layer that doesn't write there first has NaN to attend to
    inputs = tuple(x.to(case.device, getattr(torch, case.dtype)) for x in exact)
    padding, rows = _padding(case, draw), _rows(case, draw)
    compared = _compared(case, padding, rows)
    grad = _grad(case, (case.B, case.T, case.d_model), rows, compared, generator)
    formula = partial(_layer_formula, case, names, inputs, weights, grad, padding, rows, (dropped, out_dropped))
    pages, given = _pages(case, draw), inputs
    if pages is not None:
        given = (inputs[0], *(_in_pool(x, pages, case) for x in inputs[1:]))
    return Problem(case, names, given, padding, grad, weights, _solved(formula, case, rows, compared, regime), pages)


def _layer_formula(
    case: Case, names: tuple[str, ...], inputs: tuple[Tensor, ...], weights: dict[str, Tensor], grad: Tensor | None,
    padding: Tensor | None, rows: Tensor | None, dropped: tuple[Tensor | None, Tensor | None], dtype: torch.dtype,
) -> dict[str, Tensor]:  # fmt: skip
    """Every answer of a layer by the plain formula, computed in `dtype`."""
    leaves = _leaves(inputs, dtype, case)
    in_dtype = dict(zip(weights, _leaves(weights.values(), dtype, case), strict=True))
    if case.does.cached:
        x, *cache = leaves
        o, *written = reference.decode(x, cache, in_dtype, case.layer_shape, rows)
        return {"output": o} | dict(zip(map(written_to, names[1:]), written, strict=True))
    with autocasting(case):
        o = reference.layer(
            leaves[0], leaves[-1], in_dtype, case.layer_shape, padding=padding, rows=rows, dropped=dropped[0],
            out_dropped=dropped[1],
        )  # fmt: skip
    return {"output": o.detach()} | _gradients(o, dict(zip(names, leaves, strict=True)) | in_dtype, grad, rows)


def written_to(cache: str) -> str:
    """What an answer is called: `key written to the cache`, of `keys`."""
    return f"{cache.removesuffix('s')} written to the cache"


def _answers_by_regime(
    formula: Callable[[torch.dtype], dict[str, Tensor]],
    case: Case,
    rows: Tensor | None,
    compared: Tensor | None,
    regime: Tensor,
) -> tuple[Expected, ...]:
    """As `_answers`; what has a row for every query is an answer a regime: no bound excuses the fault of another regime.

    A gradient's row that vanishes by nature is compared with the usual size of that gradient's rows.
    """
    exact, plain = _ways(formula, case)
    biases = max((tensor.norm().item() for name, tensor in exact.items() if _is_bias(name)), default=0.0)
    sane = SANE_OF_REGIMES * _large(case)
    found = []
    for name, tensor in exact.items():
        of_queries = name == "output"
        usual = biases if _is_bias(name) else tensor.norm(dim=-1).square().mean().sqrt().item()
        answer = Expected(name, tensor, norm_floor=Expected.norm_floor if of_queries else max(usual, VANISHING))
        if not (of_queries or name == "gradient of q"):
            found.append(_bounded(answer, plain, case, sane, _floor(answer, case)))
            continue
        of_row = regime if rows is None or not of_queries else regime[..., rows]
        for kind in of_row.unique().tolist():
            shown = of_row == kind
            if of_queries and compared is not None:
                shown = shown & (compared[:, None] if shown.dim() == 3 else compared)
            if shown.any():
                part = replace(answer, compared=shown, regime=kind)
                bounded = _bounded(part, plain, case, sane, _floor(part, case))
                found.append(replace(bounded, rows=rows if of_queries else None))
    return tuple(found)


def _is_bias(name: str) -> bool:
    return name.startswith("gradient of b_")


def _floor(part: Expected, case: Case) -> float:
    """Of one regime, in units of epsilon: scores are rounded by as many as they lie from zero, in the float64 reference too.

    What merges parts of the keys by the logarithms of their sums rounds those as well, in float32 at least.
    """
    large = _large(case)
    if part.regime == DEEPEST and not part.name.startswith("gradient"):
        eps = torch.finfo(getattr(torch, case.computes)).eps
        return max(FLOOR_OF_REGIMES, DEEP / 2 * min(1.0, torch.finfo(torch.float32).eps / eps))
    if part.name.startswith("gradient") and case.computes in WIDE:
        return FLOOR_OF_WIDE_GRADIENTS * large
    if case.computes == "float64":
        return 16 * large
    if part.regime in (HIGH, LOW):
        return 4 * large if case.computes == "float32" else large / 2
    if part.name.startswith("gradient"):
        return FLOOR_OF_REGIMES_GRADIENTS
    return FLOOR_OF_DOMINATED if part.regime in (DOMINATED, LATE) else FLOOR_OF_REGIMES


def _cache_sizes(case: Case) -> tuple[tuple[int, int, int], ...]:
    """Keys and values of one batch entry, or its latents."""
    if case.latent is not None:
        return ((1, case.T_kv, case.latent + (case.rope or 0)),)
    return (case.H_kv, case.T_kv, case.D_h), (case.H_kv, case.T_kv, case.D_v)


def _pages(case: Case, draw: int) -> Tensor | None:
    """(B, pages of a request), drawn without replacement from the pool; others in draw 2."""
    if not case.page:
        return None
    drawn = torch.randperm(_pages_of_pool(case), generator=_generator(case, -5 if draw == 2 else -4))
    return drawn[: case.B * _pages_of_request(case)].view(case.B, -1).to(case.device)


def _pages_of_request(case: Case) -> int:
    return -(-case.T_kv // (case.page or 1))


def _pages_of_pool(case: Case) -> int:
    """A quarter more than requests have, at least one."""
    return case.B * _pages_of_request(case) * 5 // 4 + 1


def _in_pool(x: Tensor, pages: Tensor, case: Case) -> Tensor:
    """(B, H_kv, T_kv, D) -> (1, H_kv, tokens of the pool, D); what is nobody's in it holds large values."""
    assert case.page is not None
    size = (1, x.shape[1], _pages_of_pool(case) * case.page, x.shape[-1])
    pool = (_randn(size, _generator(case, -6)) * NEEDLE).to(x)
    write(pool, x, places(pages, case.page, 0, case.T_kv))
    return pool


def _leaves(tensors: Iterable[Tensor], dtype: torch.dtype, case: Case) -> list[Tensor]:
    return [x.detach().to(dtype).requires_grad_(case.does.gradients) for x in tensors]


def _gradients(o: Tensor, leaves: dict[str, Tensor], grad: Tensor | None, rows: Tensor | None) -> dict[str, Tensor]:
    """Of every leaf, none when the case has no backward."""
    if grad is None:
        return {}
    picked = grad if rows is None else grad.index_select(-2, rows)
    found = torch.autograd.grad(o, list(leaves.values()), picked.to(o.dtype))
    return {f"gradient of {name}": x for name, x in zip(leaves, found, strict=True)}


def _grad(
    case: Case, size: tuple[int, ...], rows: Tensor | None, compared: Tensor | None, generator: torch.Generator
) -> Tensor | None:
    if not case.does.gradients:
        return None
    grad = _randn(size, generator).to(case.device, getattr(torch, case.computes))
    keep = torch.zeros(case.B, case.T, dtype=torch.bool, device=case.device)
    keep[:, slice(None) if rows is None else rows] = True if compared is None else compared
    return grad * (keep[:, None, :, None] if len(size) == 4 else keep[:, :, None])


def _answers(
    formula: Callable[[torch.dtype], dict[str, Tensor]], case: Case, rows: Tensor | None, compared: Tensor | None
) -> tuple[Expected, ...]:
    """The reference of each, and as the bound twice the error of the same formula in the case's own dtype, plus the floor.

    A gradient is three times as far off, at most, as the worse of two plain ways to it. A row's error is relative to the
    usual size of that gradient's rows where the row is smaller; the biases, of which b_k's vanishes, share the largest.
    """
    exact, plain = _ways(formula, case)
    biases = max((tensor.norm().item() for name, tensor in exact.items() if _is_bias(name)), default=0.0)
    found = []
    for name, tensor in exact.items():
        of_queries = name == "output"
        usual = biases if _is_bias(name) else tensor.norm(dim=-1).square().mean().sqrt().item()
        least = Expected.norm_floor if of_queries else max(usual, VANISHING)
        answer = Expected(name, tensor, None, compared if of_queries else None, least)
        bounded = _bounded(answer, plain, case, SANE if of_queries else SANE_OF_GRADIENTS)
        found.append(replace(bounded, rows=rows if of_queries else None))
    return tuple(found)


def _ways(
    formula: Callable[[torch.dtype], dict[str, Tensor]], case: Case
) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
    """The reference, and what the plain formula gives in the case's own dtype: two plain ways where there are gradients,
    and where there is a latent.
    """
    dtype = getattr(torch, case.dtype)
    exact, plain = formula(torch.float64), [formula(dtype)]
    if case.does.gradients:
        with reference.summed_over_features():
            plain.append(formula(dtype))
    if case.latent:
        with reference.absorbed():
            plain.append(formula(dtype))
    return exact, plain


def _bounded(answer: Expected, plain: list[dict[str, Tensor]], case: Case, sane: float, floor: float = 0.0) -> Expected:
    """An answer with what it may be off, its floor at least `floor` epsilons; raises AssertionError for an insane reference."""
    of_queries, eps = answer.name == "output", torch.finfo(getattr(torch, case.computes)).eps
    errors = [answer.errors(way[answer.name].double()) for way in plain]
    own = Errors(max(e.overall for e in errors), max(e.row for e in errors))
    if not own.overall <= sane * eps:
        raise AssertionError(
            f"the plain formula's {answer.name} is off by {own.overall:.1e} in {case.id}: the reference is at fault"
        )
    factor, least_error = (FACTOR, SMALL_FLOOR) if of_queries else (FACTOR_OF_GRADIENTS, FLOOR_OF_GRADIENTS)
    if of_queries and case.B * case.H * case.T < MANY_ROWS:
        floor = max(floor, FLOOR_OF_FEW_ROWS if case.computes in WIDE else FLOOR_OF_FEW_NARROW_ROWS)
    floor = max(floor, FLOOR.get(case.computes, least_error), _floor_of_rules(case))
    row_floor = floor if of_queries or case.computes != "float32" else max(floor, FLOOR_OF_GRADIENTS * case.keys**0.5)
    return replace(answer, tolerance=Errors(factor * own.overall + floor * eps, factor * own.row + row_floor * eps))


def _floor_of_rules(case: Case) -> float:
    """In epsilons: a score is rounded by as many as what it passes through lies from zero.

    A cap's tanh may be a difference of exponentials, and ALiBi may count from the first key instead of from the query, as in
    BLOOM. Narrow dtypes have none: there kernels do both in float32.
    """
    if case.computes not in WIDE:
        return 0.0
    return max(4 * (case.softcap or 0), case.keys / 2 if case.bias == "alibi" else 0.0)


def _compared(case: Case, padding: Tensor | None, rows: Tensor | None) -> Tensor | None:
    """(B, rows), True where a query is a token; only where queries and keys are the same sequence."""
    if padding is None or case.source == "cross":
        return None
    return padding if rows is None else padding[:, rows]


def _generator(case: Case, draw: int) -> torch.Generator:
    """Seeded by the case's name, so that every process and every implementation sees the same numbers."""
    return torch.Generator().manual_seed(zlib.crc32(f"{replace(case, device='cpu').id}/{draw}".encode()))


def _randn(size: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(size, generator=generator, dtype=torch.float32)


def _rows(case: Case, draw: int) -> Tensor | None:
    """As many queries as may be compared: the first, the last, and one somewhere in each equal part; None for all.

    Drawn, since rows at even distances keep to few places of a kernel's block for long stretches.
    """
    cost = 2 * case.B * case.H * case.T * case.T_kv * (case.D_h + case.D_v)
    whole = WHOLE_WITH_GRADIENTS if case.does.gradients else WHOLE
    most = int(case.T * min(1.0, whole / cost))
    most = max(1, min(most, SECOND_DRAW_ROWS) if draw else most)
    if most >= case.T:
        return None
    edges = torch.linspace(0, case.T, max(2, most) + 1, dtype=torch.float64)
    within = torch.rand(len(edges) - 1, generator=_generator(case, -2 - draw), dtype=torch.float64)
    rows = (edges[:-1] + within * edges.diff()).long().clamp(max=case.T - 1)
    rows[0], rows[-1] = 0, case.T - 1
    drawn: Tensor = rows.unique()
    return drawn.to(case.device)


def _padding(case: Case, draw: int) -> Tensor | None:
    """(B, T_kv), True where a key is a token: the first sequence is full, the last at most half full, others anywhere.

    In draw 2 they lie in the opposite order, and the shortest ends within the prefix where there is one.
    """
    if not case.padded:
        return None
    generator = _generator(case, -1)
    lengths = torch.randint(1, case.T_kv + 1, (case.B,), generator=generator)
    lengths[0] = case.T_kv
    lengths[-1] = min(int(lengths[-1]), max(1, case.T_kv // 2))
    if draw == 2:
        lengths = lengths.flip(0)
        lengths[0] = min(int(lengths[0]), max(1, (case.prefix or case.T_kv) // 2))
    return (torch.arange(case.T_kv) < lengths[:, None]).to(case.device)
