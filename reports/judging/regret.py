"""Regret: what an implementation that chooses among kernels loses to the best of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from stats.ratios import Ratio

from ..reading import units, words
from ..reading.axes import axis_names
from . import frame as fr


@dataclass(frozen=True)
class Regret:
    """In one case: time of the one that chooses over that of the fastest kernel that was pinned."""

    impl: str
    pinned: str
    ratio: Ratio
    """Its interval holds all ratios of the case with 95 %: that the best of several was taken is part of it."""
    row: dict[str, Any]


def regrets(frame: pd.DataFrame) -> list[Regret]:
    """One for each case in which both were timed by turns and right everywhere; none in a run without pinned kernels."""
    if "pins" not in frame:
        return []
    trusted = frame[(frame["median"] > 0) & ~frame["wrong"].astype(bool)]
    cases = (fr.records(part) for _, part in trusted.groupby("id", sort=False))
    return [found for rows in cases for found in _in_case({row["impl"]: row for row in rows})]


def finding(frame: pd.DataFrame) -> str:
    """How often a pinned kernel is faster than what was chosen, and where most is lost; '' without pinned kernels."""
    found = regrets(frame)
    if not found:
        return ""
    shown = [it for it in found if it.ratio.slower]
    cases, names = words.plural(len(found), "case"), words.listing(dict.fromkeys(it.impl for it in found))
    if not shown:
        return f"In none of {cases} is a pinned kernel shown to be faster than the one that {names} chooses."
    most = max(shown, key=lambda it: it.ratio.low)
    where = words.place({axis: most.row[axis] for axis in axis_names()}, always=fr.varying(frame))
    return (
        f"In {len(shown)} of {cases} a pinned kernel is shown to be faster than the one that {names} chooses: at {where}, "
        f"{most.impl} takes {said(most)} the time of {most.pinned}."
    )


def said(regret: Regret) -> str:
    """'1.96× (1.90 to 2.03)'"""
    return units.bounded_times(regret.ratio.value, regret.ratio.low, regret.ratio.high)


def _in_case(rows: dict[str, dict[str, Any]]) -> list[Regret]:
    found = []
    for chooser in dict.fromkeys(row["pins"] for row in rows.values() if row["pins"] in rows):
        over = {name: fr.ratio(rows[chooser], row) for name, row in rows.items() if row["pins"] == chooser}
        known = {name: ratio for name, ratio in over.items() if ratio.processes}
        if known:
            best = max(known, key=lambda name: known[name].value)
            found.append(Regret(chooser, best, known[best], rows[chooser]))
    return found
