"""Which implementations: those in the registry, by name, and a user's own. Needs nothing but torch."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

import impls
from impls import Impl, Limits
from impls.layer import kernel_options

from ..cases.axes import Axis, nearest
from ..cases.case import AXES, Case
from ..cases.cells import Cell
from ..checks import settings
from ..terminal import warn
from .errors import UsageError

MODULES = "ATTENTION_BENCH_PATH"
"""Environment variable: folders in which a user's modules lie, before the folder where the user started."""


def registered() -> Iterator[Impl]:
    """Every implementation; also those of an older revision, which had another name for this (`ab --base`)."""
    every: Callable[[], Iterator[Impl]] = getattr(impls, "registered", None) or getattr(impls, "shelf")  # noqa: B009
    return every()


def _eager_name(name: str) -> str:
    """`NAME+compile` -> `NAME`; of an older revision, which has one compiled form, as well."""
    forms = getattr(impls, "FORMS", (impls.COMPILE,))
    return next((name.removesuffix(form) for form in forms if name.endswith(form)), name)


def listed(given: Sequence[str]) -> list[str]:
    """The names in comma lists."""
    return [name.strip() for text in given for name in text.split(",") if name.strip()]


def impls_named(given: list[str], whole_registry: bool, folder: str) -> tuple[Impl, ...]:
    """The implementations that are named, or the sweep's own: eager ones, and the compiled forms worth a place."""
    names = listed(given)
    if not names:
        if given:
            raise UsageError(f"--impl names nothing; known: {known()}")
        chosen = [impl for impl in registered() if impl.common or whole_registry]
        names = [impl.name for impl in chosen]
        names += [impl.name + impls.COMPILE for impl in chosen if impl.compiled_by_default]
    return tuple(_impl(name, folder) for name in dict.fromkeys(names))


def _impl(name: str, folder: str) -> Impl:
    if "=" not in name:
        with suppress(KeyError):
            return impls.get(name)
        if ":" not in name and not os.path.exists(os.path.join(folder, f"{name.removesuffix('.py')}.py")):
            near = nearest(_eager_name(name), [impl.name for impl in registered()])
            raise UsageError(f"unknown implementation {name!r}; known: {known()}{near}")
    try:
        return _own(*name.rpartition("=")[::2], folder)
    except (TypeError, ValueError) as error:
        raise UsageError(f"--impl {name if name.isprintable() else repr(name)}: {error}") from None


_own_paths: dict[str, str] = {}
"""Where the user's own implementations come from, by name: one name can't stand for two of them."""


def place_of(path: str, folder: str) -> tuple[str, str]:
    """The module and attribute of `package.module:attr` or of `package/module.py:attr`; raises ValueError."""
    module, _, attr = path.partition(":")
    if module.endswith(".py"):
        file = os.path.relpath(os.path.join(folder, module), folder)
        if file.startswith(os.pardir):
            raise ValueError(f"{module} lies outside of the folder that you are in: start in its own")
        module = file.removesuffix(".py").replace(os.sep, ".")
    return module, attr


def _own(name: str, path: str, folder: str) -> Impl:
    """Register a user's kernel or layer, and give it (or its compiled form) back; raises TypeError and ValueError."""
    plain, (module, attr) = _eager_name(name), place_of(path, folder)
    if not (plain and module and attr):
        raise ValueError(
            f"expected NAME=module:function, as in {plain or 'mine'}={module or 'mine'}:{attr or 'FUNCTION'}"
        )
    if not re.fullmatch(r"[\w.+-]+", plain):
        raise ValueError("a name is made of letters, digits and _ . + -")
    for place in (*os.environ.get(MODULES, "").split(os.pathsep), folder):
        if place and place not in sys.path:
            sys.path.append(place)  # last, so that no module of the user's stands in for another
    if module == "kernels" and "#" in attr:
        repository, _, attr = attr.rpartition("#")
        imported = _imported(repository, lambda: _of_repository(repository, folder))
    else:
        imported = _imported(module, lambda: importlib.import_module(module))
    if not hasattr(imported, attr):
        where = getattr(imported, "__file__", None) or "a part of Python"
        taken = ", which Python has itself: give yours another name" if module in sys.stdlib_module_names else ""
        near = nearest(attr, vars(imported))
        raise ValueError(f"module {module} has no attribute {attr!r}; it is {where}{taken}{near}")
    it = getattr(imported, attr)
    if isinstance(it, nn.Module):
        raise ValueError(f"that is an instance of {type(it).__name__}; name the class, which is built for every case")
    if (known := _own_paths.get(plain, path)) != path:
        raise ValueError(f"{plain} is {known} already; give this one another name")
    impl = impls.make(plain, it, limits=_declared(it))
    if isinstance(it, type):
        _refuse_sizes(it)
    if not (inspect.isroutine(it) or inspect.isclass(it)):  # a partial has its numbers from where it is named
        impl = replace(impl, owner=module)
    if plain not in {i.name for i in registered()} or impls.get(plain).owner != impl.owner:
        impls.add(impl)
    _own_paths[plain] = path
    return impls.get(name)


