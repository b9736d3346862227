"""Defines one call: forward, forward and backward, or next token. The same call is checked, timed and profiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from impls import weights as canonical
from impls.paging import in_order

from ..cases.case import Case
from ..cases.outcome import Wrong
from . import settings
from .problem import Inputs, written_to


@dataclass(frozen=True)
class Call:
    """One call, ready to be timed, and how its outputs are read."""

    run: Callable[[], Any]
    read: Callable[[Any], dict[str, Tensor]]
    """Maps the return value of `run` to tensors by the names used in `Problem.expected`."""
    back: Callable[..., Any] = lambda o, again=False: o
    """The return value of `run` for a forward's output; `again`: another backward may follow."""


def call_of(module: nn.Module, case: Case, inputs: Inputs) -> Call:
    """Return the call of `case` on a layer or a core with the given inputs."""
    if case.does.gradients:
        return _backward(module, inputs)
    if case.does.cached and case.in_model:
        return _continue(module, inputs)
    if case.does.cached and case.scope == "layer":
        return _decode(module, case, inputs)
    return Call(lambda: module(*inputs.tensors, **inputs.options), lambda o: {"output": o})


@contextmanager
def recording(case: Case, inference: bool = True) -> Iterator[None]:
    """Context of a call: records gradients only if needed, sets deterministic algorithms and TF32 as the case requires.

    Raises `Wrong` if the call leaves these settings changed. Without `inference`, inference mode is not used.
    """
    unrecorded = torch.inference_mode if inference else torch.no_grad
    with (
        nullcontext() if case.does.gradients else unrecorded(),
        settings.tf32_products() if case.tf32 else nullcontext(),
        settings.changed("deterministic algorithms", True) if case.deterministic else nullcontext(),
    ):
        yield
        if case.deterministic and not torch.are_deterministic_algorithms_enabled():
            raise Wrong("turns torch's deterministic algorithms off")


def _backward(module: nn.Module, inputs: Inputs) -> Call:
    """Forward, then gradients of every input and every parameter that needs one, given the gradient of the output."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    learning = {name: x for name, x in zip(inputs.names, inputs.tensors, strict=True) if x.requires_grad}
    wanted = [*learning.values(), *parameters]

    def back(o: Tensor, again: bool = False) -> tuple[Tensor, ...]:
        return o, *torch.autograd.grad(o, wanted, inputs.grad, allow_unused=True, retain_graph=again)

    def read(outputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
        o, *grads = outputs
        of_inputs, of_parameters = grads[: len(learning)], grads[len(learning) :]
        if missing := [name for name, grad in zip(learning, of_inputs, strict=True) if grad is None]:
            raise Wrong(f"no gradient reaches {' and '.join(missing)}: the output is detached")
        found: dict[Tensor, Tensor] = {
            p: grad for p, grad in zip(parameters, of_parameters, strict=True) if grad is not None
        }
        named = dict(zip(learning, of_inputs, strict=True))
        named |= canonical.gradients(module, found) if parameters else {}
        return {"output": o} | {f"gradient of {name}": grad for name, grad in named.items()}

    return Call(lambda: back(module(*inputs.tensors, **inputs.options)), read, back)


def _continue(module: nn.Module, inputs: Inputs) -> Call:
    """New tokens with a cache of transformers, rebuilt in each call without copying its keys and values."""
    x, *cache = inputs.tensors
    names = ("output", *map(written_to, inputs.names[1:]))
    return Call(
        lambda: module(x, cache=tuple(cache), **inputs.options), lambda outputs: dict(zip(names, outputs, strict=True))
    )


def _decode(module: nn.Module, case: Case, inputs: Inputs) -> Call:
    """New tokens with a cache, whose last positions receive the new keys and values or latents."""
    x, *cache = inputs.tensors

    def read(o: Tensor) -> dict[str, Tensor]:
        pages = inputs.options.get("pages")
        whole = cache if pages is None else [in_order(pool, pages, case.page or 1, case.T_kv) for pool in cache]
        written = (known[..., -case.T :, :] for known in whole)
        return {"output": o} | dict(zip(map(written_to, inputs.names[1:]), written, strict=True))

    return Call(lambda: module(x, cache=tuple(cache), **inputs.options), read)
