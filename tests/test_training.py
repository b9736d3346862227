"""Training under autocast, with products in a narrow dtype, and with deterministic algorithms."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

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
from bench.checks.gate import Gate, check_case
from bench.timing.cell import build, check_repeats

from .conftest import gated

NARROW = Case.of(T=48, H=2, D_h=16, mask="none", autocast="bfloat16")
CORE = replace(NARROW, scope="core")
BACKWARD = replace(NARROW, mode="backward")
REPEATING = Case.of(T=32, H=2, D_h=16, mask="none", mode="backward", deterministic=True)


def plainly(q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype) -> Tensor:
    """The formula with autocast disabled."""
    with torch.autocast("cpu", enabled=False):
        q, k, v = (x.to(dtype) for x in (q, k, v))
        return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v


# wrong under autocast


def sums_in_float16(q, k, v, **_):
    return plainly(q, k, v, torch.float16).bfloat16()


def forgets_to_cast_back(q, k, v, **_):
    return plainly(q, k, v, torch.float32)


def casts_to_another_dtype(q, k, v, **_):
    return plainly(q, k, v, torch.float32).half()


def sums_in_bfloat16(q, k, v, **_):
    """Sums key by key in bfloat16: o is rounded once per key."""
    with torch.autocast("cpu", enabled=False):
        probs = torch.softmax(q.float() @ k.float().mT * q.shape[-1] ** -0.5, -1).bfloat16()
        o = torch.zeros_like(q, dtype=torch.bfloat16)
        for p, value in zip(probs.split(1, -1), v.bfloat16().split(1, -2), strict=True):
            o += p * value
    return o


def casts_outside_the_graph(q, k, v, **_):
    return sdpa(q, k.detach().bfloat16(), v)


_casts: dict[int, Tensor] = {}


def keeps_what_it_has_cast(q, k, v, **_):
    narrow = _casts.setdefault(v.data_ptr(), v.detach().bfloat16().clone())
    return sdpa(q, k, narrow)


WRONG: list[tuple[Callable[..., Tensor], Case, str]] = [
    (sums_in_float16, CORE, "NaN or Inf"),
    (forgets_to_cast_back, CORE, "output is float32, not bfloat16, which autocast gives"),
    (forgets_to_cast_back, NARROW, "output is float32, not bfloat16, which autocast gives"),
    (casts_to_another_dtype, CORE, "output is float16, not bfloat16"),
    (sums_in_bfloat16, replace(CORE, T=600, T_kv=600), "error"),
    (casts_outside_the_graph, replace(CORE, mode="backward"), "no gradient reaches k"),
    (keeps_what_it_has_cast, CORE, "on new numbers in the same buffers"),
]


@pytest.mark.parametrize(("kernel", "case", "says"), WRONG, ids=[f"{it[0].__name__} {it[1].scope}" for it in WRONG])
def test_a_layer_that_loses_precision_under_autocast_is_refused(
    short_probes: None, kernel: Any, case: Case, says: str
) -> None:
    with pytest.raises(Wrong, match=says):
        gated(impls.make("mine", kernel), case)


# right, and unusual


def in_float32(q, k, v, **_):
    return plainly(q, k, v, torch.float32).to(torch.get_autocast_dtype("cpu"))


def casts_by_hand(q, k, v, **_):
    q, k, v = (x.to(torch.get_autocast_dtype("cpu")) for x in (q, k, v))
    with torch.autocast("cpu", enabled=False):
        return sdpa(q, k, v)


class Custom(Function):
    """A function with its own backward, as in torch's documentation."""

    @staticmethod
    @custom_fwd(device_type="cpu")
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        probs = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1)
        ctx.save_for_backward(q, k, v, probs)
        return probs @ v

    @staticmethod
    @custom_bwd(device_type="cpu")
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        q, k, v, probs = ctx.saved_tensors
        of_probs = grad @ v.mT
        of_scores = probs * (of_probs - (of_probs * probs).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
        return of_scores @ k, of_scores.mT @ q, probs.mT @ grad


def own_backward(q, k, v, **_):
    return Custom.apply(q, k, v)


@pytest.mark.parametrize("case", [CORE, replace(CORE, mode="backward"), BACKWARD], ids=["core", "gradients", "layer"])
@pytest.mark.parametrize("kernel", [in_float32, casts_by_hand, own_backward])
def test_a_layer_that_casts_in_its_own_way_passes(short_probes: None, kernel: Any, case: Case) -> None:
    gated(impls.make("mine", kernel), case)


LAYERS: list[dict[str, Any]] = [
    {"mode": "backward"},
    {"mode": "backward", "autocast": "float16", "qkv_bias": True, "out_bias": True},
    {"mask": "causal+padding", "B": 2},
    {"bias": "alibi", "H_kv": 1},
    {"softcap": 20, "sinks": True, "scope": "core"},
    {"latent": 16, "rope": 8},
    {"dropout": 0.2, "mode": "backward"},
]


@pytest.mark.parametrize("axes", LAYERS, ids=str)
def test_implementations_are_right_under_autocast(short_probes: None, axes: dict[str, Any]) -> None:
    case = replace(NARROW, **axes)
    for name in ("fused", "sdpa", "packed", "online", "torch_mha"):
        if impls.get(name).refusal(case) is None:
            Gate().check(impls.get(name), case)
            assert check_case(impls.get(name), case).error > 1e-4  # in float32 it would be 5e-7


def test_only_the_output_moves_in_the_narrow_dtype() -> None:
    read, written = 3 * 48 * 32, 48 * 32
    assert counting.least_bytes(CORE) == 4 * read + 2 * written
    assert counting.least_bytes(replace(CORE, mode="backward")) == 2 * (4 * read + 2 * written)


# bit for bit


class Scattered(Function):
    """SDPA whose gradient of v is summed in another order."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, v)
        return sdpa(q, k, v)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        q, k, v = (x.detach().requires_grad_() for x in ctx.saved_tensors)
        with torch.enable_grad():
            of_q, of_k, of_v = torch.autograd.grad(sdpa(q, k, v), (q, k, v), grad)
        return of_q, of_k, reordered(q, k, v, grad, of_v)


_calls: Iterator[int] = iter(range(1 << 30))
_order: list[Callable[[list[int]], list[int]]] = []


def reordered(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, of_v: Tensor) -> Tensor:
    """Compute the gradient of v query by query, in the order that `_order` gives."""
    probs = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1).detach()
    total = torch.zeros_like(of_v)
    for i in _order[0](list(range(q.shape[-2]))):
        total += probs[..., i, :, None] * grad[..., i, None, :]
    return total


def scattered(q, k, v, **_):
    return Scattered.apply(q, k, v)


class RoundsAtRandom(Function):
    """SDPA on values that are off by a last bit at random, as by dithering before quantisation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * (
            1 + torch.tensor([0.0, 2e-7])[torch.tensor([random.getrandbits(1) for _ in range(grad.shape[-1])])]
        )


def rounds_at_random(q, k, v, **_):
    return sdpa(RoundsAtRandom.apply(q), k, v)


def as_they_come(rows: list[int]) -> list[int]:
    """Return the rows in random order, like atomic additions of threads."""
    return random.sample(rows, len(rows))


def alternating(rows: list[int]) -> list[int]:
    """Return the rows in alternating order, like a kernel that tries another algorithm in each call."""
    return rows if next(_calls) % 2 else rows[::-1]


@pytest.mark.parametrize(
    ("kernel", "order"), [(scattered, as_they_come), (scattered, alternating), (rounds_at_random, None)]
)
def test_gradients_that_do_not_repeat_are_refused_where_that_is_asked(kernel: Any, order: Any) -> None:
    _order[:] = [order]
    mine = impls.make("mine", kernel)
    for scope in ("core", "layer"):
        check_case(mine, replace(REPEATING, scope=scope, deterministic=False))
        with pytest.raises(Wrong, match=r"gradient of \w+: two calls on the same inputs differ"):
            check_repeats(build(Cell(mine, replace(REPEATING, scope=scope))))


def test_those_that_repeat_pass() -> None:
    _order[:] = [lambda rows: rows[::-1]]
    for impl in (impls.make("mine", scattered), impls.get("sdpa"), impls.get("fused"), impls.get("online")):
        check_repeats(build(Cell(impl, REPEATING)))
    check_repeats(build(Cell(impls.get("fused"), replace(REPEATING, dropout=0.5))))  # by the same random numbers


def turns_it_off(q, k, v, **_):
    torch.use_deterministic_algorithms(False)
    return sdpa(q, k, v)


def test_deterministic_algorithms_are_on_in_a_call_and_nowhere_else() -> None:
    seen = []

    def reads(q, k, v, **_):
        seen.append(torch.are_deterministic_algorithms_enabled())
        return sdpa(q, k, v)

    mine = impls.make("mine", reads)
    check_case(mine, REPEATING)
    assert seen and all(seen)
    seen.clear()
    check_case(mine, replace(REPEATING, deterministic=False))
    assert not any(seen)
    with pytest.raises(Wrong, match="turns torch's deterministic algorithms off"):
        check_case(impls.make("mine", turns_it_off), REPEATING)
    with pytest.raises(ZeroDivisionError), recording(REPEATING):
        raise ZeroDivisionError
    assert not torch.are_deterministic_algorithms_enabled()
