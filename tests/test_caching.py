"""Detection by timing: cached results, and outputs that are computed only when checked."""

from dataclasses import replace
from itertools import count

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

import impls
from bench.cases.case import Case
from bench.cases.cells import Cell
from bench.cases.outcome import Skip, Wrong
from bench.checks.attention_problems import problem_of
from bench.checks.calls import Call
from bench.checks.gate import Gate
from bench.checks.inputs import Inputs, inputs_of
from bench.timing import cell
from bench.timing.caching import LONG_CALL, MIN_PAIRS, check_caching, check_no_result_caching
from impls.layer import KernelCore, KernelLayer

from .conftest import checked

CASE = Case.of(T=16, H=2, D_h=8, scope="core")


class Work:
    """A call that takes a second if it computes and a tenth if it returns a cached result; and a simulated clock."""

    def __init__(self, caches=False, noise=()):
        self.numbers, self.caches, self.noise = inputs_of(problem_of(CASE)), caches, [*noise]
        self.known, self.calls, self.spent = set(), 0, 0.0
        self.perturb = self.numbers.perturb
        self.meter, self.call = self, Call(torch.nn.Identity(), CASE, self.numbers, self, lambda _: {})

    def __call__(self):
        content = float(sum(x.sum() for x in self.numbers.tensors))
        self.spent += 0.1 if self.caches and content in self.known else 1.0
        self.known.add(content)
        self.calls += 1

    def seconds(self, call, times):
        before = self.spent
        for _ in range(times):
            call()
        return self.spent - before + (self.noise.pop(0) if self.noise else 0.0)

    def refill(self, input_set):
        self.numbers.refill(problem_of(CASE, input_set))


def test_a_kernel_that_caches_by_content_is_refused():
    """Also where the first calls on known inputs are disturbed."""
    work = Work(caches=True, noise=(0.0, 9.0, 9.0))
    work()
    with pytest.raises(Wrong, match=r"caches results: fresh inputs take .* times as long as repeated ones"):
        check_no_result_caching(work, 0.1)


@pytest.mark.parametrize(
    ("usual", "noise", "calls"),
    [
        (1.0, (9.0,), 4),
        (1.0, (9.0,) * 9, 3 * MIN_PAIRS),
        (0.4, (0.0,) * 3 + (9.0, 0.0, 0.0) * 2, 3 * MIN_PAIRS),  # the fastest calls are alike
        (0.4, (9.0, 0.0, 0.0) * MIN_PAIRS, 6 * MIN_PAIRS),  # with pauses none is disturbed
    ],
)
def test_a_kernel_that_computes_passes_in_spite_of_noise(usual, noise, calls):
    """By the first call on fresh inputs that is as fast as any, or in pairs where the machine is slower than before."""
    check_no_result_caching(work := Work(noise=noise), usual)
    assert work.calls == calls


def test_a_cache_miss_is_not_reported_as_caching(monkeypatch):
    class Cold(Work):
        """Takes twice as long if the inputs were perturbed since the last call."""

        def __call__(self):
            super().__call__()
            self.spent += len(written)
            written.clear()

    written, perturb = list[int](), Inputs.perturb
    monkeypatch.setattr(Inputs, "perturb", lambda it, weight=1: (perturb(it, weight), written.append(1)))
    check_no_result_caching(Cold(), 1.0)


def test_a_long_call_is_not_repeated_where_the_check_was_as_fast():
    check_caching(work := Work(caches=True), 2 * LONG_CALL, 3 * LONG_CALL)
    assert work.calls == 0


def test_a_perturbation_changes_every_input_and_never_repeats():
    """One of weight 0 writes the same numbers again. A backward is given another gradient, too."""
    numbers, seen = inputs_of(problem_of(replace(CASE, mode="backward"))), list[tuple[float, ...]]()
    tensors = [*numbers.tensors, numbers.grad]
    for _ in range(6):
        before = [x.clone() for x in tensors]
        numbers.perturb(0)
        assert all(map(torch.equal, tensors, before))
        seen.append(tuple(float(x.detach().double().sum()) for x in tensors))
        numbers.perturb()
    assert all(len(set(of_input)) == len(seen) for of_input in zip(*seen, strict=True))
    assert all(x.isfinite().all() for x in tensors)


def built(kernel):
    return checked(Cell(impls.make("mine", kernel), Case.of(T=64, H=2, D_h=8)))[0]


