"""Defines one call: forward, forward and backward, or next token. The same call is checked, timed and profiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from impls import weights as canonical
from impls.paging import places

from ..cases.case import Case
from ..cases.outcome import Wrong
from . import settings
from .inputs import Inputs
from .problem import written_to
from .reference import Tensors


@dataclass(frozen=True)
class Call:
    """One call of a module on its inputs, ready to be timed, and how its outputs are read."""

    module: nn.Module
    case: Case
    inputs: Inputs
    run: Callable[[], Any]
    read: Callable[[Any], Tensors]
    """Maps the return value of `run` to tensors by the names used in `Problem.expected`."""
    back: Callable[..., Any] = lambda o, grad, again: o
    """The return value of `run`, as of `outputs`."""

    def on(self, inputs: Inputs) -> Call:
        """Return the same call on other inputs."""
        return call_of(self.module, self.case, inputs)

    def forward(self) -> Any:
        """Return the output of a core, or of a layer without a cache."""
        return self.module(*self.inputs.tensors, **self.inputs.options)

    def outputs(self, o: Tensor, grad: Tensor | None = None, again: bool = False) -> Tensors:
        """Return the outputs of a call whose forward has returned `o`: with gradients if the case has them, of `inputs.grad`
        if not of `grad`. `again`: another backward may follow.
        """
        return self.read(self.back(o, grad, again))


def call_of(module: nn.Module, case: Case, inputs: Inputs) -> Call:
    """Return the call of `case` on a layer or a core with the given inputs. What the next call overwrites is read as copies."""
    if case.does.gradients:
        call = _backward(module, case, inputs)
    elif case.does.cached and case.scope != "core":
        call = _decode(module, case, inputs)
    else:
        call = Call(module, case, inputs, lambda: module(*inputs.tensors, **inputs.options), lambda o: {"output": o})
    if not graphed(module, case):
        return call
    return replace(call, read=lambda o: {name: x.clone() for name, x in call.read(o).items()})


def graphed(module: nn.Module, case: Case) -> bool:
    """Whether each call of a compiled form overwrites the output of the one before, which torch then refuses to read."""
    return case.device != "cpu" and getattr(module, "graphed", False)


@contextmanager
def recording(case: Case, inference: bool = True) -> Iterator[None]:
    """Context of a call: records gradients only if needed, sets deterministic algorithms and TF32 as the case requires.

    Raises `Wrong` if the call leaves these settings changed. Without `inference`, inference mode is not used.
    """
    unrecorded = torch.inference_mode if inference else torch.no_grad
    with (
        nullcontext() if case.does.gradients else unrecorded(),
        settings.tf32_products(case.tf32),
        settings.changed("deterministic algorithms", True, case.deterministic),
    ):
        yield
        if case.deterministic and not torch.are_deterministic_algorithms_enabled():
            raise Wrong("turns torch's deterministic algorithms off")


def not_a_tensor(found: object, case: Case) -> Wrong:
    """Return the fault of a call that has returned something else."""
    may_be_lse = isinstance(found, tuple) and case.scope == "core"
    lse = "; (o, lse) needs `returns_lse` in its limits" if may_be_lse else ""
    return Wrong(f"returns {type(found).__name__}, not a tensor{lse}")


def _backward(module: nn.Module, case: Case, inputs: Inputs) -> Call:
    """Forward, then gradients of every input and every parameter that needs one, given the gradient of the output."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    learning = {name: x for name, x in zip(inputs.names, inputs.tensors, strict=True) if x.requires_grad}
    wanted = [*learning.values(), *parameters]

    def back(o: Tensor, grad: Tensor | None = None, again: bool = False) -> tuple[Tensor, ...]:
        if not isinstance(o, Tensor):
            raise not_a_tensor(o, case)
        if not o.requires_grad:
            raise Wrong("no gradient reaches its inputs: the output is detached")
        grad = inputs.grad if grad is None else grad
        return o, *torch.autograd.grad(o, wanted, grad, allow_unused=True, retain_graph=again)

    def read(outputs: tuple[Tensor, ...]) -> Tensors:
        o, *grads = outputs
        found = {x: grad for x, grad in zip(wanted, grads, strict=True) if grad is not None}
        if missing := [name for name, x in learning.items() if x not in found]:
            detached = ": the output is detached" if len(missing) == len(learning) else ""
            raise Wrong(f"no gradient reaches {' and '.join(missing)}{detached}")
        named = {name: found[x] for name, x in learning.items()}
        named |= canonical.gradients(module, found)
        return {"output": o} | {f"gradient of {name}": grad for name, grad in named.items()}

    return Call(module, case, inputs, lambda: back(module(*inputs.tensors, **inputs.options)), read, back)


def _decode(module: nn.Module, case: Case, inputs: Inputs) -> Call:
    """New tokens with a cache. The last positions of a layer's receive the new keys and values or latents; that of a model
    is transformers' own, rebuilt in each call without copying its keys and values.
    """
    x, *cache = inputs.tensors

    def read(found: Any) -> Tensors:
        if not case.in_model:
            pages, first = inputs.options.get("pages"), case.T_kv - case.T
            if pages is None:
                found = found, *(known[..., first:, :] for known in cache)
            else:
                where = places(pages, case.page or 1, first, case.T_kv)  # (B, T)
                found = found, *(pool.squeeze(0)[:, where].transpose(0, 1) for pool in cache)
        return dict(zip(("output", *map(written_to, inputs.names[1:])), found, strict=True))

    return Call(module, case, inputs, lambda: module(x, cache=tuple(cache), **inputs.options), read)
