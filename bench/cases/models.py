"""Models by name: the configuration of their attention layers, and the axes of these layers.

A configuration has the keys of a transformers `config.json`; those of `MODELS` are from the model cards on Hugging
Face.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from stats.arguments import nearest

Config = Mapping[str, Any]
Layer = dict[str, Any]
"""Axes of a case by name. A causal mask is left out, since each mode has its own."""

BOTH = ["sliding_attention", "full_attention"]
AS_FULL = {"attention", "chunked_attention", "indexed_attention"}
"""Layers that are measured as full attention; `UNLIKE` explains how they differ."""


def _of(source: str, model_type: str, dtype: str, *sizes: int, **config: Any) -> tuple[str, Config]:
    """`sizes`: hidden_size, num_attention_heads, num_key_value_heads, head_dim."""
    names = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    return source, {"model_type": model_type, "dtype": dtype, **dict(zip(names, sizes, strict=False)), **config}


LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}

MODELS: dict[str, tuple[str, Config]] = {
    "gpt2": _of("openai-community/gpt2", "gpt2", "float32", n_embd=768, n_head=12, vocab_size=50257, n_positions=1024,
                n_layer=12),
    "gpt2-xl": _of("openai-community/gpt2-xl", "gpt2", "float32", n_embd=1600, n_head=25, vocab_size=50257, n_positions=1024,
                   n_layer=48),
    "llama3-8b": _of("meta-llama/Meta-Llama-3-8B", "llama", "bfloat16", 4096, 32, 8, 128, vocab_size=128256,
                     intermediate_size=14336, num_hidden_layers=32, rope_theta=5e5),
    "llama3-70b": _of("meta-llama/Meta-Llama-3-70B", "llama", "bfloat16", 8192, 64, 8, 128),
    "llama4-scout": _of("meta-llama/Llama-4-Scout-17B-16E", "llama4_text", "bfloat16", 5120, 40, 8, 128,
                        attention_chunk_size=8192),
    "qwen2.5-0.5b": _of("Qwen/Qwen2.5-0.5B", "qwen2", "bfloat16", 896, 14, 2, 64, vocab_size=151936, intermediate_size=4864,
                        num_hidden_layers=24, rope_theta=1e6, tie_word_embeddings=True),
    "qwen3-0.6b": _of("Qwen/Qwen3-0.6B", "qwen3", "bfloat16", 1024, 16, 8, 128, vocab_size=151936, intermediate_size=3072,
                      num_hidden_layers=28, rope_theta=1e6, tie_word_embeddings=True),
    "qwen3-8b": _of("Qwen/Qwen3-8B", "qwen3", "bfloat16", 4096, 32, 8, 128, vocab_size=151936, intermediate_size=12288,
                    num_hidden_layers=36, rope_theta=1e6),
    "qwen3-30b-a3b": _of("Qwen/Qwen3-30B-A3B", "qwen3_moe", "bfloat16", 2048, 32, 4, 128),
    "mistral-7b": _of("mistralai/Mistral-7B-v0.1", "mistral", "bfloat16", 4096, 32, 8, 128, sliding_window=4096,
                      vocab_size=32000, intermediate_size=14336, num_hidden_layers=32),
    "gemma2-9b": _of("google/gemma-2-9b-it", "gemma2", "bfloat16", 3584, 16, 8, 256, sliding_window=4096, layer_types=BOTH,
                     attn_logit_softcapping=50.0, query_pre_attn_scalar=256),
    "gemma3-4b": _of("google/gemma-3-4b-it", "gemma3_text", "bfloat16", 2560, 8, 4, 256, sliding_window=1024, layer_types=BOTH),
    "gemma3-27b": _of("google/gemma-3-27b-it", "gemma3_text", "bfloat16", 5376, 32, 16, 128, sliding_window=1024,
                      layer_types=BOTH, query_pre_attn_scalar=168),
    "phi-4": _of("microsoft/phi-4", "phi3", "bfloat16", 5120, 40, 10, 128, vocab_size=100352, intermediate_size=17920,
                 num_hidden_layers=40, rope_theta=25e4),
    "gpt-oss": _of("openai/gpt-oss-20b, and 120b", "gpt_oss", "bfloat16", 2880, 64, 8, 64, sliding_window=128, layer_types=BOTH,
                   attention_bias=True),
    "deepseek-v2-lite": _of("deepseek-ai/DeepSeek-V2-Lite", "deepseek_v2", "bfloat16", 2048, 16, 16, **LATENT),
    "deepseek-v3": _of("deepseek-ai/DeepSeek-V3", "deepseek_v3", "bfloat16", 7168, 128, 128, q_lora_rank=1536, **LATENT),
    "olmo2-7b": _of("allenai/OLMo-2-1124-7B", "olmo2", "float32", 4096, 32, 32, 128, vocab_size=100352, intermediate_size=11008,
                     num_hidden_layers=32, rope_theta=5e5),
    "whisper-large-v3": _of("openai/whisper-large-v3", "whisper", "float16", is_encoder_decoder=True, d_model=1280,
                            encoder_attention_heads=20, decoder_attention_heads=20, max_source_positions=1500),
    "modernbert-base": _of("answerdotai/ModernBERT-base", "modernbert", "float32", 768, 12, local_attention=128,
                           layer_types=BOTH),
    "vit-l": _of("google/vit-large-patch16-224", "vit", "float32", 1024, 16, qkv_bias=True, image_size=224, patch_size=16),
}  # fmt: skip
"""Name -> (repository on Hugging Face, configuration): a model is one entry. Those with a `vocab_size` are whole: their
blocks can be built.

