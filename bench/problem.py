"""Inputs of one call, what must come out, and how far off it may be."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from impls import weights as canonical

from . import reference
from .sweep import Case

FACTOR = 2.0
"""How many times the plain formula's own error is allowed: the rule that FlashAttention's tests use."""

FLOOR = {"float64": 256.0}
"""Added to it, in units of the dtype's epsilon: in float64, where the truth itself is no better, nearly all of the bound."""

SMALL_FLOOR = 0.25
"""The floor of every other dtype, for cases that the plain formula happens to get exactly right."""

SANE = 8.0
"""The plain formula's own error, in units of epsilon, above which the reference itself is at fault."""

OFFSET = 100.0
"""Where the scores of a kernel's second draw lie: beyond 88, an exponential without the row's maximum overflows."""

SANE_OFFSET = 256.0
"""`SANE` for that draw: rounding a score near 100 is an error of 100 epsilon before the exponential."""

WHOLE = 1 << 33
"""Operations of the reference up to which every row is compared; above it as many rows as that allows."""

SECOND_DRAW_ROWS = 64
"""The second draw only shows whether anything was remembered, so fewer rows are compared."""


@dataclass(frozen=True)
class Errors:
    """norm(o - ref) / norm(ref): over everything, and the largest over the rows."""

    overall: float
    row: float


@dataclass(frozen=True, eq=False)
class Problem:
    """One question to an implementation, with its answer."""

    case: Case
    inputs: tuple[Tensor, ...]
    """q, k, v for a kernel; x, or x and the other sequence, for a layer."""
    padding: Tensor | None
    """(B, T_kv), True where a key is a token."""
    weights: dict[str, Tensor]
    rows: Tensor | None
    """The queries that are compared; None for all."""
    compared: Tensor | None
    """(B, rows), True where the query is a token: padded queries are not compared. None for all."""
    truth: Tensor
    """float64, (B, H, rows, D_v) for a kernel, (B, rows, d_model) for a layer."""
    allowed: Errors

    def pick(self, o: Tensor) -> Tensor:
        """The rows of an answer that are compared, in float64."""
        return (o if self.rows is None else o.index_select(-2, self.rows)).double()

    def row_errors(self, o: Tensor) -> Tensor:
        """Relative error of each compared row: the shape of `truth` without its last axis."""
        return _row_errors(self.pick(o), self.truth, self.compared)

    def errors(self, o: Tensor) -> Errors:
        return _errors(self.pick(o), self.truth, self.compared)


def kernel_problem(case: Case, draw: int = 0) -> Problem:
    """A bare problem: q (B, H, T, D_h), k (B, H_kv, T_kv, D_h), v (B, H_kv, T_kv, D_v) from a seed of the case's own."""
    return _kernel_problem(replace(case, threads=None), draw)


def layer_problem(case: Case, draw: int = 0) -> Problem:
    """A problem for a whole layer: x (B, T, d_model), with the canonical weights of the case."""
    return _layer_problem(replace(case, threads=None), draw)


