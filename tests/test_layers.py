"""All implementations agree under the canonical weights, whatever the shape."""

from dataclasses import replace

import pytest
import torch
import torch._appdirs  # or torch.compile imports it again, once pytester has put back sys.modules
from torch import nn

import impls
from bench.cases.case import Case
from bench.cases.cells import Cell
from bench.cases.outcome import Unsupported, Wrong
from bench.checks import building
from bench.checks.module_checks import check_case
from bench.runs.progress import weights_left_out
from bench.timing.cell import build, check_built
from impls import weights
from impls.packed import Packed
from impls.registry import Compiled

from .conftest import checked, gated
from .wrong_kernels import as_layer


@pytest.mark.parametrize(
    "axes",
    [
        {"T": 7, "T_kv": 12, "H": 4, "D_h": 3, "D_v": 6, "d_model": 13, "source": "cross", "qkv_bias": True, "out_bias": True},
        {"T": 5, "H": 4, "H_kv": 2, "D_h": 6, "d_model": 25, "mask": "none", "qkv_bias": True},
        {"T": 1, "H": 1, "D_h": 6, "mask": "none"},
        {"T": 4, "T_kv": 2, "H": 2, "D_h": 5, "D_v": 1, "mask": "padding", "source": "cross"},  # an entry has one key
        {"T": 3, "H": 1, "D_h": 1, "D_v": 2, "mask": "causal+padding"},  # rows of few features that cancel
    ],
    ids=str,
)  # fmt: skip
def test_all_implementations_agree_at_odd_sizes(axes):
    case = Case.of(B=2, dtype="float64", **axes)
    able = {impl.name: impl for impl in impls.registered() if impl.refusal(case) is None and impl.dispatches != "flash"}
    for impl in able.values():  # flash kernels are not for every shape
        check_case(impl, case)
    assert {"fused", "sdpa", "packed"} <= able.keys() and ("wrapper" in able or case.H_kv < case.H)


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("sdpa", {"T": 37, "D_h": 4, "D_v": 1, "mask": "none", "scope": "core"}),
        ("online", {"T": 100, "D_h": 2, "mask": "none", "mode": "backward"}),
        ("fused", {"T": 2, "D_h": 4, "dtype": "float64", "mode": "backward"}),
    ],
)
def test_few_features_cancel_by_chance(name, axes):
    check_case(impls.get(name), Case.of(H=1, **axes))


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("parameter", "backward"),
        ("packed", "decode"),
        ("flex", "forward"),
        ("sdpa", "forward"),
    ],
)
def test_compiled_forms_are_checked_alike(name, mode):
    """One of each kind of layer; a run checks the others. The code around a kernel must not break its graph."""
    sizes = {"T": 1, "T_kv": 16, "mask": "none"} if mode == "decode" else {"T": 16}
    impl = impls.get(name + impls.COMPILE)
    case = Case.of(H=impl.limits.heads or 2, D_h=16, mode=mode, **sizes)
    assert impl.refusal(case) is None
    torch.compiler.reset()
    check_case(impl, case)
    torch.compiler.reset()
    assert build(Cell(impl, case)).columns["compile_graphs"] == 1


def test_a_learned_bias_leaves_sdpa_its_choice_of_kernels():
    case = Case.of(H=2, D_h=16, T=16, mask="none", bias="learned")
    built = build(Cell(impls.get("sdpa"), case))
    check_built(built)
    assert built.columns["kernel"] == "flash"  # not that for a mask that requires a gradient


def broken_in_training(q, k, v, *, is_causal=False, dropout_p=0.0):
    scores = q @ k.mT
    if dropout_p:
        torch._dynamo.graph_break()
    return scores @ v


@pytest.mark.parametrize(("dropout", "graphs"), [(0.0, 1), (0.5, 2)])
def test_the_counted_graphs_are_those_that_are_timed(dropout, graphs):
    impl = impls.registry.compiled(impls.make("broken", broken_in_training))
    torch.compiler.reset()
    built = build(Cell(impl, Case.of(T=16, H=1, D_h=16, scope="core", dropout=dropout)))
    assert built.columns["compile_graphs"] == graphs


