"""Blocks of language models: complete configurations, and counts of operations and weights."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stats.arguments import nearest

from . import models

if TYPE_CHECKING:
    from impls import LayerShape

    from .case import Case

Config = dict[str, Any]

BLOCKS = {"block": 1, "model": 2}
"""Number of decoder blocks by scope."""

FIXED = {
    "source", "window", "window_right", "prefix", "documents", "bias", "softcap", "sinks", "latent", "rope", "requests",
    "page", "qkv_bias", "out_bias", "dropout", "out_dropout", "autocast",
}  # fmt: skip
"""Axes without meaning in a model, decided by its config, or not implemented for models."""

SMALL = {"vocab_size": 64}
"""Configuration of a model whose heads differ from the original's, as in a probe."""

SIZES = ("H", "H_kv", "D_h", "d_model")

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Keys of blocks with experts: another rounding may choose other ones than the float64 reference."""


def config_of(model: str) -> Config:
    """Return the complete configuration, of the text model if there are several; raises ValueError if there is none."""
    return dict(models.text_of(models.config_of(model)))


def config_for(case: Case) -> Config:
    """Return the config of the measured module, with its scope's number of blocks, all with attention; small in all but
    heads if those differ.
    """
    config = config_of(case.model or "")
    wanted: Config = {
        "hidden_size": case.d_model, "num_attention_heads": case.H, "num_key_value_heads": case.H_kv,
        "head_dim": case.D_h, "num_hidden_layers": BLOCKS[case.scope],
    }  # fmt: skip
    if "n_positions" not in config:
        wanted["max_position_embeddings"] = max(4096, case.max_T)
    (layer, *_) = models.layers_of(config).values()
    if any(getattr(case, name) != layer[name] for name in SIZES):
        wanted |= SMALL | {"intermediate_size": 2 * case.d_model}
    if kinds := config.pop("layer_types", None):
        wanted["layer_types"] = [kind for kind in kinds if kind in models.BOTH][: BLOCKS[case.scope]]
    return config | wanted | dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))


def windowed(case: Case) -> bool:
    """Return whether a measured block has a window that masks keys of the case."""
    local = models.layers_of(config_for(case)).get("local")
    return local is not None and local["window"] + 1 < case.max_T


@lru_cache
def windows(case: Case) -> list[int | None]:
    """Return the window of each measured block; None where it masks no key."""
    from impls.decoder import Decoder

    found: list[int | None] = []

    def core(shape: LayerShape) -> nn.Module:
        found.append(shape.window)
        return nn.Module()

    with torch.device("meta"):
        Decoder(config_for(case), case.scope, case.layer_shape, core)
    return found


def depth(case: Case) -> int:
    """Return the number of blocks of the whole model; raises ValueError if its configuration lacks it."""
    return models.number(models.complete(models.config_of(case.model or "")), "num_hidden_layers")


def misfit(case: Case) -> str | None:
    """Return why a case can't be a block or a model; None if it can."""
    if case.model is None:
        whole = sorted(name for name, (_, config) in models.MODELS.items() if "vocab_size" in config)
        return f"--scope {case.scope} needs a model: add --model {', '.join(whole)}, or a config.json"
    if find_spec("transformers") is None:
        return f"--scope {case.scope} needs the package transformers: pip install transformers"
    config = config_of(case.model)
    (layer, *_) = models.layers_of(config).values()
    unbuilt = [name for name in ("latent", "softcap", "sinks", "bias") if layer.get(name)]
    unbuilt += ["experts"] * any(config.get(key) for key in EXPERTS) + ["an encoder"] * ("mask" in layer)
    if unbuilt:
        return f"a block with {' and '.join(unbuilt)} is not built: leave out --scope {case.scope}"
    if not models.number_if_any(config, "vocab_size"):
        named = "give a whole config.json as --model"
        how = named if case.model in models.MODELS else "add it, as `AutoConfig.from_pretrained` has it"
        return f"the configuration of {case.model} has no vocab_size: {how}"
    if case.does.cached and (most := layer.get("window", case.max_T) + 1) < case.max_T:
        return f"a cache that is longer than its window of {most} tokens is not built: --T up to that"
    if case.dtype == "float64":
        return "norms and rotary embeddings of transformers compute in float32: --dtype float32 or narrower"
    masks = ("none", "causal_br", "padding") if case.does.cached else ("causal", "causal+padding")
    if case.mask not in masks:
        return f"a decoder block in mode {case.mode} has --mask {' or '.join(masks)}, not {case.mask}"
    if case.max_T > (positions := models.number_if_any(config, "n_positions") or case.max_T):
        return f"{case.model} has {positions} positions, not {case.max_T}"
    if why := _unbuildable(str(config.get("model_type"))):
        return why
    H, H_kv = (3, 3) if case.H_kv == case.H else (4, min(case.H_kv, 2))
    try:
        weights(case)
        small = replace(weights_case(case), T=5, T_kv=5, H=H, H_kv=H_kv, d_model=H * case.D_h)
        replaced = _replaces_attention(small)
    except Exception as error:  # such as a value of another type
        return f"transformers can't build {case.model}: {type(error).__name__}: {' '.join(str(error).split())}"
    if replaced:
        return None
    return f"the plain formula as its attention changes the output of {case.model}: no kernel can replace it"


