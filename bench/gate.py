"""No row without a proof: every implementation is held to a float64 reference before the clock starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from impls import Impl
from impls import weights as canonical
from impls.layer import kernel_options

from .outcome import Wrong, classify
from .problem import Errors, Problem, copies, kernel_problem, layer_inputs, layer_problem
from .sweep import Case

LONG = 512
"""Probes up to this length have several batch entries and heads, and two draws of inputs; longer ones only reach far."""

PROBES = ((37, 64), (577, 576))
"""Lengths of the probes: a ragged one that falls short of a tile of 64, and one that runs a little over many.

The second of each pair serves an implementation that declares that it can't do the first.
"""


class Gate:
    """Checks implementations, and remembers what it has already proved."""

    def __init__(self) -> None:
        self._proved: set[tuple[str, str, Case]] = set()

    def prove(self, impl: Impl, case: Case) -> None:
        """Everything but the layer that is timed; raises `Wrong` with a sentence, or what the implementation raised.

        A kernel is checked bare, on q, k, v that the gate owns. Kernels and layers are checked on probes of ragged length
        with several heads and batch entries, which a sweep made of round numbers would never hold. Beyond `LONG` the bare
        kernel is checked on the long probe alone: in the case itself its every row is seen through the layer.
        """
        eager = eager_form(impl)
        if eager.kernel is not None and case.T <= LONG:
            self._once("bare kernel", eager, case, check_kernel)
        for probe in probes(impl, case):
            if eager.kernel is not None:
                self._once("bare kernel (probe)", eager, probe, check_kernel)
            if eager.kernel is None or impl.compiled:
                self._once("layer (probe)", impl, probe, check_new_layer)

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
    from impls import COMPILE, get

    return get(impl.name.removesuffix(COMPILE)) if impl.compiled else impl


def probes(impl: Impl, case: Case) -> list[Case]:
    """Small cases of the same kind as `case`, with B > 1, H > 1 and ragged lengths, as far as `impl` can."""
    found = []
    for lengths in PROBES:
        fitting = (probe for T in lengths if impl.refusal(probe := _probe(impl, case, T)) is None)
        found += [next(fitting, None)]
    return [probe for probe in found if probe is not None]


def _probe(impl: Impl, case: Case, T: int) -> Case:
    """As many heads as tell a head, or a group of them, from its neighbour."""
    grouped = case.H_kv != case.H
    H = impl.limits.heads or (4 if grouped else 2 if T > LONG else 3)
    H_kv = H if not grouped else 2 if case.H_kv > 1 else 1
    d_model = H * case.D_h if case.d_model == case.H * case.D_h else case.d_model
    T_kv = T if case.source == "self" else T - 9
    return replace(
        case, B=1 if T > LONG and not case.padded else 2, T=T, T_kv=T_kv, H=H, H_kv=H_kv, d_model=d_model, threads=None
    )


def check_kernel(impl: Impl, case: Case) -> Errors:
    """Hold a bare kernel to the reference; raises `Wrong`."""
    kernel = impl.kernel
    assert kernel is not None
    first, second = kernel_problem(case), kernel_problem(case, draw=1) if case.T <= LONG else None
    mask = None
    if (impl.takes_mask and case.causal) or case.mask == "causal+padding":
        mask = torch.ones(case.T, case.T_kv, dtype=torch.bool, device=case.device).tril()
    if first.padding is not None:
        padding = first.padding[:, None, None, :]  # (B, 1, 1, T_kv)
        mask = padding if mask is None else mask & padding
    mask = None if mask is None else mask.clone()
    options = kernel_options(case.layer_shape, mask)
    owned = [] if mask is None else [mask]
    return hold(lambda q, k, v: kernel(q, k, v, **options), first, second, owned)


def check_new_layer(impl: Impl, case: Case) -> Errors:
    return check_layer(build_layer(impl, case), case)


def check_layer(layer: nn.Module, case: Case) -> Errors:
    """Hold a layer to the reference; raises `Wrong`. The layer's weights and buffers must not be written to."""
    first, second = layer_problem(case), layer_problem(case, draw=1) if case.T <= LONG else None
    owned = [*layer.parameters(), *layer.buffers()]
    _, options = layer_inputs(case)
    return hold(lambda *inputs: layer(*inputs, **options), first, second, [*owned, *options.values()])


def build_layer(impl: Impl, case: Case) -> nn.Module:
    """The layer of `impl` for `case`, holding the canonical weights, in the case's dtype on its device."""
    layer = impl.layer(case.layer_shape).to(case.device, getattr(torch, case.dtype)).eval()
    canonical.load(layer, layer_problem(case).weights)
    return layer


