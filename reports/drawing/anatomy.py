"""What a layer is made of: the core beside the layer, backward beside forward, compiling beside running."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..judging import frame as fr
from ..reading import words
from ..reading.axes import axis_names
from ..reading.words import COMPILED, base


@dataclass(frozen=True)
class Pair:
    """One implementation measured in two ways, all else being equal. Seconds; `place` is what varies but for T, and
    `shown` whether the two were shown to differ."""

    impl: str
    place: str
    T: int
    one: float
    other: float
    shown: bool

    @property
    def share(self) -> float:
        """The first as a share of the second."""
        return self.one / self.other


@dataclass(frozen=True)
class Compiling:
    """One compiled cell. Seconds; `pays_after` calls the time spent compiling is won back, None if never; `place` is
    what varies but for T."""

    impl: str
    place: str
    T: int
    compile_s: float
    eager: float
    compiled: float
    pays_after: int | None
    cache: str
    """Whether it was compiled from scratch: `cold`, `warm`, or empty where the run doesn't say."""
    tied: bool
    """Whether no difference is shown: then there is nothing to win that is sure."""


def cores(frame: pd.DataFrame) -> list[Pair]:
    """The core, q, k and v to o, beside the whole layer with its projections, wherever both were measured."""
    return _pairs(frame, "scope", "core", "layer")


def passes(frame: pd.DataFrame) -> list[Pair]:
    """Forward beside forward and backward together, wherever both were measured."""
    return _pairs(frame, "mode", "forward", "backward")


def compilings(frame: pd.DataFrame) -> list[Compiling]:
    """Every compiled cell whose eager form was measured too, and whose time of compiling is known."""
    return list(_compilings(frame)) if "compile_s" in frame else []


def _pairs(frame: pd.DataFrame, axis: str, one: str, other: str) -> list[Pair]:
    both = frame[frame[axis].isin((one, other))].dropna(subset=["median"])
    keys = ["impl", *(a for a in axis_names() if a != axis)]
    said = [a for a in fr.varying(both) if a != axis]
    found: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in fr.records(both):
        place = tuple(
            None if row[key] != row[key] else row[key] for key in keys
        )  # NaN where the run knows no such axis
        found.setdefault(place, {}).setdefault(row[axis], row)
    return [
        Pair(a["impl"], _place(a, said), int(a["T"]), a["median"], b["median"], fr.ratio(a, b).resolved)
        for a, b in ((rows[one], rows[other]) for rows in found.values() if {one, other} <= set(rows))
    ]


def _compilings(frame: pd.DataFrame) -> Iterator[Compiling]:
    known = {(row["impl"], row["id"]): row for row in fr.records(frame.dropna(subset=["median"]))}
    said = fr.varying(frame)
    spent = pd.to_numeric(frame["compile_s"], errors="coerce")
    for row in fr.records(frame.assign(compile_s=spent).dropna(subset=["compile_s", "median"])):
        eager = known.get((base(row["impl"]), row["id"]))
        if row["impl"].endswith(COMPILED) and eager:
            ratio = fr.ratio(row, eager)
            won = eager["median"] * (1 - ratio.value) if ratio.processes else eager["median"] - row["median"]
            yield Compiling(
                impl=row["impl"],
                place=_place(row, said),
                T=int(row["T"]),
                compile_s=row["compile_s"],
                eager=eager["median"],
                compiled=row["median"],
                pays_after=math.ceil(row["compile_s"] / won) if won > 0 else None,
                cache=cache if isinstance(cache := row.get("compile_cache"), str) else "",
                tied=not ratio.resolved,
            )


def _place(row: dict[str, Any], said: list[str]) -> str:
    titled = {"T", "T_kv"} if row["T_kv"] == row["T"] else {"T"}
    at = {axis: row[axis] for axis in said if axis not in titled}
    return words.place(at, always=at)
