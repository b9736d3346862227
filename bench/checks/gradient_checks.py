"""Checks gradients in the ways in which training uses them, beside those of one forward and its backward."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from impls import Impl
from impls.registry import Compiled

from ..cases.case import Case
from ..cases.outcome import Wrong
from .attention_problems import problem_of
from .building import keeping_settings, new_call
from .calls import Call, recording
from .checked_calls import (
    CALLS_KEPT,
    call_with_another_mask,
    changing_nothing,
    check_numbers_exchanged,
    check_once,
    check_zeros,
)
from .inputs import Inputs, inputs_of
from .reference import Tensors
from .verifying import verify

SAME_GRADIENT = 0.05
"""Difference of gradients, in units of the largest one, above which they are not the same."""

FORWARDS, BACKWARDS = (0, 1, 1), (1, 0, 2)
"""Input sets of the forwards that precede all backwards, and the order of these: neither that of a queue nor of a stack. A
layer that alternates between two buffers fails at the third forward.
"""

SMALL_GRADIENT = 2.0**-24
"""Size of a gradient below the numbers of float16, and of one above them its inverse: a power of two, by which products are
exact.
"""


def check_many_forwards(call: Call, numbers: Sequence[Inputs]) -> None:
    """Check gradients in training mode after several forwards: each backward must use its own forward's state; raises
    `Wrong`.

    The gradient of the output is as small as a mean over many tokens makes it, in the last backward as large, except in
    float16.
    """
    case, module = call.case, call.module
    small = 1.0 if case.computes == "float16" else SMALL_GRADIENT
    module.train(not (case.drops or case.in_model or isinstance(module, Compiled)))  # which would be compiled again
    calls = [call.on(it) for it in numbers]
    with recording(case):
        outputs = [it.forward() for it in calls]
    for at, size in zip(BACKWARDS, (small, small, 1 / small), strict=True):
        of_call = calls[at]
        assert of_call.inputs.grad is not None
        problem = problem_of(case, FORWARDS[at])
        with recording(case), changing_nothing(of_call, problem):
            found = of_call.outputs(outputs[at], of_call.inputs.grad * size)
        found |= {name: it / size for name, it in found.items() if name != "output"}
        why = "in training, where another forward comes between a forward and its backward, "
        verify(found, problem, f"{why}with gradients of size {size:.0e}: ")
    module.eval()


def check_uses(impl: Impl, case: Case) -> None:
    """Check gradients in uses of an output that training may have; raises `Wrong`.

    Some inputs need no gradient; the output's gradient is zero, in all or half of the rows; two numbers of each input are
    exchanged, or all are zero; the output is summed, whose gradient has stride 0; it or the inputs are changed in place before
    the backward; a call with another mask comes before it; and a second backward over the same graph gets a gradient whose
    features aren't adjacent. A `RuntimeError`, as autograd raises for saved tensors that have changed, is no fault. Code by
    torch.compile doesn't see changes in place (torch 2.13): what it was compiled from is checked.
    """
    _check_some_gradients(impl, case)
    call = new_call(impl, case)
    with keeping_settings(), recording(case):
        _check_zero_gradient(call)
        check_numbers_exchanged(call)
        check_zeros(call)
        call.inputs.refill(problem_of(case))
        with suppress(RuntimeError):
            _check_sum(call)
        with suppress(RuntimeError):
            _check_two_backwards(impl, call)
        for check in (_check_changed_output, _check_changed_inputs):
            with suppress(RuntimeError), _not_compiled():
                check(call)


def check_later_forwards(impl: Impl, case: Case) -> None:
    """Check a backward after as many forwards as a model has layers: a kernel may keep their states in a few places in turn."""
    call = new_call(impl, case)
    later = call.on(inputs_of(problem_of(case, 1)))
    with keeping_settings(), recording(case):
        o, *_ = [it.forward() for it in (call, *[later] * CALLS_KEPT)]  # all kept until the backward
        outputs = call.outputs(o)
    verify(outputs, problem_of(case), f"where {CALLS_KEPT} forwards come between a forward and its backward: ")


def _not_compiled() -> AbstractContextManager[Any]:
    """Context in which functions that torch.compile has compiled run as they were written."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def _check_some_gradients(impl: Impl, case: Case) -> None:
    """Check gradients where a single input needs one, or all but one, of which the weights count as one; raises `Wrong`."""
    call, problem = new_call(impl, case), problem_of(case)
    weights, named = [it for it in call.module.parameters() if it.requires_grad], tuple(problem.weights)
    inputs = [*((name,) for name in call.inputs.names), *([named] if named else [])]
    others = [tuple(name for it in inputs if it != one for name in it) for one in inputs]
    for some in dict.fromkeys([*inputs, *others]):
        for weight in weights:
            weight.requires_grad_({*named} <= {*some})
        for name, x in zip(call.inputs.names, call.inputs.tensors, strict=True):
            x.requires_grad_(name in some)
        shown = [it for it in problem.expected if it.name.removeprefix("gradient of ") in ("output", *some)]
        try:
            check_once(call.on(call.inputs), replace(problem, solve=partial(tuple, shown)))
        except Wrong as fault:
            raise Wrong(f"where {' and '.join(some)} alone need gradients: {fault}") from None


