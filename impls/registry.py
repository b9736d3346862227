"""Registry of implementations, with their declared limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib.util import find_spec
from inspect import signature
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .latent import LatentLayer
from .layer import AttentionLayer, KernelCore, KernelLayer, LayerShape
from .rules import BY_MASK, EVERY_RULE, beyond
from .weights import parts

Kernel = Callable[..., Tensor]

CHOICES = ("device", "dtype", "mode", "mask", "source", "scope")
"""Axes of which an implementation may support some values only: `Limits.devices` and so on."""

AROUND = ("latent", "page")
"""Rules implemented by the layer between projections and cache: kernels and cores receive ordinary keys and values."""


@dataclass(frozen=True)
class Limits:
    """Declared limits of an implementation. What they don't exclude is supported; of further rules only those in `beyond`."""

    max_T: int | None = None
    """Longest sequence of queries, or of keys and values."""
    max_pairs: int | None = None
    """Most pairs of a query and a key in one call, B * H * T * T_kv."""
    loops: bool = False
    """Whether it loops over queries and keys in Python: its calls use one thread, and its time depends on their number."""
    heads: int | None = None
    """The only supported number of heads."""
    devices: tuple[str, ...] | None = None
    dtypes: tuple[str, ...] | None = None
    modes: tuple[str, ...] | None = None
    masks: tuple[str, ...] | None = None
    sources: tuple[str, ...] | None = None
    scopes: tuple[str, ...] | None = None
    grouped: bool = True
    """Whether fewer key-value heads than query heads are supported."""
    wide_values: bool = True
    """Whether value heads of another width than query heads are supported."""
    dropout: bool = True
    compiles: bool = True
    autocasts: bool = True
    """Whether under autocast its core rounds float32 inputs, as torch's own products do. If not, it computes in the
    dtype of its inputs; in a layer under autocast these are narrow.
    """
    beyond: tuple[str, ...] = ()
    """Supported rules beyond plain attention, by their names in `Rules`. Kernel functions without their own `masks`
    receive masks for some rules (`BY_MASK`), which need no declaration. For layers also `latent` and `page`, which the
    shared layer implements for kernels and cores (`AROUND`).
    """
    package: str | None = None
    """Optional packages that it needs, separated by spaces."""
    install: str | None = None
    """How they are installed, if not by `pip install PACKAGE`."""
    alone: bool = False
    """Whether it needs its own process: its threads, allocator or settings would change others' times."""
    own_memory: bool = False
    """Whether it allocates memory outside torch, so that peaks of tensors would be incomplete: its rows have none."""
    returns_lse: float | None = None
    """Base of the logarithm if its kernel returns (o, lse): lse (B, H, T), in float32 at least, is the logarithm of the
    sum of exponentials by which o was divided. Layers use o alone; the check compares both with the reference.
    """
    unless: Callable[[Any], str | None] | None = None
    """Further limits: returns for a case the words that follow the name in a sentence, or None. `list` prints its docstring."""
    compiled_unless: Callable[[Any], str | None] | None = None
    """Further limits of its compiled form alone."""

    @property
    def without(self) -> list[str]:
        """Rules beyond plain attention that it does not support."""
        return [rule for rule in (*EVERY_RULE, *AROUND) if rule not in self.beyond]

    def refusal(self, name: str, case: Any, compiled: bool) -> str | None:
        """Return one sentence on why `case` (a `bench.cases.case.Case`) is unsupported; None if it is supported."""
        if missing := [package for package in (self.package or "").split() if not _is_there(package)]:
            return f"{name} needs the package {missing[0]}: {self.install or f'pip install {missing[0]}'}"
        if self.heads is not None and self.heads != case.H:
            return f"{name} supports {self.heads} head{'s' * (self.heads > 1)}, not {case.H}"
        if case.max_T > (self.max_T or inf):
            return f"{name} supports T up to {self.max_T}"
        if (pairs := case.pairs) > (self.max_pairs or inf):
            return (
                f"{name} supports up to {self.max_pairs:,} pairs of a query and a key (B H T T_kv); here are {pairs:,}"
            )
        for axis in CHOICES:
            allowed, wanted = getattr(self, axis + "s"), getattr(case, "computes" if axis == "dtype" else axis)
            if allowed is not None and wanted not in allowed:
                return f"{name} supports {axis} {', '.join(allowed)}, not {wanted}"
        if case.H_kv != case.H and not self.grouped:
            return f"{name} needs as many key-value heads as query heads"
        if case.D_v != case.D_h and not self.wide_values:
            return f"{name} needs value heads as wide as query heads"
        if case.drops and not self.dropout:
            return f"{name} does not support dropout"
        if case.scope == "core" and case.computes != case.dtype and not self.autocasts:
            return f"{name} computes in the dtype that it is given: --autocast needs --scope layer"
        asked = [*beyond(case), *["window"] * case.windowed, *(name for name in AROUND if getattr(case, name))]
        if unknown := [rule for rule in asked if rule in self.without]:
            return f"{name} does not support {' or '.join(unknown)}"
        further = (self.unless, self.compiled_unless if compiled else None)
        return next((f"{name} {why}" for unless in further if unless and (why := unless(case))), None)


