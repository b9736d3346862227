"""What disturbs a run, in sentences computed from its frame: wrong answers, page faults, memory that torch does not know of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from stats import faults, shares

from ..reading import units, words
from . import frame as fr
from .processes import positive

FAULT_SECONDS = 1e-6
"""Of a minor page fault, page cleared, where a run does not say: 0.5 µs on bare metal to 3 µs in a virtual machine."""

LARGE_PART = 0.10
"""The part of a call from which page faults are told of."""

UNEXPLAINED, TIMES = 8 * 2**20, 1.6
"""Bytes by which a process may grow beyond what torch allocated, and how many times as much it may be: libraries pack matrices,
and malloc rounds and keeps some of what was freed a moment ago."""


def findings(frame: pd.DataFrame, state: Mapping[str, Any]) -> list[str]:
    """What disturbs times or memory, in sentences. `state` is the run's: `page_fault_s` are seconds of a page fault."""
    usable = fr.own_keys_unsaid(frame.dropna(subset=["median"]))
    if not len(usable):
        return []
    faults_of = kept_pages(usable) or page_faults(usable, state.get("page_fault_s"))
    return list(filter(None, [faults_of, hidden_memory(usable)]))


def nothing(skipped: pd.DataFrame) -> str:
    """Of a run without a number."""
    counts = skipped["reason"].value_counts()
    reasons = ", ".join(f"{count} {str(reason).replace('_', ' ')}" for reason, count in counts.items())
    return f"No cell of this run has a number: {reasons}." if reasons else "This run holds no cells."


def wrong(frame: pd.DataFrame, skipped: pd.DataFrame) -> list[str]:
    """A warning for every implementation that failed the gate, with why it did first."""
    found = skipped[skipped["reason"] == "wrong"].groupby("impl", sort=False)["detail"]
    measured = set(frame["impl"])
    return [
        f"{name} {words.WRONG} did not pass the correctness check in {words.plural(len(details), 'cell')}: {details.iloc[0]}."
        f"{' Its numbers elsewhere are in doubt.' * (name in measured)}"
        for name, details in found
    ]


def kept_pages(frame: pd.DataFrame) -> str:
    """What the call that loses most time to page faults takes without them; '' where none loses much, or none was measured."""
    usable = fr.trusted(frame)
    return faults.sentence(fr.records(usable), units.seconds, lambda row: words.place(row, always=fr.varying(usable)))


def page_faults(frame: pd.DataFrame, measured: Any = None) -> str:
    """In how many cells the system's page faults take a large part of the time, and where they take most."""
    each = measured if positive(measured) else FAULT_SECONDS
    part = frame["page_faults"] * each / frame["median"]
    count = int((part >= LARGE_PART).sum())
    if not count:
        return ""
    most = fr.records(frame.loc[[part.idxmax()]])[0]
    return (
        f"In {count} of {words.plural(len(frame), 'cell')} the system maps fresh memory at every call, and page faults take "
        f"{shares.percent(LARGE_PART)} of the time or more, at {units.seconds(each, 1)} each: most of all for "
        f"{_place(frame, most)}, {most['page_faults']:,.0f} a call."
    )


def hidden_memory(frame: pd.DataFrame) -> str:
    """Whose process grew by more than torch allocated, and where most; '' where memory is explained."""
    unexplained = frame["peak_rss_bytes"] - frame["peak_bytes"]
    beyond = unexplained[(unexplained > UNEXPLAINED) & (frame["peak_rss_bytes"] > TIMES * frame["peak_bytes"])]
    if beyond.empty:
        return ""
    most = fr.records(frame.loc[[beyond.idxmax()]])[0]
    return (
        f"Resident memory grew by much more than tensors account for in {len(beyond)} of "
        f"{words.plural(len(frame), 'cell')}, most for {_place(frame, most)}: "
        f"{units.memory(most['peak_rss_bytes'])}, of which tensors take {units.memory(most['peak_bytes'])}. Private buffers "
        "do that, and allocators that keep what is freed."
    )


def calls(frame: pd.DataFrame) -> str:
    """How many calls were compared with the reference; '' where nothing tells."""
    known = frame.loc[frame["calls_compared"] > 0, "calls_compared"]
    if known.empty:
        return ""
    fewest, most = (f"{count:,.0f}" for count in (known.min(), known.max()))
    many = f"{fewest} to {most}" if fewest != most else fewest
    return f"During timing, the outputs of {many} calls per cell were compared with the verified output."


def _place(frame: pd.DataFrame, row: Mapping[str, Any]) -> str:
    """'fused at T=128 fp32': a row, marked if its implementation was wrong anywhere."""
    return f"{words.marked(row['impl'], [row['impl']] * row['wrong'])} at {words.place(row, always=fr.varying(frame))}"
