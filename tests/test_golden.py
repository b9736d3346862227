"""The outputs printed in the tutorials, reproduced by the implementations in the registry."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import impls
from bench.cases.case import Case
from impls import weights
from impls.formula import attention_scores

from .wrong_kernels import KERNELS as WRONG

GOLDEN = json.loads((Path(__file__).parent / "data" / "tutorial_outputs.json").read_text())
X = torch.tensor(GOLDEN["X"])  # (6, 3): six tokens, three features
CASES = {case["name"]: case for case in GOLDEN["cases"]}
KERNELS = [
    impl.name
    for impl in impls.registered()
    if impl.kernel is not None and impl.limits.devices is None and impl.dispatches in (None, "math")
]  # flash kernels take four axes only, and the tutorials start with two
LAYERS = [impl.name for impl in impls.registered() if impl.common or impl.name in KERNELS]


def same(found, name):
    torch.testing.assert_close(found, torch.tensor(CASES[name]["expect"]), atol=1e-4, rtol=0)


def kernel(name, q, k, v, **options):
    """Call a kernel of the registry with (T, D) inputs, as one batch entry of one head."""
    o = impls.get(name).kernel(*(x[None, None] for x in (q, k, v)), **options)
    return (o[0] if isinstance(o, tuple) else o)[0, 0]  # some return the log-sum-exp, too


def layer(name, canonical, **shape):
    """Return a layer of the registry with these weights, input width 3, and H heads."""
    usual = Case.of(T=16, H=shape["H"], D_h=shape["D_h"], d_model=3).layer_shape
    built = impls.get(name).layer(replace(usual, **shape)).eval()
    weights.load(built, canonical)
    return built


def parameters(order="qkv"):
    """Return three matrices randn(3, 2), drawn in the order given from a new generator."""
    torch.manual_seed(123)
    return {f"W_{n}": torch.randn(3, 2).T for n in order}


def linears(order="qkv"):
    """Return three nn.Linear(3, 2) without bias, drawn in the order given from the generator's current state."""
    return {f"W_{n}": nn.Linear(3, 2, bias=False).weight.detach() for n in order}


ONE_HEAD = {"H": 1, "D_h": 2, "out_proj": False}


def test_scores_of_the_inputs_themselves():
    same(attention_scores(X, X, 1.0), "simplified_scores")


@pytest.mark.parametrize("name", KERNELS)
def test_attention_without_weights(name):
    same(kernel(name, X, X, torch.eye(6), scale=1.0), "simplified_weights")
    same(kernel(name, X, X, X, scale=1.0), "simplified_context")
    same(kernel(name, X, X, torch.eye(6), scale=2**-0.5, is_causal=True), "simplified_causal_weights")


@pytest.mark.parametrize("name", KERNELS)
def test_one_query_with_trainable_weights(name):
    w = parameters()
    q, k = X[1:2] @ w["W_q"].T, X @ w["W_k"].T
    same(attention_scores(q, k, 1.0)[0], "parameter_query2_scores")
    same(kernel(name, q, k, torch.eye(6))[0], "parameter_query2_weights")


def two_heads():
    first, second = linears(), linears()
    return {n: torch.cat([first[n], second[n]]) for n in first}


def with_output_projection():
    weights, out = linears(), nn.Linear(2, 2)
    return weights | {"W_o": out.weight.detach(), "b_o": out.bias.detach()}


def swapped(w):
    """Of the tutorial whose key acts as the query: W_k is loaded as W_q, and its scale is 1/16."""
    return {"W_q": w["W_k"], "W_k": w["W_q"], "W_v": w["W_v"]}


UNMASKED = ONE_HEAD | {"mask": "none"}
SWAPPED = UNMASKED | {"scale": 256**-0.5}
OF_LAYERS = {
    "parameter_context": (parameters, UNMASKED),
    "linear_context_after_parameter": (lambda: parameters() and linears(), UNMASKED),
    "linear_context_seed789": (lambda: torch.manual_seed(789) and linears(), UNMASKED),
    "parameter_key_first_scale256": (lambda: swapped(parameters("kqv")), SWAPPED),
    "linear_key_first_scale256": (lambda: swapped(linears("kqv")), SWAPPED),
    "causal_single_head": (linears, ONE_HEAD),
    "causal_wrapper_2_heads": (two_heads, {"H": 2, "D_h": 2, "out_proj": False}),
    "causal_fused_2_heads": (with_output_projection, {"H": 2, "D_h": 1, "d_out": 2, "out_bias": True}),
}
"""Weights and shape of a layer, by the name of its printed output."""


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("printed", OF_LAYERS)
def test_a_layer(printed, name):
    weights, shape = OF_LAYERS[printed]
    if impls.get(name).limits.heads not in (None, shape["H"]):
        pytest.skip("has one head")
    torch.manual_seed(123)
    for of_one in layer(name, weights(), **shape)(torch.stack([X, X])):
        same(of_one, printed)


@pytest.mark.parametrize("name", ["parameter", "linear"])
def test_input_without_a_batch_dimension(name):
    same(layer(name, parameters(), **UNMASKED)(X), "parameter_context")


def test_wrong_outputs_of_the_tutorials_are_refused():
    """The tutorials' row-sum normalisation and double softmax as kernels."""
    row_sum = WRONG["row_sum"].kernel(X[None, None], X[None, None], torch.eye(6)[None, None], scale=1.0)
    same(row_sum[0, 0, 1], "simplified_naive_normalised_row2")
    parameters()
    w = linears()
    q, k = X @ w["W_q"].T, X @ w["W_k"].T
    twice = WRONG["softmax_twice"].kernel(q[None, None], k[None, None], torch.eye(6)[None, None], is_causal=True)
    same(twice[0, 0], "linear_double_normalised_causal_weights")
