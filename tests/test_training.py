"""Training under autocast, with products in a narrow dtype, and with deterministic algorithms."""

import random
from dataclasses import replace
from itertools import count

import pytest
import torch
from torch import Tensor
from torch.amp import custom_bwd, custom_fwd
from torch.autograd import Function
from torch.nn.functional import scaled_dot_product_attention as sdpa

import impls
from bench.cases import counting
from bench.cases.case import Case
from bench.cases.cells import Cell
from bench.cases.outcome import Wrong
from bench.checks.calls import recording
from bench.checks.gate import Gate
from bench.checks.module_checks import check_case
from bench.timing.cell import build, check_built, check_repeats

from .conftest import gated
from .wrong_kernels import KEPT, Plain, added_up, applied, given, going_back, of_formula, scaled

NARROW = Case.of(T=48, H=2, D_h=16, mask="none", autocast="bfloat16")
CORE = replace(NARROW, scope="core")
BACKWARD = replace(NARROW, mode="backward")
REPEATING = Case.of(T=32, H=2, D_h=16, mask="none", mode="backward", deterministic=True)


def formula(dtype, cast=lambda o: o):
    """The formula in a dtype, with autocast disabled, and its output cast."""

    def kernel(q, k, v, **_):
        with torch.autocast("cpu", enabled=False):
            q, k, v = (x.to(dtype) for x in (q, k, v))
            return cast(torch.softmax(scaled(q, k), -1) @ v)

    return kernel


# wrong under autocast


def sums_in_bfloat16(q, k, v, **_):
    """Sums key by key in bfloat16: o is rounded once per key."""
    with torch.autocast("cpu", enabled=False):
        return added_up(torch.softmax(scaled(q.float(), k.float()), -1).bfloat16(), v.bfloat16())


def casts_outside_the_graph(q, k, v, **_):
    return sdpa(q, k.detach().bfloat16(), v)


def keeps_what_it_has_cast(q, k, v, **_):
    return sdpa(q, k, KEPT.setdefault(("cast", v.data_ptr()), v.detach().bfloat16().clone()))


