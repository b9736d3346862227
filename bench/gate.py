"""No row without a proof: every implementation is held to a float64 reference before the clock starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import torch
from torch import Tensor, nn

from impls import COMPILE, Impl, get
from impls import weights as canonical

from . import settings
from .dispatch import kernel_of
from .dropout import check_dropout
from .modes import Call, call_of, recording
from .outcome import Wrong, classify
from .problem import Answer, Errors, Given, Problem, copies, given, problem_of
from .sweep import Case

LONG = 512
"""Probes up to this length have several batch entries and heads, and two draws of inputs; longer ones only reach far."""

FEW = 1 << 15
"""Pairs of a query and a key up to which a core is checked bare in the case itself too, and not on probes alone."""

PROBES = ((37, 64), (577, 576))
"""Lengths of the probes: a ragged one that falls short of a tile of 64, and one that runs a little over many.

The second of each pair serves an implementation that declares that it can't do the first.
"""


class Gate:
    """Checks implementations, and remembers what it has already proved."""

    def __init__(self) -> None:
        self._proved: set[tuple[str, str, Case]] = set()

    def prove(self, impl: Impl, case: Case) -> None:
        """Everything but the module that is timed; raises `Wrong` with a sentence, or what the implementation raised.

        A core is checked bare, on q, k, v that the gate owns, whatever the case's scope. Cores and layers are checked on
        probes of ragged length with several heads and batch entries, which a sweep made of round numbers would never hold.
        Beyond `FEW` pairs a bare core is checked on the probes alone: in the case itself its rows are seen through the layer.
        """
        eager = eager_form(impl)
        if eager.core is not None and case.scope == "layer" and case.H * case.T * case.T_kv <= FEW:
            self._once("bare kernel", eager, replace(case, scope="core"), check)
        for probe in probes(impl, case):
            if eager.core is not None:
                self._once("bare kernel (probe)", eager, replace(probe, scope="core"), check)
            if eager.core is None or impl.compiled:
                self._once("layer (probe)" if probe.scope == "layer" else "kernel (probe)", impl, probe, check)
        if case.drops:
            self._once("dropout", impl, case, check_dropout)
        if impl.dispatches:
            self._once("dispatch", impl, case, check_dispatch)

    def _once(self, what: str, impl: Impl, case: Case, check: Callable[[Impl, Case], object]) -> None:
        key = (what, impl.name, replace(case, threads=None))
        if key in self._proved:
            return
        try:
            check(impl, case)
        except Exception as error:
            outcome = classify(error)
            raise type(outcome)(f"{what}, {case.id}: {outcome}") from error
        self._proved.add(key)


def eager_form(impl: Impl) -> Impl:
    """What a compiled form was made from: its kernel is checked bare uncompiled, since what is timed is the layer."""
    return get(impl.name.removesuffix(COMPILE)) if impl.compiled else impl


def probes(impl: Impl, case: Case) -> list[Case]:
    """Small cases of the same kind as `case`, with B > 1, H > 1 and ragged lengths, as far as `impl` can."""
    found = []
    for lengths in PROBES:
        fitting = (probe for T in lengths if impl.refusal(probe := _probe(impl, case, T)) is None)
        found += [next(fitting, None)]
    return [probe for probe in found if probe is not None]


def _probe(impl: Impl, case: Case, T: int) -> Case:
    """As many heads as tell a head, or a group of them, from its neighbour; a long one of a single-headed case has one.

    Where keys come from another sequence, it is shorter in the short probe and longer in the long one.
    """
    grouped, long = case.H_kv != case.H, T > LONG
    H = impl.limits.heads or (4 if grouped else 3 if not long else min(case.H, 2))
    H_kv = H if not grouped else 2 if case.H_kv > 1 else 1
    d_model = H * case.D_h if case.d_model == case.H * case.D_h else case.d_model
    T_kv = T if case.source == "self" else T + 9 if long else T - 9
    B = 1 if long and H > 1 and not case.padded else 2
    return replace(
        case, B=B, T=1 if case.mode == "decode" else T, T_kv=T_kv, H=H, H_kv=H_kv, d_model=d_model, threads=None
    )


def module_of(impl: Impl, case: Case) -> nn.Module:
    """The core or layer of `impl` for `case`, holding the canonical weights, in the case's dtype on its device."""
    build = impl.core if case.scope == "core" else impl.layer
    assert build is not None
    module = build(case.layer_shape).to(case.device, getattr(torch, case.dtype)).eval()
    problem = problem_of(case)
    if problem.weights:
        with torch.no_grad():
            canonical.load(module, problem.weights)
    prepare(module, case)
    return module