def hold(run: Callable[..., Tensor], first: Problem, second: Problem | None, owned: Sequence[Tensor]) -> Errors:
    """Run on two draws (or one) that arrive in the same buffers, and compare with the truth; raises `Wrong`.

    `owned`: what must not be written to, besides the inputs.
    """
    settings = _settings()
    inputs, before = copies(first.inputs), copies(owned)
    o = run(*inputs)
    verify_form(o, first)
    _unchanged(inputs, first.inputs, "writes to its inputs")
    _unchanged(owned, before, "writes to its weights or its mask")
    errors = verify(o, first)
    if second is not None:
        kept = o.clone()
        refill(inputs, second)
        again = run(*inputs)
        verify_form(again, second)
        _unchanged(inputs, second.inputs, "writes to its inputs")
        verify(again, second, NEW_NUMBERS)
        _unchanged([o], [kept], "the first answer changed when the second was computed: both share one buffer")
    _unchanged(owned, before, "writes to its weights or its mask")
    if _settings() != settings:
        raise Wrong("changes torch's own settings: threads, default dtype or matrix-product precision")
    return errors


NEW_NUMBERS = "on new numbers in the same buffers: "


def refill(inputs: Sequence[Tensor], problem: Problem) -> None:
    """Put other numbers into the same buffers, through `.data`: what remembers by address and version must not notice."""
    for buffer, fresh in zip(inputs, problem.inputs, strict=True):
        buffer.data.copy_(fresh)


def verify_form(o: object, problem: Problem) -> None:
    """Shape, dtype and device as promised; raises `Wrong`."""
    promised = problem.inputs[0]
    if not isinstance(o, Tensor):
        raise Wrong(f"returns {type(o).__name__}, not a tensor")
    shape = (*promised.shape[:-1], problem.truth.shape[-1])
    if o.shape != shape:
        raise Wrong(f"output has shape {tuple(o.shape)}, not {tuple(shape)}")
    if o.dtype != promised.dtype:
        raise Wrong(f"output is {_name(o.dtype)}, not {_name(promised.dtype)}")
    if o.device != promised.device:
        raise Wrong(f"output is on {o.device}, not on {promised.device}")


def verify(o: Tensor, problem: Problem, why: str = "") -> Errors:
    """Compare an answer with the truth; raises `Wrong` with where and by how much."""
    errors, allowed = problem.errors(o), problem.allowed
    if errors.overall <= allowed.overall and errors.row <= allowed.row:
        return errors
    rows = problem.row_errors(o)
    if not torch.isfinite(rows).all():
        raise Wrong(f"{why}NaN or Inf in {_where(~torch.isfinite(rows), problem)}")
    bad = rows > allowed.row
    if not bad.any():
        raise Wrong(f"{why}error {errors.overall:.1e} over everything, allowed {allowed.overall:.1e}")
    worst = ", ".join(f"{axis}={i}" for axis, i in _place(int(rows.argmax()), problem).items())
    raise Wrong(
        f"{why}error {errors.row:.1e} in the row {worst}, allowed {allowed.row:.1e}; beyond it: {_where(bad, problem)}"
    )


def _where(bad: Tensor, problem: Problem) -> str:
    """Which rows are at fault, axis by axis: `every batch entry, head 1 of 3, t 512 to 576`."""
    parts = []
    names = ("batch entry", "head", "t") if bad.dim() == 3 else ("batch entry", "t")
    for axis, name in enumerate(names):
        others = tuple(i for i in range(bad.dim()) if i != axis)
        hit = bad.any(dim=others).nonzero().flatten().tolist()
        size = bad.shape[axis]
        if name == "t":
            rows = range(size) if problem.rows is None else problem.rows.tolist()
            T = problem.case.T
            span = f"t = {rows[hit[0]]}" if len(hit) == 1 else f"t from {rows[hit[0]]} to {rows[hit[-1]]}"
            parts.append("every row" if len(hit) == size else f"{len(hit)} of {size} rows, {span} (T = {T})")
        elif size > 1:
            parts.append(f"every {name}" if len(hit) == size else f"{name} {', '.join(map(str, hit))} of {size}")
    return ", ".join(parts)


def _place(flat: int, problem: Problem) -> dict[str, int]:
    shape = problem.truth.shape[:-1]
    index = [int(i) for i in torch.unravel_index(torch.tensor(flat), shape)]
    t = index[-1] if problem.rows is None else int(problem.rows[index[-1]])
    return {"b": index[0]} | ({"h": index[1]} if len(index) == 3 else {}) | {"t": t}


def _unchanged(now: Sequence[Tensor], before: Sequence[Tensor], fault: str) -> None:
    if not all(torch.equal(a, b) for a, b in zip(now, before, strict=True)):
        raise Wrong(fault)


def _settings() -> tuple[object, ...]:
    return (torch.get_num_threads(), torch.get_default_dtype(), torch.get_float32_matmul_precision())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
