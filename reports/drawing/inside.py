"""Inside a call: what the traces of a run say of its cells, operator by operator, and the memory held meanwhile."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ..judging import frame as fr
from ..reading import traces, units
from ..reading.traces import Trace, TraceError

MOST_OPERATORS = 8
MOST_CURVES = 36
"""As many as the page has room for: the cells with the largest peaks have one."""


@dataclass(frozen=True)
class Operator:
    """A row of a cell's table. `share` is that of all operators' own time."""

    name: str
    shapes: str
    calls: int
    host: str
    device: str
    share: str


@dataclass(frozen=True)
class Inside:
    """What is known of one call."""

    impl: str
    case: str
    trace: Trace

    @property
    def on_device(self) -> bool:
        return bool(self.trace.operators["device_s"].notna().any())

    @property
    def operators(self) -> list[Operator]:
        """Those with the most time of their own."""
        found = self.trace.operators
        own = "device_s" if self.on_device else "host_s"
        whole = float(found[own].sum())
        return [
            Operator(
                row["name"], row["shapes"], row["calls"], units.seconds(row["host_s"]), units.seconds(row["device_s"]),
                units.percent(row[own] / whole if whole else math.nan),
            )
            for row in fr.records(found.head(MOST_OPERATORS))
        ]  # fmt: skip

    @property
    def more(self) -> int:
        """Operators that the table leaves out."""
        return max(0, len(self.trace.operators) - MOST_OPERATORS)

    @property
    def peak(self) -> int:
        held = self.trace.memory["bytes"]
        return int(held.max()) if len(held) else 0

    @property
    def description(self) -> str:
        """Its memory curve in a sentence."""
        curve = self.trace.memory
        at = float(curve["at"].iloc[int(curve["bytes"].argmax())])
        end = float(curve["at"].iloc[-1])
        return f"{units.memory(self.peak)} at most, after {units.seconds(at)} of {units.seconds(end)}"


def cells(frame: pd.DataFrame, results: Path) -> tuple[list[Inside], dict[str, list[str]]]:
    """The cells whose trace can be read; and those whose can't, 'NAME at ID', by what is the matter."""
    found, unread = [], dict[str, list[str]]()
    for row in fr.records(frame):
        if not isinstance(path := row.get("trace"), str):
            continue
        try:
            found.append(Inside(row["impl"], row["id"], traces.read(results / path)))
        except TraceError as error:
            unread.setdefault(str(error), []).append(f"{row['impl']} at {row['id']}")
    return found, unread


def drawn(found: list[Inside]) -> set[tuple[str, str]]:
    """(implementation, case) of those whose memory is drawn."""
    largest = sorted(found, key=lambda one: -one.peak)[:MOST_CURVES]
    return {(one.impl, one.case) for one in largest if one.peak}
