"""Checks every implementation against a float64 reference before it is timed; no row is written without this check."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from impls import Impl
from impls import weights as canonical
from impls.registry import Compiled

from ..cases.case import Case, tokens_of
from ..cases.outcome import Wrong, classify
from ..cases.sweep import misfit
from . import reference, settings
from .bounds import FACTOR, WIDE
from .building import eager_form, keeping_settings, module_of, prepare
from .calls import Call, call_of, recording
from .data import cache_sizes
from .dropout import check_dropout, check_independence, check_shares, kept_probs, spanning
from .patterns import PATTERNS
from .problem import (
    Errors,
    Expected,
    Inputs,
    Problem,
    copies,
    elsewhere,
    inputs_of,
    same,
    strided,
    surroundings_intact,
)
from .problems import (
    output_of,
    problem_of,
    showing_output,
    showing_probs,
    showing_sums,
    showing_tails,
    with_numbers_exchanged,
)
from .shortening import shortened_rules

LONG_PROBE = 512
"""Probes up to this length have several batch entries and heads; longer ones cover long ranges only."""

FEW = 1 << 15
"""Pairs of a query and a key up to which a core is checked without its layer in the case itself, not only on probes."""

PROBES = (37, 513, 64, 127, 128)
"""Lengths of the probes: 37, less than a tile of 64; 513, one token more than tiles of 64, 128 or 256; 64, half of a tile
of 128; 127, one token less than tiles of 64 or 128; and 128, a round length, for which some kernels have a separate
path. A compiled form is probed at the first length only, since each length is compiled separately: its eager form is
probed at all lengths, and it is checked in every pattern in the case itself.

An implementation that declares a length unsupported is probed at the nearest supported length on the same side of
`LONG_PROBE`.
"""

ENTRIES = (len(PATTERNS), 4)
"""Batch entries of lone queries of a layer, which shows one pattern per entry: all patterns, or four (a late key;
ordinary, very large and very negative scores).
"""

FLOOR_OF_LSE = 1e-6
"""Error of a log-sum-exp allowed beside the plain formula's, per unit of its size: eight epsilons of float32."""

LARGEST_CACHE = 1 << 26
"""Numbers in the caches of lone queries up to which they get more batch entries than their case has, and up to which their
log-sum-exp is checked.
"""

PROBE_CAP = 50
"""Soft cap of probes, which the patterns' large scores exceed."""

ROUND = 16
"""A multiple of this counts as a round length: it leaves no partial tile, however small."""


def ragged(probes: Sequence[Case]) -> bool:
    """Whether some length is not round: an implementation limited to round lengths is checked at those alone."""
    return any(probe.max_T % ROUND for probe in probes)


