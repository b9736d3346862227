"""Neither implementations nor the reference mix devices: they create tensors on the device of their inputs.

Tested without a GPU, by tensors that have a device and no values; gradients on `cuda` need a driver.
"""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nested._internal import nested_tensor
from torch.nested._internal import sdpa as nested_sdpa
from torch.nn.attention import SDPBackend, flex_attention

import impls
from bench.cases.case import Case
from bench.cases.sweep import misfit
from bench.checks import reference
from bench.checks.attention_problems import problem_of
from bench.checks.calls import call_of
from bench.checks.inputs import Inputs, inputs_of
from impls.ragged import WHOLE_VARLEN

from .conftest import gated
from .simulated_tensors import on_a_simulated_gpu

DEVICES = [
    "meta",
    pytest.param("cuda", marks=pytest.mark.skipif(torch.version.cuda is None, reason="torch without CUDA")),
]

ONLY_CUDA = {"flex", "flex_paged", "nested"}
"""torch has neither FlexAttention nor SDPA of nested tensors on `meta`."""

LACKING = set() if WHOLE_VARLEN else {"varlen_paged"}
"""Implementations that this version of torch lacks."""

SIZES = {"T": 8, "H": 2, "D_h": 8, "device": "cuda"}
DECODE = SIZES | {"T": 1, "T_kv": 16, "mode": "decode", "mask": "none"}
AXES = [
    {"dtype": "bfloat16"},
    {"dtype": "bfloat16", "H_kv": 1, "mask": "none", "mode": "backward"},
    {"B": 2, "mask": "causal+padding", "mode": "backward"},
    {"H": 1, "mode": "backward"},
    {"window": 4, "mode": "backward"},
    {"prefix": 4},
    {"softcap": 5, "mode": "backward"},
    {"sinks": True, "mode": "backward"},
    {"bias": "alibi", "mode": "backward"},
    {"bias": "dense"},
    {"documents": "one_long", "dtype": "bfloat16", "mode": "backward"},
    {"T_kv": 12, "source": "cross", "mask": "none", "mode": "backward"},
    {"T": 6, "T_kv": 11, "dtype": "bfloat16", "mask": "causal_br", "source": "cross", "scope": "core",
     "requests": "1x3:3+1x2:5+1x1:3"},
    DECODE,
    DECODE | {"latent": 8, "rope": 4},
    {"latent": 8, "mode": "backward"},
    DECODE | {"mask": "causal_br", "page": 8},
    DECODE | {"T_kv": 512, "mask": "causal_br", "page": 256, "dtype": "bfloat16"},
]  # fmt: skip
CASES = [Case.of(**SIZES | axes) for axes in AXES]


def possible(name):
    """Return the cases with the core alone if the implementation has one; the shared layer is tested with SDPA."""
    impl, cases = impls.get(name), {}
    for it in CASES[3:4] if name == "loop" else CASES:  # a Python step per query and key
        both = replace(it, scope="core" if impl.core else "layer"), it
        found = [case for case in both if misfit(case) is None and impl.refusal(case) is None]
        cases |= {case.id: case for case in (found if name == "sdpa" else found[:1])}
    return [*cases.values()]


def moved(x, device):
    """Return a fake tensor, without values, on a device."""
    if x is None:
        return None
    fake = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)
    return nn.Parameter(fake) if isinstance(x, nn.Parameter) else fake.requires_grad_(x.requires_grad)


def outputs_of(name, case, device):
    """Return the outputs of a call whose module and inputs are made on the CPU, moved, and prepared on the device."""
    impl, numbers = impls.get(name), inputs_of(problem_of(replace(case, device="cpu")))
    build = impl.core if case.scope == "core" else impl.layer
    assert build is not None
    module = build(case.layer_shape).to(getattr(torch, case.dtype))
    shapes = ShapeEnv() if name in ONLY_CUDA else None
    with FakeTensorMode(shape_env=shapes), torch.set_grad_enabled(case.does.gradients):
        for part in module.modules():
            for held in (part._parameters, part._buffers):
                held.update({key: moved(x, device) for key, x in held.items()})
        inputs = Inputs(
            numbers.names,
            tuple(moved(x, device) for x in numbers.tensors),
            {key: moved(x, device) for key, x in numbers.options.items()},
            moved(numbers.grad, device),
        )
        if prepare := getattr(module, "prepare", None):
            pages = inputs.options.get("pages")
            paged = {} if pages is None else {"pages": pages, "pool": inputs.tensors[1].shape[-2]}
            prepare(case.T, case.T_kv, inputs.options.get("padding"), device, **paged)
        call = call_of(module, case, inputs)
        return call.read(call.run())