@torch.inference_mode(False)
def copies(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Fresh copies that are no inference tensors: a compiled layer would make another graph for those."""
    return tuple(x.clone() for x in tensors)


def layer_inputs(case: Case) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """What a layer is called with: x (and the other sequence), and the padding where the case has it. Fresh copies."""
    problem = layer_problem(case)
    padding = () if problem.padding is None else copies([problem.padding])
    return copies(problem.inputs), dict(zip(["padding"], padding, strict=False))


@lru_cache(maxsize=8)
@torch.inference_mode(False)  # what is made here is used in inference and in training
@torch.no_grad()
def _kernel_problem(case: Case, draw: int) -> Problem:
    generator = _generator(case, draw)
    sizes = [(case.H, case.T, case.D_h), (case.H_kv, case.T_kv, case.D_h), (case.H_kv, case.T_kv, case.D_v)]
    exact = [_randn((case.B, *size), generator) for size in sizes]
    if draw:
        a = (OFFSET / case.D_h**0.5) ** 0.5  # q = a and k = a in every feature give scores of a² sqrt(D_h) = OFFSET
        exact[0], exact[1] = exact[0] / 2 + a, exact[1] / 4 + a  # and these keep them within a few units of it
    q, k, v = rounded = tuple(x.to(case.device, getattr(torch, case.dtype)) for x in exact)
    padding = _padding(case)
    rows = _rows(case, draw)
    options: dict[str, Any] = {"causal": case.causal, "padding": padding, "rows": rows}
    truth = reference.attention(q.double(), k.double(), v.double(), **options)
    plain = reference.attention(q, k, v, **options)
    return _problem(case, rounded, padding, {}, rows, truth, plain, SANE_OFFSET if draw else SANE)


@lru_cache(maxsize=8)
@torch.inference_mode(False)
@torch.no_grad()
def _layer_problem(case: Case, draw: int) -> Problem:
    dtype = getattr(torch, case.dtype)
    drawn = canonical.draw(case.layer_shape, _generator(case, 0))  # the same weights in every draw
    weights = {name: w.to(case.device, dtype) for name, w in drawn.items()}
    generator = _generator(case, draw + 1)
    inputs = [_randn((case.B, case.T, case.d_model), generator)]
    if case.source == "cross":
        inputs.append(_randn((case.B, case.T_kv, case.d_model), generator))
    rounded = tuple(x.to(case.device, dtype) for x in inputs)
    padding = _padding(case)
    rows = _rows(case, draw)
    options: dict[str, Any] = {"H": case.H, "H_kv": case.H_kv, "causal": case.causal, "padding": padding, "rows": rows}
    wide = {name: w.double() for name, w in weights.items()}
    truth = reference.layer(rounded[0].double(), rounded[-1].double(), wide, **options)
    plain = reference.layer(rounded[0], rounded[-1], weights, **options)
    return _problem(case, rounded, padding, weights, rows, truth, plain)


def _problem(
    case: Case, inputs: tuple[Tensor, ...], padding: Tensor | None, weights: dict[str, Tensor], rows: Tensor | None,
    truth: Tensor, plain: Tensor, sane: float = SANE,
) -> Problem:  # fmt: skip
    compared = None if padding is None or case.source == "cross" else padding if rows is None else padding[:, rows]
    own = _errors(plain.double(), truth, compared)
    eps = torch.finfo(getattr(torch, case.dtype)).eps
    if not own.overall <= sane * eps:
        raise AssertionError(f"the plain formula is off by {own.overall:.1e} in {case.id}: the reference is at fault")
    floor = FLOOR.get(case.dtype, SMALL_FLOOR) * eps
    allowed = Errors(FACTOR * own.overall + floor, FACTOR * own.row + floor)
    return Problem(case, inputs, padding, weights, rows, compared, truth, allowed)


def _row_errors(o: Tensor, truth: Tensor, compared: Tensor | None) -> Tensor:
    errors = (o - truth).norm(dim=-1) / truth.norm(dim=-1)
    return errors if compared is None else torch.where(_like(errors, compared), errors, 0.0)


def _errors(o: Tensor, truth: Tensor, compared: Tensor | None) -> Errors:
    row = _row_errors(o, truth, compared).max().item()
    if compared is not None:
        shown = _like(truth[..., 0], compared)
        o, truth = o[shown], truth[shown]  # (rows that are compared, width)
    return Errors(((o - truth).norm() / truth.norm()).item(), row)


def _like(rows: Tensor, compared: Tensor) -> Tensor:
    """`compared` (B, rows) in the shape of `rows`, (B, rows) or (B, H, rows)."""
    return compared if rows.dim() == 2 else compared[:, None, :].expand_as(rows)


def _generator(case: Case, draw: int) -> torch.Generator:
    """Seeded by the case's name, so that every process and every implementation sees the same numbers."""
    return torch.Generator().manual_seed(zlib.crc32(f"{replace(case, device='cpu').id}/{draw}".encode()))


def _randn(size: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(size, generator=generator, dtype=torch.float32)


def _rows(case: Case, draw: int) -> Tensor | None:
    """Evenly spaced queries, the first and the last among them; None for all."""
    cost = 2 * case.B * case.H * case.T * case.T_kv * (case.D_h + case.D_v)
    most = int(case.T * min(1.0, WHOLE / cost))
    most = max(1, min(most, SECOND_DRAW_ROWS) if draw else most)
    return None if most >= case.T else torch.linspace(0, case.T - 1, max(2, most), device=case.device).long().unique()


def _padding(case: Case) -> Tensor | None:
    """(B, T_kv), True where a key is a token: the first sequence is full, the last at most half full, others anywhere."""
    if not case.padded:
        return None
    generator = _generator(case, -1)
    lengths = torch.randint(1, case.T_kv + 1, (case.B,), generator=generator)
    lengths[0] = case.T_kv
    lengths[-1] = min(int(lengths[-1]), max(1, case.T_kv // 2))
    return (torch.arange(case.T_kv) < lengths[:, None]).to(case.device)
