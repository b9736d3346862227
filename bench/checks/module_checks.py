"""Checks of an implementation in one case: each builds a new core or layer, and raises `Wrong` if that is wrong."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from impls import Impl
from impls import weights as canonical

from ..cases.case import Case
from ..cases.outcome import Wrong
from . import reference, settings
from .attention_problems import autocasting, output_of, problem_of
from .bounds import FACTOR
from .building import keeping_settings, module_of, new_call, prepare
from .calls import Call, call_of
from .checked_calls import (
    CALLS_KEPT,
    call_with_another_mask,
    check_call,
    check_memory,
    check_numbers_exchanged,
    check_once,
    check_zeros,
    dtype_name,
)
from .data import epsilon
from .gradient_checks import FORWARDS, check_many_forwards
from .inputs import inputs_of, read_only, sequence_first, strided
from .patterns import ORDINARY, PATTERNS
from .probes import LONG_PROBE
from .problem import Problem
from .revealing_problems import showing_output, showing_sums, showing_tails, solved, without_queries
from .verifying import TOP_LEFT, CheckResult, verify

FLOOR_OF_LSE, EPSILON_OF_LSE = 1e-6, 1 / 8
"""Error of a log-sum-exp that is allowed beside that of the plain formula, per unit of 1 + |lse|: the larger of eight epsilons
of float32, and an eighth of the epsilon of the case's dtype, to which some kernels round scaled queries.
"""


def check_case(impl: Impl, case: Case) -> CheckResult:
    """Compare two calls with the reference, on ordinary inputs and on every stress pattern."""
    return check_call(new_call(impl, case), (0, 1))


def check_probe(impl: Impl, case: Case) -> None:
    """Compare calls with the reference on all input sets and on other tensors, and with gradients after several forwards.

    A core's q, k, v and mask have the memory layout of a model: not contiguous.
    """
    module: Any = module_of(impl, case)
    numbers, *others = (
        inputs_of(problem_of(case, input_set)) for input_set in FORWARDS[: None if case.does.gradients else 1]
    )
    if case.scope == "core":
        numbers, *others = map(strided, (numbers, *others))
        if isinstance(mask := getattr(module, "visible", None), Tensor):
            module.visible = pad(mask, (0, 1))[..., :-1]
    call = call_of(module, case, numbers)
    check_call(call, range(3 if case.padded or case.page else 2), on_other_tensors=True)
    if case.does.gradients:
        with keeping_settings():
            numbers.refill(problem_of(case))
            prepare(module, case)
            check_many_forwards(call, (numbers, *others))
            if case.T <= LONG_PROBE and not case.in_model and problem_of(case).weights:
                _check_new_weights(call)


def _check_new_weights(call: Call) -> None:
    """Check a module after its weights change: results derived from the old weights must not be used."""
    problem = solved(showing_output, call.case)
    canonical.load(call.module, problem.weights)
    prepare(call.module, call.case)
    call.inputs.refill(problem)
    check_once(call, problem, "with other weights than before: ")


def check_probe_after_another_mask(impl: Impl, case: Case) -> None:
    """Check a probe of a core or a layer after a call with another mask in the same process.

    If a kernel can't be compiled, torch's `load_inline` says why in the first call, and in later ones that the library
    is missing.
    """
    first = call_with_another_mask(impl, case)
    try:
        check_probe(impl, case)
    except ImportError as error:
        raise (first or error) from None


def check_scale(impl: Impl, case: Case) -> None:
    """Compare a kernel that has a parameter `scale` with the reference: q halved, scale doubled. One that takes any keyword may
    also ignore a scale, or raise an exception for it.
    """
    parameters: Mapping[str, inspect.Parameter] = {}
    with suppress(TypeError, ValueError):  # of no kernel, and of builtins
        parameters = inspect.signature(impl.kernel).parameters  # type: ignore[arg-type]
    if "scale" in parameters:
        _check_scaled(impl, case, 0.5)
    elif any(it.kind is it.VAR_KEYWORD for it in parameters.values()):
        with suppress(Exception):
            _check_scaled(impl, case, 1.0)
            return  # it ignores the scale
        try:
            _check_scaled(impl, case, 0.5)
        except Exception as error:
            if isinstance(error, Wrong):
                raise


def _check_scaled(impl: Impl, case: Case, factor: float) -> None:
    """Check a kernel with twice the usual scale, and queries multiplied by `factor`: with 0.5 it is right if it uses the scale,
    with 1 if it ignores it.
    """
    call = new_call(impl, case)
    module: Any = call.module
    kernel = module.kernel
    module.kernel = lambda q, *others, **options: kernel(q * factor, *others, **options | {"scale": 2 * case.D_h**-0.5})
    check_once(call, problem_of(case), "with a scale of the caller's own: ")


Kernel = Callable[..., Any]

LAYOUT = "q, k, v and the output are (B, H, T, D)"

OF_KERNELS: dict[str, Callable[[Kernel], Kernel]] = {
    "attn_mask is True where a query may see a key": lambda kernel: (
        lambda *qkv, attn_mask, **options: kernel(*qkv, attn_mask=~attn_mask, **options)
    ),
    LAYOUT: lambda kernel: lambda *qkv, **options: kernel(*(x.transpose(1, 2) for x in qkv), **options).transpose(1, 2),
    "scores are divided by the square root of D_h": lambda kernel: (
        lambda q, *kv, **options: kernel(q / q.shape[-1] ** 0.5, *kv, **options)
    ),
    TOP_LEFT: lambda kernel: (  # aligned bottom right, as many queries as keys see these
        lambda q, k, *v, is_causal, **options: kernel(
            pad(q, (0, 0, 0, k.shape[-2] - q.shape[-2])), k, *v, is_causal=is_causal, **options
        )[..., : q.shape[-2], :]
    ),
}
"""Conventions that a kernel may not follow, and how to compensate for that."""

OF_LAYERS: dict[str, Callable[[Kernel], Kernel]] = {
    "padding is True where a key is a token": lambda layer: (
        lambda *tokens, padding, **options: layer(*tokens, padding=~padding, **options)
    ),
    "x and the output are (B, T, features)": lambda layer: (
        lambda *tokens, **options: layer(*(x.transpose(0, 1) for x in tokens), **options).transpose(0, 1)
    ),
    "x, a residual, isn't added to the output": lambda layer: (
        lambda x, *others, **options: layer(x, *others, **options) - x
    ),
}
"""Conventions that a layer may not follow, and how to compensate for that."""

SCORES = (
    "right where W_q is zero: rotary angles, a norm of q or k, another scale, other key heads or no bias of q change "
    "its scores"
)


def broken_convention(impl: Impl, case: Case) -> str | None:
    """Return the convention that a core or layer does not follow: it is wrong on ordinary inputs, and right if that is
    compensated for. None if there is no such convention.
    """
    is_core = case.scope == "core"
    changed, conventions = ("kernel", OF_KERNELS) if is_core else ("forward", OF_LAYERS)
    with suppress(Exception):
        _check_ordinary(impl, case)
        return None
    for convention, compensating in conventions.items():
        if case.T_kv != case.T and convention == LAYOUT:  # more key heads than heads: native code may crash
            continue
        with suppress(Exception):
            call = new_call(impl, case)
            module = call.module
            setattr(module, changed, compensating(getattr(module, changed)))
            check_once(call, problem_of(case))
            return convention
    if not is_core:
        with suppress(Exception):
            _check_on(without_queries, "", impl, case)
            return SCORES
    return None


def check_buffers(impl: Impl, case: Case) -> None:
    """Check the last output of many calls, one where only two numbers of each input have changed since, and one of zeros."""
    call = new_call(impl, case)
    verify(check_memory(call), problem_of(case), f"in the last of {CALLS_KEPT} calls: ")
    if not case.page:  # whose keys lie anywhere in a pool
        check_numbers_exchanged(call)
    check_zeros(call)


def check_read_only(impl: Impl, case: Case) -> None:
    """Check a core whose inputs can't be written: one that does, even if it restores them, ends its process."""
    call = new_call(impl, case)
    check_once(call.on(read_only(call.inputs)), problem_of(case), "where inputs are read-only: ")


