"""Dispatchers of `advise --emit`: they call the registered kernels, and SDPA in cases that were not measured."""

import importlib.util
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

import impls
from bench.checks.settings import threads
from reports.judging import dispatcher
from reports.judging.dispatcher import Setting

THREADS = torch.get_num_threads()
HERE = Setting("cpu", THREADS, "float32", False, "causal", 1, 2, 2, 8, 8, None)
"""Where the module of these tests has the plain formula, from 16 to 32 tokens."""


def text(kernel="fused", first=16, last=32, *settings):
    run = SimpleNamespace(name="0001_x", date="", commit_id="", machine={"torch": str(torch.__version__)})
    return dispatcher.module("here", [run], {key: [(first, last, kernel)] for key in settings or [HERE]}, [])


def module(folder, source):
    path = folder / "attention_here.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    return module(tmp_path_factory.mktemp("here"), text())


def tensors(T=16, B=1, H=2, D_h=8, **options):
    return [torch.randn(B, H, T, D_h, **options) for _ in range(3)]


@pytest.mark.parametrize("name", dispatcher.kernels())
@pytest.mark.parametrize("is_causal", [False, True])
def test_a_kernel_is_the_registered_one_to_the_bit(name, is_causal, tmp_path):
    impl = impls.get(name)
    if "cpu" not in (impl.limits.devices or ("cpu",)):
        pytest.skip("needs a GPU")
    written, registered = getattr(module(tmp_path, text(name)), name), impl.kernel
    for options in ({"scale": None, "enable_gqa": False}, {"scale": 0.3, "enable_gqa": True}):
        q, k, v = (it.requires_grad_() for it in tensors(T=37, H=4))
        if options["enable_gqa"]:
            k, v = (it[:, :2].detach().requires_grad_() for it in (k, v))
        outputs = [call(q, k, v, is_causal=is_causal, **options) for call in (written, registered)]
        assert torch.equal(*outputs)
        found, known = (torch.autograd.grad(o.square().sum(), (q, k, v)) for o in outputs)
        assert all(map(torch.equal, found, known))


