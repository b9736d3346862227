"""Defines a test problem: the inputs of one call, the expected outputs, and their tolerances."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from impls.paging import places

from ..cases.case import Case
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
    def _places(self) -> Tensor | None:
        """Positions of the compared rows among all rows of `reference`; None for all."""
        return None if self.compared is None else self.is_compared.flatten().nonzero().flatten()

    @cached_property
    def _sizes(self) -> tuple[Tensor, float, Tensor]:
        """Return the norms to which errors are relative: of each compared row, overall, and of each row without
        `norm_floor`.
        """
        floor = torch.as_tensor(self.norm_floor).to(self.reference)
        size, floor = self._compared(self.reference).norm(dim=-1), self._compared(floor, 0) if floor.dim() else floor
        return size.maximum(floor), size.norm().maximum(floor.norm()).item(), size.clamp_min(1e-30)

    def distances(self, o: Tensor) -> Tensor:
        """Return norm(o - ref) of each row, in the shape of `reference` without its last axis: the same for all patterns."""
        o = o if self.rows is None else o.index_select(-2, self.rows)
        found: Tensor = (o.contiguous().double() - self.reference).norm(dim=-1)
        return found

    def errors(self, distances: Tensor, median: bool = True) -> Errors:
        """Return the errors of an output with these `distances`; without `median`, infinity in its place."""
        (of_rows, overall, own), off = self._sizes, self._compared(distances, 0)
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
        """Select the compared rows of an output. Contiguous outputs aren't copied as a whole."""
        return self._compared(o if self.rows is None else o.index_select(-2, self.rows))

    def _compared(self, x: Tensor, width: int = 1) -> Tensor:
        """Select the compared rows of a tensor, whose last `width` axes lie within a row: (rows, ...)."""
        return x if self._places is None else x.flatten(0, -1 - width).index_select(0, self._places)


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
    weights: dict[str, Tensor]
    solve: Callable[[], tuple[Expected, ...]]
    """Computes the expected outputs, on first use."""
    pages: Tensor | None = None
    """(B, pages of a request), where the cache is a pool of pages."""

    @cached_property
    def expected(self) -> tuple[Expected, ...]:
        few = self.case.B * self.case.H * self.case.T * self.case.T_kv <= FEW_SCORES
        with threads(1 if few else None), torch.inference_mode(False):
            return self.solve()

    @property
    def output(self) -> Expected:
        return self.expected[0]

    @property
    def options(self) -> dict[str, Tensor]:
        """Keyword arguments of a call."""
        named = {"padding": self.padding, "pages": self.pages}
        return {name: it for name, it in named.items() if it is not None}

    @property
    def free(self) -> Tensor:
        """Positions of a cache that a call may write to: those of the newest tokens."""
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


@dataclass(frozen=True, eq=False)
class Inputs:
    """Input tensors of one call; their contents can be replaced."""

    names: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    options: dict[str, Tensor]
    grad: Tensor | None

    def perturb(self, weight: int = 1) -> None:
        """Add noise to every number of every input, so that no digest matches; their variance is preserved.

        Zeros stay: in the features of a pattern (`patterns.py`) noise makes scores extreme, whose exponentials take
        some kernels twice as long. With `weight` 0 all numbers keep their values, and the same memory is read and
        written.
        """
        for buffer in self.tensors:
            if not buffer.is_floating_point():
                buffer.data.copy_(buffer.roll(weight, -1))
                continue
            generator = torch.Generator(buffer.device)
            generator.seed()
            noise = torch.empty_like(buffer.data).uniform_(-1, 1, generator=generator)
            buffer.data.mul_(1 - 0.2 * weight).add_(noise.mul_(buffer.data != 0), alpha=weight)

    def refill(self, problem: Problem) -> None:
        """Load another problem's numbers into the same buffers through `.data`, which caches keyed by address and
        version do not detect.
        """
        for buffer, fresh in zip(self.tensors, problem.inputs, strict=True):
            buffer.data.copy_(fresh)
        if self.grad is not None and problem.grad is not None:
            self.grad.data.copy_(problem.grad)
        for name, fresh in problem.options.items():
            if not torch.equal(fresh, self.options[name]):
                # A new tensor: a mask cached for the previous tensor object remains valid for that object.
                self.options[name] = fresh.clone()


@torch.inference_mode(False)
def inputs_of(problem: Problem) -> Inputs:
    """Return fresh copies outside inference mode: a compiled layer would compile a graph for inference tensors."""
    inputs = copies(problem.inputs)
    if problem.grad is not None:
        inputs = tuple(x.requires_grad_(x.is_floating_point()) for x in inputs)
    options = {name: it.clone() for name, it in problem.options.items()}
    return Inputs(problem.names, inputs, options, None if problem.grad is None else problem.grad.clone())


@torch.inference_mode(False)
def strided(numbers: Inputs) -> Inputs:
    """Return the same q, k and v with a model's layout: slices of a projection, heads between tokens, NaN around each
    slice.

    Each slice begins at an offset, and its tokens are closer together than those of the previous slice.
    """
    gaps = range(len(numbers.tensors))[::-1]
    apart = (_slice(x.detach(), gap) for gap, x in zip(gaps, numbers.tensors, strict=True))
    return replace(
        numbers,
        tensors=tuple(x.requires_grad_(old.requires_grad) for x, old in zip(apart, numbers.tensors, strict=True)),
        grad=None if numbers.grad is None else numbers.grad.transpose(1, 2).contiguous().transpose(1, 2),
    )


def _slice(x: Tensor, gap: int) -> Tensor:
    """Return a view (B, H, T, D) that lies between one head of NaN and `gap` heads of NaN."""
    B, H, T, D = x.shape
    whole = x.new_full((B, T, 1 + H + gap, D), torch.nan).transpose(1, 2)
    whole[:, 1 : 1 + H] = x
    return whole[:, 1 : 1 + H]


def surroundings_intact(numbers: Inputs) -> bool:
    """Whether the memory around slices still holds NaN."""
    around = ((x, x._base) for x in numbers.tensors)
    return all(whole is None or whole.isnan().sum() == whole.numel() - x.numel() for x, whole in around)


@torch.inference_mode(False)
def elsewhere(numbers: Inputs, problem: Problem, first: dict[str, Tensor]) -> Inputs:
    """Return a problem's numbers in new tensors without gaps: contiguous, or if long with axes in the same memory order.

    Masks and tables are new tensors at the addresses of those of the `first` call, where wrong kernels find that one's.
    """
    order = torch.contiguous_format if problem.case.max_T < 64 else torch.preserve_format
    apart = replace(
        numbers,
        tensors=tuple(torch.empty_like(x, memory_format=order, requires_grad=x.requires_grad) for x in numbers.tensors),
        options={name: first[name].data.copy_(it) for name, it in problem.options.items()},
        grad=None if numbers.grad is None else torch.empty_like(numbers.grad),
    )
    apart.refill(problem)
    return apart


def same(found: Sequence[Tensor], known: Sequence[Tensor]) -> bool:
    """Whether tensors are equal, NaN in the same places included."""
    pairs = zip(found, known, strict=True)
    return all(torch.equal(a, b) or torch.allclose(a, b, 0, 0, equal_nan=True) for a, b in pairs)


@torch.inference_mode(False)
def copies(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    return tuple(x.detach().clone() for x in tensors)
