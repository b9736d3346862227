"""Decides which runs may be compared: those of one machine. Different versions of software are only reported."""

from __future__ import annotations

from typing import Any

from .runs import Object, Run
from .words import plural

SOFTWARE = ("torch", "torch_build", "python", "driver")
"""Parts of `machine_info` in which two comparable runs may differ."""

KEEP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 34), "MALLOC_TOP_PAD_": str(1 << 28)}
"""Settings that `--allocator keep` makes."""


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
    known = {"gpu": "{}", "cpu": "{}", "cores": "{}", "memory_gib": "{} GiB", "torch": "torch {}"}
    texts = {**machine, "cores": plural(machine.get("cores", 0), "core")}
    return " · ".join(text.format(texts[key]) for key, text in known.items() if machine.get(key))


def _differences(before: Object, after: Object) -> str:
    pairs = {key: (before.get(key), after.get(key)) for key in before | after}
    return " and ".join(
        f"{key} ({_text(key, one)}, then {_text(key, other)})" for key, (one, other) in pairs.items() if one != other
    )


def _text(key: str, value: Any) -> str:
    """Format a value; settings of an allocator as in 'keep MALLOC_ARENA_MAX=1', with the name that `--allocator` has."""
    if key != "allocator":
        return "none" if value in (None, {}, "") else str(value)
    if not value:
        return "system"
    known = ["keep"] if KEEP.items() <= value.items() else []
    return " ".join([*known, *(f"{name}={it}" for name, it in value.items() if not known or name not in KEEP)])
