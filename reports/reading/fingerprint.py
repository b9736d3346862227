"""Decides which runs may be compared: those of one machine. Different torch or Python versions are only reported."""

from __future__ import annotations

from typing import Any

from .runs import Run

SOFTWARE = ("torch", "torch_build", "python")
"""Parts of `machine_info` in which two comparable runs may differ."""


def differing(base: Run, head: Run) -> dict[str, tuple[Any, Any]]:
    """Return the parts of the machine that differ: (base's, head's) each. Empty if the runs may be compared."""
    return {key: pair for key, pair in _differences(base.machine, head.machine).items() if key not in SOFTWARE}


def software(base: Run, head: Run) -> dict[str, tuple[Any, Any]]:
    """Return the versions that differ: (base's, head's) each."""
    return {key: pair for key, pair in _differences(base.machine, head.machine).items() if key in SOFTWARE}


def environment(base: Run, head: Run) -> dict[str, tuple[Any, Any]]:
    """Return performance-relevant environment variables that differ. Empty if a run has none recorded."""
    before, after = base.state.get("environment"), head.state.get("environment")
    return _differences(before, after) if isinstance(before, dict) and isinstance(after, dict) else {}


def refusal(base: Run, head: Run) -> str:
    """Return why two runs may not be compared, in a sentence; '' if they may."""
    different = differing(base, head)
    both = f"{base.name} and {head.name} were measured on different machines or with different settings"
    return f"{both}: {described(different)}" if different else ""


def described(differences: dict[str, tuple[Any, Any]]) -> str:
    """Describe differences: 'threads (2, then 4) and gpu (none, then NVIDIA H200)'."""
    return " and ".join(
        f"{key} ({_text(key, base)}, then {_text(key, head)})" for key, (base, head) in differences.items()
    )


def _differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    pairs = {key: (before.get(key), after.get(key)) for key in [*before, *after]}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _text(key: str, value: Any) -> str:
    if key == "allocator":
        return _allocator(value)
    return "none" if value in (None, {}, "") else str(value)


def _allocator(settings: Any) -> str:
    """Return the name used by `--allocator`; for other settings the variables."""
    if not settings:
        return "system"
    preloaded = str(settings.get("LD_PRELOAD", ""))
    kept = "keep" if settings.get("MALLOC_MMAP_MAX_") == "0" else ""
    known = next((name for name in ("tcmalloc", "jemalloc") if name in preloaded), kept)
    return known or " ".join(f"{name}={value}" for name, value in settings.items())
