"""Kernels that return a log-sum-exp beside their output, and attention to parts of the keys merged by it."""

import math

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
    with pytest.raises(Wrong, match=r"log-sum-exp.*lse is off by"):
        Gate().check(returning(lambda o, lse: (o, lse), base=2.0), case)


_kept = {}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda o, lse: (o, lse + 1e-4), "lse is off by"),
        (lambda o, lse: (o, lse.clamp(min=-100.0)), "lse is off by 1"),  # a sum that vanishes below -104
        (lambda o, lse: (o, torch.log(torch.exp(lse))), "lse is off by inf"),
        (lambda o, lse: (o, lse.roll(1, 1)), "lse is off by"),
        (lambda o, lse: (o, _kept.setdefault(lse.shape, lse).copy_(lse)), "lse is off by"),
        (lambda o, lse: (o, lse[..., None]), r"lse is float32 \(2, 3, 37, 1\), not float32 \(2, 3, 37\)"),
        (lambda o, lse: (o, lse.bfloat16()), "lse is bfloat16"),
        (lambda o, lse: (o, lse, lse), "returns tuple, not"),
    ],
)
def test_a_wrong_log_sum_exp_is_refused(change, says):
    with pytest.raises(Wrong, match=says):
        Gate().check(returning(change), Case.of(T=64, H=2, D_h=16, scope="core"))