Tests compare sizes with the defaults of transformers' classes, where they are the model's. Those of ViT-L agree with
`models_vit.py` of facebookresearch/mae at be47fef7; width and heads of DeepSeek-V2-Lite are the model card's alone. Sizes
outside attention agree with `litgpt/config.py` of Lightning-AI/litgpt at 26857050, which cites each config.json; those of
GPT-2 with `model.py` of karpathy/nanoGPT; tied embeddings with the model builders of pytorch/torchtune.
"""

NO_WINDOW: dict[str, Any] = {"use_sliding_window": False}
ENCODES: dict[str, Any] = {"is_causal": False}
BIASED: dict[str, Any] = {"attention_bias": True}

ENCODER_DECODER: dict[str, Any] = {"is_encoder_decoder": True}

CODE: dict[str, Config] = {
    model_type: keys
    for types, keys in {
        "cohere granite gptj llama olmo olmo2 stablelm": NO_WINDOW,
        "phi3": {},
        "clip_text_model gpt2 gpt_neox opt phi": BIASED,
        "bert distilbert electra roberta xlm-roberta": BIASED | ENCODES,
        "bart": BIASED | ENCODER_DECODER,
        "bloom": BIASED | {"alibi": True},
        "clip_vision_model": BIASED | ENCODES | {"image_size": 224, "patch_size": 32},
        "cohere2 exaone4 olmo3": {"sliding_window": 4096, "sliding_window_pattern": 4},
        "deepseek_v2 deepseek_v3": LATENT,
        "falcon": {"multi_query": True},
        "gemma": NO_WINDOW | {"head_dim": 256},
        "gemma2": {
            "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096, "sliding_window_pattern": 2,
            "attn_logit_softcapping": 50.0, "query_pre_attn_scalar": 256,
        },
        "gemma3_text": {
            "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096,
            "sliding_window_pattern": 6, "query_pre_attn_scalar": 256,
        },
        "glm glm4": BIASED | {"num_key_value_heads": 2, "head_dim": 128, "attention_out_bias": False},
        "gpt_bigcode": BIASED | {"multi_query": True},
        "gpt_oss": BIASED | {
            "num_key_value_heads": 8, "head_dim": 64, "sinks": True, "sliding_window": 128, "sliding_window_pattern": 2,
        },
        "llama4_text mixtral": {"num_key_value_heads": 8},
        "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
        "modernbert": ENCODES | {"local_attention": 128, "global_attn_every_n_layers": 3},
        "mpt": {"alibi": True},
        "qwen2 qwen2_moe": {"qkv_bias": True, "use_sliding_window": False},
        "qwen3": {"use_sliding_window": False},
        "qwen3_moe smollm3": {"num_key_value_heads": 4, "use_sliding_window": False},
        "siglip_vision_model": BIASED | ENCODES | {"image_size": 224, "patch_size": 16, "class_token": False},
        "starcoder2": BIASED | {"num_key_value_heads": 2},
        "t5": ENCODER_DECODER | {"attention_multiplier": 1.0},
        "vit": BIASED | ENCODES | {"image_size": 224, "patch_size": 16},
        "whisper": BIASED | ENCODER_DECODER | {"max_source_positions": 1500},
    }.items()
    for model_type in types.split()
}  # fmt: skip
"""`model_type` -> keys that a configuration may omit, with the values that transformers' class fixes or has as defaults. For
other types only the keys of the configuration are known.
"""

UNLIKE = {
    **dict.fromkeys(("q_lora_rank", "share_q_dim"), "queries are projected in one step, not through a latent of {}"),
    "attention_chunk_size": "attention in chunks of {0} tokens is measured as causal, which it is up to T = {0}",
    "scale_attn_by_inverse_layer_idx": "scores are scaled alike in all layers",
    "clip_qkv": "queries, keys and values are not clipped to {}",
    "relative_attention_num_buckets": "the bias by relative position is left out (--bias dense has one of its size)",
    "index_topk": "queries see every key, not {} chosen ones",
    "dense_attention_every_n_layers": "of {} layers one is measured, the others are block-sparse",
    **dict.fromkeys(("attn_type_list", "linear_attn_config"), "layers of linear attention are left out"),
    **dict.fromkeys(("num_kv_shared_layers", "use_cla"), "every layer projects its own keys and values"),
    "attention_k_eq_v": "values have a projection of their own",
    "attention_value_scale": "values are not scaled by {}",
    "per_layer_config": "sizes that single layers override are left out",
    "num_global_key_value_heads": "global layers are measured with the key heads of local ones, not with {}",
    "swa_num_key_value_heads": "local layers are measured with the heads of global ones, not with {} key heads",
    "attn_output_gate": "outputs are not gated",
    "cross_attention_layers": "layers of cross-attention are left out: {}",
    "full_attention_interval": "of {} layers one is measured, the others have another kind of attention",
    "global_head_dim": "heads of global layers are measured as those of local ones, not {} wide",
    "attention_dropout": "dropout in training is left out (--dropout {})",
    "window_size": "windows of {} are left out",
    **dict.fromkeys(("mamba_d_state", "ssm_state_size"), "layers of state {} are left out"),
}
"""Configuration keys that are measured differently, with an explanation."""

OTHER_KINDS = (
    "attention_hidden_size", "attention_window", "autocorrelation_factor", "block_per_row", "encoder_attention_type",
    "hash_code_len", "head_ratio", "intra_bottleneck_size", "lambda_std_dev", "num_global_tokens", "num_landmarks",
    "num_random_blocks", "q_groups", "qk_dim_factor", "relative_attention", "sampling_factor", "separate_cls",
    "state_size", "untie_r",
)  # fmt: skip
"""Configuration keys of attention that no implementation computes: sparse, approximate, convolutional or recurrent, with
positions in its scores, or of another width than the layer.
"""

BY_LAYER = ("block_configs", "num_key_value_heads_per_layer")
"""Configuration keys by which layers differ in size."""

SPELLINGS = {
    "hidden_size": ("n_embd", "n_embed", "d_model", "dim"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads", "encoder_attention_heads"),
    "num_key_value_heads": ("num_kv_heads", "kv_n_heads", "multi_query_group_num", "num_attention_groups"),
    "head_dim": ("d_kv", "kv_channels"),
    "attention_bias": ("use_bias", "bias", "enable_bias", "add_bias_linear"),
    "qkv_bias": ("use_qkv_bias", "add_qkv_bias"),
    "attention_multiplier": ("softmax_scale",),
    "attention_dropout": ("attn_pdrop", "attention_probs_dropout_prob"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
}
"""Other names of a key."""


def config_of(model: str) -> Config:
    """Return the configuration of a model of `MODELS` or of a `config.json` file; raises ValueError otherwise."""
    if model in MODELS:
        return MODELS[model][1]
    if Path(model).is_dir():
        raise ValueError("a folder: give the path of the config.json in it")
    if not model.endswith(".json"):
        near = nearest(model.rpartition("/")[2].lower(), MODELS)  # of a repository
        raise ValueError(f"unknown; known: {', '.join(MODELS)}, and a path to a config.json{near}")
    try:
        path = Path(model).resolve()
        if path not in _read:
            _read[path] = path.read_bytes()
        config = json.loads(_read[path])
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(getattr(error, "strerror", None) or f"no JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError("no configuration: expected an object, as transformers writes it")
    return config


_read: dict[Path, bytes] = {}
"""Configurations as this process first read them: edits of the files during a run have no effect."""


def changed_files() -> list[Path]:
    """Return the configuration files that have changed since this process read them."""
    return [path for path, contents in _read.items() if not path.is_file() or path.read_bytes() != contents]


def layers_of(config: Config) -> dict[str, Layer]:
    """Return the axes of each kind of attention layer: `global`, `local`; for encoder-decoders `encoder`, `decoder`,
    `cross`.

    Raises:
        ValueError: a width is missing, or a value is of another kind than transformers writes.
    """
    config = complete(config)
    if others := [key for key in OTHER_KINDS if config.get(key)]:
        raise ValueError(f"attention with {others[0]} can't be measured: no implementation computes it")
    if by_layer := [key for key in BY_LAYER if config.get(key)]:
        raise ValueError(f"{by_layer[0]} has sizes of each layer: replace it by the num_key_value_heads of one")
    width, H = (number(config, key) for key in ("hidden_size", "num_attention_heads"))
    shared = _is(config, "multi_query") and not _is(config, "new_decoder_architecture")
    sizes = {"d_model": width, "H": H, "H_kv": 1 if shared else number(config, "num_key_value_heads", H)}
    if width % H and not (config.get("head_dim") or config.get("kv_lora_rank")):
        raise ValueError(f"hidden_size {width} is not divisible by num_attention_heads {H}: add the head_dim")
    sizes["D_h"] = number_if_any(config, "head_dim") or width // H
    dtype = _value(config, "dtype", "text") or _value(config, "torch_dtype", "text", "float32")
    axes: Layer = sizes | {"dtype": dtype}
    if latent := number_if_any(config, "kv_lora_rank"):
        rope = number(config, "qk_rope_head_dim")
        axes |= {"H_kv": H, "D_h": number(config, "qk_nope_head_dim") + rope, "D_v": number(config, "v_head_dim")}
        options: Layer = {"latent": latent, "rope": rope}
    else:
        biased = _is(config, "attention_bias")
        options = {"qkv_bias": _is(config, "qkv_bias", biased), "out_bias": _is(config, "attention_out_bias", biased)}
        options["D_v"] = number_if_any(config, "v_head_dim")
    options |= {
        "sinks": _is(config, "sinks"),
        "bias": _is(config, "alibi") and "alibi",
        "softcap": number_if_any(config, "attn_logit_softcapping"),
    }
    axes |= {name: value for name, value in options.items() if value}
    encoder = axes | {"mask": "none"}
    if _is(config, "is_encoder_decoder"):
        source = number_if_any(config, "max_source_positions")
        T, T_kv = ({name: source} if source else {} for name in ("T", "T_kv"))
        heads = number(config, "decoder_attention_heads", H)
        decoder = (
            axes
            if heads == H
            else axes | {"H": heads, "H_kv": heads, "D_h": number(config, "head_dim", width // heads)}
        )
        return {
            "encoder": encoder | T,
            "decoder": decoder,
            "cross": decoder | T_kv | {"mask": "none", "source": "cross"},
        }
    patch = number_if_any(config, "patch_size")  # of an image
    causal = _is(config, "is_causal", not patch) or _is(config, "is_decoder")
    causal &= config.get("use_bidirectional_attention") not in (True, "all")
    if not causal:
        axes = encoder
        if patch and (size := number_if_any(config, "image_size")):
            tokens = _is(config, "class_token", True) + number_if_any(config, "num_register_tokens")
            axes["T"] = (size // patch) ** 2 + tokens
    window = _window(config, causal)
    kinds = {"global": axes, "local": axes | {"window": window}}
    return {name: kinds[name] for name in _kinds(config, window)}


def text_of(config: Config) -> Config:
    """Return the configuration of the text model, if there are several; the dtype may be that of all of them."""
    dtypes = {name: config[name] for name in ("dtype", "torch_dtype") if name in config}
    text = _value(config, "text_config", "an object")
    return {**dtypes, **text} if text else config


def complete(config: Config) -> Config:
    """Return the text model's configuration with the usual names of its keys, and with the defaults of `CODE`."""
    config = text_of(config)
    found = {**_value(config, "attn_config", "an object", {}), **config}
    for key, others in SPELLINGS.items():
        if given := [found[it] for it in (key, *others) if it in found]:
            found[key] = next((it for it in given if it is not None), None)
    known = CODE.get(_value(config, "model_type", "text", ""), {})
    return {key: it for key, it in {**known, **found}.items() if it is not None}  # null replaces a default