@dataclass(frozen=True)
class Impl:
    """One implementation of attention: a kernel, or a whole layer."""

    name: str
    owner: str
    """Module that registered it."""
    layer: Callable[[LayerShape], nn.Module]
    """x (B, T, d_model) -> (B, T, d_model)"""
    core: Callable[[LayerShape], nn.Module] | None = None
    """q, k, v (B, H, T, D) -> o; None for a user-defined layer."""
    kernel: Kernel | None = None
    """f(q, k, v, *, attn_mask, dropout_p, is_causal, scale, enable_gqa) -> o, if the core calls such a function."""
    limits: Limits = Limits()
    common: bool = True
    """Whether every sweep measures it if no implementation is named; others only in sweeps of the whole registry."""
    baseline: bool = False
    """Whether speedups are relative to it."""
    compiled_by_default: bool = False
    """Whether its compiled form is measured if no implementation is named."""
    dispatches: str | None = None
    """The only kernel allowed under this name (`kernel` in the results); None if it may choose."""
    pins: str | None = None
    """Name of the implementation that may choose this kernel by itself."""
    scores: Callable[[Any], int] | None = None
    """Least number of scores and probabilities stored at once for a case; None if it stores none, or need not."""
    tokens: Callable[[Any], int] | None = None
    """Number of queries computed for a case, its padding included; None if it adds none."""
    compiled: bool = False
    summary: str = ""
    files: Callable[[], list[Path]] | None = None
    """Finds the user's code that it may run; None for an implementation of the suite, or of an installed package."""
    attr: str = ""
    """Name of the user's implementation in its module."""

    def refusal(self, case: Any) -> str | None:
        """Return one sentence on why `case` can't be run; None if it can."""
        if self.compiled and not self.limits.compiles:
            return f"{eager_name(self.name)} has no compiled form"
        if self.name.endswith(GRAPHED) and case.device == "cpu":
            return f"{self.name} replays CUDA graphs: on the CPU it would be {eager_name(self.name)}{COMPILE}"
        if case.scope != "layer" and self.core is None:
            used = "called alone" if case.scope == "core" else "put into a model"
            return f"{self.name} is a whole layer: it has no core that could be {used}"
        return self.limits.refusal(self.name, case, self.compiled)


def _is_there(package: str) -> bool:
    """Whether a package can be imported; a submodule, `flash_attn.cute`, is found without importing its parent."""
    whole, *part = package.split(".")
    spec = find_spec(whole)
    return spec is not None and (
        not part or any(Path(place, *part).is_dir() for place in spec.submodule_search_locations or ())
    )


def every_score(case: Any) -> int:
    """Return `scores` of an implementation that stores the scores of all heads, and then their probabilities."""
    return int(2 * case.pairs)