class Gate:
    """Checks implementations, and skips what has `passed` already."""

    def __init__(self) -> None:
        self.passed: set[str] = set()
        """Checks passed in this process, or in another one of the run: implementation, check and case."""

    def check(self, impl: Impl, case: Case) -> tuple[Case, ...]:
        """Run all checks except that of the timed module, and return the probes; raises `Wrong` with a sentence, or the
        implementation's exception.

        A core is checked on q, k, v built by the gate, whatever the case's scope. Cores and layers are checked on
        probes of ragged length with several heads and batch entries, since sweeps often contain round sizes only. In a
        model, a core is probed at the first length alone: length-dependent faults show in the core's own check. Beyond
        `FEW` pairs a core is checked on the probes alone: in the case itself its rows are checked through the layer.
        """
        eager = eager_form(impl)
        if eager.core is not None and case.scope == "layer" and case.H * case.T * case.T_kv <= FEW:
            self._once("kernel", eager, case.core, check_case)
        if (lone := lone_queries(eager, case)) is not None:
            self._once("lone queries", eager, lone, check_patterns)
        if eager.limits.returns_lse and case.T == 1 and _cached_numbers(case.core) <= LARGEST_CACHE:
            self._once("log-sum-exp", eager, case.core, check_lse)
        probed = probes(impl, replace(case, threads=None))
        used = (probed[0], probed[-1]) if case.does.gradients else probed[:1]  # a ragged length, and a round one
        for probe in probed:
            if eager.core is not None:
                self._once("kernel (probe)", eager, probe.core, check_probe_after_another_mask)
                if probe in (probed[0], probed[-1]):
                    self._once("scale", eager, probe.core, check_scale)
                if probe.T_kv > LONG_PROBE:
                    self._once("low scores", eager, probe.core, check_low_scores)
                    if case.dtype not in WIDE:
                        self._once("sums", eager, probe.core, check_sums)
            if eager.limits.returns_lse:
                self._once("log-sum-exp", eager, probe.core, check_lse)
            if eager.core is None or impl.compiled or (case.in_model and probe is probed[0]):
                scope = "kernel" if probe.scope == "core" else probe.scope
                self._once(f"{scope} (probe)", impl, probe, check_probe)
            if probe in used and probe.T_kv <= LONG_PROBE:
                what, check = ("gradients", check_uses) if case.does.gradients else ("outputs", check_buffers)
                self._once(what, eager, probe if eager.core is None else probe.core, check)
        for probe in (it for it in padded(probed) if impl.refusal(it) is None):
            self._once(f"{case.scope} (probe)", eager, probe, check_probe)
        if case.drops:
            with keeping_settings():
                self._check_dropout(impl, eager, case)
        return probed

    def check_threads(self, impl: Impl, case: Case) -> None:
        """Check a probe with the threads set now, among which a kernel may divide its work; raises as `check_case`."""
        eager = eager_form(impl)
        for probe in probes(impl, replace(case, threads=None))[:1]:
            self._once("several threads", eager, probe if eager.core is None else probe.core, check_case)

    def _check_dropout(self, impl: Impl, eager: Impl, case: Case) -> None:
        """Check dropout of probs and of the output separately: each is visible only while the other is off."""
        probs = replace(case if eager.core is None else case.core, out_dropout=0.0)
        if case.dropout:
            self._once("dropout", impl, replace(case, out_dropout=0.0), check_dropout)
        for what, part in (("dropout (probe)", probs), ("dropout of the output", replace(case, dropout=0.0))):
            if part.drops and (probe := spanning(eager, part)) is not None:
                self._once(what, eager, probe, check_training)

    def _once(self, what: str, impl: Impl, case: Case, check: Callable[[Impl, Case], object]) -> None:
        key = f"{impl.name}: {what}, {replace(case, threads=None).id}"
        if key in self.passed:
            return
        try:
            check(impl, case)
        except Exception as error:
            outcome = classify(error)
            raise type(outcome)(f"{what}, {case.id}: {outcome}") from error
        self.passed.add(key)


def padded(probed: Sequence[Case]) -> list[Case]:
    """Return the first probe of a model with padding, which detects models that ignore it."""
    masks = {"causal": "causal+padding", "none": "padding"}
    return [replace(it, B=max(2, it.B), mask=masks[it.mask]) for it in probed[:1] if it.in_model and it.mask in masks]


def lone_queries(impl: Impl, case: Case) -> Case | None:
    """Return a case of one new token at its own length, with every softmax pattern, or four if its cache would be too
    large.

    A layer shows one pattern per batch entry, a core one per head too. None if the case itself has enough batch
    entries, or more tokens or requests.
    """
    own = replace(case if impl.core is None else case.core, dropout=0.0, out_dropout=0.0)
    entry = _cached_numbers(replace(own, B=1))
    wanted = ENTRIES if impl.core is None else (max(1, len(PATTERNS) + 1 - case.H),)
    B = next((b for b in wanted if b <= case.B or b * entry <= LARGEST_CACHE), 0)
    lone = replace(own, B=max(case.B, B))
    if case.T > 1 or case.requests or not B or lone == case or len(PATTERNS) <= case.B:
        return None
    return lone if misfit(lone) is None and impl.refusal(lone) is None else None


def _cached_numbers(case: Case) -> int:
    return case.B * sum(math.prod(size) for size in cache_sizes(case))


@lru_cache(maxsize=256)
def probes(impl: Impl, case: Case) -> tuple[Case, ...]:
    """Return small cases of the same kind as `case`, with B > 1, H > 1 and ragged lengths, as far as `impl` supports
    them.

    An implementation that supports none of them is probed at the case's own length.
    """
    lengths = PROBES[:1] if impl.compiled else PROBES
    found = dict.fromkeys(probe for T in lengths if (probe := _nearest(impl, case, T)) is not None)
    own = (
        probe for probe in _probes_at(case, case.T if not case.does.cached else case.T_kv) if not impl.refusal(probe)
    )
    return tuple(found) or tuple(own)[:1]


def _nearest(impl: Impl, case: Case, T: int) -> Case | None:
    """Return the probe at the nearest supported length on the same side of `LONG_PROBE`; None if there is none."""
    shortest, longest = (LONG_PROBE + 1, 2 * LONG_PROBE) if T > LONG_PROBE else (2, LONG_PROBE)
    if impl.limits.max_T is not None and impl.limits.max_T < shortest:
        return None
    lengths = sorted(range(shortest, longest + 1), key=lambda length: abs(length - T))
    possible = (probe for length in lengths for probe in _probes_at(case, length) if impl.refusal(probe) is None)
    return next(possible, None)


