"""What the proof of a run's rows can detect, and what it can't: lengths, calls, and memory that torch doesn't know of."""

from __future__ import annotations

import pandas as pd

from ..reading import units, words
from ..reading.axes import axis_names
from . import frame as fr

RARE = 200
"""A mistake in one of so many calls is what `ENOUGH` compared calls find."""

ENOUGH = 600
"""1 - (1 - 1 / RARE) ** ENOUGH = 95 %"""

UNEXPLAINED = 8 * 2**20
"""Bytes by which a process may grow beyond what torch allocated: libraries pack matrices, and malloc rounds."""

TIMES = 1.6
"""How many times as much it may be: malloc keeps some of what was freed a moment ago."""


def calls(frame: pd.DataFrame) -> str:
    """How many calls were compared with the reference, and what that would find; '' where nothing tells."""
    known = _column(frame, "calls_compared").dropna()
    known = known[known > 0]
    if known.empty:
        return ""
    fewest, most = (f"{count:,.0f}" for count in (known.min(), known.max()))
    many = f"{fewest} to {most} calls" if fewest != most else f"{fewest} calls"
    enough = int((known >= ENOUGH).sum())
    return (
        f"During timing, the outputs of {many} per cell were compared with the verified output. To detect an error that "
        f"occurs in 1 of {RARE} calls with 95 % probability takes {ENOUGH} comparisons: {enough or 'no'} "
        f"{'cells' if enough > 1 else 'cell'} of {len(known)} had as many."
    )


def rounds(frame: pd.DataFrame) -> str:
    """Whose limits allow round lengths alone, so that no ragged one was proved; '' where there are none."""
    if "proved_ragged" not in frame:
        return ""
    names = list(dict.fromkeys(frame.loc[frame["proved_ragged"].eq(False), "impl"]))
    if not names:
        return ""
    verb = "was" if len(names) == 1 else "were"
    return f"{words.listing(names)} {verb} proved at round lengths alone: the declared limits allow no others."


def unrepeated(frame: pd.DataFrame) -> str:
    """Whose calls on the same inputs differed in their last bits; '' where all repeat, or nothing tells."""
    names = list(dict.fromkeys(frame.loc[frame["repeats"].eq(False), "impl"])) if "repeats" in frame else []
    if not names:
        return ""
    return (
        f"Calls on the same inputs differ in their last bits for {words.listing(names)}: the order of some sum varies."
    )


def hidden_memory(frame: pd.DataFrame) -> str:
    """Whose process grew by more than torch allocated, and where most; '' where memory is explained."""
    resident = _column(frame, "peak_rss_bytes")
    unexplained = resident - frame["peak_bytes"]
    beyond = frame.assign(resident=resident, unexplained=unexplained)[
        (unexplained > UNEXPLAINED) & (resident > TIMES * frame["peak_bytes"])
    ]
    if beyond.empty:
        return ""
    most = fr.records(beyond.sort_values("unexplained"))[-1]
    where = words.place({axis: most[axis] for axis in axis_names()}, always=fr.varying(frame))
    return (
        f"Resident memory grew by much more than tensors account for in {len(beyond)} of "
        f"{words.plural(len(frame), 'cell')}, most for {most['impl']} at {where}: {units.memory(most['resident'])}, of which "
        f"tensors take {units.memory(most['peak_bytes'])}. Private buffers do that, and allocators that keep what is freed."
    )


def _column(frame: pd.DataFrame, name: str) -> pd.Series:
    """Numbers; NaN where a run has none."""
    return pd.to_numeric(frame[name] if name in frame else pd.Series(float("nan"), frame.index), errors="coerce")
