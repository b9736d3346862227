"""Compares the outputs of a call with the reference, and says where they differ."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..cases.case import Case
from ..cases.outcome import Wrong
from .data import epsilon
from .patterns import PATTERNS
from .problem import Errors, Expected, Problem

NEW_NUMBERS = "on new numbers in the same buffers: "

SOME_EXTREME = "where some scores are extreme: "

TOP_LEFT = "by is_causal, query t sees keys 0 to t"

AS_FLOAT32 = 2e-8, 1e-5
"""Range of the worst row's error where a float64 case is computed in float32."""

SHORT = {"batch entry": "b", "head": "h", "output feature": "row"}
"""Short names of axes in the position of a row."""


@dataclass(frozen=True)
class CheckResult:
    """Relative errors: of the output closest to its bound, and of each kind."""

    error: float
    """norm(o - ref) / norm(ref), over all rows."""
    error_bound: float
    error_output: float | None
    """Relative error of the output."""
    error_grad: float | None
    """Error of the gradient closest to its bound; None if there are no gradients."""
    error_slope: float
    """Signed error: by how much outputs are too large overall, in units of the dtype's epsilon."""


def verify(outputs: dict[str, Tensor], problem: Problem, why: str) -> CheckResult:
    """Compare every output with the reference; raises `Wrong` with the place and size of the error."""
    one_of = {part.name: part for part in problem.expected}
    distances = {name: part.distances(outputs[name]) for name, part in one_of.items()}
    found = [(_verify(distances[part.name], part, problem, why), part) for part in problem.expected]
    found.sort(key=lambda it: it[0] / it[1].tolerance.overall, reverse=True)
    (error, closest), *_ = found

    def nearest(kind: str) -> float | None:
        return next((error for error, part in found if part.name.startswith(kind)), None)

    slope = problem.output.slope(outputs["output"]) / epsilon(problem.case)
    return CheckResult(error, closest.tolerance.overall, nearest("output"), nearest("gradient"), slope)


def _verify(distances: Tensor, expected: Expected, problem: Problem, why: str) -> float:
    allowed = expected.tolerance
    errors = expected.errors(distances, median=allowed.median < math.inf)
    if errors.overall <= allowed.overall and errors.row <= allowed.row and errors.median <= allowed.median:
        return errors.overall
    if expected.pattern and why == NEW_NUMBERS:  # ordinary rows, pattern 0, are right on these
        why = ""
    if expected.pattern is not None:
        why += PATTERNS[expected.pattern]
    elif why == NEW_NUMBERS and any(part.pattern is not None for part in problem.expected):
        why += SOME_EXTREME
    why += "" if expected.name == "output" else f"{expected.name}: "
    raise Wrong(why + _fault(expected.row_errors(distances), errors, expected, problem))


def _fault(rows: Tensor, errors: Errors, expected: Expected, problem: Problem) -> str:
    """Describe what is wrong with an output, from the errors of its `rows`."""
    allowed = expected.tolerance
    if not torch.isfinite(rows).all():
        pages = "; free pages hold NaN" if problem.case.page else ""
        unwritten = "; the end of a cache holds NaN until new keys and values are written there"
        bad = ~torch.isfinite(rows)
        blind = max(0, problem.case.T - problem.case.T_kv)  # aligned bottom right, the first rows see no key
        aligned = bad.dim() and problem.case.mask == "causal" and bad[..., :blind].all() and not bad[..., blind:].any()
        hint = pages + unwritten if problem.case.writes_cache else f"; {TOP_LEFT}" if aligned else ""
        return f"NaN or Inf in {_where(bad, expected, problem)}{hint}"
    bad = rows > allowed.row
    if not bad.any():
        if errors.overall > allowed.overall:
            return f"error {errors.overall:.1e} over all rows, allowed {allowed.overall:.1e}"
        return f"error {errors.median:.1e} in the median row, allowed {allowed.median:.1e}"
    if not expected.axes:
        return f"error {errors.row:.1e}, allowed {allowed.row:.1e}"
    place = (rows == rows.max()).nonzero()[0].tolist()
    if expected.rows is not None:
        place[-1] = int(expected.rows[place[-1]])
    worst = ", ".join(f"{SHORT.get(axis, axis)}={i}" for axis, i in zip(expected.axes, place, strict=True))
    return (
        f"error {errors.row:.1e} in row {worst}, allowed {allowed.row:.1e}; "
        f"rows that fail: {_where(bad, expected, problem)}{_hint(errors.row, bad, problem.case)}"
    )


def _hint(error: float, bad: Tensor, case: Case) -> str:
    """Return a likely cause: computing in float32, another window, or other groups of heads."""
    if case.dtype == "float64" and AS_FLOAT32[0] < error < AS_FLOAT32[1]:
        return "; as precise as float32"
    first = int(bad.flatten(0, -2).any(0).int().argmax()) if bad.dim() > 1 else 0
    if case.window and first in (case.window, case.window + 1):
        return "; a window counts keys beside the query's own"
    heads = torch.arange(case.H, device=bad.device)
    others = heads % case.H_kv != heads // (case.H // case.H_kv)
    if others.any() and bad.dim() == 3 and torch.equal(bad.any(-1).any(0), others):
        return "; neighbouring heads share a key head"
    return ""


def _where(bad: Tensor, expected: Expected, problem: Problem) -> str:
    """Describe the failing rows, axis by axis: `head 1 (of 0 to 2), 65 of 1024 rows, t from 512 to 576 (T = 1024)`."""
    parts = []
    for axis, name in enumerate(expected.axes):
        hit, size = bad.nonzero()[:, axis].unique().tolist(), bad.shape[axis]
        if axis == bad.dim() - 1:
            rows = range(size) if expected.rows is None else expected.rows.tolist()
            span = f"{name} = {rows[hit[0]]}" if len(hit) == 1 else f"{name} from {rows[hit[0]]} to {rows[hit[-1]]}"
            all_of_it = f" (T = {problem.case.T})" if name == "t" else ""
            parts.append("every row" if len(hit) == size else f"{len(hit)} of {size} rows, {span}{all_of_it}")
        elif size > 1:
            parts.append(
                f"every {name}" if len(hit) == size else f"{name} {', '.join(map(str, hit))} (of 0 to {size - 1})"
            )
    return ", ".join(parts) or "all of it"
