"""What one's own code imports: the shape that a layer is built from, and saved runs as frames and as pages in a notebook."""

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
"""Where impls, reports and stats lie: a checkout, or what was installed."""

_NOTEBOOK = "stats", "reports", "reports.pages.notebook"
_MODULES = {"LayerShape": ("impls", "impls"), "frame": _NOTEBOOK, "show": _NOTEBOOK}
"""Rooms, and the module in which it is, imported when they are asked for: frames need no torch, and layers no pandas."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if str(_HOME) not in sys.path:
        sys.path.append(str(_HOME))  # behind the user's own folders
    for room in map(import_module, _MODULES[name][:-1]):
        if not Path(str(room.__file__)).is_relative_to(_HOME):
            raise ImportError(
                f"attention_bench.{name}: {room.__file__} hides the suite's own {room.__name__!r}; rename it"
            )
    return getattr(import_module(_MODULES[name][-1]), name)
