"""No implementation mixes devices: what it makes itself lies where its inputs do. Found out without a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import impls
from bench.cases.case import Case
from bench.checks import reference

SIZES: dict[str, Any] = {"T": 32, "H": 4, "D_h": 16, "device": "cuda"}
CASES = [
    Case.of(**SIZES, dtype="bfloat16"),
    Case.of(**SIZES, dtype="bfloat16", H_kv=2, mask="none"),
    Case.of(**SIZES, B=2, mask="causal+padding"),
    Case.of(**SIZES, window=8),
    Case.of(**SIZES, softcap=5),
    Case.of(**SIZES, sinks=True),
    Case.of(**SIZES, bias="alibi"),
    Case.of(**SIZES, documents="one_long"),
    Case.of(**SIZES | {"T": 1}, T_kv=32, mode="decode", mask="none"),
]
WITHOUT = {
    "loop": "asks each number of its mask",
    "flex": "torch has none for tensors without numbers",
    "flash_triton": "its compiler asks the driver which GPU there is",
    "nested": "asks its numbers for their lengths",
    "sdpa_flash": "torch asks the driver which kernels there are",
    "sdpa_efficient": "torch asks the driver which kernels there are",
    "sdpa_cudnn": "torch asks the driver which kernels there are",
}
"""Those that can't be called without a GPU's numbers, and why."""

NAMES = [impl.name for impl in impls.registered() if impl.name not in WITHOUT and impl.owner.startswith("impls.")]


def possible(name: str, scope: str) -> list[Case]:
    cases = [Case(**case.columns() | {"scope": scope}) for case in CASES]
    return [case for case in cases if impls.get(name).refusal(case) is None]


def module_on(device: str, name: str, case: Case) -> tuple[torch.nn.Module, dict[str, Any]]:
    """The core or layer, prepared, with the options of a call."""
    impl = impls.get(name)
    build = impl.core if case.scope == "core" else impl.layer
    assert build is not None
    module = build(case.layer_shape).to(device, getattr(torch, case.dtype))
    padding = torch.ones(case.B, case.T_kv, dtype=torch.bool, device=device) if case.padded else None
    if prepare := getattr(module, "prepare", None):
        prepare(case.T, case.T_kv, padding, device)
    return module, {} if padding is None else {"padding": padding}


def numbers(device: str, case: Case, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=device, dtype=getattr(torch, case.dtype))


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_and_its_backward(name: str) -> None:
    """On the meta device, which no other is mixed with."""
    for case in possible(name, "layer"):
        module, options = module_on("meta", name, case)
        x = numbers("meta", case, case.B, case.T, case.d_model).requires_grad_()
        if case.does.cached:
            keys, values = (numbers("meta", case, case.B, case.H_kv, case.T_kv, case.D_h) for _ in range(2))
            with torch.no_grad():
                assert module(x, cache=(keys, values)).device.type == "meta"
            continue
        grads = torch.autograd.grad(module(x, **options).sum(), [x, *module.parameters()], allow_unused=True)
        assert {grad.device.type for grad in grads if grad is not None} == {"meta"}


BUILT_FOR_CUDA = pytest.mark.skipif(
    torch.version.cuda is None, reason="tensors that claim to lie on a GPU need torch as built for CUDA"
)


@BUILT_FOR_CUDA
@pytest.mark.parametrize("name", [name for name in NAMES if impls.get(name).core])
def test_a_core_on_a_gpu_that_is_none(name: str) -> None:
    """Without documents, whose lengths are numbers, and sinks, which are a parameter: the layers above have both."""
    for case in possible(name, "core"):
        if case.documents or case.sinks:
            continue
        with FakeTensorMode(), torch.no_grad():
            core, options = module_on("cuda", name, case)
            q, k, v = (numbers("cuda", case, case.B, H, case.T, case.D_h) for H in (case.H, case.H_kv, case.H_kv))
            assert core(q, k, v, **options).device.type == "cuda"


@BUILT_FOR_CUDA
def test_requests_of_varlen_attn_on_a_gpu_that_is_none() -> None:
    """Without numbers, by what torch declares of its answer."""
    case = Case.of(**SIZES | {"T": 6}, T_kv=11, dtype="bfloat16", mask="causal_br", source="cross", scope="core",
                   requests="1x3:3+1x2:5+1x1:3")  # fmt: skip
    assert impls.get("varlen_requests").refusal(case) is None
    with FakeTensorMode(), torch.no_grad():
        core, _ = module_on("cuda", "varlen_requests", case)
        q, k, v = (numbers("cuda", case, 1, 4, T, 16) for T in (6, 11, 11))
        o = core(q, k, v)
    assert (o.device.type, o.shape) == ("cuda", q.shape)


@pytest.mark.parametrize("rules", [{}, {"window": 8}, {"softcap": 5.0}, {"bias": "alibi"}])
def test_the_reference_and_its_backward(rules: dict[str, Any]) -> None:
    shape = Case.of(**SIZES, H_kv=2, **rules).layer_shape
    q, k, v = (torch.randn(2, H, 32, 16, device="meta").requires_grad_() for H in (4, 2, 2))
    padding = torch.ones(2, 32, dtype=torch.bool, device="meta")
    o = reference.attention(q, k, v, shape, padding=padding)
    assert {grad.device.type for grad in torch.autograd.grad(o.sum(), (q, k, v))} == {"meta"}
