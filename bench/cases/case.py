"""A case: one point of a sweep."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from math import prod
from typing import Any

from torch import Tensor

from impls import LayerShape
from impls.rules import Rules, Span, kinds_of, requests_of
from stats.axes import Axes, axes_of, axis

from .decoders import BLOCKS, config_of, windowed
from .modes import MODES, Mode, Point

PROJECTIONS = {"d_model", "qkv_bias", "out_bias", "out_dropout"}
AROUND_CORE = PROJECTIONS | {"latent", "rope"}
"""Axes outside a core."""


@dataclass(frozen=True)
class Case(Axes):
    """One point of a sweep; its fields are columns of the results. Build one with `Case.of`."""

    mode: str = axis(
        f"{', '.join(MODES)} (one new token and a KV cache of T tokens; with --mask causal_br: T new tokens of T_kv)",
        values=tuple(MODES),
        default="forward",
    )
    requests: str | None = axis(
        "a server's batch, COUNTxNEW:ALL+...: 2x512:512+8x1:4096 are two prompts of 512 tokens, and eight requests with one "
        "new token each, their 4096th",
        default=None,
        validate=kinds_of,
    )
    model: str | None = axis("model that a block belongs to, by name or config.json", default=None, validate=config_of)

    @classmethod
    def of(cls, **axes: Any) -> Case:
        """Build a case from T, H, D_h and others; omitted axes are derived from these or take their defaults: B = 1, float32
        and the CPU.
        """
        usual: dict[str, Any] = {"B": 1, "dtype": "float32", "device": "cpu"}
        given = usual | {name: value for name, value in axes.items() if value is not None}
        implied = {name: prod(given[other] for other in it.follows) for name, it in AXES.items() if it.follows}
        return cls(**implied | given)

    @property
    def id(self) -> str:
        """Public identifier by which saved runs are matched. Axes at their defaults are left out."""
        sizes = f"B{self.B}-T{self.T}-H{self.H}-D_h{self.D_h}-{self.dtype}-{self.device}"
        plain = Case.of(B=self.B, T=self.T, H=self.H, D_h=self.D_h, dtype=self.dtype, device=self.device)
        others = [name for name in _IN_IDS if getattr(self, name) != getattr(plain, name)]
        return "-".join([sizes, *(f"{name}={getattr(self, name)}" for name in others)])

    def plain(self, **others: Any) -> Case:
        """Return the case without rules on visibility or scores."""
        return replace(self, **{it.name: AXES[it.name].default for it in fields(Rules)} | {"mask": "none"} | others)

    @property
    def core(self) -> Case:
        """This case with `scope="core"`. Under autocast its inputs have the narrow dtype, as after projections."""
        given = self.dtype if self.scope == "core" else self.computes
        around = {name: AXES[name].default for name in (AROUND_CORE | {"page", "model"}) - {"d_model"}}
        return replace(self, scope="core", dtype=given, **around)

    @property
    def computes(self) -> str:
        """Dtype of its matrix products, and so of its output."""
        return self.autocast or self.dtype

    @property
    def rounding_dtype(self) -> str:
        """Dtype whose epsilon the tolerances are multiples of: float16 for TF32, whose mantissa has as many bits."""
        return "float16" if self.tf32 else self.computes

    @property
    def causal(self) -> bool:
        return self.mask.startswith("causal")

    @property
    def padded(self) -> bool:
        return self.mask.endswith("padding")

    @property
    def max_T(self) -> int:
        """Length of the longer of both sequences."""
        return max(self.T, self.T_kv)

    @property
    def pairs(self) -> int:
        """Number of pairs of a query and a key in one call, those that are masked included."""
        return self.B * self.H * self.T * self.T_kv

    @property
    def does(self) -> Mode:
        """Behaviour of its mode."""
        return MODES[self.mode]

    @property
    def in_model(self) -> bool:
        """Whether it consists of decoder blocks built by transformers."""
        return self.scope in BLOCKS

    @property
    def windowed(self) -> bool:
        """Whether a measured block of a model has a window that masks keys of this case."""
        return self.in_model and windowed(self)

    @property
    def writes_cache(self) -> bool:
        """Whether its call writes to the cache that it is given; a model's is rebuilt in every call."""
        return self.does.cached and self.scope == "layer"

    @property
    def drops(self) -> bool:
        return bool(self.dropout or self.out_dropout)

    @property
    def layer_shape(self) -> LayerShape:
        """Shape from which a layer for this case is built."""
        shared = {it.name: getattr(self, it.name) for it in fields(LayerShape) if it.name in AXES}
        return LayerShape(d_out=self.d_model, max_T=self.max_T, **shared)

    @property
    def span(self) -> Span:
        """Keys that each query sees, padding ignored."""
        return self.layer_shape.span(self.T, self.T_kv)

    @property
    def ends(self) -> tuple[Tensor, Tensor]:
        """First and last key that each query sees, padding ignored: (T,) each."""
        return self.span.ends(self.T, self.T_kv)

    def columns(self) -> dict[str, Any]:
        return asdict(self)


def tokens_of(requests: str) -> Point:
    """Return the axes `requests`, T and T_kv (new tokens, and all tokens, of all requests)."""
    new, tokens = map(sum, zip(*requests_of(requests), strict=True))
    return {"requests": requests, "T": new, "T_kv": tokens}


AXES = axes_of(Case)
"""Every axis by name, in display order."""

_IN_IDS = ("T_kv", *(name for name in AXES if name != "T_kv"))
"""Order of axes in ids, which predates the display order."""
