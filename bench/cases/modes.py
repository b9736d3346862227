"""Modes: what one call of a case computes. Other modules use a mode's properties, never its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Point = dict[str, Any]
"""Axes of a case by name, each with a value; of a grid, with a value or a tuple of values."""


@dataclass(frozen=True)
class Mode:
    """What a call does besides computing o."""

    gradients: bool = False
    """Whether it has a backward: from a gradient of o to those of every input and every weight."""
    cached: bool = False
    """Whether its tokens are the newest of T_kv, with all earlier ones in a cache."""
    settled: Callable[[Point], Point] = lambda point: point
    """Sets other axes implied by the mode; raises ValueError for impossible combinations."""


def _newest_tokens(point: Point) -> Point:
    """Derive the axes of decode: T counts all tokens, or new ones if T_kv is given with a mask aligned bottom right.

    Rules that depend on a query's position need such a mask: without one, the only query has position 0.
    """
    if "T_kv" not in point:
        point = point | {"T": 1, "T_kv": point["T"]}
    placed = any(point.get(name) for name in ("window", "bias", "documents"))
    if point.get("mask") == "causal_br" or ("mask" not in point and placed):
        return point | {"mask": "causal_br"}
    if point.get("mask", "none") != "none" or point.get("source", "self") != "self":
        raise ValueError("decode sees every key in its cache: leave out --mask and --source, or --mask causal_br")
    if point["T"] != 1:
        raise ValueError(
            f"decode has one new token: --T 1 beside --T_kv {point['T_kv']}, or --T alone for all tokens, "
            f"or --mask causal_br for {point['T']} new ones"
        )
    return point | {"mask": "none"}


MODES = {
    "forward": Mode(),  # o = layer(x)
    "backward": Mode(gradients=True),  # o = layer(x), and from a gradient of o the gradients of x and of every weight
    # o = layer(x, cache) for one new token or some, whose keys and values are written to the cache
    "decode": Mode(cached=True, settled=_newest_tokens),
}