WRONG = {
    "sums in float16": (formula(torch.float16, Tensor.bfloat16), CORE, "NaN or Inf"),
    "forgets to cast back": (formula(torch.float32), CORE, "output is float32, not bfloat16, which autocast gives"),
    "forgets it in a layer": (formula(torch.float32), NARROW, "output is float32, not bfloat16, which autocast gives"),
    "casts to another dtype": (formula(torch.float32, Tensor.half), CORE, "output is float16, not bfloat16"),
    "sums in bfloat16": (sums_in_bfloat16, replace(CORE, T=600, T_kv=600), "error"),
    "casts outside the graph": (casts_outside_the_graph, replace(CORE, mode="backward"), "no gradient reaches k"),
    "keeps what it has cast": (keeps_what_it_has_cast, CORE, "on new numbers in the same buffers"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_layer_that_loses_precision_under_autocast_is_refused(short_probes, name):
    kernel, case, says = WRONG[name]
    with pytest.raises(Wrong, match=says):
        gated(impls.make("mine", kernel), case)


# right, and unusual


def casts_by_hand(q, k, v, **_):
    with torch.autocast("cpu", enabled=False):
        return sdpa(*(x.to(torch.get_autocast_dtype("cpu")) for x in (q, k, v)))


class Custom(Function):
    """A function with its own backward, as in torch's documentation."""

    @staticmethod
    @custom_fwd(device_type="cpu")
    def forward(ctx, q, k, v):
        probs = torch.softmax(scaled(q, k), -1)
        ctx.save_for_backward(q, k, v, probs)
        return probs @ v

    @staticmethod
    @custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        q, k, v, probs = ctx.saved_tensors
        return of_formula(q, k, v, probs, (grad @ v.mT * probs).sum(-1, keepdim=True), grad)


def own_backward(q, k, v, **_):
    return Custom.apply(q, k, v)


@pytest.mark.parametrize("case", [CORE, replace(CORE, mode="backward"), BACKWARD], ids=["core", "gradients", "layer"])
@pytest.mark.parametrize("kernel", [formula(torch.float32, Tensor.bfloat16), casts_by_hand, own_backward])
def test_a_layer_that_casts_in_its_own_way_passes(short_probes, kernel, case):
    gated(impls.make("mine", kernel), case)


LAYERS = [
    {"mode": "backward"},
    {"mode": "backward", "autocast": "float16", "qkv_bias": True, "out_bias": True},
    {"mask": "causal+padding", "B": 2},
    {"bias": "alibi", "H_kv": 1},
    {"softcap": 20, "sinks": True, "scope": "core"},
    {"latent": 16, "rope": 8},
    {"dropout": 0.2, "mode": "backward"},
]


@pytest.mark.parametrize("axes", LAYERS, ids=str)
def test_implementations_are_right_under_autocast(short_probes, axes):
    case = replace(NARROW, **axes)
    for name in ("fused", "sdpa", "packed", "online", "torch_mha"):
        if impls.get(name).refusal(case) is None:
            Gate().check(impls.get(name), case)
            assert check_case(impls.get(name), case).error > 1e-4  # in float32 it would be 5e-7


def test_only_the_output_moves_in_the_narrow_dtype():
    read, written = 3 * 48 * 32, 48 * 32
    assert counting.least_bytes(CORE) == 4 * read + 2 * written
    assert counting.least_bytes(replace(CORE, mode="backward")) == 2 * (4 * read + 2 * written)


# bit for bit


def scattered(order):
    """SDPA whose gradient of v is summed query by query, in this order of the rows."""

    class Scattered(Plain):
        @staticmethod
        def backward(ctx, grad):
            (q, k, v), (of_q, of_k, _, _) = ctx.saved_tensors, Plain.backward(ctx, grad)
            probs, of_v = torch.softmax(scaled(q, k), -1), torch.zeros_like(v)
            for i in order(list(range(q.shape[-2]))):
                of_v += probs[..., i, :, None] * grad[..., i, None, :]
            return of_q, of_k, of_v, None

    return applied(Scattered)


_calls = count()


def dithered(x):
    """Numbers that are off by a last bit at random, as before quantisation."""
    return x * (1 + torch.tensor([random.getrandbits(1) * 2e-7 for _ in range(x.shape[-1])]))


@given
def rounds_at_random(q, k, v):
    return going_back(q, dithered), k, v


def as_they_come(rows):
    """Return the rows in random order, like atomic additions of threads."""
    return random.sample(rows, len(rows))


def alternating(rows):
    """Return the rows in alternating order, like a kernel that tries another algorithm in each call."""
    return rows if next(_calls) % 2 else rows[::-1]


@pytest.mark.parametrize("kernel", [scattered(as_they_come), scattered(alternating), rounds_at_random])
def test_gradients_that_do_not_repeat_are_refused_where_that_is_asked(kernel):
    mine = impls.make("mine", kernel)
    for scope in ("core", "layer"):
        check_case(mine, replace(REPEATING, scope=scope, deterministic=False))
        with pytest.raises(Wrong, match=r"gradient of \w+: two calls on the same inputs differ"):
            check_repeats(build(Cell(mine, replace(REPEATING, scope=scope))))


def test_those_that_repeat_pass():
    for impl in (
        impls.make("mine", scattered(lambda rows: rows[::-1])),
        impls.get("sdpa"),
        impls.get("fused"),
        impls.get("online"),
    ):
        check_repeats(build(Cell(impl, REPEATING)))
    check_repeats(build(Cell(impls.get("fused"), replace(REPEATING, dropout=0.5))))  # by the same random numbers


def test_deterministic_algorithms_are_on_in_a_call_and_nowhere_else():
    def reads(q, k, v, **_):
        seen.add(torch.are_deterministic_algorithms_enabled())
        return sdpa(q, k, v)

    def turns_them_off(q, k, v, **_):
        torch.use_deterministic_algorithms(False)
        return sdpa(q, k, v)

    for deterministic in (True, False):
        seen = set()
        check_case(impls.make("mine", reads), replace(REPEATING, deterministic=deterministic))
        assert seen == {deterministic}
    with pytest.raises(Wrong, match="turns torch's deterministic algorithms off"):
        check_case(impls.make("mine", turns_them_off), REPEATING)
    with pytest.raises(ZeroDivisionError), recording(REPEATING):
        raise ZeroDivisionError
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_compiled_form_that_drops_is_checked_and_timed():
    built = build(Cell(impls.get("fused+compile"), Case.of(T=16, H=2, D_h=8, dropout=0.1)))
    check_built(built)
    assert built.time(calls=1)[0] > 0