def _probes_at(case: Case, T: int) -> Iterator[Case]:
    """Yield probes with enough heads to distinguish neighbouring heads or groups; a long probe of a single-headed case
    has one head.

    With keys from another sequence, that sequence is shorter in the short probe and longer in the long one. The
    preferred probe comes first, then less demanding ones: rounder lengths of the other sequence; windows, prefix and
    cap unchanged; fewer heads and batch entries.
    """
    grouped, long = case.H_kv != case.H, T > LONG_PROBE
    H = 4 if grouped else min(case.H, 2) if long else 3
    H_kv = H if not grouped else 2 if case.H_kv > 1 else 1
    B = len(PATTERNS) if case.does.cached else 1 if case.requests or (long and H > 1 and not case.padded) else 2
    shapes = (B, H, H_kv), (B, case.H, case.H_kv), (case.B, case.H, case.H_kv)
    for (b, h, h_kv), shrunk in product(dict.fromkeys(shapes), (True, False)):
        d_model = h * case.D_h if case.d_model == case.H * case.D_h else case.d_model
        for lengths in _lengths(case, T):
            rules = shortened_rules(case, lengths["T_kv"], PROBE_CAP) if shrunk else {}
            probe = replace(case, B=b, H=h, H_kv=h_kv, d_model=d_model, **lengths, **rules)
            if probe.T_kv > 0 and misfit(probe) is None:
                yield probe


