"""The rules of a case in a probe, which is shorter: a window that is as long as the probe would hide nothing there."""

from __future__ import annotations

from typing import Any

from ..cases.case import Case


def within(case: Case, T_kv: int, softcap: int) -> dict[str, Any]:
    """What counts keys, short enough that some are hidden among T_kv, pages, and a cap that a probe's scores reach.

    A fifth of 37 tokens is a page of which the last one holds two.
    """
    most = dict.fromkeys(("window", "window_right", "prefix"), T_kv // 4) | {"page": T_kv // 5, "softcap": softcap}
    sizes = ((name, getattr(case, name)) for name in most)
    return {name: max(1, min(size, most[name])) for name, size in sizes if size is not None}
