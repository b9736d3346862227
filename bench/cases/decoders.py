"""Blocks of language models: complete configurations, and counts of operations and weights."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from . import models
from .axes import nearest

if TYPE_CHECKING:
    from .case import Case

Config = dict[str, Any]

BLOCKS = {"block": 1, "model": 2}
"""Number of decoder blocks by scope."""

REST: dict[str, Config] = {
    "gpt2": {"vocab_size": 50257, "n_positions": 1024, "n_layer": 12},
    "gpt2-xl": {"vocab_size": 50257, "n_positions": 1024, "n_layer": 48},
    "llama3-8b": {"vocab_size": 128256, "intermediate_size": 14336, "num_hidden_layers": 32, "rope_theta": 5e5},
    "mistral-7b": {"vocab_size": 32000, "intermediate_size": 14336, "num_hidden_layers": 32},
    "olmo2-7b": {"vocab_size": 100352, "intermediate_size": 11008, "num_hidden_layers": 32, "rope_theta": 5e5},
    "phi-4": {"vocab_size": 100352, "intermediate_size": 17920, "num_hidden_layers": 40, "rope_theta": 25e4},
    "qwen2.5-0.5b": {"vocab_size": 151936, "intermediate_size": 4864, "num_hidden_layers": 24, "rope_theta": 1e6,
                     "tie_word_embeddings": True},
    "qwen3-0.6b": {"vocab_size": 151936, "intermediate_size": 3072, "num_hidden_layers": 28, "rope_theta": 1e6,
                   "tie_word_embeddings": True},
    "qwen3-8b": {"vocab_size": 151936, "intermediate_size": 12288, "num_hidden_layers": 36, "rope_theta": 1e6},
}  # fmt: skip
"""Configuration keys outside attention, which `MODELS` omits. Sizes agree with `litgpt/config.py` of
Lightning-AI/litgpt at 26857050, which cites each config.json; those of GPT-2 with `model.py` of karpathy/nanoGPT; tied
embeddings with the model builders of pytorch/torchtune.
"""

OF_GPT2 = {
    "hidden_size": "n_embd", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer",
    "intermediate_size": "n_inner", "max_position_embeddings": "n_positions",
}  # fmt: skip
"""GPT-2's names of common configuration keys."""

FIXED = {
    "source", "window", "window_right", "prefix", "documents", "bias", "softcap", "sinks", "latent", "rope", "requests",
    "page", "qkv_bias", "out_bias", "dropout", "out_dropout", "autocast",
}  # fmt: skip
"""Axes without meaning in a model, decided by its config, or not implemented for models."""

SMALL = {"vocab_size": 64}
"""Configuration of a model whose heads differ from the original's, as in a probe."""

SIZES = ("H", "H_kv", "D_h", "d_model")


def config_of(model: str) -> Config:
    """Return the complete configuration, of the text model if there are several; raises ValueError if there is none."""
    return {**models.text_of(models.config_of(model)), **REST.get(model, {})}


def config_for(case: Case) -> Config:
    """Return the config of the measured module, with its scope's number of blocks; small in all but heads if those
    differ.
    """
    config = dict(config_of(case.model or ""))
    gpt2 = config["model_type"] == "gpt2"
    wanted = {"hidden_size": case.d_model, "num_attention_heads": case.H, "num_hidden_layers": BLOCKS[case.scope]}
    if not gpt2:
        wanted |= {
            "num_key_value_heads": case.H_kv,
            "head_dim": case.D_h,
            "max_position_embeddings": max(4096, case.max_T),
        }
    (layer, *_) = models.layers_of(config).values()
    if any(getattr(case, name) != layer[name] for name in SIZES):
        wanted |= SMALL | {"intermediate_size": 2 * case.d_model}
    if kinds := config.pop("layer_types", None):
        wanted["layer_types"] = kinds[: BLOCKS[case.scope]]
    known = {OF_GPT2.get(name, name) if gpt2 else name: it for name, it in wanted.items()}
    return config | known | dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))


def depth(case: Case) -> int:
    """Return the number of blocks of the whole model."""
    config = config_of(case.model or "")
    return int(config.get("num_hidden_layers") or config["n_layer"])


def misfit(case: Case) -> str | None:
    """Return why a case can't be a block or a model; None if it can."""
    if case.model is None:
        return f"--scope {case.scope} needs a model: add --model {', '.join(REST)}, or a config.json"
    if find_spec("transformers") is None:
        return f"--scope {case.scope} needs the package transformers: pip install transformers"
    config = config_of(case.model)
    if "vocab_size" not in config:
        return f"{case.model} has no vocab_size, since only its attention is known: give a whole config.json as --model"
    (layer, *_) = models.layers_of(config).values()
    if unbuilt := [name for name in ("latent", "softcap", "sinks") if layer.get(name)]:
        return f"a block with {' and '.join(unbuilt)} is not built: leave out --scope {case.scope}"
    if case.does.cached and layer.get("window", case.max_T) < case.max_T:
        return f"a cache with a window of {layer['window']} is not built: --T up to that"
    if case.dtype == "float64":
        return "norms and rotary embeddings of transformers compute in float32: --dtype float32 or narrower"
    masks = ("none", "causal_br", "padding") if case.does.cached else ("causal", "causal+padding")
    if case.mask not in masks:
        return f"a decoder block in mode {case.mode} has --mask {' or '.join(masks)}, not {case.mask}"
    if case.max_T > config.get("n_positions", case.max_T):
        return f"{case.model} has {config['n_positions']} positions, not {case.max_T}"
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as KNOWN

    if (of := str(config.get("model_type"))) not in KNOWN:
        return f"transformers has no decoder of model_type {of}{nearest(of, KNOWN)}"
    return None


def matrices(case: Case) -> tuple[int, int]:
    """Count weights multiplied per token: of one block, and of the head (zero for a block)."""
    config = config_for(case)
    inner = config.get("n_inner" if "n_embd" in config else "intermediate_size") or 4 * case.d_model
    of_mlp = (2 if "n_embd" in config else 3) * inner  # gated, except in GPT-2
    of_attention = case.H * (case.D_h + case.D_v) + case.H_kv * (case.D_h + case.D_v)
    return case.d_model * (of_attention + of_mlp), config["vocab_size"] * case.d_model * (case.scope == "model")


def weights(case: Case) -> int:
    """Count all matrix weights; embedding and head count once if tied, which is the default for GPT-2 only."""
    block, head = matrices(case)
    tied = config_of(case.model or "").get("tie_word_embeddings", "n_embd" in config_of(case.model or ""))
    return BLOCKS[case.scope] * block + head * (1 if tied else 2)


def output_width(case: Case) -> int:
    """Return the output width per token."""
    return int(config_for(case)["vocab_size"]) if case.scope == "model" else case.d_model
