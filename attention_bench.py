"""Public names: the shape from which a layer is built, and saved runs as frames and as pages in a notebook."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from impls import LayerShape
    from reports.pages.notebook import frame, show

__all__ = ["LayerShape", "frame", "show"]

_HOME = Path(__file__).resolve().parent
"""Folder of impls, reports and stats: a checkout or an installation."""

_NOTEBOOK = "stats", "reports", "reports.pages.notebook"
_MODULES = {"LayerShape": ("impls", "impls"), "frame": _NOTEBOOK, "show": _NOTEBOOK}
"""Packages to import, and last the module of the name. Imported on first use: frames need no torch, layers no pandas."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if str(_HOME) not in sys.path:
        sys.path.append(str(_HOME))  # behind the user's own folders
    for package in map(import_module, _MODULES[name][:-1]):
        if not Path(str(package.__file__)).is_relative_to(_HOME):
            raise ImportError(
                f"attention_bench.{name}: {package.__file__} shadows the suite's own {package.__name__!r}; rename it"
            )
    return getattr(import_module(_MODULES[name][-1]), name)


if __name__ == "__main__":  # a checkout's `python -m attention_bench`
    sys.path.insert(0, str(_HOME))
    sys.exit(import_module("commands.console").from_shell())
