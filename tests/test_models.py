"""`--model`: the geometry of named models and of a `config.json`, and the cases that it makes."""

import json
from contextlib import chdir

import pytest
import torch

from bench.cases.models import CODE, MODELS, SPELLINGS, config_of, layers_of, notes_of
from bench.cases.sweep import of_points
from bench.checks.module_checks import check_case
from bench.selection.errors import UsageError
from bench.selection.options import cases_of, select, sweep_of
from impls.rules import Rules


def cases(model, **overrides):
    """Return one case per kind of layer."""
    layers = layers_of(config_of(model))
    return {
        kind: next(iter(of_points(model, {f"{model}, {kind}": layer | {"of_model": True}}).cases("cpu", overrides)))
        for kind, layer in layers.items()
    }


def test_a_model_sets_every_axis_of_its_layers():
    gemma = cases("gemma2-9b", T=(8192,))
    assert gemma["local"].id == "B1-T8192-H16-D_h256-bfloat16-cpu-H_kv=8-d_model=3584-window=4095-softcap=50"
    assert gemma["global"].id == gemma["local"].id.replace("-window=4095", "")
    oss = cases("gpt-oss")["local"]
    assert (oss.sinks, oss.window, oss.qkv_bias, oss.out_bias, oss.d_model) == (True, 127, True, True, 2880)
    latent = cases("deepseek-v2-lite")["global"]
    assert (latent.H, latent.D_h, latent.D_v, latent.latent, latent.rope) == (16, 192, 128, 512, 64)
    whisper = cases("whisper-large-v3")
    assert [(it.mask, it.source, it.T, it.T_kv) for it in whisper.values()] == [
        ("none", "self", 1500, 1500), ("causal", "self", 512, 512), ("none", "cross", 512, 1500),
    ]  # fmt: skip
    assert (cases("vit-l")["global"].T, cases("vit-l")["global"].mask) == (197, "none")


def test_other_axes_still_override():
    sweep, device, overrides = sweep_of({"model": "qwen3-8b,gpt2", "T": "64,128", "dtype": "float32", "device": "cpu"})
    found = cases_of(sweep, device, overrides)
    assert sweep.name == "qwen3-8b,gpt2"
    assert [(it.H, it.T, it.dtype) for it in found] == [(H, T, "float32") for H in (32, 12) for T in (64, 128)]


def test_keys_that_a_config_omits_have_the_defaults_of_its_type():
    mistral = {"model_type": "mistral", "hidden_size": 4096, "num_attention_heads": 32}
    assert [(name, it["H_kv"], it["window"]) for name, it in layers_of(mistral).items()] == [("local", 8, 4095)]
    plain = mistral | {"sliding_window": None, "num_key_value_heads": None}
    assert [(name, it["H_kv"]) for name, it in layers_of(plain).items()] == [("global", 32)]


def test_a_window_that_masks_no_key_is_left_out():
    """As transformers leaves it out; then layers of both kinds are one case."""
    assert [cases("mistral-7b", T=(T,))["local"].window for T in (4096, 4097)] == [None, 4095]
    gemma = cases("gemma2-9b", T=(256,))
    assert gemma["local"] == gemma["global"]
    decode = cases("mistral-7b", T=(4096,), mode=("decode",))["local"]
    assert (decode.T_kv, decode.mask, decode.window) == (4096, "none", None)


def test_a_core_ignores_the_axes_of_its_layer():
    case = cases("deepseek-v3", scope=("core",))["global"]
    assert case.id == "B1-T512-H128-D_h192-bfloat16-cpu-D_v=128-scope=core"
    assert cases("gpt2-xl", scope=("core",))["global"].d_model == 1600


def test_decode_of_a_window_uses_the_querys_position():
    case = cases("mistral-7b", mode=("decode",), T=(8192,))["local"]
    assert (case.T, case.T_kv, case.mask, case.window) == (1, 8192, "causal_br", 4095)


