"""Kernels that return a log-sum-exp beside their output, and attention to parts of the keys merged by it."""

import math
from functools import partial

import pytest
import torch

import impls
from bench.cases.case import Case
from bench.cases.outcome import Wrong
from bench.checks.gate import Gate
from impls.rules import EVERY_RULE
from impls.split import attend


def returning(change, base=math.e):
    """Return an implementation whose output and log-sum-exp pass through `change`."""

    def kernel(q, k, v, *, attn_mask=None, **_):
        o, lse = attend(q, k, v, attn_mask, q.shape[-1] ** -0.5)
        return change(o.to(q.dtype), lse)

    limits = impls.Limits(returns_lse=base, beyond=EVERY_RULE)
    return impls.make("mine", kernel, takes_mask=True, limits=limits)


def test_a_base_of_two_is_declared():
    case = Case.of(T=64, H=2, D_h=16, scope="core")
    Gate().check(returning(lambda o, lse: (o, lse / math.log(2)), base=2.0), case)
    with pytest.raises(Wrong, match=r"log-sum-exp.*lse is off by .*, if its base is 2$"):
        Gate().check(returning(lambda o, lse: (o, lse), base=2.0), case)


def test_a_wrong_output_is_named_before_its_log_sum_exp():
    def both_wrong(o, lse):
        return o * 2, lse + 1

    with pytest.raises(Wrong, match=r"^kernel \(probe\), .*: error"):
        Gate().check(returning(both_wrong), Case.of(T=64, H=2, D_h=16, scope="core"))


@pytest.mark.parametrize("axes", [{}, {"mode": "decode", "T": 1, "T_kv": 300, "mask": "none"}], ids=str)
def test_a_narrow_dtype_makes_no_log_sum_exp_narrow(axes):
    """It weighs parts of the keys that are merged: one rounded as outputs are is off by more than these are."""
    case = Case.of(**({"T": 64, "H": 2, "D_h": 64, "dtype": "bfloat16"} | axes))
    Gate().check(returning(lambda o, lse: (o, lse)), case)
    with pytest.raises(Wrong, match=r"log-sum-exp.*lse is off by"):
        Gate().check(returning(lambda o, lse: (o, lse.bfloat16().float())), case)


@pytest.mark.parametrize("D_h", [64, 80])  # with 64 the plain formula's low scores are exact
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_log_sum_exp_of_queries_scaled_in_a_narrow_dtype_passes(dtype, D_h):
    def kernel(q, k, v, *, attn_mask=None, **_):
        o, lse = attend(q * (q.shape[-1] ** -0.5 / math.log(2)), k, v, attn_mask, math.log(2))
        return o.to(q.dtype), lse

    mine = impls.make("mine", kernel, takes_mask=True, limits=impls.Limits(returns_lse=math.e))
    Gate().check(mine, Case.of(T=64, H=2, D_h=D_h, dtype=dtype))


@pytest.mark.parametrize("mode", ["forward", "backward"])
def test_under_autocast_a_log_sum_exp_of_narrow_queries_and_keys_passes(mode):
    def kernel(change, q, k, v, *, attn_mask=None, **_):
        with torch.autocast("cpu", enabled=False):
            o, lse = attend(*(x.bfloat16() for x in (q, k, v)), attn_mask, q.shape[-1] ** -0.5)
        return o.bfloat16(), change(lse)

    case = Case.of(T=64, H=2, D_h=64, scope="core", mode=mode, autocast="bfloat16")
    limits = impls.Limits(returns_lse=math.e)
    make = partial(impls.make, "mine", takes_mask=True, limits=limits)
    Gate().check(make(partial(kernel, lambda lse: lse)), case)
    with pytest.raises(Wrong, match=r"log-sum-exp.*lse is off by"):
        Gate().check(make(partial(kernel, lambda lse: lse + 0.1)), case)


_kept = {}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda o, lse: (o, lse + 1e-4), "lse is off by"),
        (lambda o, lse: (o, lse.clamp(min=-100.0)), "lse is off by 1"),  # a sum that vanishes below -104
        (lambda o, lse: (o, torch.log(torch.exp(lse))), "lse is off by inf"),
        (lambda o, lse: (o, lse.roll(1, 1)), "lse is off by"),
        (lambda o, lse: (o, lse + (lse.shape[-1] > 512)), "^log-sum-exp, B1-T513-"),
        (lambda o, lse: (o, _kept.setdefault(lse.shape, lse).copy_(lse)), "lse is off by"),
        (lambda o, lse: (o, lse[..., None]), r"lse is float32 \(2, 3, 37, 1\), not float32 \(2, 3, 37\)"),
        (lambda o, lse: (o, lse.bfloat16()), "lse is bfloat16"),
        (lambda o, lse: (o, lse, lse), "returns tuple, not"),
        (lambda o, lse: (o, None), "lse is a NoneType, not a tensor"),
    ],
)
def test_a_wrong_log_sum_exp_is_refused(change, says):
    with pytest.raises(Wrong, match=says):
        Gate().check(returning(change), Case.of(T=64, H=2, D_h=16, scope="core"))


@pytest.mark.parametrize(("dtype", "less"), [("float32", 1e-3), ("bfloat16", 0.1)])
def test_a_log_sum_exp_without_low_scores_is_refused(dtype, less):
    def kernel(q, k, v, **_):
        scores = q.float() @ k.float().mT * q.shape[-1] ** -0.5
        most, lse = scores.amax(-1), scores.logsumexp(-1)
        return (scores.softmax(-1) @ v.float()).to(v.dtype), torch.where(lse - most < less, most, lse)

    mine = impls.make("mine", kernel, limits=impls.Limits(returns_lse=math.e))
    with pytest.raises(Wrong, match=r"^log-sum-exp, B1-T513-"):
        Gate().check(mine, Case.of(T=64, H=2, D_h=16, mask="none", scope="core", dtype=dtype))


def test_a_log_sum_exp_is_checked_in_the_case_itself():
    with pytest.raises(Wrong, match=r"^log-sum-exp, B1-T100-H5-"):
        Gate().check(
            returning(lambda o, lse: (o, lse + (lse.shape[1] == 5))), Case.of(T=100, H=5, D_h=16, scope="core")
        )
