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
    right = frame[~frame["wrong"]]
    listed = sources(frame, published)
    return [
        _line(right[right["id"] == it.get("id")], it, 1 + listed.index(_source(it)))
        for it in _measured(frame, published)
    ]


def sources(frame: pd.DataFrame, published: Sequence[dict[str, Any]]) -> list[str]:
    """Where the table's figures are from, on which machine they were measured, and what else differs: each said once."""
    return list(dict.fromkeys(map(_source, _measured(frame, published))))


def orders(frame: pd.DataFrame, published: Sequence[dict[str, Any]]) -> list[str]:
    """Whether implementations rank here as they do there: a sentence a case and machine with three of them or more."""
    right = {key: fr.records(part) for key, part in frame[~frame["wrong"]].groupby("id", sort=False)}
    theirs: dict[tuple[str, str], dict[str, float]] = {}
    for it in published:
        theirs.setdefault((str(it.get("id")), str(it.get("machine"))), {})[str(it.get("impl"))] = float(it["seconds"])
    return [
        sentence
        for (case, machine), times in theirs.items()
        for sentence in _order(
            {row["impl"]: row for row in right.get(case, []) if row["impl"] in times}, times, machine
        )
    ]


def _order(rows: Mapping[str, Mapping[str, Any]], times: Mapping[str, float], machine: str) -> Iterator[str]:
    """`rows`: what was measured here of one case, of the implementations that have `times` there."""
    if len(rows) < 3:
        return
    alike = opposite = 0
    for faster, slower in combinations(sorted(rows, key=times.__getitem__), 2):
        ratio = fr.ratio(rows[faster], rows[slower])
        alike, opposite = alike + ratio.faster, opposite + ratio.slower
    pairs = len(rows) * (len(rows) - 1) // 2
    there = ", ".join(sorted(rows, key=times.__getitem__))
    here = ", ".join(sorted(rows, key=lambda name: float(rows[name]["median"])))
    yield (
        f"Best first, {there} on {machine}; {here} here: of {pairs} pairs {alike} in the same order, {opposite} in the "
        f"other, {pairs - alike - opposite} not told apart here."
    )


def _measured(frame: pd.DataFrame, published: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The figures whose case has a right row."""
    ids = set(frame.loc[~frame["wrong"], "id"])
    return [it for it in published if it.get("id") in ids]


def _source(figure: Mapping[str, Any]) -> str:
    source, machine, differs = (str(figure.get(name) or units.MISSING) for name in ("source", "machine", "differs"))
    return f"{source}; machine: {machine}; {differs}"


def _line(case: pd.DataFrame, figure: dict[str, Any], source: int) -> tuple[str, ...]:
    """`case`: the rows of the figure's case; `source`: its place among `sources`, from 1."""
    title = words.place(fr.settings(case), always=("B", "H", "D_h", "T"))
    flops, nearest = float(case["flops"].iloc[0]), case[case["impl"] == figure.get("impl")]
    ahead = case.sort_values(["leads", "median"], ascending=[False, True]).iloc[0]
    kernel, impl = (str(figure.get(name) or units.MISSING) for name in ("kernel", "impl"))
    return (
        title,
        kernel,
        _time(float(figure["seconds"]), flops),
        impl,
        _time(float(nearest["median"].iloc[0]), flops) if len(nearest) else units.MISSING,
        str(ahead["impl"]),
        _time(float(ahead["median"]), flops),
        str(source),
    )


def _time(seconds: float, flops: float) -> str:
    """'8.28 ms, 0.519 TFLOP/s'"""
    return f"{units.seconds(seconds)}, {shares.significant(flops / seconds / 1e12)} TFLOP/s"