COMPILE, GRAPHED = "+compile", "+reduce-overhead"
FORMS: dict[str, dict[str, str]] = {
    COMPILE: {},
    "+max-autotune": {"mode": "max-autotune"},
    GRAPHED: {"mode": "reduce-overhead"},
}
"""Compiled forms by suffix, with their options of `torch.compile`. On a GPU these modes replay CUDA graphs."""

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


def make(name: str, it: Any, *, takes_mask: bool = False, limits: Limits = Impl.limits) -> Impl:
    """Build an `Impl` from a kernel function, a core or a layer class; raises TypeError for anything else."""
    owner = getattr(it, "__module__", "?")
    summary = next(iter((it.__doc__ or "").strip().splitlines()), "")
    made = it.func if isinstance(it, partial) else it
    if isinstance(made, type) and issubclass(made, nn.Module) and not issubclass(made, KernelCore):
        return Impl(name, owner, it, limits=limits, summary=summary)
    if (isinstance(it, type) and not issubclass(it, KernelCore)) or not callable(it):
        hint = ": name an instance of it" if isinstance(it, type) else ""
        raise TypeError(f"{name!r} is of type {type(it).__name__}, neither a function nor an nn.Module class{hint}")
    core, kernel, rules = it, None, (*limits.beyond, *AROUND)
    if not isinstance(it, type):
        kernel, rules = it, rules if limits.masks is not None else (*BY_MASK, *rules)
        of_output = (lambda *qkv, **options: it(*qkv, **options)[0]) if limits.returns_lse else it
        core = partial(KernelCore, kernel=of_output, takes_mask=takes_mask)

    def layer(shape: LayerShape) -> AttentionLayer:
        around: type[KernelLayer | LatentLayer] = KernelLayer if shape.latent is None else LatentLayer
        return around(shape, core(shape))

    return Impl(name, owner, layer, core, kernel, limits=replace(limits, beyond=rules), summary=summary)


def add(impl: Impl) -> None:
    """Add `impl` to the registry; raises ValueError if its name is taken or reserved."""
    if impl.name in _registry:
        raise ValueError(f"{impl.name!r} is already registered by {_registry[impl.name].owner}: choose another name")
    if eager_name(impl.name) != impl.name:
        raise ValueError(f"{impl.name!r}: names that end in {', '.join(FORMS)} are made by the suite")
    _registry[impl.name] = impl


def eager_name(name: str) -> str:
    """Return the eager name: `NAME+compile` -> `NAME`."""
    return next((name.removesuffix(form) for form in FORMS if name.endswith(form)), name)


def get(name: str) -> Impl:
    """Return the implementation called `name`, or its compiled form for `NAME+compile`; raises KeyError."""
    eager = eager_name(name)
    return _registry[name] if eager == name else compiled(_registry[eager], name.removeprefix(eager))


def registered() -> Iterator[Impl]:
    """Yield every eager implementation, in the order of registration."""
    return iter(_registry.values())


def compiled(impl: Impl, form: str = COMPILE) -> Impl:
    """Return the implementation with `torch.compile`, one static graph per shape; its kernel is unchanged.

    Uses `dynamic=False`, since by default the third shape would run a graph made for variable shapes.
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
"""Separate graphs for each compiled form, if torch supports it (from 2.13 on)."""


class Compiled(nn.Module):
    """A layer or core whose forward is compiled; parameters stay in the original module. `graphed`: on a GPU each call
    overwrites the output of the one before.
    """

    def __init__(self, eager: nn.Module, **options: str):
        super().__init__()
        self.eager, self.graphed = eager, bool(options)
        compiled = torch.compile(eager, dynamic=False, **options, **ISOLATED)  # type: ignore[call-overload]
        self._run: Callable[..., Tensor] = compiled

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self._run(*args, **kwargs)

    @property
    def prepare(self) -> Callable[..., None] | None:
        return getattr(self.eager, "prepare", None)

    def parts(self, of: Callable[[Tensor], Tensor]) -> dict[str, list[Tensor]]:
        return parts(self.eager, of)
