"""What the numbers say, in sentences. Every word about an implementation is computed from the frame."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from stats import shares

from ..reading import units, words
from ..reading.words import COMPILED, base
from . import frame as fr

FAULT_SECONDS, LARGE_PART = 1e-6, 0.10
"""What a minor page fault usually takes, page cleared: 0.5 on bare metal to 3 µs in a virtual machine; and the part of a call
from which that is said."""

UNEXPLAINED, TIMES = 8 * 2**20, 1.6
"""Bytes by which a process may grow beyond what torch allocated, and how many times as much it may be: libraries pack matrices,
and malloc rounds and keeps some of what was freed a moment ago."""


def findings(frame: pd.DataFrame, baseline_impl: str | None, skipped: pd.DataFrame) -> list[str]:
    """What is worth a sentence beside the answer, the most useful one first."""
    wrongs = wrong(skipped)
    usable = fr.own_keys_unsaid(frame.dropna(subset=["median"]))
    if usable.empty:
        counts = skipped["reason"].value_counts()
        reasons = ", ".join(f"{count} {str(reason).replace('_', ' ')}" for reason, count in counts.items())
        nothing = f"No cell of this run has a number: {reasons}." if reasons else "This run holds no cells."
        return [nothing, *wrongs]
    said = [lean(usable), gain(usable, baseline_impl), compiled(usable), page_faults(usable), hidden_memory(usable)]
    return [*wrongs, *filter(None, said)]


def wrong(skipped: pd.DataFrame) -> list[str]:
    """A warning for every implementation that failed the gate."""
    cells = skipped[skipped["reason"] == "wrong"].groupby("impl", sort=False).size()
    return [
        f"{name} {words.WRONG} did not pass the correctness check in {words.plural(count, 'cell')}: "
        "there are no numbers there, and its others are in doubt."
        for name, count in cells.items()
    ]


def lean(frame: pd.DataFrame) -> str:
    """Who needs least memory at the largest case, and what the most wasteful one needs there."""
    known = frame[frame["peak_bytes"] > 0]
    if known["impl"].nunique() < 2:
        return ""
    most = _top(known, known["peak_bytes"])
    rows = known[known["id"] == most["id"]]
    least = fr.leanest(rows)
    where, need = _place(frame, most), units.memory(least["peak_bytes"].iloc[0])
    if len(least) == len(rows):
        return f"At {where} all need the same memory, {need}."
    return (
        f"{words.listing(map(_name, fr.records(least)))} {'needs' if len(least) == 1 else 'need'} least memory at {where}: "
        f"{need}; {_name(most)} needs {units.memory(most['peak_bytes'])}, "
        f"{shares.significant(most['peak_bytes'] / least['peak_bytes'].min(), 2)} times as much."
    )


def gain(frame: pd.DataFrame, baseline_impl: str | None) -> str:
    """The largest speed-up over the baseline implementation that was shown, and where: whose interval begins highest."""
    judged = frame["over"].astype(bool) & (frame["ratio_high"] <= shares.TOO_WIDE * frame["ratio_low"])
    others = frame[judged & (frame["impl"] != baseline_impl) & ~frame["wrong"]]
    if others.empty:
        return ""
    best = _top(others, -others["ratio_high"])
    name, much, where = _name(best), speedup(best), _place(frame, best)
    if best["ratio_high"] < 1:
        return f"The largest speed-up over {baseline_impl} is {much}, by {name} at {where}."
    return f"Nothing here is shown to be faster than {baseline_impl}; {name} comes closest, {much} at {where}."


def speedup(row: Mapping[str, Any]) -> str:
    """'1.96× (1.90 to 2.03)', with digits that its interval warrants; '1.9×' where it has none."""
    return units.bounded_times(row["speedup"], 1 / row["ratio_high"], 1 / row["ratio_low"])


def compiled(frame: pd.DataFrame) -> str:
    """What compiling brings: the range of compiled over eager time, over the cases where a difference was shown."""
    parts = []
    for name, rows in frame[frame["impl"].str.endswith(COMPILED)].groupby("impl", sort=False):
        eager = base(str(name))
        both = [over[eager] for over in rows["over"] if eager in over]
        shown = [it.value for it in both if it.resolved]
        if shown:
            marked = words.marked(eager, frame.loc[frame["wrong"], "impl"])
            times = f"{_name(fr.records(rows)[0])} takes {units.between(min(shown), max(shown))} the time of {marked}"
            few = f" in {len(shown)} of {words.plural(len(both), 'case')}, no difference shown in the rest"
            parts.append(times + few * (len(shown) < len(both)))
    return f"Compiled: {'; '.join(parts)}." if parts else ""


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


def roof(frame: pd.DataFrame) -> str:
    """Who comes nearest to what this machine was measured to do, and where."""
    if frame["roof"].isna().all():
        return ""
    best = _top(frame, frame["roof"])
    share = units.percent(best["roof"])
    return f"By medians, {_name(best)} comes nearest to this machine's roof: {share} of it, at {_place(frame, best)}."


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
