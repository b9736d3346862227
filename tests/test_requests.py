"""Requests of a server in one batch: their grammar, and the same output by every method."""

import pytest
import torch

import impls
from bench.cases import counting
from bench.cases.case import AXES
from bench.cases.sweep import SWEEPS
from bench.checks.gate import Gate
from bench.checks.module_checks import check_case
from impls.masks import mask_of
from impls.rules import Rules, kinds_of, requests_of

from .wrong_rules import within_requests

TEXT = "2x3:3+1x2:4+2x1:3"


def of(text, **axes):
    (case,) = SWEEPS["quick"].cases(
        "cpu",
        {"requests": (text,), "D_h": (16,), "H": (2,), "dtype": ("float32",)} | {n: (it,) for n, it in axes.items()},
    )
    return case


def test_the_grammar():
    assert kinds_of(TEXT) == [(2, 3, 3), (1, 2, 4), (2, 1, 3)]
    assert requests_of(TEXT) == [(3, 3), (3, 3), (2, 4), (1, 3), (1, 3)]
    axis = AXES["requests"]
    assert (axis.read(TEXT), axis.read("none")) == (TEXT, None)
    for text in ("", "2", "2x3", "x3:3", "2x4:3", "0x3:3", "2x3:3+", "2x3:3 1x1:1", "99999x1:1"):
        with pytest.raises(ValueError, match="COUNTxNEW:ALL, as 2x512:512"):
            axis.read(text)


def test_lengths_implied_by_requests():
    case = of(TEXT)
    assert case.id == (
        "B1-T10-H2-D_h16-float32-cpu-T_kv=16-mask=causal_br-source=cross-scope=core-requests=2x3:3+1x2:4+2x1:3"
    )
    for axes in ({"mask": "none"}, {"mode": "decode"}, {"scope": "layer"}, {"B": 2}):
        with pytest.raises(ValueError, match="--requests needs --"):
            of(TEXT, **axes)
    with pytest.raises(ValueError, match="combined with --bias"):
        of(TEXT, bias="alibi")
    with pytest.raises(ValueError, match="leave out --T"):
        of(TEXT, T=9)


def test_visible_keys_of_a_batch_of_requests():
    own, i, other, j = within_requests(TEXT)
    for window, pairs, keys in ((None, 6 + 6 + 7 + 3 + 3, 16), (1, 5 + 5 + 4 + 2 + 2, 3 + 3 + 3 + 2 + 2)):
        visible = (own == other) & (j <= i) & (i - j <= (window or 16))
        assert torch.equal(mask_of(Rules(mask="causal_br", requests=TEXT, window=window), 1, 10, 16), visible)
        assert counting.visible_pairs(of(TEXT, window=window)) == int(visible.sum()) == pairs
        assert counting.seen_keys(of(TEXT, window=window)) == int(visible.any(0).sum()) == keys


@pytest.mark.parametrize(
    "axes", [{}, {"window": 3}, {"H": 4, "H_kv": 2, "dtype": "bfloat16"}, {"softcap": 20}], ids=str
)
def test_every_method_gives_the_same_output(short_probes, axes):
    case, passed = of("2x24:24+1x10:40+3x1:33", **axes), set()
    for name in ("fused", "sdpa", "by_kind", "by_request", "padded_requests"):
        if impls.get(name).refusal(case) is None:
            Gate().check(impls.get(name), case)
            assert check_case(impls.get(name), case).error < (1e-2 if case.dtype == "bfloat16" else 1e-6)
            passed.add(name)
    assert passed == {"fused"} | ({"sdpa"} if not case.softcap else set()) | (
        {"by_kind", "by_request", "padded_requests"} if "H" in axes or not axes else set()
    )
