"""Tolerances: a multiple of the plain formula's error in the case's own dtype, plus a floor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import astuple, replace

import torch
from torch import Tensor

from ..cases.case import Case
from . import reference, settings
from .data import epsilon
from .patterns import DEEP, DEEPEST, DOMINATED, HIGH, LATE, LOW, SPREAD, large_scores
from .problem import Errors, Expected
from .reference import Tensors

WIDE = ("float32", "float64")
"""Dtypes whose products kernels compute in that dtype; narrower dtypes are mostly accumulated in float32."""

VANISHING = 1e-3
"""Norm of a gradient's row, for inputs of variance 1, below which it is zero in exact arithmetic (a query that sees a single
key).
"""

ZERO = 1e-12
"""A gradient's typical row, over that of the largest gradient, below which all rows are zero in exact arithmetic: no query
sees more than one key. Rounding leaves parts of terms as large as the largest gradient's.
"""

FEW_FEATURES = 8
"""Features of an output, or of its heads, up to which some rows cancel: their norm is a small part of the usual one. The
plain formula's largest error is mostly chance there: four times as much is allowed.
"""


Formula = Callable[[torch.dtype], Tensors]
"""Computes every output in a dtype, by name."""


def expected_of(
    formula: Formula, case: Case, rows: Tensor | None, compared: Tensor | None,
    pattern: Tensor | None = None, keys: Tensor | None = None,
) -> tuple[Expected, ...]:  # fmt: skip
    """Return the expected outputs of a formula that can compute in any dtype, each with its bound: twice the error of the
    same formula in the case's own dtype, plus the floor; a larger multiple with few features (`FEW_FEATURES`).

    A gradient may have three times the larger error of two plain methods, and its median row in narrow dtypes twice:
    parts summed in such a dtype are rounded once more each. A row's error is relative to the typical size
    of that gradient's rows if the row is smaller, and so is an output's with few features; biases share the largest
    size, since the gradient of b_k vanishes. With stress patterns, each pattern is a separate expected output, so that no
    pattern's bound covers an error in another one. `keys` (B, H_kv, T_kv): True where the gradients of keys and values
    are compared, of heads that differ in size: rows are relative to their own head's; None for all, of heads alike.
    """
    exact, plain = _ways(formula, case)
    biases = max((tensor.norm().item() for name, tensor in exact.items() if _is_bias(name)), default=0.0)
    shown = {"output": compared, "gradient of k": keys, "gradient of v": keys}
    wholes = {name: Expected(name, tensor, compared=shown.get(name)) for name, tensor in exact.items()}
    typical = {n: it.compared_rows(it.reference).norm(dim=-1).square().mean().sqrt().item() for n, it in wholes.items()}
    largest = max((size for name, size in typical.items() if name != "output"), default=0.0)
    kinds = {"output": pattern if pattern is None or rows is None else pattern[..., rows], "gradient of q": pattern}
    found = []
    for name, whole in wholes.items():
        kind, usual = kinds.get(name), biases if _is_bias(name) else typical[name]
        least: float | Tensor = Expected.norm_floor
        if name != "output":
            least = _least_of_gradient(whole, usual, largest, by_head=keys is not None)
        elif kind is not None:
            least = _size_of_rounding(formula, case, kind)
        elif _has_few_features(case):
            least = usual
        whole = replace(whole, norm_floor=least)
        distances = [whole.distances(way[name]) for way in plain]
        for part in [whole] if kind is None else _by_pattern(whole, kind):
            tolerance = _tolerance(part, distances, case, pattern is not None)
            found.append(replace(part, tolerance=tolerance, rows=rows if name == "output" else None))
    return tuple(found)


def _least_of_gradient(gradient: Expected, usual: float, largest: float, by_head: bool) -> float | Tensor:
    """Return the smallest norm to which a gradient's row errors are relative: the usual one, or that of the row's own head;
    the largest gradient's if all rows are zero in exact arithmetic.
    """
    tensor = gradient.reference
    if usual <= ZERO * largest:
        return tensor.new_full(tensor.shape[:-1], largest)
    if by_head and tensor.dim() > 3:
        sizes: Tensor = tensor.norm(dim=-1) * gradient.is_compared
        return sizes.square().mean(-1, keepdim=True).sqrt().expand_as(sizes)
    return max(usual, VANISHING)


def _by_pattern(expected: Expected, pattern: Tensor) -> Iterator[Expected]:
    """Yield the rows of each pattern as a separate expected output."""
    for kind in pattern.unique().tolist():
        shown = (pattern == kind) & expected.is_compared
        if shown.any():
            yield replace(expected, compared=shown, pattern=kind)


def _size_of_rounding(formula: Formula, case: Case, pattern: Tensor) -> Tensor:
    """Return the smallest norm to which each output row's error is relative: the change caused by errors of 2 in each
    score.

    Scores that are far from zero or have a bias are rounded in every method, and differently; in narrow dtypes only
    where they are large: elsewhere errors of 1/2, which change a usual row by half. Where values cancel, a row is much
    smaller than this change.
    """
    with torch.no_grad(), reference.attending(reference.spread):
        moved: Tensor = 2 * formula(torch.float64)["output"].norm(dim=-1)
    if case.rounding_dtype not in WIDE:
        moved = moved * torch.where((pattern == HIGH) | (pattern == LOW), 1.0, 0.25)
    return moved.clamp_min(Expected.norm_floor)


def _ways(formula: Formula, case: Case) -> tuple[Tensors, list[Tensors]]:
    """Return the reference and the plain results in the case's own dtype, by two methods with gradients or a latent."""
    dtype, exact = getattr(torch, case.dtype), formula(torch.float64)
    with settings.tf32_products(case.tf32):
        plain = [formula(dtype)]
        if case.does.gradients:
            with reference.attending(reference.summed_over_features):
                plain.append(formula(dtype))
        if case.latent:
            with reference.attending(absorbed=True):
                plain.append(formula(dtype))
    return exact, plain


