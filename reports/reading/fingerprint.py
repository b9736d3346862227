"""Which runs may be compared: those of one machine. Another torch or Python is what one wants to compare, and is said."""

from __future__ import annotations

from typing import Any

from .runs import Run

SOFTWARE = ("torch", "torch_build", "python")
"""Parts of `machine_info` that two comparable runs may differ in."""


def differing(base: Run, head: Run) -> dict[str, tuple[Any, Any]]:
    """Parts of the machine that are not the same: (base's, head's) each. Empty when the runs may be compared."""
    return {key: pair for key, pair in _differences(base.machine, head.machine).items() if key not in SOFTWARE}


def software(base: Run, head: Run) -> dict[str, tuple[Any, Any]]:
    """Versions that are not the same: (base's, head's) each."""
    return {key: pair for key, pair in _differences(base.machine, head.machine).items() if key in SOFTWARE}


def environment(base: Run, head: Run) -> dict[str, tuple[Any, Any]]:
    """Environment variables that decide speed and are not the same. Empty where a run doesn't know its own."""
    before, after = base.state.get("environment"), head.state.get("environment")
    return _differences(before, after) if isinstance(before, dict) and isinstance(after, dict) else {}


def described(differences: dict[str, tuple[Any, Any]]) -> str:
    """'threads (2, then 4) and gpu (none, then NVIDIA H200)'."""
    return " and ".join(f"{key} ({_text(base)}, then {_text(head)})" for key, (base, head) in differences.items())


def _differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    pairs = {key: (before.get(key), after.get(key)) for key in [*before, *after]}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _text(value: Any) -> str:
    return "none" if value is None or value == {} or value == "" else str(value)
