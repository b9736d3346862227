"""What page faults cost a call, and what they do to the fastest's lead, in a sentence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .shares import percent, significant

PART = 0.10
"""Of a call's time: from it on page faults are worth a sentence."""

KEEPING = "--allocator keep (MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184) or tcmalloc"
"""How glibc keeps its pages, in a run and in any program."""


def sentence(
    rows: Iterable[Mapping[str, Any]], seconds: Callable[[float], str], place: Callable[[Mapping[str, Any]], str]
) -> str:
    """Of the call that loses most time to page faults; '' where none loses `PART` of its own.

    `rows`: impl, id (of the case), median and kept_pages_s, both in seconds, the latter None or NaN where it was not measured.
    `seconds` and `place` say a time and where a row stands.
    """
    rows = [row for row in rows if row["median"] > 0]
    faulting = [row for row in rows if _kept(row) <= (1 - PART) * row["median"]]
    if not faulting:
        return ""
    most = max(faulting, key=lambda row: row["median"] - _kept(row))
    fastest = min((row for row in rows if row["id"] == most["id"]), key=lambda row: row["median"])
    taken, kept = most["median"], _kept(most)
    said = (
        f"{percent(1 - kept / taken)} of {most['impl']}'s {seconds(taken)} at {place(most)} are page faults: "
        f"with {KEEPING} it takes {seconds(kept)}"
    )
    if fastest is not most:
        before, after = taken / fastest["median"], kept / _kept(fastest)
        lead = f"is {significant(after, 2)}\N{MULTIPLICATION SIGN} instead of" if after > 1 else "is gone: it was"
        said += f", and {fastest['impl']}'s lead {lead} {significant(before, 2)}\N{MULTIPLICATION SIGN}"
    return f"{said}."


def _kept(row: Mapping[str, Any]) -> float:
    """Seconds of a call without page faults."""
    kept = row.get("kept_pages_s")
    return float(row["median"]) if kept is None or math.isnan(kept) else min(float(kept), float(row["median"]))