KINDS: dict[str, Callable[[Any], bool]] = {
    "a positive whole number": lambda it: type(it) in (int, float) and 0 < it < 2**31 and it % 1 == 0,
    "a positive number": lambda it: type(it) in (int, float) and 0 < it < 2**31,
    "true or false": lambda it: it in (True, False),
    "a list of names": lambda it: isinstance(it, list) and all(isinstance(name, str) for name in it),
    "text": lambda it: isinstance(it, str),
    "an object": lambda it: isinstance(it, dict),
}
"""Tests of values, by the kind that they have."""


def _value(config: Config, key: str, kind: str, default: Any = None) -> Any:
    """Return a key's value, or the default if it is missing or null; raises ValueError for a value of another kind."""
    found = config.get(key)
    if found is None:
        return default
    if not KINDS[kind](found):
        raise ValueError(f"{key} is {reprlib.repr(found)}, not {kind}")
    return found


def _is(config: Config, key: str, default: bool = False) -> bool:
    return bool(_value(config, key, "true or false", default))


def number(config: Config, key: str, default: int | None = None) -> int:
    found = _value(config, key, "a positive whole number", default)
    if found is None:
        raise ValueError(f"the configuration has no {key}: add it, as `AutoConfig.from_pretrained` has it")
    return int(found)


