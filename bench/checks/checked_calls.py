"""Checks calls of one module: what they return, that it survives later calls, and that they change nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from impls import Impl
from impls.registry import Compiled

from ..cases.case import Case
from ..cases.outcome import Wrong
from ..cases.sweep import misfit
from .attention_problems import problem_of
from .building import keeping_settings, new_call, prepare
from .calls import Call, not_a_tensor, recording
from .inputs import copies, elsewhere, same, surroundings_intact
from .probes import LONG_PROBE
from .problem import Problem
from .reference import Tensors
from .revealing_problems import solved, with_numbers_exchanged
from .settings import memory_filled, threads
from .verifying import NEW_NUMBERS, CheckResult, verify

CALLS_KEPT = 16
"""Calls whose outputs are kept at the same time: more than the buffers that a kernel would alternate between."""


@keeping_settings()
def check_call(call: Call, input_sets: Sequence[int], on_other_tensors: bool = False) -> CheckResult:
    """Compare a call with the reference on each input set, loaded into the same buffers; raises `Wrong`.

    The call must not write to inputs, to the gradient of the output, to weights or to buffers, and outputs must survive
    later calls, of which more are made if the module keeps an output. `on_other_tensors`: call once more, on other
    tensors. Returns the errors on input set 0.
    """
    case, inputs, kept = call.case, call.inputs, _KeptOutputs()
    problems = {input_set: problem_of(case, input_set) for input_set in input_sets}
    for problem in problems.values():
        problem.expected  # noqa: B018  computed before a call can patch its functions
    others = "where other keys are padding" if case.padded else "where requests have other pages"
    whys = "", NEW_NUMBERS, f"{others} than before: "
    found: dict[int, CheckResult] = {}
    for input_set, problem in problems.items():
        if found:  # the first one is in the buffers
            inputs.refill(problem)
            prepare(call.module, case, input_set)
        found[input_set] = _compare(call, problem, kept, whys[len(found)])
    if on_other_tensors:
        stale = problem_of(case)  # where the call must not read
        if inputs.options:  # masks of this problem at the addresses of those of the call before
            problem, stale = stale, problem
            prepare(call.module, case)
        apart = call.on(elsewhere(inputs, problem))
        inputs.refill(stale)
        with nullcontext() if isinstance(call.module, Compiled) else memory_filled():
            _compare(apart, problem, kept, "in other tensors than before, with new memory full of NaN: ")
    if not kept.forget():
        check_memory(call.on(inputs))
    return found[0]


def check_once(call: Call, problem: Problem, why: str = "") -> None:
    """Compare one call with the reference; raises `Wrong`."""
    with keeping_settings():
        outputs = _outputs(call, problem)
    verify(outputs, problem, why)


EXCHANGED = tuple(partial(with_numbers_exchanged, index) for index in range(3))


def check_numbers_exchanged(call: Call) -> None:
    """Check calls where two numbers of one input alone are exchanged; raises `Wrong`."""
    for name, make in reversed([*zip(call.inputs.names, EXCHANGED, strict=False)]):  # queries last, the same until then
        exchanged = solved(make, call.case)
        call.inputs.refill(exchanged)
        check_once(call, exchanged, f"where two numbers of {name} alone are exchanged: ")


def check_zeros(call: Call) -> None:
    """Check a call whose inputs are all zero, as a kernel may divide by the largest number of a head; raises `Wrong`."""
    for x in call.inputs.tensors:
        x.data.zero_()
    problem = problem_of(call.case)
    with keeping_settings():
        outputs = _compared(problem, _outputs(call, problem))
    if not all(it.isfinite().all() for it in outputs):
        raise Wrong("NaN or Inf where all inputs are zero")


def check_memory(call: Call) -> Tensors:
    """Check that outputs which exist at the same time have memory of their own; raises `Wrong`. Returns the last ones."""
    with keeping_settings():
        outputs = [call.read(_run(call)) for _ in range(CALLS_KEPT)]
    for name in _own_outputs(call.case, outputs[0]):
        if (places := len({it[name].untyped_storage().data_ptr() for it in outputs})) < CALLS_KEPT:
            what = name.replace("output", "outputs").replace("gradient", "gradients")
            raise Wrong(f"the {what} of {CALLS_KEPT} calls share {places} buffers")
    return outputs[-1]


ANOTHER_MASK = {"none": "causal", "causal": "none"}


def call_with_another_mask(impl: Impl, case: Case) -> Exception | None:
    """Call a core or a layer once with the same sizes and another mask, or without padding: one that caches masks by size is
    wrong afterwards.

    The call may fail; returns its exception. Raises `Wrong` if it changes global settings, as a first call may.
    """
    other = replace(case, mask=ANOTHER_MASK.get(case.mask, case.mask))
    unpadded = case.padded and case.T_kv > LONG_PROBE  # a shorter probe tells what is kept of another padding
    if (other == case and not unpadded) or misfit(other) is not None or impl.refusal(other) is not None:
        return None
    try:
        with keeping_settings(), recording(other, inference=False):
            call = new_call(impl, other)
            if unpadded:
                call.inputs.options["padding"].fill_(True)
            call.run()
    except Wrong:
        raise
    except Exception as error:
        return error
    return None


def checked_call(call: Call) -> Any:
    """Context of a checked call: records gradients only if the case needs them.

    Only compiled calls, which would compile another graph without it, use inference mode: its tensors can't be saved for a
    later backward, nor filled by an implementation's own threads.
    """
    return recording(call.case, inference=isinstance(call.module, Compiled))


def _run(call: Call) -> Any:
    with checked_call(call):
        return call.run()


class _KeptOutputs:
    """Outputs of the calls so far."""

    def __init__(self) -> None:
        self._kept: list[tuple[Problem, Tensors, tuple[Tensor, ...]]] = []

    def add(self, problem: Problem, outputs: Tensors) -> None:
        """Keep the outputs of one more call; raises `Wrong` if it changed earlier ones."""
        for of, before_this, copied in self._kept:
            _unchanged(
                _compared(of, before_this), copied, "an output changed during a later call: both share one buffer"
            )
        own = {name: outputs[name] for name in _own_outputs(problem.case, outputs)}
        self._kept.append((problem, own, copies(_compared(problem, own))))

    def forget(self) -> bool:
        """Release all outputs; returns whether those of all calls but the last, and their gradients, were freed."""
        memory = [StorageWeakRef(it.untyped_storage()) for _, own, _ in self._kept[:-1] for it in own.values()]
        self._kept.clear()
        return all(it.expired() for it in memory)


def _compare(call: Call, problem: Problem, kept: _KeptOutputs, why: str) -> CheckResult:
    with changing_nothing(call, problem):
        outputs = _outputs(call, problem)
    places = {x.untyped_storage().data_ptr() for x in call.inputs.tensors}
    if outputs["output"].untyped_storage().data_ptr() in places:
        raise Wrong("its output shares the memory of an input")
    with threads(1):
        kept.add(problem, outputs)
        return verify(outputs, problem, why)


@contextmanager
def changing_nothing(call: Call, problem: Problem) -> Iterator[None]:
    """Raise `Wrong` if a call within the block changes its inputs, memory around them, its weights, its mask or a gradient."""
    inputs, of_module = call.inputs, (*call.module.parameters(), *call.module.buffers())
    owned = [it for it in of_module if all(it is not x for x in inputs.tensors)]  # a buffer may be a cache
    owned += inputs.options.values()
    read_only = inputs.tensors[: 1 if call.case.writes_cache else None]
    masks = [*inputs.options.values(), *(call.module.buffers() if call.case.scope == "core" else ())]
    grads = [] if inputs.grad is None else [inputs.grad]
    given = *inputs.tensors, *masks, *grads
    versions, of_masks, of_grads, views = _versions(read_only), _versions(masks), _versions(grads), _views(given)
    with threads(1):
        before = copies(owned)
    yield
    if views != _views(given):
        raise Wrong("changes the shape, strides, memory or requires_grad of a tensor that it is given")
    with threads(1):
        _unchanged(inputs.tensors, problem.inputs, "writes to its inputs", problem.free)
        if not surroundings_intact(inputs):
            raise Wrong("writes to memory beside its inputs")
        if versions != _versions(read_only):
            raise Wrong("writes to its inputs, which others may read meanwhile")
        fault = "writes to its weights or its mask, or to a buffer"
        _unchanged(owned, before, fault)
        if of_masks != _versions(masks):
            raise Wrong(f"{fault}, which others may read meanwhile")
        if problem.grad is not None:
            fault = "writes to the gradient of its output, which others may read"
            _unchanged(grads, [problem.grad], fault)
            if of_grads != _versions(grads):
                raise Wrong(fault)
            if any(x.grad is not None for x in (*inputs.tensors, *call.module.parameters())):
                raise Wrong("adds to `.grad` as a side effect: training with it would count these gradients twice")


def _versions(tensors: Iterable[Tensor]) -> list[int]:
    """Return torch's counters of changes in place."""
    return [x._version for x in tensors]


