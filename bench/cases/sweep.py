"""Selects the cases of a run. A sweep is a name and a grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from stats.axes import DOCUMENTS, DTYPES

from . import decoders, published
from .case import AROUND_CORE, PROJECTIONS, Case, tokens_of
from .models import MODELS, layers_of
from .modes import MODES, Point

Axes = Mapping[str, tuple[Any, ...]]
Grids = tuple[Axes, ...]


@dataclass(frozen=True)
class Sweep:
    """Named grids. An omitted axis is derived from others or takes its default; a grid may be for one device only."""

    name: str
    about: str
    grids: Grids
    whole_registry: bool = False
    """Whether all implementations, not only the common ones, are measured without `--impl`."""
    gpu: Grids = ()
    """Grids for a GPU, where the CPU's would time mainly launches."""

    def grids_on(self, device: str) -> Grids:
        grids = self.gpu if self.gpu and device == "cuda" else self.grids
        return tuple(grid for grid in grids if device in grid.get("device", (device,)))

    def cases(self, device: str, overrides: Axes = {}, unfit: list[str] | None = None) -> dict[Case, str]:  # noqa: B006  (never written to)
        """Return every point of the grids, with the axes in `overrides` replaced, and the models whose layer it is, joined by
        slashes: none where `overrides` have other sizes.

        Raises ValueError for incompatible sizes. Grids with an `origin` have externally chosen points: their misfits
        are added to `unfit`, and an error is raised only if no point fits.
        """
        unfit = [] if unfit is None else unfit
        grids = [{"device": (device,)} | dict(grid) | dict(overrides) for grid in self.grids_on(device)]
        if any(any(grid.get("requests", ())) for grid in grids) and overrides.keys() & {"T", "T_kv"}:
            raise ValueError("--requests gives both lengths: leave out --T and --T_kv")
        cases: dict[Case, dict[str, None]] = {}
        for axes in grids:
            models = dict.fromkeys(() if SIZES & overrides.keys() else axes.get("model", ()))
            for point in product(*axes.values()):
                if case := _case_from(dict(zip(axes, point, strict=True)), unfit):
                    cases.setdefault(case, {}).update(models)
        if unfit and not cases:
            raise ValueError(unfit[0])
        if (fixed := decoders.FIXED & overrides.keys()) and any(case.in_model for case in cases):
            raise ValueError(
                f"a model has no option for what its config decides: leave out --{' and --'.join(sorted(fixed))}"
            )
        unused = PROJECTIONS & overrides.keys() - ({"d_model"} if "D_h" not in grids[0] else set())
        if unused and any(case.scope == "core" for case in cases):
            raise ValueError(f"a core has no projections: leave out --{' and --'.join(sorted(unused))}")
        return {case: "/".join(models) for case, models in cases.items()}


SIZES = {"d_model", "H", "H_kv", "D_h", "D_v", "latent", "rope"}
"""Axes of a model's layer that its cases have from its configuration."""


def _case_from(point: Point, unfit: list[str]) -> Case | None:
    """Return a case; None for an unfit point that has an `origin`, the name of a model or a file."""
    origin, of_model = point.pop("origin", None), point.pop("of_model", False)
    if of_model and (point.get("scope") == "core" or point.get("requests")):
        point = {axis: value for axis, value in point.items() if axis not in AROUND_CORE}
    keys = max(point["T"], point.get("T_kv") or 0)
    if of_model and not point.get("requests") and (point.get("window") or 0) >= keys - 1:
        point["window"] = None  # it masks no key: transformers has no window there, either
    try:
        return _case(point)
    except ValueError as error:
        if origin is None:
            raise
        unfit.append(f"{origin}: {error}")
        return None


def _case(point: Point) -> Case:
    if point.get("model"):
        point = _of_model(point)
    if "D_h" not in point:  # the sweep keeps the model's width constant and divides it among the heads
        if point["d_model"] % point["H"]:
            raise ValueError(f"d_model = {point['d_model']} is not divisible by H = {point['H']}")
        point["D_h"] = point["d_model"] // point["H"]
    if point.get("requests"):
        point = _of_requests(point)
    case = Case.of(**MODES[point.get("mode", "forward")].settled(point))
    if case.dtype not in DTYPES:
        raise ValueError(f"{case.dtype} is not one of {', '.join(DTYPES)}: give a --dtype")
    if case.H % case.H_kv:
        raise ValueError(f"H = {case.H} is not divisible by H_kv = {case.H_kv}")
    if case.source == "self" and case.T_kv != case.T and not (case.does.cached or case.in_model):
        raise ValueError(f"T_kv = {case.T_kv} with T = {case.T} needs --source cross")
    if case.padded and case.B == 1:
        raise ValueError(f"a batch of one has nothing to pad: --mask {case.mask} needs --B 2 or more")
    if (why := misfit(case)) is not None:
        raise ValueError(why)
    return case


