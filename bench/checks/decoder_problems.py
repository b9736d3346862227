"""Test problems of decoder blocks and models: weights, inputs, and transformers' own eager model in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softmax
from torch.overrides import TorchFunctionMode

from impls import LayerShape
from impls import weights as canonical

from ..cases.case import Case
from ..cases.decoders import BLOCKS, config_for, output_width, weights_case
from . import data, reference
from .bounds import expected_of
from .problem import Problem, written_to
from .reference import Tensors

COMPARED = 1 << 24
"""Maximum number of logits compared."""

SMALL = 0.125
"""Scale of a block's input: small enough that the contributions of attention and MLP show. Each follows a norm."""


def decoder_of(case: Case, dtype: torch.dtype, core: Callable[[LayerShape], nn.Module] | None) -> Any:
    """Return the `Decoder` of a case with the given core, or with transformers' own eager attention if None."""
    from impls.decoder import Decoder  # not there in earlier revisions of `impls`

    return Decoder(config_for(case), case.scope, case.layer_shape, core, dtype)


@lru_cache(maxsize=6)
@torch.inference_mode(False)
def decoder_problem(case: Case, input_set: int) -> Problem:
    """Return the test problem: x (B, T, d_model) of a block, or tokens (B, T) of a model; in `decode` also each block's
    keys and values of earlier tokens, (B, H_kv, T_kv - T, D).

    Weights are the same in every input set. Expected outputs: the output (of a model, the logits of some rows), the
    entries written to the cache, and the gradients of x and of every weight.
    """
    generator, weights = data.seeded(case, input_set + 1), _weights(weights_case(case))
    names, exact = zip(*_drawn_inputs(case, generator).items(), strict=True)
    inputs = tuple(x.to(case.device, getattr(torch, case.dtype) if x.is_floating_point() else None) for x in exact)
    padding = data.padding(case, input_set)
    if padding is not None and case.does.cached:
        padding = padding.flip(-1)  # the newest tokens are tokens
    rows = data.rows(case, input_set, COMPARED / case.B / output_width(case))
    compared = None if case.does.cached else data.compared(case, padding, rows)
    grad = data.grad(case, (case.B, case.T, output_width(case)), rows, compared, generator)

    def formula(dtype: torch.dtype) -> Tensors:
        """Return every expected output from transformers' eager model with parameters of `dtype`."""
        module = decoder_of(case, dtype, None).to(case.device)
        canonical.load(module, weights)
        x, *cache = (it.to(dtype) if it.is_floating_point() else it for it in inputs)
        if grad is not None and x.is_floating_point():
            x.requires_grad_()
        of_head = rows if case.scope == "model" else None
        with Widened(), torch.set_grad_enabled(grad is not None):
            found = module(x, padding=padding, cache=tuple(cache), rows=of_head)
            if case.does.cached:
                return dict(zip(("output", *map(written_to, names[1:])), found, strict=True))
            o = found if rows is of_head else found[:, rows]
            leaves = {"x": x} if x.requires_grad else {}
            leaves |= {name: p[0] for name, p in module.parts(lambda p: p).items()}
            return {"output": o.detach()} | reference.gradients(o, leaves, grad, rows)

    return Problem(case, names, inputs, padding, grad, weights, partial(expected_of, formula, case, rows, compared))


def _drawn_inputs(case: Case, generator: torch.Generator) -> Tensors:
    if case.scope == "block":
        found = {"x": data.randn((case.B, case.T, case.d_model), generator) * SMALL}
    else:
        found = {"x": torch.randint(output_width(case), (case.B, case.T), generator=generator)}
    if case.does.cached:
        keys_and_values = data.cache_sizes(replace(case, T_kv=case.T_kv - case.T))
        for block in range(BLOCKS[case.scope]):
            for what, size in zip(("keys", "values"), keys_and_values, strict=True):
                found[f"{what} of block {block}"] = data.randn((case.B, *size), generator)
    return found


@lru_cache(maxsize=2)
@torch.inference_mode(False)
def _weights(case: Case) -> Tensors:
    return data.in_dtype(decoder_of(case, torch.float32, None).draw(data.seeded(case, 0)), case)


class Widened(TorchFunctionMode):
    """Keeps float64 tensors in float64 where transformers' models would compute in float32: norms, softmax."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func in (Tensor.to, Tensor.float, Tensor.type, softmax) and args[0].dtype == torch.float64:
            if func is Tensor.float:
                return args[0]
            args = (args[0], *_widened(args[1:]))
            given = dict(zip(given, _widened(given.values()), strict=True))
        return func(*args, **given)


def _widened(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(torch.float64 if it is torch.float32 else it for it in values)
