"""Shared code of third-party backends."""

from __future__ import annotations

from typing import Any

BACKEND: dict[str, Any] = {
    "common": False,
    "alone": True,
    "own_memory": True,
    "devices": ("cpu",),
    "modes": ("forward",),
    "masks": ("none", "causal"),
    "dropout": False,
    "autocasts": False,
    "compiles": False,
}
"""Default declarations of third-party backends."""