def _of_model(point: Point) -> Point:
    """Drop axes that a block's config decides; a layer or core of a model is treated like any other of its sizes."""
    if point.get("scope") in decoders.BLOCKS:
        return {axis: value for axis, value in point.items() if axis not in decoders.FIXED}
    return point | {"model": None}


def _of_requests(point: Point) -> Point:
    """Derive other axes from requests; raises ValueError for impossible combinations."""
    implied = {"B": 1, "mode": "forward", "mask": "causal_br", "source": "cross", "scope": "core"}
    for name, value in implied.items():
        if point.get(name, value) != value:
            raise ValueError(
                f"requests are one causal batch of a core, aligned bottom right: --requests needs --{name} {value}"
            )
    return point | implied | tokens_of(point["requests"])


def misfit(case: Case) -> str | None:
    """Return why a case's rules conflict or leave a query without a key; None if they don't."""
    if case.in_model:
        return decoders.misfit(case)
    apart = case.window or case.documents
    if case.prefix and not case.causal:
        return f"without a causal mask every key is visible: --prefix needs --mask causal, not {case.mask}"
    if case.window_right and case.causal:
        return f"a causal mask excludes every key after a query: --window_right needs --mask none, not {case.mask}"
    if case.requests and (case.bias or case.documents or case.prefix):
        return "--requests can't be combined with --bias, --documents or --prefix"
    if case.padded and apart:
        return "a padded query may see no token at all: --window and --documents have no padding"
    if case.does.cached and case.mask == "none" and (apart or case.window_right or case.bias):
        return "in decode, windows, documents and biases need the positions of queries: --mask causal_br"
    if case.page and (not case.does.cached or case.scope == "core"):
        return "pages are of a layer's cache: --page needs --mode decode, without --scope core"
    if case.latent and (why := _beside_a_latent(case)) is not None:
        return f"--latent {why}"
    if case.rope and not case.latent:
        return "the rotary key is stored with a latent: --rope needs --latent"
    if case.rope and (case.rope % 2 or case.rope >= case.D_h):
        return f"--rope {case.rope}: rotary features are a part of a head, in pairs: use an even number below D_h = {case.D_h}"
    if case.autocast and case.dtype != "float32":
        return f"autocast narrows float32: --autocast needs --dtype float32, not {case.dtype}"
    if case.tf32 and (case.device == "cpu" or case.computes != "float32"):
        return "TF32 is for products of float32 on a GPU: --tf32 needs --device cuda and --dtype float32, without --autocast"
    if case.autocast and case.does.cached:
        return "a cache has the dtype that was written to it: --autocast needs --mode forward or backward"
    if case.T_kv < case.T and (apart or case.mask == "causal_br"):
        return f"--mask causal_br, --window, --documents: every query is one of the keys, but T = {case.T}, T_kv = {case.T_kv}"
    return None


def _beside_a_latent(case: Case) -> str | None:
    """Return why multi-head latent attention doesn't support a case, as the end of a sentence; None if it does."""
    if case.scope == "core":
        return "is part of a layer: leave out --scope core"
    if case.source == "cross":
        return "supports self-attention only: leave out --source cross"
    if case.H_kv != case.H:
        return f"gives every head its own keys and values: leave out --H_kv {case.H_kv}"
    if case.qkv_bias or case.drops:
        return "supports neither projection biases nor dropout: leave out --qkv_bias, --dropout and --out_dropout"
    return None


BOTH = ("float32", "bfloat16")
BASIC_MASKS = ("none", "causal", "padding", "causal+padding")


def _values(axes: Point) -> Axes:
    """Return axes that have a single value or a tuple of values with a tuple each."""
    return {name: value if isinstance(value, tuple) else (value,) for name, value in axes.items()}


def _grid(**axes: Any) -> Axes:
    """Build a grid of single values or tuples; defaults: B = 1, H = 8, D_h = 64 (unless d_model is given), float32."""
    default = {"B": 1, "dtype": "float32", "H": 8} | ({} if "d_model" in axes else {"D_h": 64})
    return _values(default | axes)


def _sweep(name: str, about: str, *grids: Axes, on_gpu: Point | Grids = (), whole_registry: bool = True) -> Sweep:
    """Build a sweep. `on_gpu`: the axes that all grids have there instead; or other grids."""
    gpu = on_gpu if isinstance(on_gpu, tuple) else tuple({**grid, **_values(on_gpu)} for grid in grids)
    return Sweep(name, about, grids, whole_registry, gpu)


