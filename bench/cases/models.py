"""Models by name: the configuration of their attention layers, and the axes of these layers.

A configuration has the keys of a transformers `config.json`; those of `MODELS` are from the model cards on Hugging
Face.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .axes import nearest

Config = Mapping[str, Any]
Layer = dict[str, Any]
"""Axes of a case by name. A causal mask is left out, since each mode has its own."""

BOTH = ["sliding_attention", "full_attention"]
ENCODES, BIASED = {"mask": "none"}, {"qkv_bias": True, "out_bias": True}


def _of(source: str, model_type: str, dtype: str, *sizes: int, **config: Any) -> tuple[str, Config]:
    """`sizes`: hidden_size, num_attention_heads, num_key_value_heads, head_dim."""
    names = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    return source, {"model_type": model_type, "dtype": dtype, **dict(zip(names, sizes, strict=False)), **config}


LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}

MODELS: dict[str, tuple[str, Config]] = {
    "gpt2": _of("openai-community/gpt2", "gpt2", "float32", n_embd=768, n_head=12),
    "gpt2-xl": _of("openai-community/gpt2-xl", "gpt2", "float32", n_embd=1600, n_head=25),
    "llama3-8b": _of("meta-llama/Meta-Llama-3-8B", "llama", "bfloat16", 4096, 32, 8, 128),
    "llama3-70b": _of("meta-llama/Meta-Llama-3-70B", "llama", "bfloat16", 8192, 64, 8, 128),
    "llama4-scout": _of("meta-llama/Llama-4-Scout-17B-16E", "llama4_text", "bfloat16", 5120, 40, 8, 128,
                        attention_chunk_size=8192),
    "qwen2.5-0.5b": _of("Qwen/Qwen2.5-0.5B", "qwen2", "bfloat16", 896, 14, 2, 64),
    "qwen3-0.6b": _of("Qwen/Qwen3-0.6B", "qwen3", "bfloat16", 1024, 16, 8, 128),
    "qwen3-8b": _of("Qwen/Qwen3-8B", "qwen3", "bfloat16", 4096, 32, 8, 128),
    "qwen3-30b-a3b": _of("Qwen/Qwen3-30B-A3B", "qwen3_moe", "bfloat16", 2048, 32, 4, 128),
    "mistral-7b": _of("mistralai/Mistral-7B-v0.1", "mistral", "bfloat16", 4096, 32, 8, 128, sliding_window=4096),
    "gemma2-9b": _of("google/gemma-2-9b-it", "gemma2", "bfloat16", 3584, 16, 8, 256, sliding_window=4096, layer_types=BOTH,
                     attn_logit_softcapping=50.0, query_pre_attn_scalar=256),
    "gemma3-4b": _of("google/gemma-3-4b-it", "gemma3_text", "bfloat16", 2560, 8, 4, 256, sliding_window=1024, layer_types=BOTH),
    "gemma3-27b": _of("google/gemma-3-27b-it", "gemma3_text", "bfloat16", 5376, 32, 16, 128, sliding_window=1024,
                      layer_types=BOTH, query_pre_attn_scalar=168),
    "phi-4": _of("microsoft/phi-4", "phi3", "bfloat16", 5120, 40, 10, 128),
    "gpt-oss": _of("openai/gpt-oss-20b, and 120b", "gpt_oss", "bfloat16", 2880, 64, 8, 64, sliding_window=128, layer_types=BOTH,
                   attention_bias=True),
    "deepseek-v2-lite": _of("deepseek-ai/DeepSeek-V2-Lite", "deepseek_v2", "bfloat16", 2048, 16, 16, **LATENT),
    "deepseek-v3": _of("deepseek-ai/DeepSeek-V3", "deepseek_v3", "bfloat16", 7168, 128, 128, q_lora_rank=1536, **LATENT),
    "olmo2-7b": _of("allenai/OLMo-2-1124-7B", "olmo2", "float32", 4096, 32, 32, 128),
    "whisper-large-v3": _of("openai/whisper-large-v3", "whisper", "float16", is_encoder_decoder=True, d_model=1280,
                            encoder_attention_heads=20, decoder_attention_heads=20, max_source_positions=1500),
    "modernbert-base": _of("answerdotai/ModernBERT-base", "modernbert", "float32", 768, 12, local_attention=128,
                           layer_types=BOTH),
    "vit-l": _of("google/vit-large-patch16-224", "vit", "float32", 1024, 16, qkv_bias=True, image_size=224, patch_size=16),
}  # fmt: skip
"""Name -> (repository on Hugging Face, configuration): a model is one entry. Tests compare sizes with the defaults of
transformers' classes, where they are the model's. Those of ViT-L agree with `models_vit.py` of facebookresearch/mae at
be47fef7; width and heads of DeepSeek-V2-Lite are the model card's alone.
"""

KNOWN = (
    "llama", "llama4_text", "qwen3", "qwen3_moe", "mistral", "gemma2", "gemma3_text", "phi3", "olmo2",
    "deepseek_v2", "deepseek_v3",
)  # fmt: skip
"""`model_type` of causal decoders that are fully described by their configuration."""

ALTERNATING = ("gemma2", "gemma3_text")
"""`model_type` whose published configurations have a window, and do not say that only some layers use it."""

CODE: dict[str, Layer] = {
    "bert": BIASED | ENCODES, "gpt2": BIASED, "gpt_oss": {"sinks": True}, "modernbert": ENCODES, "qwen2": {"qkv_bias": True},
    "vit": BIASED | ENCODES, "whisper": BIASED,
}  # fmt: skip
"""`model_type` -> axes fixed in the code of transformers and absent from the configuration."""

UNLIKE = {
    "q_lora_rank": "queries are projected in one step, not through a latent of {}",
    "attention_chunk_size": "attention in chunks of {0} tokens is measured as causal, which it is up to T = {0}",
    "use_bidirectional_attention": "attention in both directions is measured as causal",
}
"""Configuration keys that are measured differently, with an explanation."""

SPELLINGS = {"hidden_size": ("n_embd", "d_model"), "num_attention_heads": ("n_head", "encoder_attention_heads")}


def config_of(model: str, folder: str = ".") -> Config:
    """Return the configuration of a model of `MODELS` or of a `config.json` file; raises ValueError otherwise."""
    if model in MODELS:
        return MODELS[model][1]
    if Path(folder, model).is_dir():
        raise ValueError("a folder: give the path of the config.json in it")
    if not model.endswith(".json"):
        raise ValueError(f"unknown; known: {', '.join(MODELS)}, and a path to a config.json{nearest(model, MODELS)}")
    try:
        config = json.loads(Path(folder, model).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(getattr(error, "strerror", None) or f"no JSON: {error}") from None
    if not (isinstance(config, dict) and isinstance(config.get("text_config") or {}, dict)):
        raise ValueError("no configuration: expected an object, as transformers writes it")
    return config


def layers_of(config: Config) -> dict[str, Layer]:
    """Return the axes of each kind of attention layer: `global`, `local`; for encoder-decoders `encoder`, `decoder`,
    `cross`.

    Raises:
        ValueError: a width is missing.
    """
    config = text_of(config)
    width, H = (_number(config, key) for key in ("hidden_size", "num_attention_heads"))
    sizes = {"d_model": width, "H": H, "H_kv": _number(config, "num_key_value_heads", H)}
    sizes["D_h"] = _number(config, "head_dim", None if width % H else width // H)
    axes: Layer = sizes | {"dtype": config.get("dtype") or config.get("torch_dtype") or "float32"}
    if latent := config.get("kv_lora_rank"):
        rope = _number(config, "qk_rope_head_dim")
        axes |= {"H_kv": H, "D_h": _number(config, "qk_nope_head_dim") + rope, "D_v": _number(config, "v_head_dim")}
        axes |= {"latent": latent, "rope": rope}
    elif config.get("attention_bias"):
        axes |= BIASED
    axes |= CODE.get(str(config.get("model_type")), {})
    if "qkv_bias" in config:
        axes["qkv_bias"] = bool(config["qkv_bias"])
    if cap := config.get("attn_logit_softcapping"):
        axes["softcap"] = int(cap)
    if patch := config.get("patch_size"):
        axes["T"] = (_number(config, "image_size") // patch) ** 2 + 1
    if config.get("is_encoder_decoder"):
        source = config.get("max_source_positions")
        T, T_kv = ({name: source} if source else {} for name in ("T", "T_kv"))
        return {"encoder": axes | ENCODES | T, "decoder": axes, "cross": axes | ENCODES | T_kv | {"source": "cross"}}
    window = _window(config, "mask" not in axes)
    kinds = {"global": axes, "local": axes | {"window": window}}
    return {name: kinds[name] for name in _kinds(config, window)}


def text_of(config: Config) -> Config:
    """Return the configuration of the text model, if there are several; the dtype may be that of all of them."""
    dtypes = {name: config[name] for name in ("dtype", "torch_dtype") if name in config}
    return {**dtypes, **config["text_config"]} if config.get("text_config") else config


def _number(config: Config, key: str, default: int | None = None) -> int:
    names = (key, *SPELLINGS.get(key, ()))
    name, found = next(((it, config[it]) for it in names if config.get(it) is not None), (key, default))
    if found is None:
        raise ValueError(f"the configuration has no {key}: add it, as `AutoConfig.from_pretrained` has it")
    if not isinstance(found, int) or found < 1:
        raise ValueError(f"{name} is {found!r}, not a positive whole number")
    return found


def _window(config: Config, causal: bool) -> int | None:
    """Return the keys before its own that a local query sees; transformers' causal windows include the own key."""
    if config.get("local_attention"):
        return _number(config, "local_attention") // 2
    if not config.get("sliding_window") or not config.get("use_sliding_window", True):
        return None
    return _number(config, "sliding_window") - causal


