"""Global settings of torch and of the process: one implementation's change would affect all others."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Event, Thread
from typing import Any

import torch

from .watched_settings import SETTINGS

EQUIVALENT = "none → ieee", "ieee → none"
"""Changes between two names of a precision: `none`, a backend without its own setting, means `ieee`."""


def read(cheap: bool = False, never_restored: bool = False) -> dict[str, Any]:
    """Return the current settings that `restore` needs; if `cheap`, only those that can be read at every round."""
    wanted = {name: it for name, it in SETTINGS.items() if (it.cheap or not cheap) and (it.put or never_restored)}
    return {name: setting.get() for name, setting in wanted.items()}


def restore(before: dict[str, Any]) -> list[str]:
    """Restore all given settings and return the refused changes: `default dtype: torch.float32 → torch.float64`.

    Settings marked `reported` are not among them (`reported_changes`); of these, only the working folder is restored.
    """
    refused = _changes(before, "refused")
    for name, value in before.items():
        setting = SETTINGS[name]
        if setting.put and (name in refused or setting.on_change != "refused"):
            setting.put(value)
    return [f"{name}: {change}" for name, change in refused.items() if change not in EQUIVALENT]


def reported_changes(before: dict[str, Any]) -> list[str]:
    """Return changes of the settings marked `reported`."""
    return [f"{name}: {change}" for name, change in _changes(before, "reported").items()]


def _changes(before: dict[str, Any], on_change: str) -> dict[str, str]:
    """Describe what has changed of the settings with this policy."""
    now = {name: SETTINGS[name].get() for name in before if SETTINGS[name].on_change == on_change}
    return {name: change for name, it in now.items() if (change := _change(before[name], it))}


def _change(before: Any, now: Any) -> str:
    if before == now:
        return ""
    return ", ".join(sorted(before.changed_to(now))) if hasattr(before, "changed_to") else f"{before} → {now}"


@contextmanager
def changed(name: str, value: Any, when: bool = True) -> Iterator[None]:
    """Change a setting within the block, if at all (`when`)."""
    setting = SETTINGS[name]
    assert setting.put is not None
    before = setting.get()
    if when:
        setting.put(value)
    try:
        yield
    finally:
        if when:
            setting.put(before)


def threads(count: int | None) -> AbstractContextManager[None]:
    """Use a number of intra-op threads within the block; None for as many as before."""
    return changed("number of threads", count or torch.get_num_threads())


def tf32_products(when: bool) -> AbstractContextManager[None]:
    """Use TF32 for float32 products on a GPU within the block, if at all (`when`). It is set by torch's older API, which sets
    the newer one too: else torch refuses to read the older one, as kernels and Inductor's autotuning do.
    """
    return changed("precision of float32 products", "high", when)


@contextmanager
def memory_filled() -> Iterator[None]:
    """Have torch fill new memory with NaN within the block, as it does for deterministic algorithms."""
    put = torch._C._set_deterministic_algorithms  # torch.use_deterministic_algorithms imports the whole compiler
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings(action="ignore"):
        put(True, warn_only=True)
        try:
            yield
        finally:
            put(before[0], warn_only=before[1])


@contextmanager
def waiting_asleep() -> Iterator[None]:
    """Let OpenMP's threads sleep within the block while they wait for work, so that another process gets their cores.

    GNU's spin for milliseconds, unless the process has more of them than cores. A second thread, which only waits, has a team
    of its own, so there are more.
    """
    started, ended = Event(), Event()

    def hold() -> None:
        try:
            torch.zeros(torch.get_num_threads() << 15, dtype=torch.uint8)  # in as many parts
        finally:  # else an error would make the check wait for its time limit
            started.set()
        ended.wait()

    Thread(target=hold).start()
    started.wait()
    try:
        yield
    finally:
        ended.set()  # and no join: in a process that an implementation has forked there is no such thread
