"""Findings on disturbances of a run: wrong outputs, page faults, memory unknown to torch."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

import pandas as pd

from stats import shares

from ..reading import units, words
from . import frame as fr

LOOKS = ("reference workload", "times measured", "median", "fastest", "slowest")
"""Columns of `looks`."""

PART = 0.10
"""Share of a call's time in page faults from which on they are mentioned."""

KEEPING = "--allocator keep (MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184) or tcmalloc"
"""Settings with which glibc keeps its pages, in a run and in any program."""

UNEXPLAINED, TIMES = 8 * 2**20, 1.6
"""Bytes by which a process may grow beyond torch's allocations, and the ratio allowed: libraries pack matrices, and
malloc rounds and caches memory.
"""


def findings(frame: pd.DataFrame) -> list[str]:
    """Return sentences on disturbances of times or memory."""
    usable = fr.own_keys_unsaid(frame.dropna(subset=["median"]))
    return list(filter(None, [kept_pages(usable), hidden_memory(usable)])) if len(usable) else []


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


def kept_pages(frame: pd.DataFrame) -> str:
    """Describe the call that loses most time to page faults, and its time without them; '' if none loses `PART`, or
    none was measured (`kept_pages_s`, seconds).
    """
    usable = fr.trusted(frame)
    rows = fr.records(usable.assign(kept=usable[["kept_pages_s", "median"]].min(axis=1)))
    faulting = [row for row in rows if row["kept"] <= (1 - PART) * row["median"]]
    if not faulting:
        return ""
    most = max(faulting, key=lambda row: row["median"] - row["kept"])
    fastest = min((row for row in rows if row["id"] == most["id"]), key=lambda row: row["median"])
    said = (
        f"{shares.percent(1 - most['kept'] / most['median'])} of {most['impl']}'s {units.seconds(most['median'])} at "
        f"{words.place(most, always=fr.varying(usable))} are page faults: with {KEEPING} it takes {units.seconds(most['kept'])}"
    )
    if fastest is not most:
        before, after = most["median"] / fastest["median"], most["kept"] / fastest["kept"]
        lead = f"is {shares.significant(after, 2)}× instead of" if after > 1 else "is gone: it was"
        said += f", and {fastest['impl']}'s lead {lead} {shares.significant(before, 2)}×"
    return f"{said}."


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
        f"{units.memory(most['peak_rss_bytes'])}, of which tensors take {units.memory(most['peak_bytes'])}. Private buffers "
        "do that, and allocators that keep what is freed."
    )


def calls(frame: pd.DataFrame) -> str:
    """Return the number of calls compared with the reference; '' if unknown."""
    known = frame.loc[frame["calls_compared"] > 0, "calls_compared"]
    if known.empty:
        return ""
    fewest, most = (f"{count:,.0f}" for count in (known.min(), known.max()))
    many = f"{fewest} to {most}" if fewest != most else fewest
    return f"During timing, the outputs of {many} calls per cell were compared with the verified output."


def looks(controls: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the times of the reference workload during the run, one line per part."""
    spent = {name: [look["seconds"] for look in seen] for name, seen in controls.get("looks", {}).items() if seen}
    return [(name, str(len(of)), *map(units.seconds, (median(of), min(of), max(of)))) for name, of in spent.items()]