def check_sequence_first(impl: Impl, case: Case) -> None:
    """Check a layer whose tokens are a view of (T, B, d_model); one that raises an exception for that is not wrong."""
    call = new_call(impl, case)
    with suppress(RuntimeError, ValueError, AssertionError):  # as `Tensor.view` does
        check_once(call.on(sequence_first(call.inputs)), problem_of(case), "where x is a view of (T, B, d_model): ")


def _check_on(make: Callable[[Case], Problem], why: str, impl: Impl, case: Case) -> None:
    """Check one call on the problem that `make` returns; `why` begins the message of a failure."""
    problem = solved(make, case)
    check_once(new_call(impl, case, problem), problem, why)


_check_ordinary = partial(_check_on, problem_of, "")
_check_patterns = partial(_check_on, partial(problem_of, input_set=1), "")
check_low_scores = partial(
    _check_on, showing_tails, "where many keys with low scores and large values make the output: "
)


def check_sums(impl: Impl, case: Case) -> None:
    """Check a core where small parts are added to a large one. cuBLAS may add up parts of a product in the narrow dtype, by
    torch's default: not here, since that isn't the kernel's choice.
    """
    with settings.changed("reduced sums of bfloat16", False), settings.changed("reduced sums of float16", False):
        _check_on(showing_sums, "where small parts are added to a large one: ", impl, case)


