"""Kernels inside decoder blocks of transformers: those that are wrong only there are refused, right ones accepted."""

import json
from dataclasses import replace
from time import sleep

import pytest

import impls
from bench.cases import decoders
from bench.cases.case import Case
from bench.cases.cells import Cell
from bench.cases.counting import flops
from bench.cases.models import MODELS, layers_of
from bench.cases.outcome import Wrong
from bench.cases.sweep import misfit, of_points
from bench.checks.attention_problems import problem_of
from bench.checks.module_checks import check_case, check_probe
from bench.selection.options import select
from bench.timing.cell import build
from bench.timing.devices import cpu
from bench.timing.parts import parts_of

from . import wrong_in_model
from .wrong_kernels import going_back, sdpa

SMALL = {"B": 2, "T": 24, "H": 4, "H_kv": 2, "D_h": 32, "D_v": 32, "d_model": 64}
SMALL |= {"scope": "block", "model": "qwen3-0.6b"}
"""Of Qwen3's kind; as small as a probe."""


@pytest.fixture
def written(tmp_path):
    """Writes a small config.json, and returns its path."""

    def write(model_type, **config):
        sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
        sizes |= {"intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 64}
        path = tmp_path / f"{model_type}{len(config)}.json"
        path.write_text(json.dumps(sizes | {"model_type": model_type} | config))
        return str(path)

    return write


needs_transformers = pytest.mark.skipif(not decoders.find_spec("transformers"), reason="needs transformers")


def small(**axes):
    sizes = SMALL | axes
    if sizes.get("mode") == "decode":
        sizes = {"mask": "none", "T_kv": 24} | sizes | {"T": axes.get("T", 1)}
    return Case.of(**sizes)


def cases_of(model, **axes):
    layers = layers_of(decoders.config_of(model))
    sweep = of_points(model, {kind: layer | {"of_model": True, "model": model} for kind, layer in layers.items()})
    return [*sweep.cases("cpu", {name: (value,) for name, value in ({"dtype": "float32"} | axes).items()})]


@needs_transformers
@pytest.mark.parametrize("name", wrong_in_model.WRONG)
def test_a_core_that_is_wrong_inside_a_model_is_refused(name):
    core, case = wrong_in_model.WRONG[name]
    with pytest.raises(Wrong):
        check_probe(impls.make(name, core), small(**case))


CORRECT = [
    (wrong_in_model.Correct, axes) for axes in {str(axes): axes for _, axes in wrong_in_model.WRONG.values()}.values()
]
CORRECT.append((wrong_in_model.WithOwnBackward, {"scope": "model", "mode": "backward"}))


@needs_transformers
@pytest.mark.parametrize(("core", "axes"), CORRECT, ids=str)
def test_the_correct_cores_behind_the_wrong_ones_are_accepted(core, axes):
    check_probe(impls.make("correct", core), small(**axes))


@needs_transformers
@pytest.mark.parametrize("scope", ["block", "model"])
@pytest.mark.parametrize("axes", [{}, {"mask": "causal+padding"}, {"mode": "backward"}, {"mode": "decode"},
                                  {"mode": "decode", "T": 7, "mask": "causal_br"}, {"dtype": "bfloat16"}])  # fmt: skip
def test_every_kernel_of_the_registry_is_accepted(scope, axes):
    case = small(scope=scope, **axes)
    accepted = {impl.name for impl in impls.registered() if impl.refusal(case) is None and not impl.limits.alone}
    for name in accepted:
        check_case(impls.get(name), case)
    assert {"sdpa", "fused"} <= accepted


@needs_transformers
@pytest.mark.parametrize("model", [name for name, (_, config) in MODELS.items() if "vocab_size" in config])
def test_every_model_is_built_from_its_config(model):
    """One block at a smaller width, against the model's own eager attention."""
    (layer, *_) = layers_of(decoders.config_of(model)).values()
    H_kv = 4 if layer["H_kv"] == layer["H"] else 2
    check_case(impls.get("sdpa"), small(model=model, H_kv=H_kv, D_h=16, D_v=16))


@needs_transformers
def test_matrices_and_weights_are_those_of_the_model(written):
    """By formula: attention, an MLP that is gated in some models, and the head, which may be tied to the embedding."""
    attention, mlp, head = 64 * (4 + 2 + 2 + 4) * 16, 64 * 128, 64 * 64
    for model, block, others in (
        ("qwen3-0.6b", attention + 3 * mlp, head),
        ("gpt2", 64 * 16 * 16 + 2 * 64 * 256, head + 1024 * 64),
        (written("starcoder2"), attention + 2 * mlp, head),
        (written("llama"), attention + 3 * mlp, 2 * head),
    ):
        sizes = {"H": 4, "H_kv": 4 if model == "gpt2" else 2, "D_h": 16, "D_v": 16, "d_model": 64}
        case = small(scope="model", model=model, **sizes)
        assert (decoders.matrices(case), decoders.weights(case)) == ((block, head), 2 * block + others)
        assert decoders.weights(case) == sum(it.numel() for it in problem_of(case).weights.values() if it.dim() > 1)
        assert decoders.matrices(replace(case, scope="block")) == (block, 0)


@needs_transformers
def test_operations_of_a_model_are_those_within_the_window_of_each_block():
    sizes = {"H": 4, "H_kv": 2, "T": 20, "T_kv": 20, "scope": "model"}
    case = small(**sizes, model=wrong_in_model.TWO_KINDS["model"])
    assert decoders.windows(case) == [7, None]
    cores = sum(flops(replace(case.core, window=it)) for it in (7, None))
    block, head = decoders.matrices(case)
    assert flops(case) == cores + 2 * case.B * 20 * (2 * block + head)


@needs_transformers
def test_a_block_selects_its_core_and_no_unnamed_compiled_form():
    options = {"model": "gpt2", "scope": "block", "T": "64", "device": "cpu"}
    assert not any(cell.impl.compiled for cell in select(options).cells)
    named = select(options | {"impl": ["sdpa+compile"]}).cells
    assert [cell.case.scope for cell in named] == ["core", "block"]


@needs_transformers
def test_a_kernel_without_windows_is_put_only_where_no_block_has_one():
    limited = impls.make("limited", sdpa, limits=impls.Limits(masks=("none", "causal")))
    of = {"model": wrong_in_model.TWO_KINDS["model"], "H": 4, "H_kv": 2}
    assert limited.refusal(small(**of, T=8, T_kv=8)) is None
    assert limited.refusal(small(**of, T=9, T_kv=9)) == "limited does not support window"


@needs_transformers
def test_a_block_has_no_option_for_what_its_config_decides():
    with pytest.raises(ValueError, match="leave out --window"):
        cases_of("qwen3-0.6b", scope="block", window=8)


@pytest.mark.parametrize(("axes", "says"), [
    ({"model": None}, "--model"), ({"dtype": "float64"}, "float32"), ({"model": "llama3-70b"}, "config.json"),
    ({"model": "gemma2-9b"}, "softcap is not built"),
    ({"mask": "none"}, "causal"), ({"model": "gpt2", "T": 2048, "T_kv": 2048}, "1024 positions"),
])  # fmt: skip
def test_an_axis_that_a_model_lacks_is_one_sentence(axes, says, monkeypatch):
    monkeypatch.setattr(decoders, "find_spec", lambda name: name)
    assert says in str(misfit(replace(small(), **axes)))


def test_a_config_without_vocab_size_is_told_what_to_add(monkeypatch, tmp_path):
    """As Gemma 3's is written: transformers has the default."""
    monkeypatch.setattr(decoders, "find_spec", lambda name: name)
    model = tmp_path / "config.json"
    model.write_text('{"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "hidden_size": 64}}')
    assert "no vocab_size: add it" in str(misfit(small(model=str(model))))


@needs_transformers
@pytest.mark.parametrize("model_type", ["falcon", "gpt_neo"])
def test_a_model_whose_attention_no_kernel_can_replace_is_left_out(model_type, written):
    """There no kernel would be called."""
    assert "no kernel can replace it" in str(misfit(small(model=written(model_type, multi_query=False, num_layers=2))))


EQUAL_HEADS = {"H_kv": 4, "D_h": 16, "D_v": 16}


@needs_transformers
def test_a_model_that_scales_its_queries_itself_is_left_out(written):
    """There the suite's scale would be a second one, and every kernel wrong."""
    opt = written("opt", word_embed_proj_dim=48)
    assert "no kernel can replace it" in str(misfit(small(model=opt, scope="model", **EQUAL_HEADS)))


@needs_transformers
def test_a_model_whose_windows_are_not_those_of_its_cores_is_left_out(written):
    """EXAONE 4 gives each layer a `sliding_window`, also those that see all keys."""
    kinds = ["full_attention", "sliding_attention"]
    exaone = written("exaone4", sliding_window=8, layer_types=kinds)
    assert "no kernel can replace it" in str(misfit(small(model=exaone)))
    assert misfit(small(model=written("olmo3", sliding_window=8, layer_types=kinds))) is None


@needs_transformers
def test_a_model_that_does_not_call_the_core_is_left_out(written, monkeypatch):
    monkeypatch.setattr("impls.decoder.attend", causal_without_a_core)
    assert "no kernel can replace it" in str(misfit(small(model=written("llama"))))


def causal_without_a_core(module, q, k, v, attention_mask, **_):
    return sdpa(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2), None


@needs_transformers
def test_a_mask_of_a_model_without_padding_is_ignored(written):
    """BioGPT makes a mask that is True everywhere, which cores would take for padding instead of a causal mask."""
    check_case(impls.get("sdpa"), small(model=written("biogpt"), **EQUAL_HEADS))


@needs_transformers
@pytest.mark.parametrize(
    ("model_type", "config", "says"),
    [
        ("whisper", {"is_encoder_decoder": True}, "with an encoder is not built"),
        ("bert", {}, "with an encoder is not built"),
        ("bloom", {}, "with bias is not built"),
        ("mixtral", {"num_local_experts": 4}, "with experts is not built"),
        ("llama", {"rms_norm_eps": "x"}, "'rms_norm_eps': TypeError"),
    ],
)
def test_a_block_that_is_not_built_is_one_sentence(model_type, config, says, written):
    assert says in str(misfit(small(model=written(model_type, **config))))


def test_without_transformers_the_package_is_named(monkeypatch):
    monkeypatch.setattr(decoders, "find_spec", lambda name: None)
    assert misfit(small()) == "--scope block needs the package transformers: pip install transformers"


@needs_transformers
@pytest.mark.parametrize("mode", ["forward", "backward", "decode"])
@pytest.mark.parametrize("scope", ["block", "model"])
def test_the_parts_of_a_call_add_up_to_it(scope, mode):
    """The core sleeps in the forward and in the backward, so its part has a lower bound."""
    case = small(scope=scope, mode=mode, B=1)
    built = build(Cell(impls.make("slow", slow), case))
    with built.watched():
        found = parts_of(built)
    assert found["parts_s"].keys() >= {"core", "mlp", "projections", "block", "around"}
    assert ("head" in found["parts_s"]) == (scope == "model")
    forwards = found["blocks"] * SLEEP
    assert found["parts_s"]["core"] >= forwards * (2 if mode == "backward" else 1)
    assert (found["depth"], found["blocks"]) == (28, {"block": 1, "model": 2}[scope])
    assert 0 < min(found["core_shares"]) <= max(found["core_shares"]) < 1


SLEEP = 0.02


def late(x):
    sleep(SLEEP)
    return x


def slow(q, k, v, **options):
    """Sleeps in its forward and in its backward."""
    return going_back(late(sdpa(q, k, v, **options)), late)


def test_a_cold_call_finds_its_tensors_in_other_places_and_leaves_them_where_they_were():
    built = build(Cell(impls.get("sdpa"), Case.of(T=64, H=2, D_h=16)))
    before, seen = [it.data_ptr() for it in built.call.inputs.tensors], set()
    run = built.call.run

    def watched():
        seen.add(built.call.inputs.tensors[0].data_ptr())
        return run()

    built.call = replace(built.call, run=watched)
    with built.watched():
        seconds = built.meter.more(built.call.run, 1e-4, False, built.tensors)["cold_s"]
    assert (seconds is None) == (cpu.last_level_cache() is None)
    if seconds:
        assert seconds > 0
        assert len(seen) == cpu.COLD_CALLS
        assert not seen & set(before)
    assert [it.data_ptr() for it in built.call.inputs.tensors] == before
    assert built.meter.more(run, 1.0, False, built.tensors) == {"cold_s": None}
