"""From a run to a tidy frame: one row per measured cell, one column per fact; and the questions asked of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from .runs import Run

#: Every field of a case, in the order in which people say them; the first ones vary slowest when panels are laid out.
AXES = (
    "device", "mode", "scope", "source", "mask", "dropout", "out_dropout", "qkv_bias", "out_bias",
    "threads", "B", "d_model", "H", "H_kv", "D_h", "D_v", "T", "T_kv", "dtype",
)  # fmt: skip

#: Seconds, from pytest-benchmark's stats.
STATS = ("median", "q1", "q3", "min", "max", "mean", "stddev", "iqr", "rounds", "iterations")

#: An axis that follows from others says nothing of its own where it does: (axis, what it may follow from).
_FOLLOWS = (
    ("d_model", ("H", "D_h")),
    ("T_kv", ("T",)),
    ("H_kv", ("H",)),
    ("D_v", ("D_h",)),
    ("D_h", ("H",)),
)

#: Two ranges of bytes this close are one answer: allocators round.
LEAN_WITHIN = 1.01

#: Times as large as the next: said in words, so that all others stay apart on their axis.
OFF_THE_CHART = 8.0


def tidy(run: Run) -> pd.DataFrame:
    """One row per benchmark: its extra_info, its stats in seconds, and

    `speedup`  median of the yardstick in the same case over this median (NaN without one),
    `spread`   interquartile range over median,
    `wrong`    whether this implementation failed the gate in any cell of the run,
    `tied`     whether its interquartile range reaches down to that of the fastest of its case.

    Implementations keep the shelf's order (those unknown to it follow), cases the file's. Never raises on an empty run.
    """
    records = [{**row["extra_info"], **{key: row["stats"].get(key) for key in STATS}} for row in run.rows]
    frame = pd.DataFrame.from_records(records, columns=_columns(records))
    for key in (*STATS, "error", "error_bound", "peak_bytes", "flops", "bytes"):
        frame[key] = pd.to_numeric(frame[key], errors="coerce").astype(float)
    frame["impl"] = frame["impl"].astype(str)
    frame["speedup"] = _over_yardstick(frame, run.yardstick)
    frame["spread"] = (frame["q3"] - frame["q1"]) / frame["median"]
    frame["wrong"] = frame["impl"].isin(run.wrong)
    frame["tied"] = tied(frame)
    return frame


def skipped(run: Run) -> pd.DataFrame:
    """One row per cell without numbers: impl, id, reason, detail."""
    return pd.DataFrame(run.skipped, columns=["impl", "id", "reason", "detail"])


def varying(frame: pd.DataFrame) -> list[str]:
    """Axes with more than one value in the frame, without those that merely follow from others."""
    axes = [axis for axis in AXES if axis in frame and frame[axis].nunique(dropna=False) > 1]
    for axis, sources in _FOLLOWS:
        told = [source for source in sources if source in axes]
        if axis in axes and told and _follows(frame, axis, told):
            axes.remove(axis)
    return axes


def groups(frame: pd.DataFrame, axes: list[str]) -> list[tuple[dict[str, Any], pd.DataFrame]]:
    """The frame split by the values of some axes, in their natural order: (values, rows) each."""
    if frame.empty:
        return []
    if not axes:
        return [({}, frame)]
    split = frame.groupby(axes, sort=False, dropna=False)
    parts = [(dict(zip(axes, values, strict=True)), part) for values, part in split]
    first_seen = {axis: list(pd.unique(frame[axis])) for axis in axes}
    return sorted(parts, key=lambda part: [_order(part[0][axis], first_seen[axis]) for axis in axes])


def own_keys_unsaid(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with T_kv missing where it is T: a sequence that attends to itself has no length of keys of its own.

    Without it, self-attention beside decoding or cross-attention would be one setting for every T.
    """
    return frame.assign(T_kv=frame["T_kv"].where(frame["T_kv"] != frame["T"]))


def settings(frame: pd.DataFrame) -> dict[str, Any]:
    """The axes with one value in the whole frame, and that value."""
    return {axis: frame[axis].iloc[0] for axis in AXES if axis in frame and frame[axis].nunique(dropna=False) == 1}


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as dictionaries from column to value."""
    columns = list(map(str, frame.columns))
    return [dict(zip(columns, row, strict=True)) for row in frame.to_numpy(dtype=object).tolist()]


def leanest(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows whose peak memory is within a hundredth of the smallest."""
    known = frame.dropna(subset=["peak_bytes"])
    return known.loc[known["peak_bytes"] <= float(known["peak_bytes"].min()) * LEAN_WITHIN]


def tied(frame: pd.DataFrame) -> pd.Series[bool]:
    """For every row, whether its interquartile range reaches down to that of the fastest of its case in this frame."""
    return frame["q1"] <= frame["id"].map(_slowest_q3_of_the_best(frame))


def fastest(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of one case whose interquartile range overlaps the fastest one's, fastest first."""
    return frame[frame["tied"]].sort_values("median")


def within(values: Iterable[float]) -> list[float]:
    """Sorted values less those at the top that would squeeze all others: from the first that is OFF_THE_CHART.

    >>> within([1.0, 2.0, 40.0])
    [1.0, 2.0]
    """
    kept = sorted(values)
    for i in range(1, len(kept)):
        if kept[i] > OFF_THE_CHART * kept[i - 1]:
            return kept[:i]
    return kept


def _columns(records: list[dict[str, Any]]) -> list[str]:
    always = ("impl", "id", *AXES, *STATS, "error", "error_bound", "peak_bytes", "flops", "bytes", "kernel", "clock")
    return list(dict.fromkeys((*always, *(key for record in records for key in record))))


def _over_yardstick(frame: pd.DataFrame, yardstick: str | None) -> pd.Series[float]:
    base = frame.loc[frame["impl"] == yardstick, ["id", "median"]].drop_duplicates("id").set_index("id")["median"]
    return frame["id"].map(base).astype(float) / frame["median"]


def _slowest_q3_of_the_best(frame: pd.DataFrame) -> pd.Series[float]:
    """For each case id, q3 of the row with the smallest median: whoever's q1 lies below it overlaps the best."""
    told = frame[["id", "median", "q3"]].dropna(subset=["median"])
    return told.sort_values("median").drop_duplicates("id").set_index("id")["q3"]


def _follows(frame: pd.DataFrame, axis: str, sources: list[str]) -> bool:
    return bool((frame.groupby(sources, dropna=False)[axis].nunique(dropna=False) == 1).all())


def _order(value: Any, seen: list[Any]) -> tuple[int, float]:
    """Numbers by size, words as they came in the file."""
    is_number = isinstance(value, int | float) or hasattr(value, "dtype")
    return (0, float(value)) if is_number and value == value else (1, float(seen.index(value) if value in seen else 0))
