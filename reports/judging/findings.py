"""Findings on disturbances of a run: wrong outputs, page faults, scatter between processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stats import estimate, shares
from stats.estimate import grouped

from ..reading import units, words
from . import frame as fr
from .frame import Row
from .grid import slowdown

PART = 0.10
"""Share of a call's time in page faults from which on they are mentioned."""

KEEPING = "MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184 (--allocator keep) or tcmalloc"
"""Settings with which a program keeps its pages."""


def wrong(rows: Iterable[Row], skipped: Iterable[Row]) -> list[str]:
    """Return a warning for every implementation that failed the correctness check, with its first failure."""
    found = grouped((cell["impl"], cell) for cell in skipped if cell["reason"] == "wrong")
    measured = {row["impl"] for row in rows}
    return [
        f"{name} {words.WRONG} did not pass the correctness check in {words.plural(len(cells), 'cell')}: {cells[0]['detail']}."
        f"{' Its numbers elsewhere are in doubt.' * (name in measured)}"
        for name, cells in found.items()
    ]


def page_faults(rows: Iterable[Row]) -> str:
    """Describe the call that loses most time to page faults where glibc has its own settings; '' if none loses `PART`.

    A run that keeps pages has `fresh_pages_s`, seconds with those settings; another one has `kept_pages_s`.
    """
    usable = [
        {**row, "kept": min(row["median"], row["kept_pages_s"]), "fresh": max(row["median"], row["fresh_pages_s"])}
        for row in fr.trusted(rows)
    ]
    faulting = [row for row in usable if row["kept"] <= (1 - PART) * row["fresh"]]
    if not faulting:
        return ""
    most = max(faulting, key=lambda row: row["fresh"] - row["kept"])
    fastest = fr.ranked(row for row in usable if row["id"] == most["id"])[0]
    kept, fresh = (units.seconds(most[way]) for way in ("kept", "fresh"))
    text = (
        f"With glibc's own settings {most['impl']} takes {fresh} at {words.place(most, always=fr.varying(usable))}, of which "
        f"{shares.percent(1 - most['kept'] / most['fresh'])} are page faults. With {KEEPING} it takes {kept}"
    )
    if fastest["impl"] != most["impl"]:
        own = fr.ratio(most, fastest).value  # as in the tables; that with the other settings follows from the medians
        kept, fresh = (own * most[way] / most["median"] * fastest["median"] / fastest[way] for way in ("kept", "fresh"))
        instead = f"is {slowdown(kept)}× instead of" if kept > 1 else "is gone: it was"
        text += f", and {fastest['impl']}'s lead {instead} {slowdown(fresh)}×"
    return f"{text}."


def between_processes(rows: Sequence[Row]) -> str:
    """Tell how far processes move a ratio, which its interval includes."""
    usual = estimate.BETWEEN_PROCESSES
    found, prior = map(shares.percent, (rows[0]["between_processes"] if rows else usual, usual))
    return f"Intervals include the variation between processes: {found} (standard deviation; prior {prior})."
