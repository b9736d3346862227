"""The outputs printed in the tutorials, reproduced by the implementations in the registry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import impls
from impls import LayerShape, weights
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


def same(found: Tensor, name: str) -> None:
    torch.testing.assert_close(found, torch.tensor(CASES[name]["expect"]), atol=1e-4, rtol=0)


def kernel(name: str, q: Tensor, k: Tensor, v: Tensor, **options: object) -> Tensor:
    """Call a kernel of the registry with (T, D) inputs, as one batch entry of one head."""
    o = impls.get(name).kernel(*(x[None, None] for x in (q, k, v)), **options)
    return (o[0] if isinstance(o, tuple) else o)[0, 0]  # some return the log-sum-exp, too


def layer(name: str, canonical: dict[str, Tensor], **shape: object) -> nn.Module:
    """Return a layer of the registry with these weights, input width 3, and H heads."""
    built = impls.get(name).layer(LayerShape.heads(d_model=3, max_T=16, **shape)).eval()
    weights.load(built, canonical)
    return built


def parameters(seed: int, order: str = "qkv") -> dict[str, Tensor]:
    """Return three matrices randn(3, 2), drawn in the order given."""
    torch.manual_seed(seed)
    return {f"W_{n}": torch.randn(3, 2).T for n in order}


def linears(order: str = "qkv") -> dict[str, Tensor]:
    """Return three nn.Linear(3, 2) without bias, drawn in the order given from the generator's current state."""
    return {f"W_{n}": nn.Linear(3, 2, bias=False).weight.detach() for n in order}


def single_head_layers() -> list[str]:
    return [name for name in LAYERS if impls.get(name).limits.heads in (None, 1)]


def multi_head_layers() -> list[str]:
    return [name for name in LAYERS if impls.get(name).limits.heads is None]


ONE_HEAD = {"H": 1, "D_h": 2, "out_proj": False}


def test_scores_of_the_inputs_themselves() -> None:
    same(attention_scores(X, X, 1.0), "simplified_scores")


@pytest.mark.parametrize("name", KERNELS)
def test_attention_without_weights(name: str) -> None:
    same(kernel(name, X, X, torch.eye(6), scale=1.0), "simplified_weights")
    same(kernel(name, X, X, X, scale=1.0), "simplified_context")


@pytest.mark.parametrize("name", KERNELS)
def test_causal_attention_without_weights(name: str) -> None:
    same(kernel(name, X, X, torch.eye(6), scale=2**-0.5, is_causal=True), "simplified_causal_weights")


@pytest.mark.parametrize("name", KERNELS)
def test_one_query_with_trainable_weights(name: str) -> None:
    w = parameters(123)
    q, k = X[1:2] @ w["W_q"].T, X @ w["W_k"].T
    same(attention_scores(q, k, 1.0)[0], "parameter_query2_scores")
    same(kernel(name, q, k, torch.eye(6))[0], "parameter_query2_weights")


@pytest.mark.parametrize("name", single_head_layers())
def test_single_head_with_parameters(name: str) -> None:
    same(layer(name, parameters(123), mask="none", **ONE_HEAD)(X[None])[0], "parameter_context")


@pytest.mark.parametrize("name", single_head_layers())
def test_single_head_with_linears(name: str) -> None:
    parameters(123)
    same(layer(name, linears(), mask="none", **ONE_HEAD)(X[None])[0], "linear_context_after_parameter")
    torch.manual_seed(789)
    same(layer(name, linears(), mask="none", **ONE_HEAD)(X[None])[0], "linear_context_seed789")


@pytest.mark.parametrize("name", ["parameter", "linear"])
def test_input_without_a_batch_dimension(name: str) -> None:
    same(layer(name, parameters(123), mask="none", **ONE_HEAD)(X), "parameter_context")


@pytest.mark.parametrize("name", single_head_layers())
def test_causal_single_head_on_a_batch(name: str) -> None:
    torch.manual_seed(123)
    both = layer(name, linears(), **ONE_HEAD)(torch.stack([X, X]))
    for of_one in both:
        same(of_one, "causal_single_head")


@pytest.mark.parametrize("name", multi_head_layers())
def test_two_causal_heads_concatenated(name: str) -> None:
    torch.manual_seed(123)
    first, second = linears(), linears()
    stacked = {n: torch.cat([first[n], second[n]]) for n in first}
    same(layer(name, stacked, H=2, D_h=2, out_proj=False)(X[None])[0], "causal_wrapper_2_heads")


@pytest.mark.parametrize("name", multi_head_layers())
def test_two_causal_heads_with_an_output_projection(name: str) -> None:
    torch.manual_seed(123)
    canonical = linears()
    out = nn.Linear(2, 2)
    canonical |= {"W_o": out.weight.detach(), "b_o": out.bias.detach()}
    same(layer(name, canonical, H=2, D_h=1, d_out=2, out_bias=True)(X[None])[0], "causal_fused_2_heads")


@pytest.mark.parametrize("name", single_head_layers())
def test_the_tutorial_that_swaps_query_and_key(name: str) -> None:
    """Its key acts as the query: W_k is loaded as W_q, and the scale is 1/16."""

    def swapped(w: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"W_q": w["W_k"], "W_k": w["W_q"], "W_v": w["W_v"]}

    shape = ONE_HEAD | {"mask": "none", "scale": 256**-0.5}
    same(layer(name, swapped(parameters(123, "kqv")), **shape)(X[None])[0], "parameter_key_first_scale256")
    torch.manual_seed(123)
    same(layer(name, swapped(linears("kqv")), **shape)(X[None])[0], "linear_key_first_scale256")


def test_wrong_outputs_of_the_tutorials_are_refused() -> None:
    """The tutorials' row-sum normalisation and double softmax as kernels."""
    row_sum = WRONG["row_sum"].kernel(X[None, None], X[None, None], torch.eye(6)[None, None], scale=1.0)
    same(row_sum[0, 0, 1], "simplified_naive_normalised_row2")
    parameters(123)
    w = linears()
    q, k = X @ w["W_q"].T, X @ w["W_k"].T
    twice = WRONG["softmax_twice"].kernel(q[None, None], k[None, None], torch.eye(6)[None, None], is_causal=True)
    same(twice[0, 0], "linear_double_normalised_causal_weights")


def test_every_printed_output_is_held() -> None:
    source = Path(__file__).read_text()
    assert [name for name in CASES if f'"{name}"' not in source] == []
