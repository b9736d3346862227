"""What other libraries have in common here."""

from __future__ import annotations

from typing import Any

RIVAL: dict[str, Any] = {
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
"""How they are registered, where nothing else is said."""
