"""What an implementation is, what it declares about itself, and the registry that holds them all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .latent import LatentLayer
from .layer import AttentionLayer, KernelCore, KernelLayer, LayerShape
from .rules import BY_MASK, EVERY_RULE, beyond
from .weights import parts

Kernel = Callable[..., Tensor]

AROUND = ("latent", "page")
"""What is between a layer and its cache: a kernel or core is given keys and values, as if there were nothing."""


@dataclass(frozen=True)
class Limits:
    """What an implementation can't do. Everything is possible unless it is declared here, but for what is `beyond`."""

    max_T: int | None = None
    """Longest sequence of queries, or of keys and values."""
    max_pairs: int | None = None
    """Most pairs of a query and a key in one call, B * H * T * T_kv."""
    heads: int | None = None
    """The only number of heads."""
    devices: tuple[str, ...] | None = None
    dtypes: tuple[str, ...] | None = None
    modes: tuple[str, ...] | None = None
    masks: tuple[str, ...] | None = None
    sources: tuple[str, ...] | None = None
    scopes: tuple[str, ...] | None = None
    grouped: bool = True
    """Fewer key-value heads than query heads."""
    wide_values: bool = True
    """Value heads of another width than query heads."""
    dropout: bool = True
    compiles: bool = True
    autocasts: bool = True
    """Whether under autocast its core rounds float32 numbers that it is given, as torch's own products do. Others compute in
    the dtype that they are given, which in a layer is the narrow one."""
    beyond: tuple[str, ...] = ()
    """The rules beyond plain attention that it follows, by their names in `Rules`; a kernel function without `masks` of its own
    is given masks for some (`BY_MASK`), and follows those without saying so. Of a layer also `latent` and `page`, which is the
    business of the shared layer around a kernel or core (`AROUND`)."""
    package: str | None = None
    """An optional package that it needs; several apart by spaces."""
    install: str | None = None
    """How they are installed."""
    alone: bool = False
    """It shares no process with other implementations: its threads, its allocator and what it sets would change their times."""
    own_memory: bool = False
    """It allocates memory that torch doesn't know of, so that a peak of tensors would tell only a part: its rows have none."""
    returns_lse: float | None = None
    """Base of the logarithm where its kernel returns (o, lse): lse (B, H, T), in float32 at least, is the logarithm of the sum
    of exponentials that o was divided by. Layers take o alone; the check holds both to the reference."""
    unless: Callable[[Any], str | None] | None = None
    """Anything else: gives for a case the words that follow the name in a sentence, or None."""
    compiled_unless: Callable[[Any], str | None] | None = None
    """The same of its compiled form alone."""

    @property
    def without(self) -> list[str]:
        """What it can't do of all that is beyond plain attention."""
        return [rule for rule in (*EVERY_RULE, *AROUND) if rule not in self.beyond]

    def refusal(self, name: str, case: Any) -> str | None:
        """One sentence that says why `case` (a `bench.cases.case.Case`) is impossible; None when it is possible."""
        if missing := [package for package in (self.package or "").split() if not _is_there(package)]:
            return f"{name} needs the package {missing[0]}: {self.install or f'pip install {missing[0]}'}"
        if self.heads is not None and self.heads != case.H:
            return f"{name} has {_count(self.heads, 'head')}, not {case.H}"
        if self.max_T is not None and max(case.T, case.T_kv) > self.max_T:
            return f"{name} stops at T = {self.max_T}"
        pairs = case.B * case.H * case.T * case.T_kv
        if self.max_pairs is not None and pairs > self.max_pairs:
            return f"{name} stops at {self.max_pairs:,} pairs of a query and a key (B H T T_kv); here are {pairs:,}"
        for axis in ("device", "dtype", "mode", "mask", "source", "scope"):
            allowed, wanted = getattr(self, axis + "s"), case.computes if axis == "dtype" else getattr(case, axis)
            if allowed is not None and wanted not in allowed:
                return f"{name} knows {axis} {', '.join(allowed)}, not {wanted}"
        if case.H_kv != case.H and not self.grouped:
            return f"{name} has as many key-value heads as query heads"
        if case.D_v != case.D_h and not self.wide_values:
            return f"{name} has value heads as wide as query heads"
        if (case.dropout or case.out_dropout) and not self.dropout:
            return f"{name} has no dropout"
        if case.scope == "core" and case.computes != case.dtype and not self.autocasts:
            return f"{name} computes in the dtype that it is given: --autocast needs --scope layer"
        asked = [*beyond(case), *(name for name in AROUND if getattr(case, name))]
        if unknown := [rule for rule in asked if rule in self.without]:
            return f"{name} has no {' and no '.join(unknown)}"
        why = self.unless(case) if self.unless else None
        return why and f"{name} {why}"


