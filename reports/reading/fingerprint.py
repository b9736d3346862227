"""Decides which runs may be compared: those of one machine. Different torch or Python versions are only reported."""

from __future__ import annotations

from typing import Any

from .runs import Run

SOFTWARE = ("torch", "torch_build", "python")
"""Parts of `machine_info` in which two comparable runs may differ."""

Differences = dict[str, tuple[Any, Any]]
"""Base's value and head's, by name."""


def differing(base: Run, head: Run, *, software: bool = False) -> Differences:
    """Return the parts of the machine, or of the software, that differ: (base's, head's) each. Runs may be compared if
    their machines are equal.
    """
    found = _differences(base.machine, head.machine)
    return {key: pair for key, pair in found.items() if (key in SOFTWARE) == software}


def environment(base: Run, head: Run) -> Differences:
    """Return performance-relevant environment variables that differ. Empty if a run has none recorded."""
    before, after = base.state.get("environment"), head.state.get("environment")
    return _differences(before, after) if before is not None and after is not None else {}


def described(differences: Differences) -> str:
    """Describe differences: 'threads (2, then 4) and gpu (none, then NVIDIA H200)'."""
    return " and ".join(
        f"{key} ({_text(key, base)}, then {_text(key, head)})" for key, (base, head) in differences.items()
    )


def line(machine: dict[str, Any]) -> str:
    """Return known facts in one line: 'AMD EPYC · 2 cores · 24 GiB · torch 2.13.0'."""
    known = {"gpu": "{}", "cpu": "{}", "cores": "{} cores", "memory_gib": "{} GiB", "torch": "torch {}"}
    return " · ".join(text.format(machine[key]) for key, text in known.items() if machine.get(key))


def _differences(before: dict[str, Any], after: dict[str, Any]) -> Differences:
    return {key: (before.get(key), after.get(key)) for key in before | after if before.get(key) != after.get(key)}


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