FACTOR, FACTOR_OF_GRADIENTS = 2.0, 3.0
"""Multiple of the plain formula's error that is allowed, as in FlashAttention's tests."""

MANY_KEYS = 1024
"""Number of keys from which outputs in float32 have larger floors, since some kernels, such as loops in C, accumulate keys
one by one. In units of epsilon: the square root of the number of keys for a row, and a sixteenth of that for all rows.
"""

WIDE_HEAD = 64
"""Width of a head from which outputs in float32 have larger floors: a score's D_h products may be added one by one, which
changes it by 0.15 * sqrt(D_h) epsilons (standard deviation, for inputs of variance 1), and an output by as much.
"""

MANY_ROWS = 64
"""Number of rows below which the plain formula's largest error is mostly chance."""

FLOORS = {  # of an output or an entry of a cache, of one of few rows, of a gradient
    "float64": (256.0, 256.0, 256.0),
    "float32": (2.0, 4.0, 2.0),
    "bfloat16": (0.25, 1.0, 2.0),
    "float16": (0.25, 1.0, 2.0),
}
"""Floors in units of the dtype's epsilon.

- In float64, where the reference is no more accurate, the floor is nearly the whole bound.
- In float32 it covers merging parts of the keys by the logarithms of their sums, which are rounded by two between 4 and 8.
- In narrow dtypes it serves cases that the plain formula happens to compute exactly. Errors of few rows come from rounding
  widely spaced numbers, and chance plays a small part: accumulating a cache in such a dtype gives two epsilons and more.
- Few rows of a gradient cancel nearly everything. In float32 a row's floor is larger by the square root of the number of
  keys: a query that sees a single key has a gradient of zero, the difference of two terms that are larger than a typical
  gradient by that factor, and that flash attention computes separately.
"""

SANE, SANE_OF_GRADIENTS, SANE_OF_PATTERNS = 32.0, 256.0, 128.0
"""Error of the plain formula, in units of epsilon, above which the reference itself is considered faulty; on stress patterns
over the scores' size.
"""


