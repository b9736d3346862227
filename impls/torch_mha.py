"""PyTorch's ready-made layer, `nn.MultiheadAttention`, with and without the averaged probabilities of its default."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from .layer import LayerShape
from .masks import mask_of, rows_of
from .registry import register
from .rules import BY_MASK
from .weights import Parts, linear_parts, packed_parts


def _unfit(case: Any) -> str | None:
    """Only heads whose widths add up to d_model; biases of inputs and output both or neither."""
    if case.H * case.D_h != case.d_model:
        return f"divides the model's width among its heads: H * D_h = {case.H * case.D_h} is not {case.d_model}"
    if case.qkv_bias != case.out_bias:
        return "has either all biases or none"
    return None


LIMITS: dict[str, Any] = {
    "modes": ("forward", "backward"),
    "grouped": False,
    "wide_values": False,
    "unless": _unfit,
    "common": False,
    "beyond": BY_MASK,
}


@register("torch_mha", **LIMITS)
class TorchMHA(nn.Module):
    """`nn.MultiheadAttention` without returning probabilities."""

    need_weights = False
    hidden: Tensor | None

    def __init__(self, shape: LayerShape):
        super().__init__()
        self.mha = nn.MultiheadAttention(
            shape.d_model, shape.H, dropout=shape.dropout, bias=shape.qkv_bias, batch_first=True
        )
        visible = mask_of(shape, shape.H, shape.T, shape.max_T)
        self.register_buffer(
            "hidden", None if visible is None else ~visible, persistent=False
        )  # (T, max_T), True means masked
        self.shape, self.is_causal = shape, shape.is_causal and not self.need_weights
        self.drop = nn.Dropout(shape.out_dropout)

    def forward(self, x: Tensor, x_k: Tensor | None = None, *, padding: Tensor | None = None) -> Tensor:
        """(..., T, d_model) -> (..., T, d_model)"""
        x_k = x if x_k is None else x_k
        hidden = None if self.hidden is None else rows_of(self.hidden, self.shape, x.shape[-2], x_k.shape[-2])
        o, _ = self.mha(
            x,
            x_k,
            x_k,
            attn_mask=hidden,
            key_padding_mask=None if padding is None else ~padding,
            need_weights=self.need_weights,
            is_causal=self.is_causal and padding is None,
        )
        return self.drop(o)

    def parts(self, of: Callable[[Tensor], Tensor]) -> Parts:
        widths = [self.mha.embed_dim] * 3
        found = packed_parts("qkv", self.mha.in_proj_weight, self.mha.in_proj_bias, widths, of)
        return found | linear_parts("o", self.mha.out_proj, of)


@register("torch_mha_weights", compiles=False, **LIMITS)
class TorchMHAWithWeights(TorchMHA):
    """`nn.MultiheadAttention` with its defaults: it also returns the probabilities, averaged over the heads, which
    torch.compile would leave out, as the layer has no use for them.
    """

    need_weights = True
