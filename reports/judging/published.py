"""Times that others have published, beside those of a run in the same case. The run file holds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import pandas as pd

from stats import shares

from ..reading import units, words
from . import frame as fr

COLUMNS = ("case", "published", "theirs", "nearest here", "ours", "fastest here", "its time", "source")


def table(frame: pd.DataFrame, published: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """For people: a line a figure whose case was measured, in the order of the run file; its last column counts `sources`."""
    right, listed = fr.trusted(frame), sources(frame, published)
    return [
        (*_line(right[right["id"] == it["id"]], it), str(1 + listed.index(_source(it))))
        for it in _measured(frame, published)
    ]


def sources(frame: pd.DataFrame, published: Sequence[dict[str, Any]]) -> list[str]:
    """Where the table's figures are from, on which machine they were measured, and what else differs: each said once."""
    return list(dict.fromkeys(map(_source, _measured(frame, published))))


def orders(frame: pd.DataFrame, published: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Whether implementations rank here as they do there: a sentence a case and machine with three of them or more."""
    theirs: dict[tuple[str, str], dict[str, float]] = {}
    for it in _measured(frame, published):
        theirs.setdefault((it["id"], str(it.get("machine"))), {})[str(it.get("impl"))] = it["seconds"]
    right = fr.trusted(frame)
    for (case, machine), times in theirs.items():
        here = fr.records(right[(right["id"] == case) & right["impl"].isin(list(times))].sort_values("median"))
        if len(here) < 3:
            continue
        there = sorted(here, key=lambda row: times[row["impl"]])
        ratios = [fr.ratio(faster, slower) for faster, slower in combinations(there, 2)]
        alike, opposite = sum(it.faster for it in ratios), sum(it.slower for it in ratios)
        yield (
            f"Best first, {_names(there)} on {machine}; {_names(here)} here: of {len(ratios)} pairs {alike} in the same order, "
            f"{opposite} in the other, {len(ratios) - alike - opposite} not told apart here."
        )


def _names(rows: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(row["impl"] for row in rows)


def _measured(frame: pd.DataFrame, published: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The figures whose case has a right row."""
    ids = set(fr.trusted(frame)["id"])
    return [it for it in published if it.get("id") in ids]


def _source(figure: Mapping[str, Any]) -> str:
    source, machine, differs = (str(figure.get(name) or units.MISSING) for name in ("source", "machine", "differs"))
    return f"{source}; machine: {machine}; {differs}"


def _line(case: pd.DataFrame, figure: Mapping[str, Any]) -> tuple[str, ...]:
    """A figure beside the rows of its case."""
    best, *_ = rows = fr.ranked(case)
    nearest = [_time(row["median"], row) for row in rows if row["impl"] == figure.get("impl")]
    kernel, impl = (str(figure.get(name) or units.MISSING) for name in ("kernel", "impl"))
    return (
        words.place(best, always=("B", "H", "D_h", "T")), kernel, _time(figure["seconds"], best),
        impl, nearest[0] if nearest else units.MISSING, best["impl"], _time(best["median"], best),
    )  # fmt: skip


def _time(seconds: float, row: Mapping[str, Any]) -> str:
    """'8.28 ms, 0.519 TFLOP/s', by the operations of the row's case."""
    return f"{units.seconds(seconds)}, {shares.significant(row['flops'] / seconds / 1e12)} TFLOP/s"