def test_max_autotune_is_checked_like_other_compiled_forms():
    """Without projections, whose tuning takes seconds."""
    torch.compiler.reset()
    check_case(impls.get("sdpa+max-autotune"), Case.of(T=16, H=2, D_h=16, scope="core"))


def test_a_form_without_the_cuda_graphs_of_its_name_is_refused():
    """On the CPU torch has none, nor on a GPU where a call writes to a cache."""
    torch.compiler.reset()
    with pytest.raises(Unsupported, match="replays no CUDA graph"):
        build(Cell(impls.get("sdpa+reduce-overhead"), Case.of(T=16, H=2, D_h=16, scope="core")))


@pytest.mark.parametrize("form", impls.FORMS)
def test_a_form_is_of_the_mode_that_it_names(form, monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "compile", lambda eager, **options: asked.append(options))
    monkeypatch.setattr(building, "decoder_of", lambda *_: None)
    impl = impls.get(f"sdpa{form}")
    impl.layer(Case.of(T=9, H=1, D_h=2).layer_shape)
    building._built(impl, Case.of(T=9, H=1, D_h=2, scope="block"))
    assert [options.get("mode") for options in asked] == [None if form == "+compile" else form[1:]] * 2
    assert (impl.name, impl.compiled) == (f"sdpa{form}", True)
    with pytest.raises(ValueError, match="made by the suite"):
        impls.add(replace(impl, name=f"mine{form}"))


@pytest.mark.parametrize(
    ("layer", "says"),
    [
        (lambda shape: nn.Linear(2, 2), "has the weights none; the case needs W_k, W_o"),
        (
            lambda shape: Packed(replace(shape, out_bias=True)),
            r"needs W_k, W_o, W_q, W_v \(biases as qkv_bias and out_bias of its shape say\)",
        ),
        (
            lambda shape: Packed(replace(shape, D_h=3)),
            r"has W_q of shape \(3, 2\); the case needs \(2, 2\)",
        ),
    ],
)
def test_a_layer_with_other_weights_or_biases_is_refused(layer, says):
    shape = Case.of(T=4, H=1, D_h=2).layer_shape
    with pytest.raises(ValueError, match=says):
        weights.load(layer(shape), weights.draw(shape, torch.Generator()))


class WithProbs(Packed):
    def forward(self, *tokens, **options):
        return super().forward(*tokens, **options), None


def test_what_a_layer_returns_beside_its_output_is_no_log_sum_exp():
    with pytest.raises(Wrong, match=r"returns tuple, not a tensor$"):
        check_case(impls.make("mine", WithProbs), Case.of(T=8, H=1, D_h=16))


class WithNorm(as_layer()):
    def __init__(self, shape):
        super().__init__(shape)
        self.norm = nn.LayerNorm(shape.d_model)

    def forward(self, x, x_k=None, **options):
        return super().forward(self.norm(x), x_k, **options)


def test_weights_that_attention_does_not_have_are_named(short_probes):
    with pytest.raises(Wrong, match=r"every row; the reference has no norm\.weight, norm\.bias$"):
        gated(impls.make("mine", WithNorm), Case.of(T=16, H=1, D_h=16))


class WithAdapter(Packed):
    """As with LoRA before training."""

    def __init__(self, shape):
        super().__init__(shape)
        self.adapter = nn.Linear(shape.d_model, shape.d_out, bias=False)
        nn.init.zeros_(self.adapter.weight)

    def forward(self, x, *others, **options):
        return super().forward(x, *others, **options) + self.adapter(x)


