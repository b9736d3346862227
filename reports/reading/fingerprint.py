"""Decides which runs may be compared: those of one machine. Different versions of software are only reported."""

from __future__ import annotations

from typing import Any

from .runs import Object, Run

SOFTWARE = ("torch", "torch_build", "python", "driver")
"""Parts of `machine_info` in which two comparable runs may differ."""


def differing(base: Run, head: Run, *, software: bool = False) -> str:
    """Describe the parts of the machine, or of the software, that differ: 'threads (2, then 4) and gpu (none, then NVIDIA
    H200)'; '' without any. Runs may be compared if their machines are equal.
    """
    parts = ({key: it for key, it in run.machine.items() if (key in SOFTWARE) == software} for run in (base, head))
    return _differences(*parts)


def environment(base: Run, head: Run) -> str:
    """Describe performance-relevant environment variables that differ; '' without any, or if a run has none recorded."""
    before, after = base.state.get("environment"), head.state.get("environment")
    return _differences(before, after) if before is not None and after is not None else ""


def line(machine: Object) -> str:
    """Return known facts in one line: 'AMD EPYC · 2 cores · 24 GiB · torch 2.13.0'."""
    known = {"gpu": "{}", "cpu": "{}", "cores": "{} cores", "memory_gib": "{} GiB", "torch": "torch {}"}
    return " · ".join(text.format(machine[key]) for key, text in known.items() if machine.get(key))


def _differences(before: Object, after: Object) -> str:
    pairs = {key: (before.get(key), after.get(key)) for key in before | after}
    return " and ".join(
        f"{key} ({_text(key, one)}, then {_text(key, other)})" for key, (one, other) in pairs.items() if one != other
    )


def _text(key: str, value: Any) -> str:
    """Format a value; settings of an allocator by the name that `--allocator` has for them, if any."""
    if key != "allocator":
        return "none" if value in (None, {}, "") else str(value)
    if not value:
        return "system"
    preloaded = str(value.get("LD_PRELOAD", ""))
    kept = "keep" if value.get("MALLOC_MMAP_MAX_") == "0" else ""
    known = next((name for name in ("tcmalloc", "jemalloc") if name in preloaded), kept)
    others = {name: it for name, it in value.items() if not known or not name.startswith(("MALLOC_", "LD_PRELOAD"))}
    return " ".join(filter(None, (known, *(f"{name}={it}" for name, it in others.items()))))
