"""Defines a test problem: the inputs of one call, the expected outputs, and their tolerances."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from impls.paging import places

from ..cases.case import Case
from .reference import Tensors
from .settings import threads

ROWS: dict[int, tuple[str, ...]] = {
    4: ("batch entry", "head", "t"),
    3: ("batch entry", "t"),
    2: ("output feature",),  # of a projection's weights
    1: (),
}


FEW_SCORES = 1 << 18
"""Scores up to which expected outputs are computed by one thread, where several would mostly wait for each other."""


@dataclass(frozen=True)
class Errors:
    """norm(o - ref) / norm(ref): over all rows, and the largest and the median over the rows."""

    overall: float
    row: float
    median: float = math.inf
    """Each row's error is relative to its own size: sums of many rounded parts show where rows differ in size."""


@dataclass(frozen=True, eq=False)
class Expected:
    """One expected output of a call, with its tolerance."""

    name: str
    """`output`, `gradient of q`, `key written to the cache`, ..."""
    reference: Tensor
    """float64"""
    rows: Tensor | None = None
    """Queries that are compared, and that `reference` holds; None for all."""
    compared: Tensor | None = None
    """(B, rows) or (B, H, rows), True where a row is compared: padded queries are excluded. None for all."""
    norm_floor: float | Tensor = 1e-30
    """Smallest norm to which a row's error is relative, since rows of gradients, and of outputs of which dropout keeps
    nothing, may vanish. One number, or one per row.
    """
    tolerance: Errors = Errors(0.0, 0.0)
    pattern: int | None = None
    """Pattern of all compared rows, an index into `PATTERNS`; None if the problem has a single pattern."""

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the row axes: every axis but the last."""
        if self.name == "gradient of score_bias":
            return "head", "t"
        return ROWS[self.reference.dim()]

    @cached_property
    def is_compared(self) -> Tensor:
        """True where a row is compared, in the shape of `reference` without its last axis."""
        shape, compared = self.reference.shape[:-1], self.compared
        if compared is None:
            return torch.ones(shape, dtype=torch.bool, device=self.reference.device)
        return compared if compared.dim() == len(shape) else compared[:, None].expand(shape)

    @cached_property
    def _sizes(self) -> tuple[Tensor, float, Tensor]:
        """Return the norms to which errors are relative: of each compared row, overall, and of each row without a
        `norm_floor` that is one number.
        """
        floor = torch.as_tensor(self.norm_floor).to(self.reference)
        size, floor = self._compared(self.reference).norm(dim=-1), self._compared(floor) if floor.dim() else floor
        own = size.maximum(floor) if floor.dim() else size.clamp_min(1e-30)
        return size.maximum(floor), size.norm().maximum(floor.norm()).item(), own

    def shown(self, o: Tensor) -> Tensor:
        """Select the rows of an output that `reference` holds."""
        return o if self.rows is None else o.index_select(-2, self.rows)

    def distances(self, o: Tensor) -> Tensor:
        """Return norm(o - ref) of each row, in the shape of `reference` without its last axis: the same for all patterns."""
        found: Tensor = (self.shown(o).contiguous().double() - self.reference).norm(dim=-1)
        return found

    def errors(self, distances: Tensor, median: bool = True) -> Errors:
        """Return the errors of an output with these `distances`; without `median`, infinity in its place."""
        (of_rows, overall, own), off = self._sizes, self._compared(distances)
        middle = (off / own).median().item() if median else math.inf
        return Errors(off.norm().item() / overall, (off / of_rows).max().item(), middle)

    def slope(self, o: Tensor) -> float:
        """Return the slope of a least-squares fit of o - reference on the reference."""
        exact = self._compared(self.reference)
        return (((self.compared_rows(o).double() - exact) * exact).sum() / exact.square().sum()).item()

    def row_errors(self, distances: Tensor) -> Tensor:
        """Return the relative error of each compared row, in the shape of `reference` without its last axis."""
        sizes = self.reference.norm(dim=-1).clamp_min(self.norm_floor)
        return torch.where(self.is_compared, distances / sizes, 0.0)

    def compared_rows(self, o: Tensor) -> Tensor:
        """Select the compared rows of an output."""
        return self._compared(self.shown(o))

    def _compared(self, x: Tensor) -> Tensor:
        """Select the compared rows of a tensor, or of one number for each row: (rows, ...)."""
        return x if self.compared is None else x[self.is_compared]


def written_to(cache: str) -> str:
    """Return the name of the output written to `keys`: `key written to the cache`."""
    return f"{cache.removesuffix('s')} written to the cache"


@dataclass(frozen=True, eq=False)
class Problem:
    """One test problem with its expected outputs."""

    case: Case
    names: tuple[str, ...]
    inputs: tuple[Tensor, ...]
    """q, k, v for a core; x, or x and the other sequence, or x and the cache's keys and values, or latents, for a layer."""
    padding: Tensor | None
    """(B, T_kv), True where a key is a token."""
    grad: Tensor | None
    """Gradient of the output if the mode has a backward, zero in rows that are not compared."""
    weights: Tensors
    solve: Callable[[], tuple[Expected, ...]]
    """Computes the expected outputs, on first use."""
    pages: Tensor | None = None
    """(B, pages of a request), where the cache is a pool of pages."""

    @cached_property
    def expected(self) -> tuple[Expected, ...]:
        few = self.case.pairs <= FEW_SCORES
        with threads(1 if few else None), torch.inference_mode(False):
            return self.solve()

    @property
    def output(self) -> Expected:
        return self.expected[0]

    @property
    def options(self) -> Tensors:
        """Keyword arguments of a call."""
        named = {"padding": self.padding, "pages": self.pages}
        return {name: it for name, it in named.items() if it is not None}

    @property
    def free(self) -> Tensor | None:
        """Positions of a cache that a call may write to, those of the newest tokens; None if it writes to none."""
        if not self.case.writes_cache:
            return None
        first, last = self.case.T_kv - self.case.T, self.case.T_kv
        if self.pages is None:
            return torch.arange(first, last, device=self.case.device)
        return places(self.pages, self.case.page or 1, first, last).flatten()


def keep_expected(problem: Problem, file: Path) -> None:
    """Take a problem's expected outputs from a file; if there is none yet, compute and write them."""
    if not file.exists():
        expected, whole = problem.expected, file.with_suffix(".part")  # a process may be killed meanwhile
        with suppress(OSError, RuntimeError):  # of a full disk: each process computes them
            torch.save(expected, whole)
            whole.rename(file)
    elif "expected" not in vars(problem):
        vars(problem)["expected"] = torch.load(file, weights_only=False)
