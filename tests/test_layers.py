"""All implementations agree under the canonical weights, whatever the shape."""

from dataclasses import replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

import impls
from bench.cases.case import Case
from bench.checks.module_checks import check_case
from impls import weights

NAMES = [impl.name for impl in impls.registered()]
MASKS = ["none", "causal", "padding", "causal+padding"]


@settings(max_examples=20, deadline=None)
@given(
    B=st.integers(2, 3), T=st.integers(1, 12), T_kv=st.integers(1, 12), H=st.sampled_from([1, 2, 4]),
    groups=st.sampled_from([1, 2]), D_h=st.integers(1, 6), D_v=st.integers(1, 6), extra=st.integers(0, 3),
    mask=st.sampled_from(MASKS), source=st.sampled_from(["self", "cross"]), biases=st.booleans(),
)  # fmt: skip
@example(
    B=2, T=4, T_kv=2, H=2, groups=1, D_h=5, D_v=1, extra=0, mask="padding", source="cross", biases=False
)  # an entry with one key, beside a masked one
@example(
    B=3, T=3, T_kv=3, H=1, groups=1, D_h=1, D_v=2, extra=0, mask="causal+padding", source="self", biases=False
)  # rows of few features that cancel
def test_all_implementations_agree(B, T, T_kv, H, groups, D_h, D_v, extra, mask, source, biases):
    case = Case.of(B=B, T=T, T_kv=T if source == "self" else T_kv, H=H, H_kv=H // groups or 1, D_h=D_h, D_v=D_v,
                   d_model=H * D_h + extra, dtype="float64", mask=mask, source=source,
                   qkv_bias=biases, out_bias=biases)  # fmt: skip
    for impl in impls.registered():
        if impl.refusal(case) is None and impl.dispatches != "flash":  # which is not for every shape
            check_case(impl, case)


OWN = (
    {"qkv_bias": True}, {"latent": 5, "rope": 2}, {"documents": "equal", "mask": "none"}, {"requests": "2x2:2"}, {"page": 256},
)  # fmt: skip
"""Axes, of which every implementation supports some."""


@pytest.mark.parametrize("name", NAMES)
def test_weights_come_back_as_they_were_loaded(name):
    impl = impls.get(name)
    cases = (Case.of(T=4, H=impl.limits.heads or 2, D_h=3, out_bias=True, **own) for own in OWN)
    shape = next(it for it in cases if impl.limits.unless is None or impl.limits.unless(it) is None).layer_shape
    drawn = {key: w.float() for key, w in weights.draw(shape, torch.Generator().manual_seed(1)).items()}
    layer = impl.layer(shape)
    weights.load(layer, drawn)
    kept = {key: torch.cat(pieces) for key, pieces in weights.parts(layer, lambda p: p.data).items()}
    assert kept.keys() == drawn.keys()
    for key, w in drawn.items():
        assert torch.equal(kept[key], w), key


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("parameter", "backward"),
        ("wrapper", "forward"),
        ("packed", "decode"),
        ("sdpa", "backward"),
        ("flex", "forward"),
    ],
)
def test_compiled_forms_are_checked_alike(name, mode):
    """One of each kind of layer; a run checks the others."""
    sizes = {"T": 1, "T_kv": 16, "mask": "none"} if mode == "decode" else {"T": 16}
    impl = impls.get(name + impls.COMPILE)
    case = Case.of(H=impl.limits.heads or 2, D_h=16, mode=mode, **sizes)
    assert impl.refusal(case) is None
    torch.compiler.reset()
    check_case(impl, case)


def test_max_autotune_is_checked_like_other_compiled_forms():
    """Without projections, whose tuning takes seconds."""
    torch.compiler.reset()
    check_case(impls.get("sdpa+max-autotune"), Case.of(T=16, H=2, D_h=16, scope="core"))


@pytest.mark.parametrize("form", impls.FORMS)
def test_a_form_is_of_the_mode_that_it_names(form, monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "compile", lambda eager, **options: asked.append(options))
    impl = impls.get(f"sdpa{form}")
    impl.layer(Case.of(T=9, H=1, D_h=2).layer_shape)
    assert asked[0].get("mode") == (None if form == "+compile" else form[1:])
    assert (impl.name, impl.compiled) == (f"sdpa{form}", True)
    with pytest.raises(ValueError, match="made by the suite"):
        impls.add(replace(impl, name=f"mine{form}"))


def test_a_layer_with_other_weights_is_refused():
    with pytest.raises(ValueError, match=r"has the weights none; the case needs W_k, W_o"):
        weights.load(nn.Linear(2, 2), weights.draw(Case.of(T=4, H=1, D_h=2).layer_shape, torch.Generator()))
