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
    """Return a hash that changes with code that a call of `impl` may run, and with no other of the suite's."""
    found = [impl.name, impl.attr, torch.__version__, kernel, *_versions(impl), *sources(impl.owner, impl.files)]
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:12]


def packages(impl: Impl, in_model: bool) -> str | None:
    """Return the optional packages that it needs, with versions: `onnxruntime 1.23.2, onnx 1.19.1`; None if there are
    none.

    `in_model`: includes transformers, which builds the surrounding model.
    """
    around = [_versioned("transformers")] if in_model else []
    return ", ".join([*_versions(impl), *around]) or None


DECIDING = (
    "impls/**/*.py",
    "stats/axes.py",
    *(f"bench/{package}/**/*.py" for package in ("cases", "checks", "timing", "workers")),
    *(f"bench/runs/{module}.py" for module in ("measuring", "pool", "rows", "run")),
)
"""Files that determine what a run measures, and how its journal is read."""


def sources_hash(impls: Iterable[Impl], cases: Iterable[Case]) -> str:
    """Return a hash of what now determines measurements: all code, implementations included wherever they come from, with the
    versions of the packages they need, and the cases.
    """
    sources.cache_clear()
    files = sorted(path for pattern in DECIDING for path in CHECKOUT.glob(pattern) if path.is_file())
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
    digests += sorted({it for impl in impls for it in (*sources(impl.owner, impl.files), *_versions(impl))})
    digests += map(case_hash, cases)
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()[:12]


@cache
def sources(module: str, files: Callable[[], list[Path]] | None) -> tuple[str, ...]:
    """Return digests of an implementation's `files`; without any, of its module's file and of the files in its own folder
    that this imports, directly or not.
    """
    found = (files and files()) or sorted(_reached(module))
    return tuple(hashlib.sha256(path.read_bytes()).hexdigest() for path in found if path.exists())


def _versions(impl: Impl) -> list[str]:
    return [_versioned(package) for package in (impl.limits.package or "").split()]


def _versioned(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:  # it belongs to another package, or was never installed
        return " ".join([package, *map(version, sorted(_distributions().get(package.partition(".")[0], ())))])


_distributions = cache(packages_distributions)


def _reached(name: str) -> set[Path]:
    """Return the file of a module, and those in its own folder that it imports, directly or not."""
    found: set[Path] = set()
    left = [sys.modules.get(name)]
    while left:
        module = left.pop()
        path = Path(getattr(module, "__file__", None) or "")
        if path.suffix == ".py" and path not in found and all(path.parent == other.parent for other in found):
            found.add(path)
            left += _used(module)
    return found


def _used(module: ModuleType | None) -> Iterator[ModuleType]:
    """Yield the modules that a module's names refer to or come from."""
    for value in vars(module).values():
        used = value if isinstance(value, ModuleType) else sys.modules.get(getattr(value, "__module__", None) or "")
        if used is not None and used is not module:
            yield used