def check_few_queries(impl: Impl, case: Case) -> None:
    """Check every pattern. A fault at ordinary scores is reported on ordinary inputs if they show it: it needs no extremes."""
    try:
        _check_patterns(impl, case)
    except Wrong as wrong:
        if str(wrong).startswith(PATTERNS[ORDINARY]):
            _check_ordinary(impl, case)
        raise


def check_lse(impl: Impl, case: Case) -> None:
    """Compare a kernel's log-sum-exp with the reference: on ordinary scores, in every pattern, with many low scores."""
    module = module_of(impl, case)
    module.kernel = impl.kernel  # type: ignore[assignment]  # whose second output the core leaves out
    problems = {problem_of(case, input_set): EPSILON_OF_LSE for input_set in (0, 1)}
    if case.T_kv > LONG_PROBE:
        problems[showing_tails(case)] = 1 / 2  # a score is one product
    with torch.no_grad():  # all at first: a later one must not change an earlier one
        found_all = [module(*it.tensors, **it.options) for it in map(strided, map(inputs_of, problems))]
    for (problem, epsilons), found in zip(problems.items(), found_all, strict=True):
        if not (isinstance(found, tuple) and len(found) == 2):
            raise Wrong(f"returns {type(found).__name__}, not (o, lse)")
        lse, size = found[1], problem.inputs[0].shape[:-1]
        if not isinstance(lse, Tensor):
            raise Wrong(f"lse is a {type(lse).__name__}, not a tensor")
        if lse.shape != size or lse.dtype not in (torch.float32, torch.float64):
            raise Wrong(f"lse is {dtype_name(lse)} {tuple(lse.shape)}, not float32 {tuple(size)}")
        _compare_lse(lse, impl.limits.returns_lse or math.e, problem, epsilons)


def _compare_lse(lse: Tensor, base: float, problem: Problem, epsilons: float) -> None:
    """Compare a log-sum-exp, whose logarithm has this base, with the reference; raises `Wrong`. Beside a multiple of the plain
    formula's error `epsilons` of the case's dtype are allowed.
    """
    case = problem.case
    with reference.attending(reference.log_sum), autocasting(case):
        exact, plain = (output_of(problem, getattr(torch, dtype))[..., 0] for dtype in ("float64", case.dtype))
    shown = torch.ones_like(exact, dtype=torch.bool)
    if problem.padding is not None and case.source == "self":
        shown &= problem.padding[:, None]
    error, own = ((it.double() - exact)[shown].abs() for it in (lse * math.log(base), plain))
    size, least = 1 + exact[shown].abs(), max(FLOOR_OF_LSE, epsilons * epsilon(case))
    if not (error <= (FACTOR * (own / size).max() + least) * size).all():
        most = error.nan_to_num(torch.inf, torch.inf).max()
        raise Wrong(f"lse is off by {most:.1e} of {exact[shown].abs().max():.1f}, if its base is {base:.4g}")