def _views(tensors: Iterable[Tensor]) -> list[object]:
    """Return where tensors lie in memory, how they are laid out, and whether they need gradients."""
    return [(x.data_ptr(), x.shape, x.stride(), x.requires_grad) for x in tensors]


def _unchanged(now: Sequence[Tensor], before: Sequence[Tensor], fault: str, free: Tensor | None = None) -> None:
    """Raise `Wrong` if tensors changed. `free`: positions of a cache that may be written to."""
    for a, b in zip(now, before, strict=True):
        if free is not None and a.dim() == 4:
            a, b = (x.index_fill(-2, free, 0) for x in (a, b))
        if not same([a], [b]):  # free pages hold NaN
            raise Wrong(fault)


def _own_outputs(case: Case, names: Iterable[str]) -> list[str]:
    """Return the names of outputs in memory of a call's own, not in the cache that it is given."""
    return [name for name in names if name == "output" or not case.writes_cache]


def _compared(problem: Problem, outputs: Tensors) -> list[Tensor]:
    """Return what is compared of these outputs."""
    return [part.compared_rows(outputs[part.name]) for part in problem.expected if part.name in outputs]


def _outputs(call: Call, problem: Problem) -> Tensors:
    """Return the outputs of a call, whose shape, dtype and device are as promised; raises `Wrong`."""
    case, promised, o = problem.case, problem.inputs[0], _run(call)
    several = problem.grad is not None or (case.in_model and case.does.cached)
    first = o[0] if several and isinstance(o, tuple) else o
    if not isinstance(first, Tensor):
        raise not_a_tensor(first, case)
    check_plain(first)
    tokens = promised.shape[:-1] if promised.is_floating_point() else promised.shape
    shape = (*tokens, problem.output.reference.shape[-1])
    if first.shape != shape:
        raise Wrong(f"output has shape {tuple(first.shape)}, not {tuple(shape)}")
    if dtype_name(first) != case.computes:
        under = ", which autocast gives" if case.autocast else ""
        raise Wrong(f"output is {dtype_name(first)}, not {case.computes}{under}")
    if first.device != promised.device:
        raise Wrong(f"output is on {first.device}, not on {promised.device}")
    return call.read(o)


def check_plain(x: Tensor) -> None:
    """Raise `Wrong` for a tensor of a subclass."""
    if type(x) not in (Tensor, nn.Parameter):
        raise Wrong(f"returns a {type(x).__name__}, which may compute when it is read: not a plain tensor")


def dtype_name(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")