def number_if_any(config: Config, key: str) -> int:
    """Return a number that may be missing, null, false or 0, each of which is 0; raises ValueError for other values."""
    return number(config, key) if config.get(key) else 0


def _window(config: Config, causal: bool) -> int | None:
    """Return the keys before its own that a local query sees; transformers' causal windows include the own key."""
    if window := number_if_any(config, "local_attention"):
        return window // 2 - causal
    if not _is(config, "use_sliding_window", True) or not (window := number_if_any(config, "sliding_window")):
        return None
    return window - 1 if causal else window // 2


def _kinds(config: Config, window: int | None) -> list[str]:
    types = {*_value(config, "layer_types", "a list of names", ())}
    if types and not types.intersection({*BOTH, *AS_FULL}):
        raise ValueError(f"layer_types has neither {' nor '.join(BOTH)}")
    if not window:
        return ["global"]
    if not types and "max_window_layers" in config:
        first, count = number_if_any(config, "max_window_layers"), number(config, "num_hidden_layers")
        types = {kind for kind, is_there in zip(BOTH, (first < count, first > 0), strict=True) if is_there}
    if types:
        kinds = (("local", {BOTH[0]}), ("global", {BOTH[1], *AS_FULL}))
        return [name for name, of in kinds if types & of]
    mixed = config.get("global_attn_every_n_layers") or config.get("sliding_window_pattern")
    return ["local", "global"] if mixed else ["local"]