class Launch:
    """Replaces a Triton kernel."""

    def __getitem__(self, grid):
        def launch(*arguments):
            assert len({x.device for x in arguments if isinstance(x, Tensor)}) == 1

        return launch


@pytest.fixture(autouse=True)
def without_a_driver(monkeypatch):
    """Excluded is what needs a GPU or values: which of SDPA's kernels torch can take, FlexAttention's compiler, the
    launch of a Triton kernel, and a mask that is read as a list.
    """
    monkeypatch.setattr("impls.sdpa.sdpa_kernel", nullcontext)
    nested_tensor._nt_view_dummy()  # is made once, and isn't fake
    monkeypatch.setattr(nested_sdpa, "_select_sdp_backend", lambda *_: SDPBackend.FLASH_ATTENTION)
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    monkeypatch.setattr("impls.flash_triton._forward", Launch())
    monkeypatch.setattr(FakeTensor, "tolist", lambda mask: np.ones(mask.shape, bool).tolist(), raising=False)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", [impl.name for impl in impls.registered()])
def test_an_implementation(name, device):
    cases = possible(name)
    if device != "meta":
        cases = [replace(it, mode="forward") if it.does.gradients else it for it in cases]
    limits = impls.get(name).limits
    lacks = not cases and (limits.package or "cuda" not in (limits.devices or ["cuda"]) or name in LACKING)
    if lacks or (name in ONLY_CUDA and device == "meta"):
        pytest.skip("its package isn't here, it isn't for CUDA, or torch has no such operator on meta")
    assert cases
    for case in cases:
        assert {x.device.type for x in outputs_of(name, case, device).values()} == {device}, case.id


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", [case for case in CASES if not case.page], ids=lambda case: case.id)
def test_the_reference(case, device):
    if device == "meta" and (case.documents or case.requests):
        pytest.skip("torch.tensor of a list gives no fake tensor on meta")
    problem, shape = problem_of(replace(case, device="cpu")), case.layer_shape
    with FakeTensorMode(), torch.set_grad_enabled(case.does.gradients):
        leaves = [moved(x, device).requires_grad_(case.does.gradients) for x in problem.inputs]
        weights = {name: moved(x, device).requires_grad_(case.does.gradients) for name, x in problem.weights.items()}
        padding = moved(problem.padding, device)
        if case.scope == "core":
            o = reference.attention(*leaves, shape, sinks=weights.get("sinks"), padding=padding)
        elif case.does.cached:
            o, *_ = reference.decode(leaves[0], leaves[1:], weights, shape)
        else:
            o = reference.layer(leaves[0], leaves[-1], weights, shape, padding=padding)
        found = [o]
        if o.requires_grad and device == "meta":
            found += torch.autograd.grad(o, [*leaves, *weights.values()], torch.ones_like(o), allow_unused=True)
        assert {x.device.type for x in found if x is not None} == {device}


@pytest.mark.parametrize(
    ("name", "axes", "lengths"),
    [
        ("fused", {"scope": "core", "dtype": "bfloat16"}, (37, 513)),
        ("fused", {"scope": "core", "mode": "backward"}, (37,)),
        ("fused", DECODE | {"mask": "causal_br", "page": 8}, (37,)),
        ("packed", {"B": 2, "mask": "causal+padding"}, (37,)),
    ],
)
def test_the_checks_of_an_implementation(name, axes, lengths, monkeypatch):
    """Where tensors have values: `torch.gcd`, for example, takes no number on the CPU beside a tensor on a GPU."""
    monkeypatch.setattr("bench.checks.checked_calls.check_plain", lambda x: None)
    monkeypatch.setattr("bench.checks.probes.PROBES", lengths)
    with on_a_simulated_gpu():
        gated(impls.get(name), Case.of(**SIZES | axes))