def test_options_that_do_not_fit_are_left_out_and_named(capsys):
    sweep, device, overrides = sweep_of({"model": "whisper-large-v3", "mode": "forward,decode", "device": "cpu"})
    assert len(cases_of(sweep, device, overrides)) == 5
    said = capsys.readouterr().err
    assert "keys have a bias" in said and "left out: whisper-large-v3, cross: decode sees every key" in said
    with pytest.raises(UsageError, match="whisper-large-v3, encoder: H = 20 is not divisible by H_kv = 3"):
        cases_of(sweep, device, overrides | {"H_kv": (3,)})
    unfit = []
    with pytest.raises(ValueError, match="encoder"):
        sweep.cases(device, overrides | {"scope": ("block",)}, unfit)
    assert len(unfit) == 6 and "--source" not in str(unfit)  # which a block doesn't have


H64 = {"hidden_size": 64, "num_attention_heads": 4}
WRONG = {
    "a positive whole number": {
        "hidden_size": (None, "64", 0, 64.5, True), "num_attention_heads": (0,),
        "num_key_value_heads": (0,), "head_dim": ("x",), "kv_lora_rank": (-1,), "attn_logit_softcapping": (0.5,),
        "sliding_window": (2**31,), "local_attention": ("x",), "max_window_layers": ("x",),
    },
    "a positive number": {"query_pre_attn_scalar": (0, "x"), "attention_multiplier": (1e400,)},
    "true or false": {"is_causal": ("no",), "attention_bias": ([1],), "multi_query": (2,), "use_sliding_window": ("x",)},
    "a list of names": {"layer_types": ([1], "full_attention")},
    "text": {"model_type": (1,), "dtype": (["float32"],), "torch_dtype": ({},)},
    "an object": {"text_config": ("x",), "attn_config": ([1],), "rope_scaling": ("x",)},
}  # fmt: skip
"""Values of another kind than the one named, by key."""


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [(key, value, kind) for kind, keys in WRONG.items() for key, values in keys.items() for value in values],
)
def test_a_value_of_another_kind_is_one_line(key, value, kind, tmp_path):
    windowed = {"sliding_window": 8, "num_hidden_layers": 4} if key == "max_window_layers" else {}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "phi3", **H64, **windowed, key: value}))
    says = f"has no {key}: add it" if value is None else f"{key} is .*, not {kind}"
    with chdir(tmp_path), pytest.raises(UsageError, match=f"^--model config.json: .*{says}") as error:
        sweep_of({"model": "config.json"})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        ("{", "no JSON"),
        ("[]", "expected an object, as transformers writes it"),
        ("[" * 100_000, "no JSON"),
        *(
            (json.dumps(H64 | more), says)
            for more, says in (
                ({"sliding_window": 8, "layer_types": ["x"]}, "layer_types has neither"),
                ({"layer_types": ["hybrid"]}, "layer_types has neither"),
                (
                    {"block_configs": [{}]},
                    "block_configs has sizes of each layer: replace it by the num_key_value_heads",
                ),
                ({"lambda_std_dev": 0.1}, "attention with lambda_std_dev can't be measured"),
                (
                    {"num_landmarks": 64},
                    "attention with num_landmarks can't be measured: no implementation computes it",
                ),
            )
        ),
        ('{"hidden_size": 513, "n_head": 8}', "513 is not divisible by num_attention_heads 8: add the head_dim"),
    ],
)
def test_a_config_that_says_too_little(content, says, tmp_path):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with chdir(tmp_path), pytest.raises(UsageError, match=f"--model config.json: .*{says}"):
        sweep_of({"model": "config.json"})


def test_a_model_is_a_sweep():
    with pytest.raises(UsageError, match="leave out --sweep"):
        sweep_of({"model": "gpt2", "sweep": "quick"})


