"""Builds an implementation's module with the weights of a case, prepares it, and restores global state."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

import torch
from torch import nn

from impls import FORMS, Impl, get
from impls import weights as canonical
from impls.registry import Compiled, eager_name

from ..cases.case import Case
from ..cases.outcome import Wrong
from . import settings
from .attention_problems import autocasting, problem_of
from .calls import Call, call_of
from .decoder_problems import decoder_of
from .inputs import inputs_of
from .problem import Problem

GRAPHS = 4096
"""Graphs of one function that torch.compile may hold: the probes need more than its default of eight, beyond which it runs
the eager function.
"""


def module_of(impl: Impl, case: Case, problem: Problem | None = None) -> nn.Module:
    """Return the core or layer of `impl` for `case`, with its weights, or those of `problem`, dtype and device.

    Raises `Wrong` if building or preparing it changes global settings.
    """
    problem = problem or problem_of(case)
    with keeping_settings(" when it is built"):
        module = _built(impl, case).to(case.device)
        if case.autocast:
            module.forward = autocasting(case)(module.forward)
        if problem.weights:
            canonical.load(module, problem.weights)
        prepare(module.eval(), case)  # a layer may merge its weights in `eval`
    if config := sys.modules.get("torch._dynamo.config"):  # a kernel may compile itself
        config.recompile_limit = config.accumulated_recompile_limit = GRAPHS  # type: ignore[attr-defined]
    return module


def new_call(impl: Impl, case: Case, problem: Problem | None = None) -> Call:
    """Return the call of a new core or layer, with the weights and inputs of `problem`, or the ordinary ones."""
    return call_of(module_of(impl, case, problem), case, inputs_of(problem or problem_of(case)))


def _built(impl: Impl, case: Case) -> nn.Module:
    dtype = getattr(torch, case.dtype)
    if case.in_model:
        built = decoder_of(case, dtype, eager_form(impl).core)
        return Compiled(built, **FORMS[impl.name.removeprefix(eager_name(impl.name))]) if impl.compiled else built
    build = impl.core if case.scope == "core" else impl.layer
    assert build is not None
    return build(case.layer_shape).to(dtype)


def eager_form(impl: Impl) -> Impl:
    """Return the eager form of a compiled implementation, whose kernel is checked; the compiled layer is timed."""
    return get(eager_name(impl.name)) if impl.compiled else impl


def prepare(module: nn.Module, case: Case, input_set: int = 0) -> float | None:
    """Let a module build its tables for a mask and a length; returns the seconds, or None if it builds nothing."""
    make: Callable[..., None] | None = getattr(module, "prepare", None)
    if make is None:
        return None
    start = perf_counter()
    problem = problem_of(case, input_set)
    paged = {} if problem.pages is None else {"pages": problem.pages, "pool": problem.inputs[1].shape[-2]}
    make(case.T, case.T_kv, problem.padding, case.device, **paged)
    return perf_counter() - start


@contextmanager
def keeping_settings(when: str = "", cheap: bool = False) -> Iterator[None]:
    """Raise `Wrong` if global settings change within the block, and restore them in any case. `cheap` as in
    `settings.read`.
    """
    before = settings.read(cheap)
    try:
        yield
    finally:
        changed = settings.restore(before)
    if changed:
        raise Wrong(f"modifies global torch settings{when}: {', '.join(changed)}")
