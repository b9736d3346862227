"""What disturbs a run, in sentences computed from its frame: wrong answers, page faults, memory that torch does not know of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from stats import faults

from ..reading import units, words
from . import frame as fr

UNEXPLAINED, TIMES = 8 * 2**20, 1.6
"""Bytes by which a process may grow beyond what torch allocated, and how many times as much it may be: libraries pack matrices,
and malloc rounds and keeps some of what was freed a moment ago."""


def findings(frame: pd.DataFrame) -> list[str]:
    """What disturbs times or memory, in sentences."""
    usable = fr.own_keys_unsaid(frame.dropna(subset=["median"]))
    return list(filter(None, [kept_pages(usable), hidden_memory(usable)])) if len(usable) else []


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
