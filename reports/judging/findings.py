"""Findings on disturbances of a run: wrong outputs, page faults, memory unknown to torch."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

import pandas as pd

from stats import estimate, shares

from ..reading import units, words
from . import frame as fr

WORKLOAD = ("reference workload", "times measured", "median", "fastest", "slowest")
"""Columns of `reference_workload`."""

PART = 0.10
"""Share of a call's time in page faults from which on they are mentioned."""

KEEPING = "MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184 (--allocator keep) or tcmalloc"
"""Settings with which a program keeps its pages."""

UNEXPLAINED, TIMES = 8 * 2**20, 1.6
"""Bytes by which a process may grow beyond torch's allocations, and the ratio allowed: libraries pack matrices, and
malloc rounds and caches memory.
"""


def findings(frame: pd.DataFrame) -> list[str]:
    """Return sentences on disturbances of times or memory."""
    usable = fr.distinct_lengths(frame.dropna(subset=["median"]))
    return list(filter(None, [page_faults(usable), hidden_memory(usable)])) if len(usable) else []


def nothing(skipped: pd.DataFrame) -> str:
    """Explain a run without any number."""
    counts = skipped["reason"].value_counts()
    reasons = ", ".join(f"{count} {str(reason).replace('_', ' ')}" for reason, count in counts.items())
    return f"No cell of this run has a number: {reasons}." if reasons else "This run holds no cells."


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
    """Describe the call that loses most time to page faults where glibc has its own settings, in a run that keeps pages
    (`fresh_pages_s`, seconds) or in one that doesn't (`kept_pages_s`); '' if none loses `PART`, or none was measured.
    """
    usable = fr.trusted(frame)
    kept, fresh = usable[["kept_pages_s", "median"]].min(axis=1), usable[["fresh_pages_s", "median"]].max(axis=1)
    rows = fr.records(usable.assign(kept=kept, fresh=fresh))
    faulting = [row for row in rows if row["kept"] <= (1 - PART) * row["fresh"]]
    if not faulting:
        return ""
    most = max(faulting, key=lambda row: row["fresh"] - row["kept"])
    fastest = min((row for row in rows if row["id"] == most["id"]), key=lambda row: row["median"])
    place = words.place(most, always=fr.varying(usable))
    kept_s, fresh_s = units.seconds(most["kept"]), units.seconds(most["fresh"])
    leads = [most[way] / fastest[way] for way in ("kept", "fresh")]
    if most["fresh"] > most["median"]:
        said = (
            f"Page faults are left out: with glibc's own settings {most['impl']} takes {fresh_s} instead of {kept_s} at "
            f"{place}"
        )
        before, after = leads
        end = f". Programs avoid them as this run does, with {KEEPING}."
    else:
        part = shares.percent(1 - most["kept"] / most["fresh"])
        said = f"{part} of {most['impl']}'s {fresh_s} at {place} are page faults: with {KEEPING} it takes {kept_s}"
        after, before = leads
        end = "."
    if fastest is not most:
        lead = f"is {shares.significant(after, 2)}× instead of" if after > 1 else "is gone: it was"
        said += f", and {fastest['impl']}'s lead {lead} {shares.significant(before, 2)}×"
    return f"{said}{end}"


def hidden_memory(frame: pd.DataFrame) -> str:
    """Name implementations whose process grew by more than torch allocated, and where most; '' if there are none."""
    unexplained = frame["peak_rss_bytes"] - frame["peak_bytes"]
    beyond = unexplained[(unexplained > UNEXPLAINED) & (frame["peak_rss_bytes"] > TIMES * frame["peak_bytes"])]
    if beyond.empty:
        return ""
    most = fr.records(frame.loc[[beyond.idxmax()]])[0]
    return (
        f"Resident memory grew by much more than tensors account for in {len(beyond)} of "
        f"{words.plural(len(frame), 'cell')}, most for {words.marked(most['impl'], [most['impl']] * most['wrong'])} at "
        f"{words.place(most, always=fr.varying(frame))}: "
        f"{units.memory(most['peak_rss_bytes'])}, of which tensors take {units.memory(most['peak_bytes'])}. Possible "
        "reasons are private buffers, and allocators that keep freed memory."
    )


def between_processes(frame: pd.DataFrame) -> str:
    """Tell how far processes move a ratio, which its interval includes, and whether that was estimated."""
    usual = shares.percent(estimate.BETWEEN_PROCESSES)
    how = (
        f"estimated from this run, with {usual} as prior" if frame["processes"].max() > 1 else "assumed, of one process"
    )
    found = shares.percent(frame.attrs["between_processes"])
    return f"Intervals include what processes add to the scatter of visits: {found} (standard deviation; {how})."


def calls(frame: pd.DataFrame) -> str:
    """Return the number of calls compared with the reference; '' if unknown."""
    known = frame.loc[frame["calls_compared"] > 0, "calls_compared"]
    if known.empty:
        return ""
    fewest, most = (f"{count:,.0f}" for count in (known.min(), known.max()))
    many = f"{fewest} to {most}" if fewest != most else fewest
    return f"During timing, the outputs of {many} calls per cell were compared with the verified output."


def reference_workload(workload: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the times of the reference workload during the run, one line per part."""
    spent = {name: [sample["seconds"] for sample in seen] for name, seen in workload.get("looks", {}).items() if seen}
    return [(name, str(len(of)), *map(units.seconds, (median(of), min(of), max(of)))) for name, of in spent.items()]
