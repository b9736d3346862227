"""How far off an answer may be: a few times the error of the plain formula in the case's own dtype, and a floor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ..cases.case import Case
from . import reference, settings
from .patterns import DEEP, DEEPEST, DOMINATED, HIGH, LATE, LOW, large_scores
from .problem import Errors, Expected

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

SANE_OF_PATTERNS = 128.0
"""The same where scores reach every pattern, times as far as they lie from zero."""

FLOOR_OF_PATTERNS = 8.0
"""The least floor of a pattern, in units of epsilon: few rows are in each, and some the plain formula gets exactly right."""

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

VANISHING_OF_ONE_KEY = 1.0
"""The same where there is one key altogether: all rows are zero by nature, up to the rounding of terms as large as this."""


def solved(
    formula: Callable[[torch.dtype], dict[str, Tensor]], case: Case, rows: Tensor | None, compared: Tensor | None,
    pattern: Tensor | None,
) -> Callable[[], tuple[Expected, ...]]:  # fmt: skip
    """What works the answers out, with their bounds, by a formula that computes in any dtype."""
    return partial(_answers, formula, case, rows, compared, pattern)


def _answers(
    formula: Callable[[torch.dtype], dict[str, Tensor]], case: Case, rows: Tensor | None, compared: Tensor | None,
    pattern: Tensor | None,
) -> tuple[Expected, ...]:  # fmt: skip
    """The reference of each, and as the bound twice the error of the same formula in the case's own dtype, plus the floor.

    A gradient is three times as far off, at most, as the worse of two plain ways to it. A row's error is relative to the
    usual size of that gradient's rows where the row is smaller; the biases, of which b_k's vanishes, share the largest.
    With patterns, what has a row for every query is an answer a pattern: no bound excuses the fault of another pattern.
    """
    exact, plain = _ways(formula, case)
    biases = max((tensor.norm().item() for name, tensor in exact.items() if _is_bias(name)), default=0.0)
    found = []
    for name, tensor in exact.items():
        of_queries = name == "output"
        usual = biases if _is_bias(name) else tensor.norm(dim=-1).square().mean().sqrt().item()
        least: float | Tensor = max(usual, _vanishing(case))
        if of_queries:
            least = Expected.norm_floor if pattern is None else _size_of_rounding(formula, case)
        sane = SANE if of_queries else SANE_OF_GRADIENTS
        if pattern is not None:
            sane = SANE_OF_PATTERNS * large_scores(case)
        answer = Expected(name, tensor, None, compared if of_queries else None, least)
        parts = iter([answer])
        if pattern is not None and (of_queries or name == "gradient of q"):
            parts = _by_pattern(answer, pattern if rows is None or not of_queries else pattern[..., rows])
        for part in parts:
            floor = 0.0 if pattern is None else _floor(part, case)
            found.append(replace(_bounded(part, plain, case, sane, floor), rows=rows if of_queries else None))
    return tuple(found)


def _by_pattern(answer: Expected, pattern: Tensor) -> Iterator[Expected]:
    """The rows of each pattern, as an answer of its own."""
    for kind in pattern.unique().tolist():
        shown = pattern == kind
        if answer.compared is not None:
            shown = shown & (answer.compared[:, None] if shown.dim() == 3 else answer.compared)
        if shown.any():
            yield replace(answer, compared=shown, pattern=kind)


def _size_of_rounding(formula: Callable[[torch.dtype], dict[str, Tensor]], case: Case) -> float | Tensor:
    """The least size that a row of the output has: with a bias, what errors of 2 in every score would move it by.

    Such scores differ, and where they lie far from zero each is rounded: in base 2 twice, in base e by luck not at all.
    Where values cancel, a row is much smaller than what that moves.
    """
    if not case.bias or case.rounds not in WIDE:
        return Expected.norm_floor
    with reference.attending(reference.spread):
        moved: Tensor = formula(torch.float64)["output"].norm(dim=-1)
    return 2 * moved


def _ways(
    formula: Callable[[torch.dtype], dict[str, Tensor]], case: Case
) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
    """The reference, and what the plain formula gives in the case's own dtype: two plain ways where there are gradients,
    and where there is a latent.
    """
    dtype, exact = getattr(torch, case.dtype), formula(torch.float64)
    with settings.tf32_products() if case.tf32 else nullcontext():
        plain = [formula(dtype)]
        if case.does.gradients:
            with reference.attending(reference.summed_over_features):
                plain.append(formula(dtype))
        if case.latent:
            with reference.absorbed():
                plain.append(formula(dtype))
    return exact, plain


def _bounded(answer: Expected, plain: list[dict[str, Tensor]], case: Case, sane: float, floor: float = 0.0) -> Expected:
    """An answer with what it may be off, its floor at least `floor` epsilons; raises AssertionError for an insane reference."""
    of_queries, eps = answer.name == "output", torch.finfo(getattr(torch, case.rounds)).eps
    errors = [answer.errors(way[answer.name].double()) for way in plain]
    own = Errors(max(e.overall for e in errors), max(e.row for e in errors))
    if not own.overall <= sane * eps:
        raise AssertionError(
            f"the plain formula's {answer.name} is off by {own.overall:.1e} in {case.id}: the reference is at fault"
        )
    factor, least_error = (FACTOR, SMALL_FLOOR) if of_queries else (FACTOR_OF_GRADIENTS, FLOOR_OF_GRADIENTS)
    if of_queries and case.B * case.H * case.T < MANY_ROWS:
        floor = max(floor, FLOOR_OF_FEW_ROWS if case.rounds in WIDE else FLOOR_OF_FEW_NARROW_ROWS)
    floor = max(floor, FLOOR.get(case.rounds, least_error), _floor_of_rules(case))
    row_floor = floor if of_queries or case.rounds != "float32" else max(floor, FLOOR_OF_GRADIENTS * case.keys**0.5)
    return replace(answer, tolerance=Errors(factor * own.overall + floor * eps, factor * own.row + row_floor * eps))


def _floor(part: Expected, case: Case) -> float:
    """Of one pattern, in units of epsilon: scores are rounded by as many as they lie from zero, in the float64 reference too.

    What merges parts of the keys by the logarithms of their sums rounds those as well, in float32 at least.
    """
    large = large_scores(case) / (2 if case.computes == "float32" else 1)  # honest kernels stay well below it
    if part.pattern == DEEPEST and not part.name.startswith("gradient"):
        eps = torch.finfo(getattr(torch, case.rounds)).eps
        return max(FLOOR_OF_PATTERNS, DEEP / 2 * min(1.0, torch.finfo(torch.float32).eps / eps))
    if part.name.startswith("gradient") and case.rounds in WIDE:
        return FLOOR_OF_WIDE_GRADIENTS * large
    if case.rounds == "float64":
        return 16 * large
    if part.pattern in (HIGH, LOW):
        products = max(1.0, case.D_h / 64)  # a score is added up of so many more, each sum as large as the score
        return 4 * large * products if case.rounds == "float32" else large / 2
    if part.name.startswith("gradient"):
        return FLOOR_OF_REGIMES_GRADIENTS
    return FLOOR_OF_DOMINATED if part.pattern in (DOMINATED, LATE) else FLOOR_OF_PATTERNS


def _floor_of_rules(case: Case) -> float:
    """In epsilons: a score is rounded by as many as what it passes through lies from zero.

    A cap's tanh may be a difference of exponentials, and ALiBi may count from the first key instead of from the query, as in
    BLOOM. Narrow dtypes have none: there kernels do both in float32.
    """
    if case.rounds not in WIDE:
        return 0.0
    return max(4 * (case.softcap or 0), case.keys / 2 if case.bias == "alibi" else 0.0)


def _vanishing(case: Case) -> float:
    return VANISHING_OF_ONE_KEY if case.T_kv == 1 else VANISHING


def _is_bias(name: str) -> bool:
    return name.startswith("gradient of b_")
