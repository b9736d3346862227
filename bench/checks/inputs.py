"""Input tensors of one call: their contents, their layout in memory, their copies."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, allclose, equal  # by these names a kernel can't replace them

from .problem import Problem

READABLE = 1 << 20
"""Bytes behind a read-only input that can be read, as those behind others mostly can: some kernels read whole tiles."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """Input tensors of one call; their contents can be replaced."""

    names: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    options: dict[str, Tensor]
    grad: Tensor | None

    def perturb(self, weight: int = 1) -> None:
        """Add noise to every number of every input and of the output's gradient, so that no digest matches; their variance
        is preserved.

        Zeros stay: in the features of a pattern (`patterns.py`) noise makes scores extreme, whose exponentials take
        some kernels twice as long. With `weight` 0 all numbers keep their values, and the same memory is read and
        written.
        """
        for buffer in (*self.tensors, *([] if self.grad is None else [self.grad])):
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
            if not equal(fresh, self.options[name]):
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
    slice; and such a slice as the gradient, as that of outputs which are concatenated.

    Each slice begins at an offset, and its tokens are closer together than those of the previous slice.
    """
    grad = None if numbers.grad is None else _slice(numbers.grad, 0)
    return replace(numbers, tensors=tuple(map(_slice, numbers.tensors, (2, 1, 0))), grad=grad)


def _slice(x: Tensor, gap: int) -> Tensor:
    """Return a view (B, H, T, D) with NaN around it: one head before, `gap` heads behind, one token behind, and D features
    behind every head.
    """
    B, H, T, D = x.shape
    whole = x.new_full((B, T + 1, 1 + H + gap, 2 * D), torch.nan).transpose(1, 2)
    found = whole[:, 1 : 1 + H, :T, :D]
    found.copy_(x.detach())
    return found.requires_grad_(x.requires_grad)


@torch.inference_mode(False)
def read_only(numbers: Inputs) -> Inputs:
    """Return the same numbers in pages of the CPU's memory that can't be written."""
    return replace(numbers, tensors=tuple(map(_protected, numbers.tensors)))


def _protected(x: Tensor) -> Tensor:
    """Return a copy that can't be written."""
    pages = torch.frombuffer(mmap.mmap(-1, x.nbytes + READABLE), dtype=torch.uint8)
    found = pages[: x.nbytes].view(x.dtype).view(x.shape).copy_(x.detach())
    ctypes.CDLL(None).mprotect(ctypes.c_void_p(pages.data_ptr()), ctypes.c_size_t(len(pages)), mmap.PROT_READ)
    return found


@torch.inference_mode(False)
def sequence_first(numbers: Inputs) -> Inputs:
    """Return the same numbers, of which tokens (B, T, d_model) are views of (T, B, d_model)."""

    def view(x: Tensor) -> Tensor:
        return x.detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_(x.requires_grad)

    return replace(numbers, tensors=tuple(view(x) if x.dim() == 3 else x for x in numbers.tensors))


def surroundings_intact(numbers: Inputs) -> bool:
    """Whether the memory around slices still holds NaN."""
    around = ((x, x._base) for x in numbers.tensors)
    return all(whole is None or whole.isnan().sum() == whole.numel() - x.numel() for x, whole in around)


@torch.inference_mode(False)
def elsewhere(numbers: Inputs, problem: Problem) -> Inputs:
    """Return a problem's numbers in new tensors without gaps, whose layout in memory depends on the number of tokens.

    With fewer than 64 tokens all tensors are contiguous. The order of axes in memory is that of `numbers` in the last tensor
    from 64 tokens (as where q and k are rotated), in the first one from 96 (as beside a cache), and in all from 128. A
    core's q, k and v of 128 tokens are slices of one projection. Its keys and values in `decode` are slices of a longer
    cache, whose other tokens are NaN.

    Masks and tables are new tensors at the addresses of the present ones, which they replace.
    """
    every, case, T = range(len(numbers.tensors)), problem.case, problem.case.max_T
    in_order = every[:0] if T < 64 else every[-1:] if T < 96 else every[:1] if T < 128 else every
    orders = (torch.preserve_format if at in in_order else torch.contiguous_format for at in every)
    tensors = [
        torch.empty_like(x, memory_format=order, requires_grad=x.requires_grad)
        for x, order in zip(numbers.tensors, orders, strict=True)
    ]
    if case.scope == "core" and case.does.cached:
        tensors[1:] = [
            x.new_full((*x.shape[:-2], x.shape[-2] + 1, x.shape[-1]), torch.nan)[..., :-1, :] for x in tensors[1:]
        ]
    elif case.scope == "core" and T == 128:
        tensors = _in_one(tensors)
    apart = replace(
        numbers,
        tensors=tuple(tensors),
        options={name: numbers.options[name].data.copy_(it) for name, it in problem.options.items()},
        grad=None if numbers.grad is None else torch.empty_like(numbers.grad),
    )
    apart.refill(problem)
    return apart


def _in_one(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return new, uninitialized tensors (B, heads, T, D) in the shapes of these, as slices of one (B, T, all heads, D). Tensors
    that differ in B, T or D are returned as they are.
    """
    if len({(len(x), *x.shape[2:]) for x in tensors}) > 1:
        return [*tensors]
    B, _, T, D = tensors[0].shape
    heads = [x.shape[1] for x in tensors]
    parts = tensors[0].new_empty(B, T, sum(heads), D).split(heads, 2)
    return [part.transpose(1, 2).data.requires_grad_(x.requires_grad) for part, x in zip(parts, tensors, strict=True)]


def same(found: Sequence[Tensor], known: Sequence[Tensor]) -> bool:
    """Whether tensors are equal; NaN equals NaN."""
    pairs = zip(found, known, strict=True)
    return all(equal(a, b) or allclose(a, b, 0, 0, equal_nan=True) for a, b in pairs)


@torch.inference_mode(False)
def copies(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Return copies without gradients, outside inference mode."""
    return tuple(x.detach().clone() for x in tensors)
