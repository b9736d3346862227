"""Findings on disturbances of a run: wrong outputs, page faults, memory outside of tensors, scatter between processes."""

from __future__ import annotations

import pandas as pd

from stats import estimate, shares

from ..reading import units, words
from . import frame as fr
from .grid import slowdown

PART = 0.10
"""Share of a call's time in page faults from which on they are mentioned."""

KEEPING = "MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184 (--allocator keep) or tcmalloc"
"""Settings with which a program keeps its pages."""

UNEXPLAINED, TIMES = 8 * 2**20, 1.6
"""Bytes by which a process may grow beyond torch's allocations, and the ratio allowed: libraries pack matrices, and
malloc rounds and caches memory.
"""


def wrong(frame: pd.DataFrame, skipped: pd.DataFrame) -> list[str]:
    """Return a warning for every implementation that failed the correctness check, with its first failure."""
    found = skipped[skipped["reason"] == "wrong"].groupby("impl", sort=False)["detail"]
    measured = set(frame["impl"])
    return [
        f"{name} {words.WRONG} did not pass the correctness check in {words.plural(len(details), 'cell')}: {details.iloc[0]}."
        f"{' Its numbers elsewhere are in doubt.' * (name in measured)}"
        for name, details in found
    ]


def page_faults(frame: pd.DataFrame) -> str:
    """Describe the call that loses most time to page faults where glibc has its own settings; '' if none loses `PART`.

    A run that keeps pages has `fresh_pages_s`, seconds with those settings; another one has `kept_pages_s`.
    """
    usable = fr.distinct_lengths(fr.trusted(frame))
    kept, fresh = usable[["kept_pages_s", "median"]].min(axis=1), usable[["fresh_pages_s", "median"]].max(axis=1)
    usable = usable.assign(kept=kept, fresh=fresh)
    faulting = [row for row in fr.records(usable) if row["kept"] <= (1 - PART) * row["fresh"]]
    if not faulting:
        return ""
    most = max(faulting, key=lambda row: row["fresh"] - row["kept"])
    fastest = fr.ranked(usable[usable["id"] == most["id"]])[0]
    times = [units.seconds(most[way]) for way in ("kept", "fresh")]
    text = (
        f"With glibc's own settings {most['impl']} takes {times[1]} at {words.place(most, always=fr.varying(usable))}, of "
        f"which {shares.percent(1 - most['kept'] / most['fresh'])} are page faults. With {KEEPING} it takes {times[0]}"
    )
    if fastest["impl"] != most["impl"]:
        own = fr.ratio(most, fastest).value  # as in the tables; that with the other settings follows from the medians
        kept, fresh = (own * most[way] / most["median"] * fastest["median"] / fastest[way] for way in ("kept", "fresh"))
        instead = f"is {slowdown(kept)}× instead of" if kept > 1 else "is gone: it was"
        text += f", and {fastest['impl']}'s lead {instead} {slowdown(fresh)}×"
    return f"{text}."


def hidden_memory(frame: pd.DataFrame) -> str:
    """Name the cell whose process grew most beyond torch's allocations; '' if none grew by more than is usual."""
    grown, tensors = frame["peak_rss_bytes"], frame["peak_bytes"]
    beyond = (grown - tensors)[(grown > tensors + UNEXPLAINED) & (grown > TIMES * tensors)]
    if beyond.empty:
        return ""
    most = fr.records(frame.loc[[beyond.idxmax()]])[0]
    return (
        f"In {words.plural(len(beyond), 'cell')} a call took more memory than its tensors, most {most['impl']} at "
        f"{words.place(most, always=fr.varying(frame))}: the process grew by {units.memory(most['peak_rss_bytes'])}, of "
        f"which tensors take {units.memory(most['peak_bytes'])}."
    )


def between_processes(frame: pd.DataFrame) -> str:
    """Tell how far processes move a ratio, which its interval includes, and whether that was estimated."""
    usual = shares.percent(estimate.BETWEEN_PROCESSES)
    how = (
        f"estimated from this run, with {usual} as prior" if frame["processes"].max() > 1 else "assumed, of one process"
    )
    found = shares.percent(frame.attrs["between_processes"])
    return f"Intervals include what processes add to the scatter of visits: {found} (standard deviation; {how})."