@lru_cache
@torch.no_grad()
def _replaces_attention(case: Case) -> bool:
    """Return whether transformers calls the core of every block, and its own attention has the same output as the plain
    formula: otherwise correct kernels would be refused, or wrong ones accepted.
    """
    from impls import get
    from impls import weights as canonical
    from impls.decoder import Decoder

    config = config_for(case)
    if config.get("sliding_window"):
        config["sliding_window"] = 3  # which masks keys of this case
    own, replaced = (
        Decoder(config, case.scope, case.layer_shape, core, torch.float64) for core in (None, get("fused").core)
    )
    called, generator = set[int](), torch.Generator().manual_seed(0)
    for block, attention in enumerate(replaced.attentions):
        core: Any = attention.core
        core.register_forward_hook(lambda *_, block=block: called.add(block))
    drawn = own.draw(generator)
    canonical.load(own, drawn)
    canonical.load(replaced, drawn)
    tokens = torch.arange(case.T)[None]
    x = tokens if case.scope == "model" else torch.randn(1, case.T, case.d_model, generator=generator).double()
    return torch.allclose(own(x), replaced(x), rtol=1e-3, atol=1e-3) and len(called) == BLOCKS[case.scope]


@lru_cache
def _unbuildable(model_type: str) -> str | None:
    """Return why transformers has no decoder of this type whose attention can be replaced; None if it has one."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as KNOWN

    if model_type not in KNOWN:
        return f"transformers has no decoder of model_type {model_type}{nearest(model_type, KNOWN)}"
    if not getattr(transformers, KNOWN[model_type])._can_set_attn_implementation():
        return f"transformers does not call the attention of {model_type} by its AttentionInterface: no kernel can replace it"
    return None


def matrices(case: Case) -> tuple[int, int]:
    """Count weights multiplied per token: of one block, and of the head (zero for a block)."""
    return _counted(weights_case(case))[:2]


def weights(case: Case) -> int:
    """Count the weights of all matrices, tied ones once."""
    return _counted(weights_case(case))[2]


def weights_case(case: Case) -> Case:
    """Return a case that represents all cases with the same weights."""
    return replace(case, B=1, T=1, T_kv=1, mode="forward", mask="causal", deterministic=False)


@lru_cache
def _counted(case: Case) -> tuple[int, int, int]:
    from impls.decoder import Decoder

    with torch.device("meta"):
        decoder = Decoder(config_for(case), case.scope, case.layer_shape)
    block, every = (
        sum(it.numel() for it in of.parameters() if it.dim() > 1) for of in (decoder.blocks[0], decoder.model)
    )
    head = decoder.model.get_output_embeddings()
    return block, 0 if head is None else head.weight.numel(), every


def output_width(case: Case) -> int:
    """Return the output width per token."""
    return int(config_for(case)["vocab_size"]) if case.scope == "model" else case.d_model