def _tolerance(expected: Expected, distances: list[Tensor], case: Case, extreme: bool) -> Errors:
    """Return the bound of an expected output from the `distances` of plain results; raises AssertionError for a faulty
    reference. `extreme`: whether the problem has stress patterns.
    """
    dtype, eps, root, median = case.rounding_dtype, epsilon(case), case.max_T**0.5, math.inf
    errors = (astuple(expected.errors(it)) for it in distances)
    own = Errors(*map(max, zip(*errors, strict=True)))
    of_output, of_few_rows, of_gradient = FLOORS[dtype]
    floor = max(_floor(expected, case) if extreme else 0.0, _floor_of_rules(case))
    if not expected.name.startswith("gradient"):
        factor, sane = FACTOR, SANE_OF_PATTERNS * large_scores(case) if extreme else SANE
        few = case.B * case.H * case.T < MANY_ROWS
        row_floor = floor = max(floor, (of_few_rows if few else of_output) * _of_width(case))
        if dtype == "float32" and case.max_T >= MANY_KEYS:
            floor, row_floor = max(floor, root / 16), max(floor, root)
    else:  # in patterns where two keys are visible, hardly anything is left of a gradient
        factor, sane = FACTOR_OF_GRADIENTS, math.inf if extreme else SANE_OF_GRADIENTS
        row_floor = floor = max(floor, of_gradient)
        if dtype == "float32":
            row_floor = max(floor, of_gradient * root)
            if expected.reference.dim() == 1:  # sinks or a bias, in one row
                floor = row_floor
        elif dtype not in WIDE and not extreme and expected.reference[..., 0].numel() >= MANY_ROWS:
            median = FACTOR * own.median + of_output * eps
    if _has_few_features(case):
        factor, sane = 4 * factor, 4 * sane
    if not own.overall <= sane * eps:
        raise AssertionError(
            f"the plain formula's {expected.name} is off by {own.overall:.1e} in {case.id}: the reference is at fault"
        )
    if case.sinks and dtype not in WIDE:  # transformers' gpt-oss rounds the differences of scores and their sink
        row_floor = max(floor, of_few_rows)
    return Errors(factor * own.overall + floor * eps, factor * own.row + row_floor * eps, median)


FLOOR_OF_PATTERNS, FLOOR_OF_DOMINATED = 8.0, 2.0
"""Smallest floor of a stress pattern's output, in units of epsilon: some of its few rows are computed exactly. Where one key
dominates, the output equals that key's value up to the last bits.
"""

FLOOR_OF_WIDE_GRADIENTS = 64.0
"""Floor of stress patterns' gradients in wide dtypes, in units of epsilon times the scores' size. Correct methods differ by 25
of these units. Gross errors still exceed it, and the ordinary input set has tight bounds.
"""


def _floor(part: Expected, case: Case) -> float:
    """Return a pattern's floor in units of epsilon: rounding grows with the scores' size, in the float64 reference too.

    A score is a sum of D_h products, and every addition after the largest product rounds a sum of the score's size: the
    error of the score has a standard deviation of size * sqrt(D_h / 12), plus a few factors (of the scale, of base 2).
    An output may be off by 3.5 of these over 2, to whose effect its row's error is relative. A gradient of a weight sums
    them over the quarter of the tokens whose scores are large, by keys' features of size `SPREAD`.

    Merging parts of the keys by the logarithms of their sums rounds these as well, in float32 at least.
    """
    large = large_scores(case) / (2 if case.computes == "float32" else 1)  # correct kernels stay well below it
    rounding = large_scores(case) * math.sqrt(((case.latent or case.D_h) + 4) / 12)
    gradient = part.name.startswith("gradient")
    if part.pattern == DEEPEST and not gradient:
        return max(FLOOR_OF_PATTERNS, DEEP / 2 * min(1.0, torch.finfo(torch.float32).eps / epsilon(case)))
    if gradient and case.rounding_dtype in WIDE:
        return max(FLOOR_OF_WIDE_GRADIENTS * large, 1.5 * SPREAD * rounding)
    if case.rounding_dtype == "float64":
        return 16 * large
    if part.pattern in (HIGH, LOW):
        return max(4 * large, 1.75 * rounding) if case.rounding_dtype == "float32" else large / 2
    if gradient:
        return 0.0
    return FLOOR_OF_DOMINATED if part.pattern in (DOMINATED, LATE) else FLOOR_OF_PATTERNS * _of_width(case)


def _of_width(case: Case) -> float:
    """Return the factor on a floor of an output, above 1 for wide heads in float32."""
    return max(1.0, math.sqrt((case.latent or case.D_h) / WIDE_HEAD)) if case.rounding_dtype == "float32" else 1.0


def _floor_of_rules(case: Case) -> float:
    """Return a floor in units of epsilon: rounding of a score grows with the size of its intermediate results.

    A cap's tanh may be computed as a difference of exponentials, ALiBi may count from the first key instead of from the
    query, as in BLOOM, and rotary angles may be float32, as in DeepSeek's own code. Narrow dtypes have no such floor: there
    kernels do all this in float32.
    """
    if case.rounding_dtype not in WIDE:
        return 0.0
    of_places = case.max_T / 2 if case.bias == "alibi" else case.max_T / 4 if case.rope else 0.0
    return max(4 * (case.softcap or 0), of_places)


def _has_few_features(case: Case) -> bool:
    return min(case.H * case.D_v, case.d_model) <= FEW_FEATURES


def _is_bias(name: str) -> bool:
    return name.startswith("gradient of b_")
