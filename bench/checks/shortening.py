"""Shortens a case's rules for its probes: a window as long as the probe would mask no key there."""

from __future__ import annotations

from typing import Any

from ..cases.case import Case


def shortened_rules(case: Case, T_kv: int, softcap: int) -> dict[str, Any]:
    """Return axes of a probe: windows and similar lengths that mask some of T_kv keys, page sizes, and a cap of at most
    `softcap`.

    The last page holds two tokens of 37, as many as others of 64, and the newest one alone of 513.
    """
    most = dict.fromkeys(("window", "window_right", "prefix", "page"), T_kv // 4) | {"softcap": softcap}
    if T_kv < 64:
        most["page"] = T_kv // 5
    sizes = ((name, getattr(case, name)) for name in most)
    return {name: max(1, min(size, most[name])) for name, size in sizes if size is not None}
