"""Hashes an implementation: its own sources, the versions of torch and of its dependencies, the kernel that ran."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from types import ModuleType

import torch

from impls import Impl

from .. import CHECKOUT
from ..cases.case import Case
from ..cases.case_hash import case_hash


def impl_hash(impl: Impl, kernel: str) -> str:
    """Return a hash that changes only with code that a call of `impl` may run."""
    text = "\n".join([impl.name, torch.__version__, kernel, *_versions(impl), *sources(impl.owner, impl.files)])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def packages(impl: Impl, in_model: bool = False) -> str | None:
    """Return the optional packages that it needs, with versions: `onnxruntime 1.23.2, onnx 1.19.1`; None if there are
    none.

    `in_model`: includes transformers, which builds the surrounding model.
    """
    around = [_versioned("transformers")] if in_model else []
    return ", ".join([*_versions(impl), *around]) or None


DECIDING = (
    "impls/**/*.py",
    *(f"bench/{package}/**/*.py" for package in ("cases", "checks", "timing", "workers")),
    *(f"bench/runs/{module}.py" for module in ("measuring", "pool", "rows", "run")),
)
"""Files that determine what a run measures, and how its journal is read."""


def sources_hash(impls: Iterable[Impl], cases: Iterable[Case]) -> str:
    """Return a hash of what now determines measurements: all code, implementations included wherever they come from, and
    the cases.
    """
    sources.cache_clear()
    files = sorted(path for pattern in DECIDING for path in CHECKOUT.glob(pattern) if path.is_file())
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
    digests += sorted({digest for impl in impls for digest in sources(impl.owner, impl.files)})
    digests += map(case_hash, cases)
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()[:12]


@cache
def sources(module: str, files: Callable[[], list[Path]] | None = None) -> tuple[str, ...]:
    """Return digests of an implementation's `files`; without any, of its module's file and of the files in its own folder
    that this imports, directly or not.
    """
    found = (files and files()) or sorted({path for each in _reached(module) if (path := _file(each))})
    return tuple(hashlib.sha256(path.read_bytes()).hexdigest() for path in found if path.exists())


def _versions(impl: Impl) -> list[str]:
    return [_versioned(package) for package in (impl.limits.package or "").split()]


def _versioned(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:  # it belongs to another package, or was never installed
        return " ".join([package, *map(version, sorted(_distributions().get(package.partition(".")[0], ())))])


_distributions = cache(packages_distributions)


def _reached(name: str) -> set[ModuleType]:
    first = sys.modules.get(name)
    if first is None:
        return set()
    home, reached, left = _home(first), set(), [first]
    while left:
        module = left.pop()
        if module in reached:
            continue
        reached.add(module)
        left += [other for other in _used(module) if _home(other) == home]
    return reached


def _used(module: ModuleType) -> Iterator[ModuleType]:
    """Yield the modules that a module's names refer to or come from."""
    for value in vars(module).values():
        used = value if isinstance(value, ModuleType) else sys.modules.get(getattr(value, "__module__", None) or "")
        if used is not None and used is not module:
            yield used


def _home(module: ModuleType) -> Path | None:
    path = _file(module)
    return path.parent if path else None


def _file(module: ModuleType) -> Path | None:
    path = getattr(module, "__file__", None)
    return Path(path) if path and path.endswith(".py") else None
