"""Multi-head latent attention: rebuilt and absorbed give the same output, with a cache of latents."""

from dataclasses import replace

import pytest
import torch

import impls
from bench.cases import counting
from bench.cases.case import Case
from bench.cases.outcome import Wrong
from bench.cases.sweep import SWEEPS
from bench.checks import reference
from bench.checks.attention_problems import problem_of
from bench.checks.building import new_call
from bench.checks.calls import recording
from bench.checks.gate import Gate
from bench.checks.inputs import inputs_of
from bench.timing.devices.cpu import CpuMeter
from impls.registry import AROUND
from impls.rules import EVERY_RULE

from .conftest import gated
from .wrong_latent import LATENT, LAYERS, TOKEN, Naive

SMALL = {"T": 48, "H": 2, "D_h": 16, "D_v": 12} | LATENT
CASES = [
    {},
    {"rope": None},
    {"mode": "backward"},
    {"dtype": "bfloat16"},
    {"dtype": "float64", "mode": "backward", "out_bias": True},
    {"mask": "padding", "B": 3},
    {"window": 5, "softcap": 20, "sinks": True, "bias": "alibi"},
    TOKEN,
    TOKEN | {"dtype": "bfloat16", "B": 2},
    TOKEN | {"T": 6, "mask": "causal_br", "window": 9},
    TOKEN | {"page": 7, "B": 3},
    TOKEN | {"T": 6, "mask": "causal_br", "page": 16, "dtype": "bfloat16"},
]


@pytest.mark.parametrize("axes", CASES, ids=str)
def test_rebuilt_and_absorbed_give_the_same_output(short_probes, axes):
    case = Case.of(**(SMALL | axes))
    supporting = [name for name in ("fused", "sdpa", "absorbed", "absorbed_sdpa") if not impls.get(name).refusal(case)]
    for name in supporting:
        gated(impls.get(name), case)
    assert len(supporting) == 2 if case.sinks else {"fused", "absorbed", "absorbed_sdpa"} <= {*supporting}


@pytest.mark.parametrize("name", ["absorbed", "absorbed_sdpa"])
def test_the_tolerance_allows_both_forms_of_latent_attention(name):
    """With the sweep's sizes and long probes: the tolerance of the rebuilt form alone refused correct outputs."""
    for case in SWEEPS["latent"].cases("cpu", {"T": (256,)}):
        if case.latent:
            Gate().check(impls.get(name), case)


@pytest.mark.parametrize("name", ["absorbed", "absorbed_sdpa"])
def test_absorbed_weights_are_not_copied_for_every_batch_entry(name):
    case = Case.of(B=8, H=4, D_h=64, latent=64, rope=16, T=1, T_kv=8, mask="none", mode="decode")
    call = new_call(impls.get(name), case)
    with recording(case):
        peak = CpuMeter().memory(call.run)[0].peak_bytes
    assert peak < call.module.W_k.weight.nbytes


def held_to(layer, axes):
    gated(impls.make("mine", layer, limits=impls.Limits(beyond=(*EVERY_RULE, *AROUND))), Case.of(**(SMALL | axes)))


@pytest.mark.parametrize("name", LAYERS)
def test_a_wrong_form_is_refused(short_probes, name):
    with pytest.raises(Wrong):
        held_to(*LAYERS[name])


class AnglesInFloat32(Naive):
    """As in DeepSeek's own code."""

    def __init__(self, shape):
        super().__init__(shape)
        angles = torch.arange(shape.max_T)[:, None] / 1e4 ** (torch.arange(0, self.rope, 2) / self.rope)
        self.cos, self.sin = angles.cos(), angles.sin()


@pytest.mark.parametrize("axes", [{"T": 513}, TOKEN | {"T_kv": 3000}], ids=str)
def test_angles_may_be_float32(short_probes, axes):
    held_to(AnglesInFloat32, axes | {"D_h": 96, "rope": 64})


def test_positions_rotate_features_as_complex_numbers():
    """By hand: the first pair is rotated by the position, the second by a hundredth of it."""
    shape = Case.of(**SMALL | {"rope": 4}).layer_shape
    x = torch.zeros(1, 1, 3, 6, dtype=torch.float64)
    x[..., -4:] = torch.tensor([1.0, 0.0, 1.0, 0.0])
    angles = torch.tensor([5.0, 6.0, 7.0], dtype=torch.float64)
    turned = torch.stack([angles.cos(), angles.sin(), (angles / 100).cos(), (angles / 100).sin()], -1)
    found = Naive(shape).double().rotated(x, 5), reference._turned(x, shape, 5)
    for each in found:
        torch.testing.assert_close(each[0, 0, :, -4:], turned)
        assert not each[..., :-4].any()


def test_the_cache_has_the_counted_size():
    """DeepSeek-V2: 512 + 64 numbers a token, instead of 32,768 for 128 heads of width 128."""
    deep = Case.of(B=2, T=1, T_kv=10, H=4, D_h=192, D_v=128, d_model=16, latent=512, rope=64, mode="decode",
                   mask="none", dtype="bfloat16")  # fmt: skip
    plain = replace(deep, latent=None, rope=None, H=128, H_kv=128, D_h=128)
    assert (counting.cache_bytes(deep), counting.cache_bytes(plain)) == (2 * 576, 2 * 32768)
    assert counting.cache_bytes(replace(deep, mode="forward", T=10)) is None
    for case in (deep, plain):
        problem = problem_of(case)
        allocated = CpuMeter().memory(lambda of=problem: inputs_of(of))[0].peak_bytes
        assert allocated == 2 * 10 * counting.cache_bytes(case) + 2 * 2 * 16


def test_operations_count_the_cheaper_form():
    """A token against a cache absorbs, a prompt rebuilds; without rotary features it equals attention with wide heads."""
    case = Case.of(T=1, T_kv=100, H=2, D_h=8, D_v=4, d_model=16, latent=10, rope=2, mode="decode", mask="none")
    projected = 16 * 2 * 8 + 2 * 4 * 16 + 16 * 12  # W_q, W_o, W_c
    absorbed = 2 * (6 * 10 + 4 * 10 + 100 * (12 + 10))
    assert counting.flops(case) == 2 * (projected + absorbed)
    prompt = replace(case, T=100, mode="forward")
    rebuilt = 2 * (100 * 10 * (6 + 4) + 100 * 100 * (8 + 4))
    assert counting.flops(prompt) == 2 * (100 * projected + rebuilt)
    weights = 16 * 16 + 16 * 12 + 12 * 10 + 8 * 10 + 16 * 8
    assert counting.least_bytes(case) == 4 * (16 + weights + 100 * 12 + 16)
