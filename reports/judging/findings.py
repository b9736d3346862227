"""What disturbs a run, in sentences computed from its frame: wrong answers, page faults, memory that torch does not know of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from stats import shares

from ..reading import units, words
from . import frame as fr

FAULT_SECONDS, LARGE_PART = 1e-6, 0.10
"""What a minor page fault usually takes, page cleared: 0.5 on bare metal to 3 µs in a virtual machine; and the part of a call
from which that is said."""

UNEXPLAINED, TIMES = 8 * 2**20, 1.6
"""Bytes by which a process may grow beyond what torch allocated, and how many times as much it may be: libraries pack matrices,
and malloc rounds and keeps some of what was freed a moment ago."""


def findings(frame: pd.DataFrame) -> list[str]:
    """What disturbs times or memory, in sentences."""
    usable = fr.own_keys_unsaid(frame.dropna(subset=["median"]))
    return list(filter(None, [page_faults(usable), hidden_memory(usable)])) if len(usable) else []


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


def page_faults(frame: pd.DataFrame) -> str:
    """In how many cells the system's page faults take a large part of the time, and where they take most."""
    part = frame["page_faults"] * FAULT_SECONDS / frame["median"]
    count = int((part >= LARGE_PART).sum())
    if not count:
        return ""
    most = _top(frame, part)
    return (
        f"In {count} of {words.plural(len(frame), 'cell')} the system maps fresh memory at every call, and page faults take "
        f"{shares.percent(LARGE_PART)} of the time or more, at {units.seconds(FAULT_SECONDS, 1)} each: most of all for "
        f"{_name(most)} at {_place(frame, most)}, {most['page_faults']:,.0f} a call."
    )


def hidden_memory(frame: pd.DataFrame) -> str:
    """Whose process grew by more than torch allocated, and where most; '' where memory is explained."""
    unexplained = frame["peak_rss_bytes"] - frame["peak_bytes"]
    beyond = unexplained[(unexplained > UNEXPLAINED) & (frame["peak_rss_bytes"] > TIMES * frame["peak_bytes"])]
    if beyond.empty:
        return ""
    most = _top(frame, beyond)
    return (
        f"Resident memory grew by much more than tensors account for in {len(beyond)} of "
        f"{words.plural(len(frame), 'cell')}, most for {_name(most)} at {_place(frame, most)}: "
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


def _top(frame: pd.DataFrame, by: pd.Series[float]) -> dict[str, Any]:
    """The row of the frame with the largest of these values."""
    return fr.records(frame.loc[[by.idxmax()]])[0]


def _name(row: Mapping[str, Any]) -> str:
    """Of a row's implementation, marked if it was wrong anywhere."""
    return words.marked(row["impl"], [row["impl"]] if row["wrong"] else [])


def _place(frame: pd.DataFrame, row: Mapping[str, Any]) -> str:
    """Where one of the frame's rows stands."""
    return words.place(row, always=fr.varying(frame))