def _check_zero_gradient(call: Call) -> None:
    """Check gradients of zero, and those of the first and the last half of the rows, which add up to those of all."""
    assert call.inputs.grad is not None
    _, *nothing = call.outputs(call.forward(), call.inputs.grad * 0).values()
    if any(it.count_nonzero() for it in nothing):
        raise Wrong("gradients that are not zero where that of the output is")
    grad, T = call.inputs.grad, call.inputs.grad.shape[-2]
    last = torch.arange(T, device=grad.device)[:, None] >= T // 2
    halves = [call.outputs(call.forward(), grad * rows) for rows in (last, ~last)]
    whole = {it.name: it.reference for it in problem_of(call.case).expected}
    _check_same(call, whole, halves, "is zero in half of the rows")


def _check_same(call: Call, known: Tensors, parts: Sequence[Tensors], where: str) -> None:
    """Check that the gradients of the inputs in `parts` add up to those `known`; raises `Wrong`."""
    names = [f"gradient of {name}" for name in call.inputs.names]
    largest = max(known[name].norm() for name in names)
    for name in names:
        if not sum((-it[name] for it in parts), known[name]).norm() <= SAME_GRADIENT * largest:
            raise Wrong(f"{name} where that of the output {where}")


def _check_sum(call: Call) -> None:
    """Check the gradients of a sum of all outputs, which expands a single number."""
    assert call.inputs.grad is not None
    if call.case.padded:  # padded queries may have any output
        return
    ones = torch.ones_like(call.inputs.grad)
    of_sum, known = (call.outputs(call.forward(), it) for it in (ones.flatten()[0].expand_as(ones), ones))
    _check_same(call, known, [of_sum], "has stride 0, as that of a sum has")


def _check_changed_output(call: Call) -> None:
    outputs = call.outputs(call.forward().mul_(2.0) / 2)
    verify(outputs, problem_of(call.case), "where its output is changed in place before the backward: ")


def _check_two_backwards(impl: Impl, call: Call) -> None:
    """Check a backward after a call with another mask, and a second one over the same graph."""
    problem, o, grad = problem_of(call.case), call.forward(), call.inputs.grad
    assert grad is not None
    call_with_another_mask(impl, call.case)
    outputs = call.outputs(o, grad, again=True)
    verify(outputs, problem, "where a call with another mask comes between a forward and its backward: ")
    second: Tensors = {}
    with suppress(Exception):  # it refuses a second backward, for which it has kept nothing
        second = call.outputs(o, grad.mT.contiguous().mT)
    if second:
        why = "in a second backward over the same graph, of a gradient whose features aren't adjacent: "
        verify(second, problem, why)


def _check_changed_inputs(call: Call) -> None:
    o = call.forward()
    with torch.no_grad():
        for x in call.inputs.tensors:
            x.mul_(2.0)
    verify(call.outputs(o), problem_of(call.case), "where its inputs are changed in place before the backward: ")