@dataclass(frozen=True)
class Impl:
    """One way of computing attention: a kernel, or a whole layer."""

    name: str
    owner: str
    """The module that registered it."""
    layer: Callable[[LayerShape], nn.Module]
    """x (B, T, d_model) -> (B, T, d_model)"""
    core: Callable[[LayerShape], nn.Module] | None = None
    """q, k, v (B, H, T, D) -> o; None for a layer of its own making."""
    kernel: Kernel | None = None
    """f(q, k, v, *, attn_mask, dropout_p, is_causal, scale, enable_gqa) -> o, where the core calls such a function."""
    limits: Limits = Limits()
    common: bool = True
    """Measured by every sweep when the user names no implementation; others by the sweeps of the whole registry."""
    baseline: bool = False
    """Speed-ups are over this one."""
    compiled_by_default: bool = False
    """Its compiled form is measured when the user names no implementation."""
    dispatches: str | None = None
    """The only kernel that may run under this name (`kernel` in the results); None when it may choose."""
    pins: str | None = None
    """The implementation that chooses among kernels, this one among them."""
    scores: Callable[[Any], int] | None = None
    """How many scores and probabilities it holds at once for a case, at least; None where it stores none, or may not."""
    tokens: Callable[[Any], int] | None = None
    """How many queries it computes for a case, with what it pads them by; None where it pads none."""
    compiled: bool = False
    summary: str = ""

    def refusal(self, case: Any) -> str | None:
        """Why `case` can't be run, in one sentence; None when it can."""
        if self.compiled and not self.limits.compiles:
            return f"{eager_name(self.name)} has no compiled form"
        if self.name.endswith(GRAPHED) and case.device == "cpu":
            return f"{self.name} replays CUDA graphs: on the CPU it would be {eager_name(self.name)}{COMPILE}"
        if case.scope != "layer" and self.core is None:
            used = "called alone" if case.scope == "core" else "put into a model"
            return f"{self.name} is a layer of its own making: it has no core that could be {used}"
        if (why := self.limits.refusal(self.name, case)) is not None:
            return why
        why = self.limits.compiled_unless(case) if self.compiled and self.limits.compiled_unless else None
        return why and f"{self.name} {why}"


def _is_there(package: str) -> bool:
    """Whether it could be imported; a part of another package, `flash_attn.cute`, is looked for without importing that."""
    whole, *part = package.split(".")
    spec = find_spec(whole)
    return spec is not None and (
        not part or any(Path(place, *part).is_dir() for place in spec.submodule_search_locations or ())
    )


def every_score(case: Any) -> int:
    """`scores` of an implementation that stores the scores of all heads, and then their probabilities."""
    return int(2 * case.B * case.H * case.T * case.T_kv)


def scores_of_a_head(case: Any) -> int:
    """`scores` of one that does so head by head."""
    return every_score(case) // int(case.H)


COMPILE, GRAPHED = "+compile", "+reduce-overhead"
FORMS: dict[str, dict[str, str]] = {
    COMPILE: {},
    "+max-autotune": {"mode": "max-autotune"},
    GRAPHED: {"mode": "reduce-overhead"},
}
"""Compiled forms, by the end of their names, with the options that `torch.compile` gets."""

_registry: dict[str, Impl] = {}


def register(name: str, *, takes_mask: bool = False, **declared: Any) -> Callable[[Any], Any]:
    """Register the decorated kernel (a function), core (a `KernelCore` class) or layer (any other `nn.Module` class).

    `declared` are fields of `Limits`, and of `Impl` from `common` to `tokens`; a kernel that `takes_mask` is given the causal
    mask as `attn_mask`, where others get `is_causal`. Raises ValueError when the name is taken.

        @register("mine", max_T=4096)
        def mine(q, k, v, *, is_causal=False, attn_mask=None, scale=None, enable_gqa=False, dropout_p=0.0): ...
    """
    own = {it.name: declared.pop(it.name) for it in fields(Impl) if it.name in declared}

    def added(it: Any) -> Any:
        add(replace(make(name, it, takes_mask=takes_mask, limits=Limits(**declared)), **own))
        return it

    return added