def chosen(here, *qkv, **options):
    """Return the kernels of the table that a call ran; empty if it ran SDPA only."""
    ran = []

    def watched(kernel):
        return lambda *qkv, **options: ran.append(kernel.__name__) or kernel(*qkv, **options)

    table = {key: [(first, last, watched(kernel)) for first, last, kernel in of] for key, of in here.TABLE.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(here, "TABLE", table)
        here.choice.cache_clear()
        torch.testing.assert_close(here.attention(*qkv, **options), sdpa(*qkv, **options))
    return ran


def test_the_table_is_followed(here):
    assert chosen(here, *tensors(16), is_causal=True) == ["fused"]
    assert chosen(here, *tensors(32), is_causal=True, scale=0.2) == ["fused"]
    with torch.no_grad():
        assert chosen(here, *tensors(requires_grad=True), is_causal=True) == ["fused"]


@pytest.mark.parametrize(
    "sizes",
    [{"T": 15}, {"T": 33}, {"B": 2}, {"H": 4}, {"D_h": 16}, {"dtype": torch.bfloat16}, {"requires_grad": True}],
    ids=str,
)
def test_at_other_sizes_it_is_sdpa(here, sizes):
    assert chosen(here, *tensors(**sizes), is_causal=True) == []


def test_other_calls_use_sdpa(here):
    (q, k, v), (_, longer, values) = tensors(16), tensors(24)
    assert chosen(here, q, k, v) == []
    assert chosen(here, q, k, v, attn_mask=torch.ones(16, 16, dtype=torch.bool)) == []
    for odd in (
        (q, longer, values),
        (it[0] for it in (q, k, v)),
        (q.mT.contiguous().mT, k, v),
        (nn.Parameter(q), k, v),
    ):
        assert chosen(here, *odd, is_causal=True) == []
    assert chosen(here, q, k, v, is_causal=True, dropout_p=1e-9) == []
    with torch.autocast("cpu", torch.bfloat16):
        assert chosen(here, q, k, v, is_causal=True) == []
    with threads(THREADS + 1):
        assert chosen(here, q, k, v, is_causal=True) == []


def outcome(call, *qkv):
    try:
        return str(call(*qkv, is_causal=True).shape)
    except RuntimeError:
        return "refused"


def test_the_dispatcher_accepts_and_refuses_the_same_arguments_as_sdpa(here):
    q, k, v = tensors(16)
    odd = ((q, k[:, :1], v[:, :1]), (q, k, v.bfloat16()), (q, k[..., :4], v), (q, k, v[..., :4]), (q, k[:, :, :9], v))
    assert [outcome(here.attention, *it) for it in odd] == [outcome(sdpa, *it) for it in odd]


@pytest.mark.parametrize(
    ("mask", "shapes"),
    [("keys", [(2, 1, 1, 16)]), ("batch", [(2, 1, 16, 16)]), ("pairs", [(16, 16), (1, 1, 16, 16)])],
)
def test_boolean_masks_are_distinguished_by_their_shape(mask, shapes, tmp_path):
    fresh = module(tmp_path, text("sdpa_math", 16, 32, HERE._replace(B=2, mask=mask)))
    for shape in ((2, 1, 1, 16), (2, 1, 16, 16), (16, 16), (1, 1, 16, 16), (2, 2, 16, 16)):
        visible = torch.rand(shape) < 0.5
        assert chosen(fresh, *tensors(16, B=2), attn_mask=visible) == ["sdpa_math"] * (shape in shapes)
    assert chosen(fresh, *tensors(16, B=2), attn_mask=torch.zeros(shapes[0])) == []


@pytest.mark.parametrize("name", ["sdpa_math", "sdpa_flash"])
def test_a_query_that_sees_no_key_gets_zeros(name, tmp_path):
    """As a padded query of a model: SDPA's kernels guarantee it, so they may be chosen with a mask."""
    fresh = module(tmp_path, text(name, 16, 16, HERE._replace(mask="pairs")))
    visible = torch.ones(16, 16, dtype=torch.bool).tril(-1)
    assert chosen(fresh, *tensors(16), attn_mask=visible) == [name]
    assert not fresh.attention(*tensors(16), attn_mask=visible)[:, :, 0].any()


def test_a_kept_mask_serves_gradients_and_transforms_after_inference(tmp_path):
    of_gradients = HERE._replace(gradients=True)
    fresh = module(tmp_path, text("fused", 16, 32, HERE, of_gradients))
    q, k, v = tensors(16)

    def loss(q):
        return fresh.attention(q, k, v, is_causal=True).square().sum()

    torch.func.grad(loss)(q)
    torch.vmap(loss)(torch.stack([q, q]))
    with torch.inference_mode():
        fresh.attention(q, k, v, is_causal=True)
    [grad] = torch.autograd.grad(loss(q.requires_grad_()), q)
    assert math.isfinite(grad.sum())


def test_under_another_torch_it_is_sdpa(here, monkeypatch):
    monkeypatch.setattr(here, "TORCH", "0.1")
    assert chosen(here, *tensors(16), is_causal=True) == []


FAMILIES = {
    "LlamaForCausalLM": {"num_key_value_heads": 2},
    "GPT2LMHeadModel": {"n_embd": 32, "n_head": 4, "n_layer": 2},
    "MistralForCausalLM": {"num_key_value_heads": 2, "sliding_window": 5},
    "ModernBertForMaskedLM": {"local_attention": 6, "pad_token_id": 0},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_in_a_model_logits_are_those_of_eager_attention(family, tmp_path):
    """Prompts with and without padding, a training step, and new tokens against a cache, with every mask."""
    transformers = pytest.importorskip("transformers")
    causal = "Bert" not in family
    settings = [
        HERE._replace(B=2, H=4, H_kv=H_kv, gradients=gradients, mask=mask, T=T)
        for H_kv in (2, 4)
        for gradients in (False, True)
        for mask in ("none", "causal", "keys", "batch", "pairs")
        for T in (None, 1)
    ]
    fresh = module(tmp_path, text("sdpa_math", 2, 64, *settings))
    ran = []
    fresh.sdpa_kernel, kernel = lambda backend: ran.append(backend.name) or kernel(backend), fresh.sdpa_kernel
    of = getattr(transformers, family)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
             "vocab_size": 96, "max_position_embeddings": 64, "initializer_range": 0.5, **FAMILIES[family]}  # fmt: skip
    eager, ours = (  # each with its own configuration, which building a model changes
        of._from_config(of.config_class(**sizes), attn_implementation=name).eval()
        for name in ("eager", fresh.register())
    )
    ours.load_state_dict(eager.state_dict())
    assert (eager.config._attn_implementation, ours.config._attn_implementation) == ("eager", "here")
    tokens = torch.randint(1, 96, (2, 12))
    padding = torch.ones(2, 12, dtype=torch.long)
    padding[0, :4] = 0  # the first queries of the first see no key
    for given in ({}, {"attention_mask": padding}):
        ran.clear()
        a, b = (model(tokens, **given).logits for model in (eager, ours))
        where = given.get("attention_mask", torch.ones_like(padding)).bool()
        torch.testing.assert_close(b[where], a[where], atol=1e-4, rtol=1e-4)
        assert ran
        for model, logits in ((eager, a), (ours, b)):
            model.zero_grad()
            logits[where].square().mean().backward()
        for one, other in zip(eager.parameters(), ours.parameters(), strict=True):
            torch.testing.assert_close(other.grad, one.grad, atol=1e-3, rtol=1e-3)
        if causal:
            options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, **given}
            with torch.no_grad():
                assert torch.equal(*(model.generate(tokens, **options) for model in (eager, ours)))
