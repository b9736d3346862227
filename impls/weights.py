"""Canonical weights that every layer can load, so that all layers must produce equal outputs."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from .layer import LayerShape
from .rules import quarters

Parts = dict[str, list[Tensor]]


def sizes(shape: LayerShape) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the canonical weights, (out, in) as in `nn.Linear`: W_q, W_k, W_v, W_o, biases b_*, and
    those of the core.

    W_k and W_v take d_model, or the latent produced by W_c, which also produces the rotary key shared by all heads.
    """
    widths = {"q": shape.H * shape.D_h, "k": shape.H_kv * shape.D_h, "v": shape.H_kv * shape.D_v}
    if shape.latent is not None:
        rope = shape.rope or 0
        widths |= {"c": shape.latent + rope, "k": shape.H * (shape.D_h - rope)}
    found: dict[str, tuple[int, ...]] = {f"W_{n}": (width, _inputs(shape, n)) for n, width in widths.items()}
    if shape.qkv_bias:
        found |= {f"b_{n}": (width,) for n, width in widths.items()}
    if shape.out_proj:
        found["W_o"] = (shape.d_out, shape.H * shape.D_v)
        if shape.out_bias:
            found["b_o"] = (shape.d_out,)
    return found | core_sizes(shape)


def core_sizes(shape: LayerShape) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a core's own weights: sinks, and a learned bias of the scores, sliced for fewer tokens."""
    found: dict[str, tuple[int, ...]] = {}
    if shape.sinks:
        found["sinks"] = (shape.H,)
    if shape.bias == "learned":
        found["score_bias"] = (shape.H, shape.T, shape.max_T)
    return found


def _inputs(shape: LayerShape, n: str) -> int:
    """Return the input width of a projection."""
    return shape.latent if shape.latent is not None and n in "kv" else shape.d_model


def draw(shape: LayerShape, generator: torch.Generator) -> dict[str, Tensor]:
    """Draw canonical weights in float64, scaled by 1 / sqrt(inputs) so that q, k and v have variance 1."""
    return {name: _drawn(name, size, shape, generator) for name, size in sizes(shape).items()}


def draw_core(shape: LayerShape, generator: torch.Generator) -> dict[str, Tensor]:
    """Draw a core's own weights in float64."""
    return {name: _drawn(name, size, shape, generator) for name, size in core_sizes(shape).items()}


def _drawn(name: str, size: tuple[int, ...], shape: LayerShape, generator: torch.Generator) -> Tensor:
    if name == "score_bias":
        return quarters(size, generator)
    drawn = torch.randn(size, generator=generator, dtype=torch.float64)
    if name == "sinks":  # as large as about sqrt(max_T) keys: it affects outputs beside one key and beside thousands
        return drawn + math.log(shape.max_T) / 2
    return drawn / _inputs(shape, name[-1]) ** 0.5


def parts(layer: nn.Module, of: Callable[[Tensor], Tensor]) -> Parts:
    """Return where a layer stores the canonical weights: for each the pieces whose concatenation along the first axis
    is the weight.

    `of` selects the parameter itself or its gradient. A layer with another layout than W_q, W_k, W_v, W_o as
    `nn.Linear` defines its own method `parts(of)`.
    """
    own: Callable[[Callable[[Tensor], Tensor]], Parts] | None = getattr(layer, "parts", None)
    return named_parts(layer, of) if own is None else own(of)


def named_parts(layer: nn.Module, of: Callable[[Tensor], Tensor]) -> Parts:
    """Return the parts of a layer that are `nn.Linear` called W_q, ..., W_o, and those of its core's own weights."""
    found: Parts = {}
    for n in "qckvo":
        linear = getattr(layer, f"W_{n}", None)
        if isinstance(linear, nn.Linear):
            found |= linear_parts(n, linear, of)
    core = getattr(layer, "core", layer)
    own = {name: getattr(core, name, None) for name in ("sinks", "score_bias")}
    return found | {name: [of(it)] for name, it in own.items() if isinstance(it, nn.Parameter)}


def linear_parts(n: str, linear: nn.Linear, of: Callable[[Tensor], Tensor]) -> Parts:
    """Return the parts of one `nn.Linear` that holds W_n, and b_n if it has a bias."""
    found = {f"W_{n}": [of(linear.weight)]}
    return found if linear.bias is None else found | {f"b_{n}": [of(linear.bias)]}


def packed_parts(
    names: str, weight: Tensor, bias: Tensor | None, widths: list[int], of: Callable[[Tensor], Tensor]
) -> Parts:
    """Return the rows of a packed projection that belong to each of `names`, which are `widths` features wide."""
    found: Parts = {f"W_{n}": [rows] for n, rows in zip(names, of(weight).split(widths), strict=True)}
    if bias is not None:
        found |= {f"b_{n}": [rows] for n, rows in zip(names, of(bias).split(widths), strict=True)}
    return found


def left_out(layer: nn.Module) -> list[str]:
    """Name the parameters of a layer that hold no canonical weight."""
    used = set[Tensor]()

    def of(parameter: Tensor) -> Tensor:
        used.add(parameter)
        return parameter.data

    parts(layer, of)
    of_layer = getattr(layer, "eager", layer).named_parameters()  # of a compiled form
    return [name for name, parameter in of_layer if parameter not in used]


@torch.no_grad()
def load(layer: nn.Module, weights: dict[str, Tensor]) -> None:
    """Copy the canonical weights into a layer; raises ValueError if its names or shapes differ, or it doesn't keep them."""
    kept = parts(layer, lambda parameter: parameter.data)
    if others := kept.keys() ^ weights.keys():
        biases = all(name.startswith("b_") for name in others)
        how = (
            "biases as qkv_bias and out_bias of its shape say" if biases else "an nn.Linear each, or a method parts(of)"
        )
        raise ValueError(
            f"{type(layer).__name__} has the weights {', '.join(sorted(kept)) or 'none'}; "
            f"the case needs {', '.join(sorted(weights))} ({how})"
        )
    for name, pieces in kept.items():
        rows = [len(piece) for piece in pieces]
        shape = sum(rows), *pieces[0].shape[1:]
        if shape != weights[name].shape:
            raise ValueError(
                f"{type(layer).__name__} has {name} of shape {shape}; the case needs {tuple(weights[name].shape)}"
            )
        for piece, rows_of_it in zip(pieces, weights[name].split(rows), strict=True):
            piece.copy_(rows_of_it)
    for name, pieces in parts(layer, lambda parameter: parameter.data).items():
        if not (pieces[0].is_floating_point() and torch.equal(torch.cat(pieces), weights[name].to(pieces[0]))):
            raise ValueError(
                f"{type(layer).__name__} doesn't keep the numbers that are copied into its {name}: parts(of) returns lists "
                "of views of floating-point parameters, neither copies nor computed or shared weights"
            )


def gradients(layer: nn.Module, found: dict[Tensor, Tensor]) -> dict[str, Tensor]:
    """Return the gradients of the canonical weights, from those of the layer's parameters; zero if there is none."""

    def of(parameter: Tensor) -> Tensor:
        return found[parameter] if parameter in found else torch.zeros_like(parameter)

    return {name: torch.cat(pieces) for name, pieces in parts(layer, of).items()}