def test_differences_from_the_config_are_reported():
    config = {"model_type": "mamba_llama", "q_lora_rank": 8, **H64}
    config |= {"layer_types": ["full_attention", "linear_attention"], "query_pre_attn_scalar": 64, "attn_pdrop": 0.1}
    assert list(notes_of({"model_type": "x", "text_config": config})) == [
        "the text model of x is measured",
        "model_type mamba_llama is not known: measured as causal, without masks, biases and scales that only its code has",
        "queries are projected in one step, not through a latent of 8",
        "dropout in training is left out (--dropout 0.1)",
        "layers of linear_attention are left out",
        "scores are scaled by 1 / sqrt(16), not by 0.125",
    ]
    indexed = {"model_type": "deepseek_v3", "attention_bias": True, "layer_types": ["indexed_attention"], **H64}
    assert [*notes_of(indexed)] == ["projections have no biases"]
    assert [*notes_of({"model_type": "gpt2", "scale_attn_weights": False, **H64})] == [
        "scores are scaled by 1 / sqrt(16), not by 1"
    ]
    yarn = {"factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, "type": "yarn"}
    assert [*notes_of({"model_type": "deepseek_v3", "num_kv_shared_layers": 0, "rope_scaling": yarn, **H64})] == [
        "scores are scaled by 1 / sqrt(192), not by 0.1352"
    ]
    granite = {"model_type": "granite", **H64}
    assert not [*notes_of(granite | {"attention_multiplier": 0.25})]
    assert [*notes_of(granite | {"attention_multiplier": 0.0625})] == [
        "scores are scaled by 1 / sqrt(16), not by 0.0625"
    ]


@pytest.mark.parametrize(
    ("config", "axes"),
    [
        ({"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 2, "bias": False, **H64}, {"H_kv": 2}),
        ({"model_type": "falcon", "multi_query": False, "alibi": True, "bias": True, **H64},
         {"H_kv": 4, "bias": "alibi", "qkv_bias": True, "out_bias": True}),
        ({"model_type": "mpt", "d_model": 64, "n_heads": 4, "attn_config": {"alibi": True, "model_type": ""}},
         {"H_kv": 4, "bias": "alibi"}),
        ({"model_type": "gpt_bigcode", "n_embd": 64, "n_head": 4}, {"H_kv": 1, "qkv_bias": True, "out_bias": True}),
        ({"model_type": "glm4", **H64}, {"H_kv": 2, "D_h": 128, "qkv_bias": True}),
        ({"model_type": "gemma3_text", "hidden_size": 3840, "num_attention_heads": 16, "num_key_value_heads": 8,
          "sliding_window": None},
         {"d_model": 3840, "H": 16, "H_kv": 8, "D_h": 256}),
        ({"model_type": "t5", "is_encoder_decoder": False, "d_model": 64, "num_heads": 4, "d_kv": 128},
         {"H_kv": 4, "D_h": 128}),
        ({"model_type": "chatglm", "kv_channels": 8, "multi_query_group_num": 2, "add_qkv_bias": True,
          "add_bias_linear": False, **H64},
         {"H_kv": 2, "D_h": 8, "qkv_bias": True}),
        ({"model_type": "step", "num_attention_groups": 1, "head_dim": 0, **H64}, {"H_kv": 1}),
        ({"model_type": "dinov2", "patch_size": 14, "image_size": 28, **H64}, {"H_kv": 4, "mask": "none", "T": 5}),
        ({"model_type": "dinov3_vit", "patch_size": 14, "image_size": 28, "num_register_tokens": 4, **H64},
         {"H_kv": 4, "mask": "none", "T": 9}),
        ({"model_type": "siglip_vision_model", "patch_size": 14, "image_size": 30, **H64},
         {"H_kv": 4, "mask": "none", "T": 4, "qkv_bias": True, "out_bias": True}),
        ({"model_type": "mimo_v2_flash", "v_head_dim": 8, **H64}, {"H_kv": 4, "D_v": 8}),
        ({"model_type": "granitemoehybrid", "layer_types": ["mamba", "attention"], **H64}, {"H_kv": 4}),
        ({"model_type": "roberta", **H64}, {"H_kv": 4, "mask": "none", "qkv_bias": True, "out_bias": True}),
        ({"model_type": "roberta", "is_decoder": True, **H64}, {"H_kv": 4, "qkv_bias": True, "out_bias": True}),
    ],
)  # fmt: skip
def test_other_spellings_and_what_only_code_says_are_read(config, axes):
    usual = {"d_model": 64, "H": 4, "D_h": 16, "dtype": "float32"}
    (layer,) = layers_of(config).values()
    assert layer == usual | axes


def test_a_decoder_has_its_own_heads():
    sizes = {"is_encoder_decoder": True, "d_model": 96, "encoder_attention_heads": 4, "decoder_attention_heads": 6}
    layers = layers_of({"model_type": "bart", **sizes})
    assert {name: (it["H"], it["H_kv"], it["D_h"]) for name, it in layers.items()} == {
        "encoder": (4, 4, 24),
        "decoder": (6, 6, 16),
        "cross": (6, 6, 16),
    }


def test_older_configs_name_no_layer_types():
    sizes = {"sliding_window": 8, **H64}
    assert [*layers_of({"model_type": "gemma3_text", "sliding_window_pattern": 6, **sizes})] == ["local", "global"]
    assert layers_of({"model_type": "phi3", **sizes})["local"]["window"] == 7
    assert [*layers_of({"model_type": "llama", **sizes})] == ["global"]  # its code has no windows
    assert [*layers_of({"model_type": "qwen2", **sizes})] == ["global"]
    used = {"model_type": "qwen2", "use_sliding_window": True, "num_hidden_layers": 6, **sizes}
    assert [[*layers_of(used | {"max_window_layers": it})] for it in (4, 6)] == [["local", "global"], ["global"]]
    both_ways = layers_of({"model_type": "gemma3_text", "use_bidirectional_attention": True, **sizes})["local"]
    assert (both_ways["mask"], both_ways["window"]) == ("none", 4)


def test_layers_of_a_config_are_right(tmp_path):
    sizes = {"hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 6}
    config = {"model_type": "gpt_oss", "torch_dtype": "float32", "attention_bias": True, **sizes}
    (tmp_path / "config.json").write_text(json.dumps(config | {"layer_types": ["sliding_attention", "full_attention"]}))
    with chdir(tmp_path):
        cells = select({"model": "config.json", "T": "24", "impl": ["fused"], "device": "cpu"}).cells
    assert [cell.case.window for cell in cells] == [5, None]
    for cell in cells:
        check_case(cell.impl, cell.case)


# What follows needs transformers: `tox -e model`.

DEFAULTS = {
    "gpt2": "GPT2Config", "llama4-scout": "Llama4TextConfig", "mistral-7b": "MistralConfig", "gpt-oss": "GptOssConfig",
    "deepseek-v3": "DeepseekV3Config", "olmo2-7b": "Olmo2Config", "modernbert-base": "ModernBertConfig",
}  # fmt: skip
"""Models whose sizes are the defaults of their configuration class."""


@pytest.mark.parametrize("model", DEFAULTS)
def test_geometry_is_the_default_of_transformers(model):
    transformers = pytest.importorskip("transformers")
    default = layers_of(getattr(transformers, DEFAULTS[model])().to_dict())
    assert {kind: layer | {"dtype": None} for kind, layer in default.items()} == {
        kind: layer | {"dtype": None} for kind, layer in layers_of(config_of(model)).items()
    }


def written(model, folder):
    """Return a model's configuration, with layers of both kinds, as an object of transformers; also writes it to a folder."""
    transformers = pytest.importorskip("transformers")
    given = dict(config_of(model))
    if "layer_types" in given:
        given["num_hidden_layers"] = len(given["layer_types"])
    elif model == "whisper-large-v3":
        given |= {"encoder_layers": 1, "decoder_layers": 1}
    else:
        given |= {"num_hidden_layers": 1, "n_layer": 1}
    given.setdefault("q_lora_rank", None)
    config = transformers.AutoConfig.for_model(given.pop("model_type"), **given)
    config.save_pretrained(folder)
    return config


NAMES = {
    "W_q": ("q_proj", "query", "q", "q_lin"), "W_k": ("k_proj", "key", "k", "k_lin"),
    "W_v": ("v_proj", "value", "v", "v_lin"),
    "W_o": ("o_proj", "out_proj", "c_proj", "Wo", "dense", "o", "out_lin"),
}  # fmt: skip
PACKED = ("qkv_proj", "c_attn", "Wqkv", "query_key_value")
ATTENTION = {"local": 0, "global": -1, "encoder": 0, "decoder": 1, "cross": 2}


def linear(attention, names):
    return next((it for name, it in attention.named_modules() if name.rpartition(".")[2] in names), None)


def widths(it):
    """Return (in, out). The weight of GPT-2's Conv1D is transposed."""
    return tuple(it.weight.shape if type(it).__name__ == "Conv1D" else it.weight.mT.shape)


@pytest.mark.parametrize("model", MODELS)
def test_a_model_written_and_built_by_transformers_has_its_geometry(model, tmp_path):
    config = written(model, tmp_path)
    assert layers_of(config_of(str(tmp_path / "config.json"))) == layers_of(config_of(model))
    compare_projections(cases(model), config)


@pytest.mark.parametrize("model_type", CODE)
def test_a_config_of_a_known_type_is_read_as_transformers_reads_it(model_type, tmp_path):
    transformers = pytest.importorskip("transformers")
    depth = ("num_hidden_layers", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers")
    config = transformers.AutoConfig.for_model(model_type, **dict.fromkeys(depth, 1))
    config.save_pretrained(tmp_path)
    compare_projections(cases(str(tmp_path / "config.json")), config)


@pytest.mark.parametrize("model_type", CODE)
def test_keys_that_a_config_omits_have_the_defaults_of_transformers(model_type):
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(model_type).to_dict()
    sizes = {
        "num_hidden_layers",
        *(key for it in ("hidden_size", "num_attention_heads") for key in (it, *SPELLINGS[it])),
    }
    short = {key: it for key, it in config.items() if key in {"model_type", "dtype", *sizes}}
    assert layers_of(short) == layers_of(config)


def compare_projections(found, config):
    transformers = pytest.importorskip("transformers")
    with torch.device("meta"):
        built = transformers.AutoModel.from_config(config)
    layers = [it for it in built.modules() if type(it).__name__.endswith(("Attention", "SelfAttention"))]
    layers = [it for it in layers if linear(it, (*NAMES["W_q"], *PACKED, "q_b_proj"))]
    for kind, case in found.items():
        attention = layers[ATTENTION[kind]]
        heads = {"W_q": case.H * case.D_h, "W_k": case.H_kv * case.D_h, "W_v": case.H_kv * case.D_v}
        if packed := linear(attention, PACKED):
            assert widths(packed) == (case.d_model, sum(heads.values()))
            assert (packed.bias is not None) == case.qkv_bias
        elif case.latent:
            rope = case.rope or 0
            up = case.H * (case.D_h - rope + case.D_v)
            assert widths(linear(attention, ("kv_a_proj_with_mqa",))) == (case.d_model, case.latent + rope)
            assert widths(linear(attention, ("kv_b_proj",))) == (case.latent, up)
            assert widths(linear(attention, ("q_proj", "q_b_proj")))[1] == heads["W_q"]
        else:
            for name, width in heads.items():
                projection = linear(attention, NAMES[name])
                assert widths(projection) == (case.d_model, width)
                is_exception = name == "W_k" and config.model_type == "whisper"
                assert (projection.bias is not None) == (case.qkv_bias and not is_exception)
        if (out := linear(attention, NAMES["W_o"])) is not None:  # beside the attention in encoders
            assert widths(out) == (case.H * case.D_v, case.d_model) and (out.bias is not None) == case.out_bias
        assert hasattr(attention, "sinks") == case.sinks


@pytest.mark.parametrize("model", ["mistral-7b", "gemma3-4b", "gpt-oss", "modernbert-base"])
def test_a_window_masks_the_keys_that_transformers_masks(model, tmp_path):
    masks = pytest.importorskip("transformers.masking_utils")
    config, case = written(model, tmp_path), cases(model, T=(10000,))["local"]
    sees = getattr(masks, f"sliding_window_{'causal' if case.causal else 'bidirectional'}_mask_function")
    i = torch.tensor([[5000]])
    j = torch.arange(10000)
    ours = Rules(mask=case.mask, window=case.window).span(10000, 10000)(i, j)
    assert torch.equal(ours, sees(config.sliding_window)(0, 0, i, j))