TRAINED = ("forward", "backward")

SIXTEEN: Point = {"H": 16, "dtype": "bfloat16"}
"""Heads on a GPU: 16, for models of width 1024 or 2048."""

GROUPED: Point = {"D_h": 128, "H": 32, "H_kv": 8, "dtype": "bfloat16"}
"""Heads of Llama 3 8B (Llama Team, "The Llama 3 Herd of Models", 2024, table 3)."""

LATENT = {"D_h": 48, "latent": 128, "rope": 16}
"""Sizes in the proportions of DeepSeek-V2 (DeepSeek-AI, 2024): latent of four heads, rotary key of half a head."""

LLM = tuple(
    layer | {"model": name}
    for name in ("gpt2", "qwen2.5-0.5b", "llama3-8b")
    for layer in layers_of(MODELS[name][1]).values()
)

SWEEPS = {
    sweep.name: sweep
    for sweep in (
        _sweep("quick", "time and memory of the eager implementations and two compiled forms",
               _grid(dtype=BOTH, H=(1, 8), T=(64, 256, 1024)),
               on_gpu={"D_h": (64, 128), "T": (512, 2048, 8192), **SIXTEEN}, whole_registry=False),
        _sweep("ladder", "one head, short sequences, loops included", _grid(H=1, T=(16, 32, 64, 128, 256)),
               whole_registry=False),
        _sweep("length", "how time and memory grow with the sequence",
               _grid(dtype=BOTH, T=(128, 256, 512, 1024, 2048, 4096)),
               on_gpu={"D_h": (64, 128), "T": (512, 1024, 2048, 4096, 8192, 16384), **SIXTEEN}, whole_registry=False),
        _sweep("smoke", "whether a kernel is correct, and about how fast", _grid(T=(64, 256, 1024)), whole_registry=False),
        _sweep("heads", "one width of the model, divided among more and more heads",
               _grid(d_model=1024, dtype=BOTH, T=512, H=(1, 2, 4, 8, 16, 32)),
               on_gpu={"d_model": 2048, "dtype": "bfloat16", "T": 2048, "H": (8, 16, 32)}, whole_registry=False),
        _sweep("dtype", "float64, float32, float16 and bfloat16",
               _grid(T=(256, 1024), dtype=("float64", "float32", "float16", "bfloat16")),
               on_gpu={"H": 16, "T": (1024, 4096), "dtype": ("float32", "float16", "bfloat16")}, whole_registry=False),
        _sweep("tutorial", "the case of the best-known published comparison",
               _grid(B=8, d_model=768, dtype=BOTH, H=12, T=1024), whole_registry=False),
        _sweep("backward", "a training step: forward, and the gradients of input and weights",
               _grid(dtype=BOTH, T=(64, 256, 512), mode="backward"),
               on_gpu={"D_h": (64, 128), "T": (1024, 4096), **SIXTEEN}),
        _sweep("decode", "one new token against a cache of keys and values, and all tokens again without one",
               _grid(B=(1, 8), dtype=BOTH, T=(256, 1024, 4096), mode="decode"), _grid(dtype=BOTH, T=(256, 1024)),
               on_gpu=(_grid(B=(1, 4, 16, 64), T=(1024, 4096, 16384), mode="decode", **GROUPED),
                       _grid(T=(1024, 4096), **GROUPED))),
        _sweep("masks", "no mask, causal, padding, and both", _grid(B=4, dtype=BOTH, T=256, mask=BASIC_MASKS),
               on_gpu={"D_h": 128, "T": 2048, **SIXTEEN}),
        _sweep("cross", "queries from one sequence, keys and values from another, under every mask",
               _grid(B=4, T=128, T_kv=(96, 512), source="cross", mask=BASIC_MASKS),
               on_gpu={"T": 1024, "T_kv": (512, 4096), **SIXTEEN}),
        _sweep("gqa", "32 query heads that share 32, 8 or 1 key-value heads",
               _grid(H=32, H_kv=(32, 8, 1), T=256, mode=TRAINED),
               on_gpu=(_grid(T=(2048, 8192), mode=TRAINED, **GROUPED | {"H_kv": (32, 8, 1)}),)),
        _sweep("widths", "value heads wider than query heads; one head of a quarter of the model's width",
               _grid(D_v=(64, 128), T=256), _grid(D_h=64, d_model=256, H=1, T=256),
               on_gpu=(_grid(D_v=(64, 128), T=2048, **SIXTEEN),)),
        _sweep("dropout", "with and without dropout of the probabilities, in training",
               _grid(T=256, dropout=(0.0, 0.1), mode=TRAINED), on_gpu={"T": 2048, **SIXTEEN}),
        _sweep("core", "attention alone, from q, k, v to o, beside the whole layer",
               _grid(dtype=BOTH, T=(256, 1024), scope=("layer", "core")),
               on_gpu={"D_h": (64, 128), "T": (2048, 8192), **SIXTEEN}),
        _sweep("window", "a sliding window, causal and in both directions, and no mask",
               _grid(T=(1024, 4096), window=(None, 128, 512)),
               _grid(T=1024, mask="none", window=64, window_right=(None, 16)), _grid(T=(1024, 4096), mask="none"),
               on_gpu=(_grid(D_h=128, T=(4096, 16384), window=(None, 1024, 4096), **SIXTEEN),)),
        _sweep("scores", "modified scores: ALiBi, a dense bias, a soft cap, sinks",
               _grid(T=512, bias=(None, "alibi", "dense")), _grid(T=512, softcap=50), _grid(T=512, sinks=True),
               on_gpu={"T": 4096, **SIXTEEN}),
        _sweep("chunk", "the next 512 tokens of a prompt, and 1 to 8 draft tokens, against a cache",
               *(_grid(T=T, T_kv=T_kv, mode="decode", mask="causal_br")
                 for T, T_kv in ((512, (1024, 4096)), ((1, 2, 4, 8), 4096))),
               on_gpu=(_grid(T=(512, 1, 2, 4, 8), T_kv=(4096, 16384), mode="decode", mask="causal_br", **GROUPED),)),
        _sweep("documents", "eight packed documents of equal and unequal lengths, and a shared prefix",
               _grid(T=2048, mask=("causal", "none"), documents=DOCUMENTS), _grid(T=1024, prefix=(None, 256)),
               _grid(T=(1024, 2048), mask="none"),
               on_gpu=(_grid(T=8192, mask=("causal", "none"), documents=DOCUMENTS, **SIXTEEN),
                       _grid(T=8192, mask=("causal", "none"), **SIXTEEN))),
        _sweep("latent", "multi-head latent attention beside a cache of keys and values: one new token, and a prompt",
               *(_grid(d_model=512, H=16, D_v=32, T=(256, 1024, 4096)[:most], **axes) for most, axes in (
                   (3, LATENT | {"mode": "decode"}), (3, {"D_h": 32, "mode": "decode"}), (1, LATENT)))),
        _sweep("paged", "a cache in pages, copied into a contiguous cache or read in place, beside one without pages",
               _grid(B=4, T=(1024, 4096), mode="decode", page=(None, 16, 128)),
               on_gpu={"B": 16, "T": (4096, 16384), "page": (None, 16, 256), **GROUPED}),
        _sweep("mixed", "a server's step: prompts, parts of prompts and new tokens in one batch, by every method",
               _grid(T=1, requests=("8x1:1024", "2x128:128+6x1:1024", "1x128:512+7x1:1024")),
               on_gpu={"requests": ("64x1:4096", "2x1024:1024+62x1:4096", "1x1024:8192+63x1:4096"), **GROUPED}),
        _sweep("autocast", "a training step in float32, with products in bfloat16 under autocast, and in bfloat16 altogether",
               *(_grid(T=(256, 1024), mode=TRAINED, **narrow)
                 for narrow in ({"autocast": (None, "bfloat16")}, {"dtype": "bfloat16"}))),
        _sweep("deterministic", "a training step with and without deterministic algorithms",
               _grid(T=(256, 1024), mode="backward", deterministic=(False, True)), on_gpu={"T": 2048, **SIXTEEN}),
        _sweep("published", "cases with published times", *published.grids()),
        _sweep("llm", "one attention layer of GPT-2 small, Qwen2.5 0.5B and Llama 3 8B",
               *(_grid(**layer | {"T": 512, "dtype": BOTH}) for layer in LLM),
               on_gpu={"T": (2048, 8192), "dtype": "bfloat16"}, whole_registry=False),
    )
}  # fmt: skip


def of_points(name: str, points: Mapping[str, Point]) -> Sweep:
    """Build a sweep from the axes of a model or a file, each a value or a tuple of values, by the name of their origin.

    Grids without T get 512, on a GPU 2048 and 8192. A core of a grid that is `of_model` has none of its layer's axes.
    """

    def grids(T: int | tuple[int, ...]) -> Grids:
        return tuple(_grid(**{"T": T, "origin": origin, **axes}) for origin, axes in points.items())

    return Sweep(name, "what --model and --cases name", grids(512), gpu=grids((2048, 8192)))