def prepare(module: nn.Module, case: Case) -> float | None:
    """Let a module make what it makes once for a mask and a length; seconds that it took, None where it makes nothing."""
    make: Callable[..., None] | None = getattr(module, "prepare", None)
    if make is None:
        return None
    start = perf_counter()
    make(case.T, case.T_kv, problem_of(case).padding, case.device)
    return perf_counter() - start


def check(impl: Impl, case: Case) -> Held:
    """Hold a new core or layer to the reference, on two draws where the case is short; raises `Wrong`."""
    module, numbers = module_of(impl, case), given(problem_of(case))
    return check_call(call_of(module, case, numbers), module, numbers, case, draws=2 if case.keys <= LONG else 1)


def check_call(call: Call, module: nn.Module, numbers: Given, case: Case, draws: int = 1) -> Held:
    """Hold a call of `module` to the reference, on two draws (or one) that arrive in the same buffers; raises `Wrong`.

    What is timed needs one: the second is compared after the clock. Neither the inputs nor the module's weights and buffers
    may be written to.
    """
    before = settings.read()
    try:
        held = _held(call, module, numbers, case, draws)
    finally:
        changed = settings.put_back(before)
    if changed:
        raise Wrong(f"changes torch's own settings, which are everybody's: {', '.join(changed)}")
    return held


def _held(call: Call, module: nn.Module, numbers: Given, case: Case, draws: int) -> Held:
    caching = case.mode == "decode" and case.scope == "layer"  # then the cache is there to be written to
    first, second = problem_of(case), problem_of(case, draw=1) if draws == 2 else None
    owned = [*module.parameters(), *module.buffers(), *numbers.options.values()]
    before = copies(owned)

    def answer(problem: Problem, why: str = "") -> tuple[Held, list[Tensor]]:
        with recording(case):
            o = _run(call)
        answers = call.read(_formed(o, problem))
        _unchanged(numbers.inputs, problem.inputs, "writes to its inputs", free=caching)
        _unchanged(owned, before, "writes to its weights or its mask")
        return verify(answers, problem, why), list(answers.values())

    held, answers = answer(first)
    if second is not None:
        kept = copies(answers)
        numbers.refill(second)
        answer(second, NEW_NUMBERS)
        if not caching:
            _unchanged(answers, kept, "the first answer changed when the second was computed: both share one buffer")
    return held


def check_dispatch(impl: Impl, case: Case) -> None:
    """The kernel that really runs is the one that the name claims; raises `Wrong`."""
    call = call_of(module_of(impl, case), case, given(problem_of(case)))
    with recording(case):
        ran = kernel_of(call.run)
    if ran != impl.dispatches:
        raise Wrong(f"claims to be {impl.dispatches}, but what ran is {ran}")


def _run(call: Call) -> object:
    try:
        return call.run()
    except RuntimeError as error:
        if "does not require grad" in str(error):
            raise Wrong("no gradient reaches its inputs: the output is detached") from error
        raise


NEW_NUMBERS = "on new numbers in the same buffers: "