def _lengths(case: Case, T: int) -> Iterator[dict[str, Any]]:
    """Yield axes T and T_kv of a probe, and requests if the case has some: a prompt, a part of one, three tokens."""
    if case.requests:
        part, most = max(1, T // 3), max(2, T // 2)
        yield tokens_of(f"1x{part}:{part}+1x{part}:{T}+3x1:{most}")
        return
    others = (T + 9, T + 64, T + 128, T) if T > LONG_PROBE else (T - 9, T - 64, T + 64, T - 128, T + 128, T)
    tokens = min(case.T, T // 2) if case.does.cached else T
    for T_kv in (T,) if case.source == "self" else others:
        yield {"T": tokens, "T_kv": T_kv}


def check_case(impl: Impl, case: Case) -> CheckResult:
    """Compare a new core or layer with the reference on two input sets; raises `Wrong`."""
    module, numbers = module_of(impl, case), inputs_of(problem_of(case))
    return check_call(call_of(module, case, numbers), module, numbers, case, (0, 1))


def _check_once(module: nn.Module, case: Case, numbers: Inputs, problem: Problem, why: str = "") -> None:
    """Compare one call with the reference; raises `Wrong`."""
    call = call_of(module, case, numbers)
    with keeping_settings(), checked_call(module, case):
        outputs = call.read(_run(call))
    verify(outputs, problem, why)


def check_probe(impl: Impl, case: Case) -> None:
    """Compare a new core or layer with the reference on ordinary inputs and on every other pattern; raises `Wrong`.

    A core's q, k, v and mask have the memory layout of a model: not contiguous.
    """
    module: Any = module_of(impl, case)
    numbers, *others = (
        inputs_of(problem_of(case, input_set)) for input_set in FORWARDS[: None if case.does.gradients else 1]
    )
    if case.scope == "core":
        numbers, *others = map(strided, (numbers, *others))
        if isinstance(mask := getattr(module, "visible", None), Tensor):
            module.visible = nn.functional.pad(mask, (0, 1))[..., :-1]
    input_sets = range(3 if case.padded or case.page else 2)
    check_call(call_of(module, case, numbers), module, numbers, case, input_sets, on_other_tensors=True)
    if case.does.gradients:
        with keeping_settings():
            numbers.refill(problem_of(case))
            prepare(module, case)
            check_many_forwards(module, case, (numbers, *others))
            if case.T <= LONG_PROBE and not case.in_model and problem_of(case).weights:
                check_new_weights(module, case, numbers)
    if not all(map(surroundings_intact, (numbers, *others))):
        raise Wrong(BESIDE)


BESIDE = "writes to memory beside its inputs"

ANOTHER_MASK = {"none": "causal", "causal": "none"}


def call_with_another_mask(impl: Impl, case: Case) -> None:
    """Call a core once with the same sizes and another mask: a kernel that caches masks by size is wrong afterwards."""
    other = replace(case, mask=ANOTHER_MASK.get(case.mask, case.mask))
    if other == case or misfit(other) is not None or impl.refusal(other) is not None:
        return
    with suppress(Exception), keeping_settings(), recording(other, inference=False):  # may fail
        call_of(module_of(impl, other), other, inputs_of(problem_of(other))).run()


def check_probe_after_another_mask(impl: Impl, case: Case) -> None:
    """Check a probe of a core after a call with another mask in the same process; raises `Wrong`."""
    call_with_another_mask(impl, case)
    check_probe(impl, case)


def check_scale(impl: Impl, case: Case) -> None:
    """Compare a kernel that has a parameter `scale` with the reference: q halved, scale doubled; raises `Wrong`."""
    scaling = False
    with suppress(TypeError, ValueError):  # of no kernel, and of builtins
        scaling = "scale" in inspect.signature(impl.kernel).parameters  # type: ignore[arg-type]
    if scaling:
        module: Any = module_of(impl, case)
        kernel, problem = module.kernel, problem_of(case)
        module.kernel = lambda q, *others, **options: kernel(q / 2, *others, **options | {"scale": 2 * case.D_h**-0.5})
        _check_once(module, case, inputs_of(problem), problem, "with a scale of the caller's own: ")


CALLS_KEPT = 16
"""Calls whose outputs are kept at the same time: a few more than a workspace has buffers for."""


def check_memory(module: nn.Module, case: Case, numbers: Inputs) -> dict[str, Tensor]:
    """Check that outputs which exist at the same time have memory of their own; raises `Wrong`. Returns the last ones."""
    call = call_of(module, case, numbers)
    with keeping_settings(), checked_call(module, case):
        outputs = [call.read(call.run()) for _ in range(CALLS_KEPT)]
    for name in _own_outputs(case, outputs[0]):
        if (places := len({it[name].untyped_storage().data_ptr() for it in outputs})) < CALLS_KEPT:
            what = name.replace("output", "outputs").replace("gradient", "gradients")
            raise Wrong(f"the {what} of {CALLS_KEPT} calls share {places} buffers")
    return outputs[-1]


def _own_outputs(case: Case, names: Iterable[str]) -> list[str]:
    """Return the names of outputs in memory of a call's own: a layer in `decode` writes to the cache that it is given."""
    return [name for name in names if name == "output" or not (case.does.cached and case.scope == "layer")]


def check_buffers(impl: Impl, case: Case) -> None:
    """Check the last output of many calls, and one where only two numbers of each input have changed since; raises `Wrong`."""
    module, problem = module_of(impl, case), problem_of(case)
    numbers = inputs_of(problem)
    verify(check_memory(module, case, numbers), problem, f"in the last of {CALLS_KEPT} calls: ")
    if not case.page:  # whose keys lie anywhere in a pool
        exchanged = _cached_problem(with_numbers_exchanged, case)
        numbers.refill(exchanged)
        _check_once(module, case, numbers, exchanged, NUMBERS_EXCHANGED)


SAME_GRADIENT = 0.05
"""Difference of gradients, in units of the largest one, above which they are not the same."""


def check_uses(impl: Impl, case: Case) -> None:
    """Check gradients in uses of an output that training may have; raises `Wrong`.

    Some inputs need no gradient; the output's gradient is zero; two numbers of each input are exchanged; the output is
    summed, whose gradient has stride 0; it or the inputs are changed in place before the backward; a call with another mask
    comes before it; and a second backward over the same graph gets a gradient whose features aren't adjacent. A
    `RuntimeError`, as autograd raises for saved tensors that have changed, is no fault.
    """
    _check_some_gradients(impl, case)
    module, problem, numbers = module_of(impl, case), problem_of(case), inputs_of(problem_of(case))
    grad = numbers.grad
    assert grad is not None

    def outputs(o: Tensor, grad: Tensor, again: bool = False) -> dict[str, Tensor]:
        return _with_gradients(o, module, case, replace(numbers, grad=grad), again=again)

    with keeping_settings(), recording(case):
        call, ones = partial(module, *numbers.tensors, **numbers.options), torch.ones_like(grad)
        _, *nothing = outputs(call(), grad * 0).values()
        if any(it.count_nonzero() for it in nothing):
            raise Wrong("gradients that are not zero where that of the output is")
        exchanged = _cached_problem(with_numbers_exchanged, case)
        numbers.refill(exchanged)
        verify(outputs(call(), grad), exchanged, NUMBERS_EXCHANGED)
        numbers.refill(problem)
        if not case.padded:  # padded queries may have any output
            with suppress(RuntimeError):
                of_sum, known = (outputs(call(), it) for it in (ones.flatten()[0].expand_as(ones), ones))
                names = [f"gradient of {name}" for name in numbers.names]
                largest = max(known[name].norm() for name in names)
                for name in names:
                    if not (of_sum[name] - known[name]).norm() <= SAME_GRADIENT * largest:
                        raise Wrong(f"{name} where that of the output has stride 0, as that of a sum has")
        with suppress(RuntimeError):
            verify(outputs(call().mul_(2.0) / 2, grad), problem, CHANGED_OUTPUT)
        with suppress(RuntimeError):
            o = call()
            call_with_another_mask(impl, case)
            verify(outputs(o, grad, again=True), problem, OTHER_CALL)
            second: dict[str, Tensor] = {}
            with suppress(Exception):  # it refuses a second backward, for which it has kept nothing
                second = outputs(o, grad.mT.contiguous().mT)
            if second:
                verify(second, problem, SECOND_BACKWARD)
        with suppress(RuntimeError):
            o = call()
            with torch.no_grad():
                for x in numbers.tensors:
                    x.mul_(2.0)
            verify(outputs(o, grad), problem, CHANGED_INPUTS)


def _check_some_gradients(impl: Impl, case: Case) -> None:
    """Check gradients where a single input needs one, or all but one, of which the weights count as one; raises `Wrong`."""
    module, problem, numbers = module_of(impl, case), problem_of(case), inputs_of(problem_of(case))
    weights, named = [it for it in module.parameters() if it.requires_grad], tuple(problem.weights)
    inputs = [*((name,) for name in numbers.names), *([named] if named else [])]
    others = [tuple(name for it in inputs if it != one for name in it) for one in inputs]
    for some in dict.fromkeys([*inputs, *others]):
        for weight in weights:
            weight.requires_grad_({*named} <= {*some})
        for name, x in zip(numbers.names, numbers.tensors, strict=True):
            x.requires_grad_(name in some)
        shown = [it for it in problem.expected if it.name.removeprefix("gradient of ") in ("output", *some)]
        try:
            _check_once(module, case, numbers, replace(problem, solve=partial(tuple, shown)))
        except Wrong as fault:
            raise Wrong(f"where {' and '.join(some)} alone need gradients: {fault}") from None


def _check_on(make: Callable[[Case], Problem], why: str, impl: Impl, case: Case) -> None:
    """Compare one call of a new core or layer with the reference; raises `Wrong`."""
    problem = _cached_problem(make, case)
    _check_once(module_of(impl, case), case, inputs_of(problem), problem, why)


check_patterns = partial(_check_on, partial(problem_of, input_set=1), "")
"""Checks every softmax pattern."""
check_low_scores = partial(
    _check_on, showing_tails, "where many keys with low scores and large values make the output: "
)
check_sums = partial(_check_on, showing_sums, "where small parts are added to a large one: ")


def check_lse(impl: Impl, case: Case) -> None:
    """Compare a kernel's log-sum-exp with the reference, on ordinary scores and in every pattern; raises `Wrong`."""
    base = math.log(impl.limits.returns_lse or math.e)
    module = module_of(impl, case)
    module.kernel = impl.kernel  # type: ignore[assignment]  # whose second output the core leaves out
    problems = [problem_of(case, input_set) for input_set in (0, 1)]
    with torch.no_grad():  # both at first: the second one must not change the first one
        both = [module(*it.tensors, **it.options) for it in map(strided, map(inputs_of, problems))]
    for problem, found in zip(problems, both, strict=True):
        if not (isinstance(found, tuple) and len(found) == 2):
            raise Wrong(f"returns {type(found).__name__}, not (o, lse)")
        lse, size = found[1], problem.inputs[0].shape[:-1]
        if lse.shape != size or lse.dtype not in (torch.float32, torch.float64):
            raise Wrong(f"lse is {_name(lse.dtype)} {tuple(lse.shape)}, not float32 {tuple(size)}")
        with reference.attending(reference.log_sum):
            exact, plain = (output_of(problem, getattr(torch, dtype))[..., 0] for dtype in ("float64", case.dtype))
        shown = torch.ones_like(exact, dtype=torch.bool)
        if problem.padding is not None and case.source == "self":
            shown &= problem.padding[:, None]
        error, own = ((it.double() - exact)[shown].abs() for it in (lse * base, plain))
        allowed = FACTOR * own.max() + FLOOR_OF_LSE * (1 + exact[shown].abs())
        if not (error <= allowed).all():
            raise Wrong(
                f"lse is off by {error.nan_to_num(torch.inf, torch.inf).max():.1e} of {exact[shown].abs().max():.1f}"
            )


@keeping_settings()
def check_call(
    call: Call,
    module: nn.Module,
    numbers: Inputs,
    case: Case,
    input_sets: Sequence[int],
    on_other_tensors: bool = False,
) -> CheckResult:
    """Compare a call of `module` with the reference on each input set, loaded into the same buffers; raises `Wrong`.

    The call must not write to inputs, to the gradient of the output, to weights or to buffers, and outputs must survive
    later calls, of which more are made if the module keeps an output. `on_other_tensors`: call once more, on other
    tensors. Returns the errors on the first input set.
    """
    problems = [problem_of(case, input_set) for input_set in input_sets]
    first = dict(numbers.options)
    earlier: list[tuple[Problem, dict[str, Tensor], tuple[Tensor, ...]]] = []
    caching = case.does.cached and case.scope == "layer"  # in that case the call writes to the cache

    def shown(problem: Problem, outputs: dict[str, Tensor]) -> list[Tensor]:
        """Return what is compared now of tensors that the module returned."""
        whole = {name: outputs[name].contiguous() for name in _own_outputs(case, outputs)}
        return [part.compared_rows(whole[part.name]) for part in problem.expected if part.name in whole]

    def compared(problem: Problem, why: str = "", call: Call = call, numbers: Inputs = numbers) -> CheckResult:
        owned = [*module.parameters(), *module.buffers(), *numbers.options.values()]
        read_only = numbers.tensors[: 1 if caching else None]
        versions = [x._version for x in read_only]
        with settings.threads(1):
            before = copies(owned)
        with checked_call(module, case):
            o = _run(call)
        with settings.threads(1):
            outputs = call.read(_check_form(o, problem))
            _unchanged(numbers.tensors, problem.inputs, "writes to its inputs", problem.free if caching else None)
            if versions != [x._version for x in read_only]:
                raise Wrong(
                    "writes to its inputs, which others may read meanwhile" if surroundings_intact(numbers) else BESIDE
                )
            _unchanged(owned, before, "writes to its weights or its mask")
            if numbers.grad is not None and problem.grad is not None:
                _unchanged(
                    [numbers.grad], [problem.grad], "writes to the gradient of its output, which others may read"
                )
                if any(x.grad is not None for x in (*numbers.tensors, *module.parameters())):
                    raise Wrong("adds to `.grad` as a side effect: training with it would count these gradients twice")
            for of, before_this, kept in earlier:
                _unchanged(shown(of, before_this), kept, "an output changed during a later call: both share one buffer")
            earlier.append((problem, outputs, copies(shown(problem, outputs))))
            return verify(outputs, problem, why)

    for problem in problems:
        problem.expected  # noqa: B018  computed before a call can patch its functions
    found = {input_sets[0]: compared(problems[0])}
    for input_set, problem in zip(input_sets[1:], problems[1:], strict=True):
        numbers.refill(problem)
        prepare(module, case, input_set)
        found[input_set] = compared(
            problem, (NEW_PADDING if case.padded else NEW_PAGES) if input_set > 1 else NEW_NUMBERS
        )
    if on_other_tensors:
        apart = elsewhere(numbers, problems[-1], first)
        numbers.refill(problems[0])  # a stale read of these would give another output
        with nullcontext() if isinstance(module, Compiled) else settings.memory_filled():
            compared(problems[-1], NEW_TENSORS, call_of(module, case, apart), apart)
    memory = [
        StorageWeakRef(outputs[name].untyped_storage())
        for _, outputs, _ in earlier[:-1]
        for name in _own_outputs(case, outputs)
    ]
    earlier.clear()
    if not all(it.expired() for it in memory):  # the module keeps an output or a gradient
        check_memory(module, case, numbers)
    return found[min(input_sets)]


def checked_call(module: nn.Module, case: Case) -> Any:
    """Context of a checked call: records gradients only if the case needs them.

    Inference mode is used for compiled calls only, which would compile another graph without it: an implementation can
    neither save its tensors for a later backward nor fill them from its own threads.
    """
    return recording(case, inference=isinstance(module, Compiled))


FORWARDS, BACKWARDS = (0, 1, 1), (1, 0, 2)
"""Input sets of the forwards that precede all backwards, and the order of these: neither that of a queue nor of a stack. A
layer that alternates between two buffers fails at the third forward.
"""


SMALL_GRADIENT = 2.0**-24
"""Size of a gradient below the numbers of float16: a power of two, by which products are exact."""


def check_many_forwards(module: nn.Module, case: Case, numbers: Sequence[Inputs]) -> None:
    """Check gradients in training mode after several forwards: each backward must use its own forward's state; raises
    `Wrong`.

    The gradient of the output is as small as a mean over many tokens makes it, except in float16.
    """
    small = 1.0 if case.computes == "float16" else SMALL_GRADIENT
    module.train(not (case.drops or case.in_model or isinstance(module, Compiled)))  # which would be compiled again
    with recording(case):
        outputs = [module(*read.tensors, **read.options) for read in numbers]
    for at in BACKWARDS:
        input_set, o, read = FORWARDS[at], outputs[at], numbers[at]
        assert read.grad is not None
        found = _with_gradients(o, module, case, replace(read, grad=read.grad * small))
        found |= {name: it / small for name, it in found.items() if name != "output"}
        verify(found, problem_of(case, input_set), f"{TWO_FORWARDS}{small:.0e}: ")
    module.eval()


def _with_gradients(
    o: Tensor, module: nn.Module, case: Case, numbers: Inputs, again: bool = False
) -> dict[str, Tensor]:
    """Return the outputs of a forward call whose output is `o`, with the gradients if the case has them. `again`: another
    backward may follow.
    """
    call = call_of(module, case, numbers)
    with recording(case):
        return call.read(call.back(o, again))


def check_new_weights(module: nn.Module, case: Case, numbers: Inputs) -> None:
    """Check a module after its weights change: results derived from the old weights must not be used; raises `Wrong`."""
    problem = _cached_problem(showing_output, case)
    with torch.no_grad():
        canonical.load(module, problem.weights)
    prepare(module, case)
    numbers.refill(problem)
    _check_once(module, case, numbers, problem, NEW_WEIGHTS)


@lru_cache(maxsize=8)
def _cached_problem(make: Callable[[Case], Problem], case: Case) -> Problem:
    """Return a solved problem from a cache: its expected output was computed before a kernel could patch torch."""
    problem = make(case)
    problem.expected  # noqa: B018  computed here
    return problem


CALLS_IN_TRAINING = 3
"""Calls whose kept probs are compared. A kernel that alternates between two sets of random numbers fails at the third."""


def check_training(impl: Impl, probe: Case) -> None:
    """Check that training outputs are finite in every pattern and match what was kept in that call: the probs, or the
    features of the output, bias included, if these are dropped; raises `Wrong`.
    """
    of_probs = showing_probs, probe.dropout, "the probs"
    make, p, what = of_probs if probe.dropout else (showing_output, probe.out_dropout, "the output")
    problem, module = _cached_problem(make, probe), module_of(impl, probe)
    call = call_of(module.train(), probe, inputs_of(problem_of(probe, input_set=1)))
    with recording(probe):
        output = call.read(call.run())["output"]
    if not problem.output.compared_rows(output).isfinite().all():
        raise Wrong("in training, where scores are far from zero: NaN or Inf")
    with torch.no_grad():
        canonical.load(module, problem.weights)
    numbers = inputs_of(problem)
    with recording(probe):
        several = [module(*numbers.tensors, **numbers.options) for _ in range(CALLS_IN_TRAINING)]
    outputs = _with_gradients(several[0], module, probe, numbers)  # beside later forwards, which drop others
    shown = problem.output.reference * problem.output.is_compared[..., None]
    found = [kept_probs(output, shown, probe) for output in several]
    kept, visible = [it for it, _ in found], found[0][1]
    check_independence(kept, visible)
    check_shares(kept[0], visible, p, what)
    verify(outputs, make(probe, kept[0] / (1 - p)), f"in training, from {what} that it kept: ")


def _run(call: Call) -> object:
    try:
        return call.run()
    except RuntimeError as error:
        if "does not require grad" in str(error):
            raise Wrong("no gradient reaches its inputs: the output is detached") from error
        raise


NEW_NUMBERS = "on new numbers in the same buffers: "
NEW_TENSORS = "in other tensors than before, with new memory full of NaN: "
NEW_WEIGHTS = "with other weights than before: "
NUMBERS_EXCHANGED = "where two numbers of each input are exchanged since the call before: "
NEW_PADDING = "where other keys are padding than before: "
NEW_PAGES = "where requests have other pages than before: "
CHANGED_OUTPUT = "where its output is changed in place before the backward: "
CHANGED_INPUTS = "where its inputs are changed in place before the backward: "
OTHER_CALL = "where a call with another mask comes between a forward and its backward: "
SECOND_BACKWARD = "in a second backward over the same graph, of a gradient whose features aren't adjacent: "
TWO_FORWARDS = "in training, where another forward comes between a forward and its backward, with gradients of size "


def _check_form(o: object, problem: Problem) -> object:
    """Check shape, dtype and device of an output; raises `Wrong`."""
    promised, first = problem.inputs[0], o
    several = problem.grad is not None or (problem.case.in_model and problem.case.does.cached)
    if several and isinstance(o, tuple):
        first = o[0]
    if not isinstance(first, Tensor):
        raise Wrong(f"returns {type(first).__name__}, not a tensor")
    if type(first) not in (Tensor, nn.Parameter):
        raise Wrong(f"returns a {type(first).__name__}, which may compute when it is read: not a plain tensor")
    tokens = promised.shape[:-1] if promised.is_floating_point() else promised.shape
    shape = (*tokens, problem.output.reference.shape[-1])
    if first.shape != shape:
        raise Wrong(f"output has shape {tuple(first.shape)}, not {tuple(shape)}")
    if _name(first.dtype) != problem.case.computes:
        under = ", which autocast gives" if problem.case.autocast else ""
        raise Wrong(f"output is {_name(first.dtype)}, not {problem.case.computes}{under}")
    if first.device != promised.device:
        raise Wrong(f"output is on {first.device}, not on {promised.device}")
    return o


@dataclass(frozen=True)
class CheckResult:
    """Relative errors: of the output closest to its bound, and of each kind."""

    error: float
    """norm(o - ref) / norm(ref), over all rows."""
    error_bound: float
    error_output: float | None = None
    """Relative error of the output; None if it was not compared."""
    error_grad: float | None = None
    """Error of the gradient closest to its bound; None if there are no gradients."""
    error_slope: float | None = None
    """Signed error: by how much outputs are too large overall, in units of the dtype's epsilon."""


def verify(outputs: dict[str, Tensor], problem: Problem, why: str = "") -> CheckResult:
    """Compare every output with the reference; raises `Wrong` with the place and size of the error."""
    output = outputs["output"].contiguous()
    one_of = {part.name: part for part in problem.expected}
    distances = {name: part.distances(outputs[name]) for name, part in one_of.items()}
    found = [(part, _verify(distances[part.name], part, problem, why).overall) for part in problem.expected]

    def nearest(kind: str) -> float | None:
        of_kind = [(error / part.tolerance.overall, error) for part, error in found if part.name.startswith(kind)]
        return max(of_kind)[1] if of_kind else None

    part, error = max(found, key=lambda it: it[1] / it[0].tolerance.overall)
    eps = torch.finfo(getattr(torch, problem.case.rounding_dtype)).eps
    return CheckResult(
        error,
        part.tolerance.overall,
        nearest("output"),
        nearest("gradient"),
        problem.output.slope(output) / eps,
    )


SHORT = {"batch entry": "b", "head": "h", "output feature": "row"}
"""Names of axes in a row's position."""


def _verify(distances: Tensor, expected: Expected, problem: Problem, why: str) -> Errors:
    allowed = expected.tolerance
    errors = expected.errors(distances, median=allowed.median < math.inf)
    if errors.overall <= allowed.overall and errors.row <= allowed.row and errors.median <= allowed.median:
        return errors
    why += "" if expected.pattern is None else PATTERNS[expected.pattern]
    why += "" if expected.name == "output" else f"{expected.name}: "
    rows = expected.row_errors(distances)
    if not torch.isfinite(rows).all():
        raise Wrong(f"{why}NaN or Inf in {_where(~torch.isfinite(rows), expected, problem)}")
    bad = rows > allowed.row
    if not bad.any():
        over = "over all rows" if errors.overall > allowed.overall else "in the median row"
        found, most = (errors.overall, allowed.overall) if over == "over all rows" else (errors.median, allowed.median)
        raise Wrong(f"{why}error {found:.1e} {over}, allowed {most:.1e}")
    place = (rows == rows.max()).nonzero()[0].tolist()
    if expected.rows is not None:
        place[-1] = int(expected.rows[place[-1]])
    worst = ", ".join(f"{SHORT.get(axis, axis)}={i}" for axis, i in zip(expected.axes, place, strict=True))
    raise Wrong(
        f"{why}error {errors.row:.1e} in row {worst}, allowed {allowed.row:.1e}; "
        f"rows that fail: {_where(bad, expected, problem)}"
    )


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


def _unchanged(now: Sequence[Tensor], before: Sequence[Tensor], fault: str, free: Tensor | None = None) -> None:
    """Raise `Wrong` if tensors changed. `free`: positions of a cache that may be written to."""
    for a, b in zip(now, before, strict=True):
        if free is not None and a.dim() == 4:
            a, b = (x.index_fill(-2, free, 0) for x in (a, b))
        if not same([a], [b]):  # free pages hold NaN
            raise Wrong(fault)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