@pytest.mark.parametrize(
    ("layer", "lines"),
    [
        (WithAdapter, ["mine: attention has no adapter.weight, which time and memory may include"]),
        (Packed, []),
    ],
)
def test_weights_that_change_no_output_are_told(short_probes, layer, lines):
    built, _ = checked(Cell(impls.make("mine", layer), Case.of(T=16, H=1, D_h=16)))
    assert weights_left_out([{"extra_info": {"impl": "mine"} | built.columns}]) == lines
    names = [it.split()[4].rstrip(",") for it in lines]
    assert weights.left_out(Compiled(layer(built.cell.case.layer_shape))) == names


class Inverted(as_layer()):
    def forward(self, x, x_k=None, *, padding, **options):
        return super().forward(x, x_k, padding=~padding, **options)


class TokensFirst(as_layer()):
    def forward(self, x, **options):
        return super().forward(x.transpose(0, 1), **options).transpose(0, 1)


class Residual(as_layer()):
    def forward(self, x, **options):
        return x + super().forward(x, **options)


class Rotated(as_layer()):
    def project(self, x, x_k):
        q, k, v = super().project(x, x_k)
        angles = torch.arange(x.shape[-2]).to(x)[:, None]
        q, k = (torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)
                for a, b in (z.chunk(2, -1) for z in (q, k)))  # fmt: skip
        return q, k, v


class NoGradientOfKeys(as_layer()):
    def project(self, x, x_k):
        q, k, v = super().project(x, x_k)
        return q, k.detach(), v


@pytest.mark.parametrize(
    ("layer", "axes", "says"),
    [
        (Inverted, {"mask": "padding", "B": 3}, "; padding is True where a key is a token$"),
        (TokensFirst, {}, r"; x and the output are \(B, T, features\)$"),
        (Residual, {"mode": "backward"}, "; x, a residual, isn't added to the output$"),
        (Rotated, {}, "; right where W_q is zero: rotary angles, a norm of q or k, another scale"),
        (NoGradientOfKeys, {"mode": "backward"}, "gradient of x: error .* every batch entry, every row$"),
    ],
)
def test_the_likely_cause_of_a_wrong_layer_is_named(short_probes, layer, axes, says):
    with pytest.raises(Wrong, match=says):
        gated(impls.make("mine", layer), Case.of(**{"T": 16, "H": 1, "D_h": 16} | axes))


def test_a_layer_that_always_has_biases_passes():
    class Biased(Packed):
        def __init__(self, shape):
            super().__init__(replace(shape, qkv_bias=True, out_bias=True))

    gated(impls.make("mine", Biased), Case.of(T=16, H=1, D_h=16, qkv_bias=True, out_bias=True))


class Computed(nn.Module):
    """Its weight is computed of parameters, as by `nn.utils.parametrizations.weight_norm`."""

    def __init__(self, shape):
        super().__init__()
        for n, width in (("q", shape.D_h), ("k", shape.D_h), ("v", shape.D_v), ("o", shape.d_out)):
            setattr(self, f"W_{n}", nn.Linear(shape.d_model, width, bias=False))
        nn.utils.parametrizations.weight_norm(self.W_v)


class Copied(Computed):
    def parts(self, of):
        return {f"W_{n}": [of(getattr(self, f"W_{n}").weight).clone()] for n in "qkvo"}


class Integers(Copied):
    def __init__(self, shape):
        super().__init__(shape)
        self.W_q.weight = nn.Parameter(self.W_q.weight.to(torch.int8), requires_grad=False)

    def parts(self, of):
        return {f"W_{n}": [of(getattr(self, f"W_{n}").weight)] for n in "qkvo"}


@pytest.mark.parametrize(("layer", "name"), [(Computed, "W_v"), (Copied, "W_q"), (Integers, "W_q")])
def test_a_layer_that_does_not_keep_its_weights_is_refused(layer, name):
    shape = Case.of(T=4, H=1, D_h=2).layer_shape
    with pytest.raises(ValueError, match=f"{layer.__name__} doesn't keep the numbers .* its {name}: parts"):
        weights.load(layer(shape), weights.draw(shape, torch.Generator()))