def _kinds(config: Config, window: int | None) -> list[str]:
    types = set(config.get("layer_types") or ())
    if not window:
        return ["global"]
    if types:
        return [name for name, kind in (("local", BOTH[0]), ("global", BOTH[1])) if kind in types]
    every = ("global_attn_every_n_layers", "sliding_window_pattern")
    mixed = config.get("model_type") in ALTERNATING or any(key in config for key in every)
    return ["local", "global"] if mixed else ["local"]


def notes_of(config: Config) -> Iterator[str]:
    """Yield parts of the configuration that are not measured, or measured differently."""
    if config.get("text_config"):
        yield f"the text model of {config.get('model_type')} is measured"
        config = text_of(config)
    if config.get("model_type") not in (*KNOWN, *CODE):
        yield f"model_type {config.get('model_type')} is not known: it is read as a causal decoder"
    yield from (how.format(config[key]) for key, how in UNLIKE.items() if config.get(key))
    others = {*(config.get("layer_types") or ())} - {*BOTH, "chunked_attention"}
    if others:
        yield f"layers of {', '.join(sorted(others))} are left out"
    scalar = config.get("query_pre_attn_scalar")
    if scalar and scalar != config.get("head_dim"):
        yield f"scores are scaled by 1 / sqrt({config.get('head_dim')}), not by 1 / sqrt({scalar})"
    if config.get("model_type") == "whisper":
        yield "keys have a bias, as queries and values have"
