"""Which cases are measured. A sweep is a name and a grid; a case is one point of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from typing import Any

from impls import LayerShape

DTYPES = ("float32", "bfloat16", "float16", "float64")
DEVICES = ("cpu", "cuda")
MASKS = ("none", "causal", "padding", "causal+padding")
SOURCES = ("self", "cross")


@dataclass(frozen=True)
class Case:
    """One point of a sweep; its fields are the columns of the results. Build one with `Case.of`."""

    B: int
    T: int
    T_kv: int
    H: int
    H_kv: int
    D_h: int
    D_v: int
    d_model: int
    dtype: str
    device: str
    mask: str = "causal"
    source: str = "self"
    dropout: float = 0.0
    out_dropout: float = 0.0
    qkv_bias: bool = False
    out_bias: bool = False
    threads: int | None = None
    """Intra-op threads on the CPU; None for what torch starts with."""
    mode: str = "forward"
    scope: str = "layer"

    @classmethod
    def of(
        cls, *, T: int, H: int, D_h: int, B: int = 1, dtype: str = "float32", device: str = "cpu", **others: Any
    ) -> Case:
        """A case from its sizes; what is left out follows from them, or stands at its default."""
        implied = {"T_kv": T, "H_kv": H, "D_v": D_h, "d_model": H * D_h}
        given = {name: value for name, value in others.items() if value is not None}
        return cls(B=B, T=T, H=H, D_h=D_h, dtype=dtype, device=device, **(implied | given))

    @property
    def id(self) -> str:
        """A public format: saved runs are matched by it. Axes at their default are left out."""
        sizes = f"B{self.B}-T{self.T}-H{self.H}-D_h{self.D_h}-{self.dtype}-{self.device}"
        plain = Case.of(B=self.B, T=self.T, H=self.H, D_h=self.D_h, dtype=self.dtype, device=self.device)
        others = [f.name for f in fields(self) if getattr(self, f.name) != getattr(plain, f.name)]
        return "-".join([sizes, *(f"{name}={getattr(self, name)}" for name in others)])

    @property
    def causal(self) -> bool:
        return self.mask.startswith("causal")

    @property
    def padded(self) -> bool:
        return self.mask.endswith("padding")

    @property
    def layer_shape(self) -> LayerShape:
        """What a layer must know to be built for this case."""
        shared = (
            "d_model",
            "H",
            "D_h",
            "H_kv",
            "D_v",
            "mask",
            "source",
            "qkv_bias",
            "out_bias",
            "dropout",
            "out_dropout",
        )
        return LayerShape(max_T=max(self.T, self.T_kv), **{name: getattr(self, name) for name in shared})

    def with_threads(self, threads: int | None) -> Case:
        return replace(self, threads=threads)

    def columns(self) -> dict[str, Any]:
        return asdict(self)


Axes = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Sweep:
    """A named grid. An axis that is left out follows from the others, or stands at its default."""

    name: str
    about: str
    axes: Axes

    def cases(self, device: str, overrides: Axes = {}) -> list[Case]:  # noqa: B006  (never written to)
        """Every point of the grid, the axes in `overrides` replaced. Raises ValueError for sizes that don't fit together."""
        axes = {"device": (device,)} | dict(self.axes) | dict(overrides)
        return [_case(dict(zip(axes, point, strict=True))) for point in _points(axes)]


def _points(axes: Axes) -> Iterator[tuple[Any, ...]]:
    return product(*axes.values())


def _case(point: dict[str, Any]) -> Case:
    if "D_h" not in point:  # the sweep holds the model's width constant and shares it among the heads
        if point["d_model"] % point["H"]:
            raise ValueError(f"d_model = {point['d_model']} is not divisible by H = {point['H']}")
        point["D_h"] = point["d_model"] // point["H"]
    case = Case.of(**point)
    if case.H % case.H_kv:
        raise ValueError(f"H = {case.H} is not divisible by H_kv = {case.H_kv}")
    if case.source == "self" and case.T_kv != case.T:
        raise ValueError(f"T_kv = {case.T_kv} with T = {case.T} needs --source cross")
    return case


BOTH = ("float32", "bfloat16")

SWEEPS = {
    sweep.name: sweep
    for sweep in (
        Sweep("quick", "what each way of writing attention costs, in two minutes",
              {"B": (1,), "D_h": (64,), "dtype": BOTH, "H": (1, 8), "T": (64, 256, 1024)}),
        Sweep("ladder", "one head, short sequences, loops included",
              {"B": (1,), "D_h": (64,), "dtype": ("float32",), "H": (1,), "T": (16, 32, 64, 128, 256)}),
        Sweep("length", "how time and memory grow with the sequence",
              {"B": (1,), "D_h": (64,), "dtype": BOTH, "H": (8,), "T": (128, 256, 512, 1024, 2048, 4096)}),
        Sweep("heads", "the same width shared among more and more heads",
              {"B": (1,), "d_model": (1024,), "dtype": BOTH, "T": (512,), "H": (1, 2, 4, 8, 16, 32)}),
        Sweep("dtype", "what a narrower number buys",
              {"B": (1,), "D_h": (64,), "H": (8,), "T": (256, 1024), "dtype": ("float64", "float32", "float16", "bfloat16")}),
        Sweep("tutorial", "the setting of the best-known published comparison",
              {"B": (8,), "d_model": (768,), "dtype": BOTH, "H": (12,), "T": (1024,)}),
    )
}  # fmt: skip
