"""A decoder block or a small language model, built by transformers from a config, with a core as its attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from .layer import LayerShape
from .weights import Parts

ATTENTION = "attention_bench"
"""Name under which transformers finds `attend` and `padding_of`."""

FINAL_NORMS = ("norm", "ln_f", "final_layer_norm", "final_layernorm")
"""Names of the final norm in models of transformers."""


class Decoder(nn.Module):
    """One block alone (`block`), or embedding, two blocks, final norm and head (`model`).

    Each block of transformers holds norms, projections, rotary embedding, MLP and residuals. Its attention is a core
    built by `core`; transformers' own eager attention without one.
    """

    def __init__(
        self, config: Mapping[str, Any], scope: str, shape: LayerShape,
        core: Callable[[LayerShape], nn.Module] | None = None, dtype: torch.dtype = torch.float32,
    ):  # fmt: skip
        """`config` in the format of transformers' `config.json`, with as many layers as `scope` has blocks."""
        from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModel, AutoModelForCausalLM
        from transformers.initialization import no_init_weights

        super().__init__()
        AttentionInterface.register(ATTENTION, attend)
        AttentionMaskInterface.register(ATTENTION, padding_of)
        settings = AutoConfig.for_model(**config)
        whole = {"block": AutoModel, "model": AutoModelForCausalLM}[scope]
        with no_init_weights():  # the suite sets all parameters
            self.model = whole.from_config(
                settings, dtype=dtype, attn_implementation=ATTENTION if core else "eager"
            ).eval()
        self.model.tie_weights()
        if scope == "block":
            self.model.set_input_embeddings(nn.Identity())
            for name in FINAL_NORMS:
                if hasattr(self.model, name):
                    setattr(self.model, name, nn.Identity())
        if core:
            for attention in self.attentions:
                attention.core = core(_shape_of(attention, shape)).to(dtype)

    @property
    def blocks(self) -> nn.ModuleList:
        """The decoder blocks."""
        return next(it for it in self.model.modules() if isinstance(it, nn.ModuleList))

    @property
    def attentions(self) -> list[nn.Module]:
        """The attention layer of each block; raises ValueError if one has none."""
        found = [[it for it in block.children() if type(it).__name__.endswith("Attention")] for block in self.blocks]
        if not all(found):
            raise ValueError(f"a block of {self.model.config.model_type} has no attention")
        return [first for first, *_ in found]

    @property
    def prepare(self) -> Callable[..., object] | None:
        """Return the preparation of the cores before the first call; None if they need none."""
        makes = [make for it in self.attentions if (make := getattr(getattr(it, "core", None), "prepare", None))]
        return (lambda *sizes, **pages: [make(*sizes) for make in makes]) if makes else None

    def forward(
        self, x: Tensor, *, padding: Tensor | None = None, cache: tuple[Tensor, ...] = (), rows: Tensor | None = None
    ) -> Tensor | tuple[Tensor, ...]:
        """Map x (B, T, d_model), or of a model tokens (B, T), to (B, T, d_model), or logits (B, T or len(rows),
        vocabulary).

        `cache`: keys and values of earlier tokens for each block, (B, H_kv, tokens, D) each; then also returns those of
        the new tokens, (B, H_kv, T, D).
        """
        given: dict[str, Any] = {"inputs_embeds" if x.is_floating_point() else "input_ids": x}
        if rows is not None:
            given["logits_to_keep"] = rows
        filled = _filled(cache) if cache else None
        o = self.model(**given, attention_mask=padding, cache=filled, use_cache=bool(cache))[0]
        if filled is None:
            return o
        new = (it[..., -x.shape[1] :, :] for layer in filled.layers for it in (layer.keys, layer.values))
        return o, *new

    def parts(self, of: Callable[[Tensor], Tensor]) -> Parts:
        """Return the parameters as parts, one each; names of biases begin with `b_`."""
        return {f"{'b_' * name.endswith('bias')}{name}": [of(it)] for name, it in self.model.named_parameters()}

    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw float32 values of each parameter: matrices preserve the variance of inputs, norms scale by about 1."""
        found = {}
        for module in self.model.modules():
            transposed = type(module).__name__ == "Conv1D"  # (in, out), as in GPT-2
            for name, parameter in module.named_parameters(recurse=False):
                drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
                if parameter.dim() > 1:
                    drawn /= math.sqrt(parameter.shape[-2 if transposed else -1])
                else:
                    drawn = drawn / 8 + (name == "weight")
                found[parameter] = drawn
        return {name: found[pieces[0]] for name, pieces in self.parts(lambda it: it).items()}


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **_: Any
) -> tuple[Tensor, None]:
    """Call the core of `module` with transformers' interface: (B, H, T, D) -> (B, T, H, D). The mask is padding, which some
    models pass without having any.
    """
    padding = attention_mask if "padding" in module.core.shape.mask else None
    return module.core(query, key, value, padding=padding).transpose(1, 2), None


def padding_of(*_: Any, attention_mask: Tensor | None = None, **__: Any) -> Tensor | None:
    """Return (B, T_kv), True where a key is a token: cores apply all other masks themselves."""
    return attention_mask


def _shape_of(attention: Any, shape: LayerShape) -> LayerShape:
    """Return the shape with this layer's own properties."""
    scaling = getattr(attention, "scaling", None)
    window = getattr(attention, "sliding_window", getattr(attention.config, "sliding_window", None))  # own key included
    usual = scaling is None or math.isclose(scaling, shape.D_h**-0.5)
    window = window - 1 if window and window < shape.max_T else None
    return replace(shape, scale=None if usual else scaling, window=window)


def _filled(cache: tuple[Tensor, ...]) -> Any:
    """Return a cache of transformers that holds these keys and values, without copying them."""
    from transformers.cache_utils import DynamicCache, DynamicLayer

    filled = DynamicCache()
    for k, v in zip(cache[::2], cache[1::2], strict=True):
        layer = DynamicLayer()
        layer.lazy_initialization(k, v)
        layer.keys, layer.values = k, v
        filled.layers.append(layer)
    return filled