def _formed(o: object, problem: Problem) -> object:
    """Shape, dtype and device as promised; raises `Wrong`."""
    promised, first = problem.inputs[0], o
    if problem.grad is not None and isinstance(o, tuple):
        first = o[0]
    if not isinstance(first, Tensor):
        raise Wrong(f"returns {type(first).__name__}, not a tensor")
    shape = (*promised.shape[:-1], problem.output.truth.shape[-1])
    if first.shape != shape:
        raise Wrong(f"output has shape {tuple(first.shape)}, not {tuple(shape)}")
    if first.dtype != promised.dtype:
        raise Wrong(f"output is {_name(first.dtype)}, not {_name(promised.dtype)}")
    if first.device != promised.device:
        raise Wrong(f"output is on {first.device}, not on {promised.device}")
    return o


@dataclass(frozen=True)
class Held:
    """The answer that came nearest its bound."""

    error: float
    """norm(o - ref) / norm(ref), over everything"""
    bound: float


def verify(answers: dict[str, Tensor], problem: Problem, why: str = "") -> Held:
    """Compare every answer with the truth; raises `Wrong` with where and by how much."""
    held = [
        Held(_verify(answers[answer.name], answer, problem, why).overall, answer.allowed.overall)
        for answer in problem.answers
    ]
    return max(held, key=lambda it: it.error / it.bound)


def _verify(o: Tensor, answer: Answer, problem: Problem, why: str) -> Errors:
    errors, allowed = answer.errors(o), answer.allowed
    if errors.overall <= allowed.overall and errors.row <= allowed.row:
        return errors
    why += "" if answer.name == "output" else f"{answer.name}: "
    rows = answer.row_errors(o)
    if not torch.isfinite(rows).all():
        raise Wrong(f"{why}NaN or Inf in {_where(~torch.isfinite(rows), answer, problem)}")
    bad = rows > allowed.row
    if not bad.any():
        raise Wrong(f"{why}error {errors.overall:.1e} over everything, allowed {allowed.overall:.1e}")
    worst = ", ".join(f"{axis}={i}" for axis, i in _place(int(rows.argmax()), answer).items())
    raise Wrong(
        f"{why}error {errors.row:.1e} in the row {worst}, allowed {allowed.row:.1e}; "
        f"beyond it: {_where(bad, answer, problem)}"
    )


def _where(bad: Tensor, answer: Answer, problem: Problem) -> str:
    """Which rows are at fault, axis by axis: `every batch entry, head 1 of 3, t 512 to 576`."""
    parts = []
    for axis, name in enumerate(answer.axes):
        others = tuple(i for i in range(bad.dim()) if i != axis)
        hit = bad.any(dim=others).nonzero().flatten().tolist() if others else bad.nonzero().flatten().tolist()
        size = bad.shape[axis]
        if axis == bad.dim() - 1:
            rows = range(size) if answer.rows is None else answer.rows.tolist()
            label = "t" if name == "t" else name
            span = f"{label} = {rows[hit[0]]}" if len(hit) == 1 else f"{label} from {rows[hit[0]]} to {rows[hit[-1]]}"
            all_of_it = f" (T = {problem.case.T})" if name == "t" else ""
            parts.append("every row" if len(hit) == size else f"{len(hit)} of {size} rows, {span}{all_of_it}")
        elif size > 1:
            parts.append(f"every {name}" if len(hit) == size else f"{name} {', '.join(map(str, hit))} of {size}")
    return ", ".join(parts) or "all of it"


def _place(flat: int, answer: Answer) -> dict[str, int]:
    """Where a row lies: `b`, `h`, `t`, or `row` of a projection's weights."""
    index = [int(i) for i in torch.unravel_index(torch.tensor(flat), answer.truth.shape[:-1])]
    if answer.rows is not None:
        index[-1] = int(answer.rows[index[-1]])
    letters = {"batch entry": "b", "head": "h", "t": "t", "output feature": "row"}
    return dict(zip((letters[axis] for axis in answer.axes), index, strict=True))


def _unchanged(now: Sequence[Tensor], before: Sequence[Tensor], fault: str, free: bool = False) -> None:
    """`free`: the last place of a cache is there to be written to."""
    for a, b in zip(now, before, strict=True):
        if free and a.dim() == 4:
            a, b = a[..., :-1, :], b[..., :-1, :]
        if not torch.equal(a, b):
            raise Wrong(fault)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