def _declared(it: Any) -> Limits:
    """The limits that a user's kernel or layer declares; raises ValueError where one would limit nothing, or everything."""
    given = getattr(it, "limits", {})
    if not isinstance(given, Mapping):
        raise ValueError(f"limits is no dict, as in {{'dtypes': ('bfloat16',)}}, but {given!r}")
    kinds = {field.name: {"int | None": int, "bool": bool}.get(str(field.type), object) for field in fields(Limits)}
    found: dict[str, Any] = dict(given)
    for name, value in found.items():
        if name not in kinds:
            raise ValueError(f"limits has no {name!r}; known: {', '.join(kinds)}{nearest(name, kinds)}")
        if value is None:
            continue
        if not isinstance(value, kinds[name]):
            raise ValueError(f"limits[{name!r}] is {value!r}, which is no {kinds[name].__name__}")
        if (axis := AXES.get(name.removesuffix("s"))) and axis.values:
            words = [given[name]] if isinstance(value, str) else given[name]
            found[name] = tuple(_read(name, axis, word) for word in words)
    return Limits(**found)


def _read(limit: str, axis: Axis, word: Any) -> Any:
    try:
        return axis.read(word)
    except ValueError as error:
        raise ValueError(f"limits[{limit!r}]: {word!r} is not {error}") from None


SIZES = re.compile(r"[dn]_|.*(dim|embed|hidden|head|width|size)")
"""How the first parameter of a layer is called that isn't built from a `LayerShape`."""


def _refuse_sizes(layer: type) -> None:
    """Raise ValueError where a layer's constructor takes sizes."""
    signature = inspect.signature(layer)
    if SIZES.match(next(iter(signature.parameters), "")):
        raise ValueError(
            f"{layer.__name__}{signature} takes sizes, but a layer is built from one LayerShape: give it a child class, "
            "`def __init__(self, shape): super().__init__(shape.d_model, shape.H)`"
        )


def _of_repository(repository: str, folder: str) -> ModuleType:
    """The module of a kernel repository, as the package `kernels` of Hugging Face loads it: a folder, or a name on the hub."""
    if importlib.util.find_spec("kernels") is None:
        raise ValueError("kernel repositories need the package kernels: pip install kernels")
    kernels = importlib.import_module("kernels")
    path = Path(folder, repository)
    found: ModuleType = kernels.get_local_kernel(path) if path.is_dir() else kernels.get_kernel(repository)
    return found


def _imported(module: str, load: Callable[[], ModuleType]) -> ModuleType:
    """A user's module. What it sets for all of torch is put back, also where it can't be imported."""
    before = settings.read()
    try:
        return load()
    except (Exception, SystemExit) as error:
        raise ValueError(f"can't import {module}: {type(error).__name__}: {error}") from None
    finally:
        noted = settings.noted(before)
        if changed := settings.put_back(before):
            warn(f"{module} modifies global torch settings when it is imported; they were restored: "
                 f"{', '.join(changed)}{_instead(changed)}")  # fmt: skip
        if noted:
            warn(f"{module} changes, when it is imported, {', '.join(noted)}")


def _instead(changed: list[str]) -> str:
    """What to do where a name of torch's was to stand for something else."""
    patches = any(change.startswith("names of torch.nn.functional") for change in changed)
    return (
        " (to measure what was to take its place, register the function itself: --impl NAME=module:function)" * patches
    )


def uncallable(cell: Cell) -> str | None:
    """Why the signature of an implementation doesn't allow the call that a case needs; None when it does."""
    impl, case = cell.impl, cell.case
    if impl.refusal(case):
        return None
    if impl.kernel is not None:
        needed = dict.fromkeys(kernel_options(case.layer_shape, _mask_of(case), training=True))
        return _misfit(impl.kernel, ["q", "k", "v"], needed)
    if isinstance(impl.layer, type):
        inputs = ["x", "x_k"] if case.source == "cross" else ["x"]
        named = {"padding": case.padded, "cache": case.does.cached, "pages": case.page}
        given = dict.fromkeys(name for name, used in named.items() if used)
        forward = impl.layer.forward  # type: ignore[attr-defined]
        return _misfit(impl.layer, ["shape"], {}) or _misfit(forward, ["self", *inputs], given)
    return None


def _mask_of(case: Case) -> Any:
    """Something where a kernel would be given a mask."""
    return case.mask if case.padded or case.layer_shape.in_mask else None


def _misfit(function: Callable[..., Any], positional: list[str], keywords: dict[str, Any]) -> str | None:
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # what is written in C may have none
        return None
    try:
        signature.bind(*positional, **keywords)
    except TypeError as error:
        call = ", ".join([*positional, *(f"{name}=..." for name in keywords)])
        name = getattr(function, "__qualname__", "it")
        return f"{name}{signature} can't be called as ({call}): {error}"
    return None


def known() -> str:
    return f"{', '.join(impl.name for impl in registered())}, and NAME{impls.COMPILE}"