def test_a_form_that_is_compiled_again_while_timed_has_no_row(monkeypatch):
    it, graphs = built(sdpa), count()
    it.time(calls=1)
    monkeypatch.setattr(cell, "_compiled", lambda _: next(graphs))
    with pytest.raises(Skip, match="made another graph while it was timed"):
        it.time(calls=1)


def test_a_compiled_form_of_which_no_graph_is_made_has_no_row(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda eager, **_: eager)
    with pytest.raises(Skip, match="made no graph"):
        cell.check_built(cell.build(Cell(impls.get("sdpa+compile"), CASE)))


def test_a_kernel_that_computes_only_for_the_gate_and_the_profiler_is_refused():
    checking, last = [True], dict[tuple[int, ...], Tensor]()

    def idle(q, k, v, *, is_causal=False, **_):
        if checking or torch.autograd._profiler_enabled() or q.shape not in last:
            last[q.shape] = sdpa(q, k, v, is_causal=is_causal)
        return last[q.shape].clone()

    it = built(idle)
    checking.clear()
    with pytest.raises(Wrong, match="in a timed call"):
        it.time(calls=2)


@pytest.mark.parametrize("replaced", [(), ("equal", "allclose")])
def test_an_output_that_changes_later_is_compared_with_the_reference(monkeypatch, replaced):
    """Also if an implementation replaces functions that compare."""
    faults = [0.0]

    def drifts(q, k, v, *, is_causal=False, **_):
        return sdpa(q, k, v, is_causal=is_causal) + faults[0]

    it = built(drifts)
    it.time(calls=3, warm=1)
    faults[0] = 1e-9  # not bitwise equal, and correct
    it.time(calls=3, warm=1)
    for name in replaced:
        monkeypatch.setattr(torch, name, lambda *_, **__: True)
    faults[0] = 1e-2
    with pytest.raises(Wrong, match="in a timed call"):
        it.time(calls=3, warm=1)


@pytest.mark.parametrize("page", [None, 8])
def test_a_cache_that_is_written_no_longer_is_found(page):
    class Layer(KernelLayer):
        writes = True

        def __init__(self, shape):
            super().__init__(shape, KernelCore(shape, sdpa))

        def forward(self, x, *rest, cache, **options):
            into = cache if self.writes else tuple(it.clone() for it in cache)
            return super().forward(x, *rest, cache=into, **options)

    case = Case.of(T=1, T_kv=64, H=2, D_h=8, mode="decode", mask="none", page=page)
    it = checked(Cell(impls.make("mine", Layer, limits=impls.Limits(beyond=("page",))), case))[0]
    for _ in range(2):
        it.time(calls=1)
        it.time(1, input_set=1)
    Layer.writes = False
    with pytest.raises(Wrong, match="in a timed call: key written to the cache: NaN"):
        it.time(calls=1)


def test_renewed_inputs_have_new_addresses_and_the_same_layout():
    it = built(sdpa)
    it.call.module.register_buffer("expanded", torch.ones(1, 4).expand(3, 4))
    tensors = [*it.call.module.parameters(), *it.call.inputs.tensors]
    before = [(tensor.data_ptr(), tensor.stride()) for tensor in tensors]
    it.renew()
    for tensor, (address, stride) in zip(tensors, before, strict=True):
        assert tensor.data_ptr() != address and tensor.stride() == stride
    assert it.call.module.expanded.stride() == (0, 1)
    it.time(calls=1)  # and its output is correct


class Leaves:
    """A kernel whose first call after one on 48 tokens, as no probe has, is wrong, as if a counter were not reset."""

    left = False

    def __call__(self, q, k, v, *, is_causal=False, **_):
        o = sdpa(q, k, v, is_causal=is_causal) * (1.01 if self.left and q.shape[-2] != 48 else 1.0)
        self.left = q.shape[-2] == 48
        return o


def test_state_left_by_an_earlier_case_shows_in_the_first_call_of_the_next():
    impl, gate = impls.make("mine", Leaves()), Gate()
    short, long = (Cell(impl, Case.of(T=T, H=2, D_h=8)) for T in (48, 256))
    gate.check(impl, long.case)
    impl.kernel.left = False
    for it in (short, long):
        gate.check_threads(impl, it.case)
    timed, later = cell.probe(short, gate), cell.probe(long, gate)
    cell.check_built(timed)
    timed.time(calls=3)
    with pytest.raises(Wrong, match="error"):
        cell.check_built(later)
    later.time(1, input_set=1)  # and where the clock visits one case after the other
    timed.time(calls=3)
    with pytest.raises(Wrong, match="in a timed call"):
        later.time(1, input_set=1)