def make(name: str, it: Any, *, takes_mask: bool = False, limits: Limits | None = None) -> Impl:
    """An `Impl` from a kernel function, a core or a layer class; raises TypeError when it is none of them."""
    owner = getattr(it, "__module__", "?")
    summary = next(iter((it.__doc__ or "").strip().splitlines()), "")
    limits = limits or Limits()
    if not isinstance(it, type) and limits.masks is None:
        limits = replace(limits, beyond=(*BY_MASK, *limits.beyond))
    if isinstance(it, type) and issubclass(it, nn.Module) and not issubclass(it, KernelCore):
        return Impl(name, owner, it, limits=limits, summary=summary)
    if (isinstance(it, type) and not issubclass(it, KernelCore)) or not callable(it):
        raise TypeError(f"{name!r} is neither a function nor an nn.Module class")
    kernel = None if isinstance(it, type) else it
    core = partial(KernelCore, kernel=_output_of(kernel, limits), takes_mask=takes_mask) if kernel else it
    limits = replace(limits, beyond=(*limits.beyond, *AROUND))
    return Impl(name, owner, lambda shape: _around(core(shape), shape), core, kernel, limits=limits, summary=summary)


def _output_of(kernel: Kernel, limits: Limits) -> Kernel:
    """A kernel that returns the output alone."""
    return partial(_first, kernel) if limits.returns_lse else kernel


def _first(kernel: Callable[..., Any], *qkv: Tensor, **options: Any) -> Tensor:
    o: Tensor = kernel(*qkv, **options)[0]
    return o


def _around(core: nn.Module, shape: LayerShape) -> AttentionLayer:
    """The shared layer that a core is placed in."""
    return KernelLayer(shape, core) if shape.latent is None else LatentLayer(shape, core)


def add(impl: Impl) -> None:
    """Put `impl` in the registry; raises ValueError when its name is taken or reserved."""
    if impl.name in _registry:
        raise ValueError(f"{impl.name!r} is already registered by {_registry[impl.name].owner}")
    if eager_name(impl.name) != impl.name:
        raise ValueError(f"{impl.name!r}: names that end in {', '.join(FORMS)} are made by the suite")
    _registry[impl.name] = impl


def eager_name(name: str) -> str:
    """`NAME+compile` -> `NAME`."""
    return next((name.removesuffix(form) for form in FORMS if name.endswith(form)), name)


def get(name: str) -> Impl:
    """The implementation called `name`, or its compiled form for `NAME+compile`; raises KeyError."""
    eager = eager_name(name)
    return _registry[name] if eager == name else compiled(_registry[eager], name.removeprefix(eager))


def registered() -> Iterator[Impl]:
    """Every eager implementation, in the order of registration."""
    return iter(_registry.values())


def compiled(impl: Impl, form: str = COMPILE) -> Impl:
    """The same implementation through `torch.compile`, one static graph a shape; its kernel stays as it is.

    `dynamic=False`, since with the default the third shape would run a graph made for other shapes.
    """
    core = impl.core
    return replace(
        impl,
        name=impl.name + form,
        layer=lambda shape: Compiled(impl.layer(shape), **FORMS[form]),
        core=core and (lambda shape: Compiled(core(shape), **FORMS[form])),
        baseline=False,
        pins=None,
        scores=None,
        compiled=True,
    )


ISOLATED = {"isolate_recompiles": True} if "isolate_recompiles" in signature(torch.compile).parameters else {}
"""Every compiled form has graphs of its own, where torch can tell them apart (from 2.13 on)."""


class Compiled(nn.Module):
    """A layer or core whose forward is compiled; parameters stay where they were."""

    def __init__(self, eager: nn.Module, **options: str):
        super().__init__()
        self.eager = eager
        compiled = torch.compile(eager, dynamic=False, **options, **ISOLATED)  # type: ignore[call-overload]
        self._run: Callable[..., Tensor] = compiled

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self._run(*args, **kwargs)

    @property
    def prepare(self) -> Callable[..., None] | None:
        return getattr(self.eager, "prepare", None)

    def parts(self, of: Callable[[Tensor], Tensor]) -> dict[str, list[Tensor]]:
        return parts(self.eager, of)


def _count(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"