def notes_of(config: Config) -> Iterator[str]:
    """Yield parts of the configuration that are not measured, or measured differently."""
    if config.get("text_config"):
        yield f"the text model of {config.get('model_type')} is measured"
    config, (layer, *_) = complete(config), layers_of(config).values()
    if config.get("model_type") not in CODE:
        how = "" if "mask" in layer else "as causal, "
        what = "masks, biases and scales that only its code has"
        yield f"model_type {config.get('model_type')} is not known: measured {how}without {what}"
    yield from (how.format(config[key]) for key, how in UNLIKE.items() if config.get(key))
    if others := {*_value(config, "layer_types", "a list of names", ())} - {*BOTH, *AS_FULL}:
        yield f"layers of {', '.join(sorted(others))} are left out"
    if "latent" in layer and _is(config, "attention_bias"):
        yield "projections have no biases"
    multiplier, scalar = (
        _value(config, it, "a positive number") for it in ("attention_multiplier", "query_pre_attn_scalar")
    )
    multiplier = multiplier if _is(config, "scale_attn_weights", True) else 1.0
    scale = multiplier or (scalar or layer["D_h"]) ** -0.5
    yarn = _value(config, "rope_scaling", "an object", {})
    if "latent" in layer and yarn.get("mscale_all_dim"):  # as in DeepSeek's code
        all_dim, factor = (_value(yarn, it, "a positive number", 1.0) for it in ("mscale_all_dim", "factor"))
        scale *= (0.1 * all_dim * math.log(factor) + 1) ** 2
    if not math.isclose(scale, layer["D_h"] ** -0.5):
        yield f"scores are scaled by 1 / sqrt({layer['D_h']}), not by {scale:.4g}"
    if config.get("model_type") == "whisper":
        yield "keys have a bias, as queries and values have"
