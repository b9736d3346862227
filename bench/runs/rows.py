"""Builds a row of the run file: the results of a cell, in pytest-benchmark's format."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any, NamedTuple

from pytest_benchmark.stats import Stats

from stats import ratios

from ..cases.case_hash import case_hash
from ..cases.cells import Cell
from ..cases.counting import cache_bytes, flops, least_bytes, padding_share

Row = dict[str, Any]


class Sample(NamedTuple):
    """One timed block of a cell."""

    seconds: float
    """Seconds of a call."""
    round: int
    """Number of the round within the case and the run; blocks of other members with this number are paired with it."""
    visit: int
    process: int
    fastest: float
    """Seconds of a call in the fastest slice of the block."""
    at: float
    """Seconds since the run began."""
    calls: int
    page_faults: float
    """Minor page faults per call; the next two fields are per call too."""
    voluntary: float
    involuntary: float


@dataclass
class Timed:
    """Samples of a cell with further columns: of one visit, as stored in the journal, or of the run so far."""

    samples: list[Sample] = field(default_factory=list)
    compared: int = 0
    """Untimed calls whose outputs were compared with a checked output."""
    columns: dict[str, Any] = field(default_factory=dict)
    """Columns of the row that do not follow from its samples."""

    @classmethod
    def read(cls, line: Mapping[str, Any]) -> Timed:
        return cls([Sample(*it) for it in line["samples"]], line["compared"], line["columns"])

    def add(self, later: Timed) -> None:
        self.samples += later.samples
        self.compared += later.compared
        self.columns |= later.columns


def samples_of(found: Sequence[Sample]) -> ratios.Samples:
    """Convert samples to the format of `stats.ratios`, whose fields are the first of a sample."""
    return ratios.Samples(*([it[i] for it in found] for i in range(4)))  # type: ignore[arg-type]


def row(cell: Cell, checked: Mapping[str, Any], found: Sequence[Sample], over: Sequence[Sample], more: Row) -> Row:
    """Build the whole row. `checked`: columns of the check; `over`: samples of the baseline implementation, if there
    are any; `more`: further columns.
    """
    impl, case = cell.key
    test = f"test_{cell.case.mode}"
    stats, data = Stats(), [it.seconds for it in found]
    for seconds in data:
        stats.update(seconds)
    return {
        "group": case,
        "name": f"{test}[{impl}-{case}]",
        "fullname": f"bench/test_attention.py::{test}[{impl}-{case}]",
        "params": {"impl": impl, "case": case},
        "param": f"{impl}-{case}",
        "extra_info": {"impl": impl, "id": case, "case_hash": case_hash(cell.case), "pins": cell.impl.pins}
        | cell.case.columns()
        | dict(checked)
        | {"flops": flops(cell.case), "bytes": least_bytes(cell.case)}
        | {
            "tokens_per_s": cell.case.B * cell.case.T / median(data),
            "padding_share": padding_share(cell.impl, cell.case),
            "cache_bytes_per_token": cache_bytes(cell.case),
        }
        | timed(found, over)
        | more,
        "options": {},
        "stats": stats.as_dict() | {"data": data, "iterations": found[0].calls},
    }


def timed(found: Sequence[Sample], over: Sequence[Sample]) -> Row:
    """Return the columns derived from the samples and those of the baseline implementation."""
    processes = sorted({it.process for it in found})
    return {
        "calls": found[0].calls,
        "processes": len(processes),
        "process_medians": [median(it.seconds for it in found if it.process == process) for process in processes],
        "page_faults": median(it.page_faults for it in found),
        "switches_voluntary": mean(it.voluntary for it in found),
        "switches_involuntary": mean(it.involuntary for it in found),
        "sample_rounds": [it.round for it in found],
        "sample_visits": [it.visit for it in found],
        "sample_processes": [it.process for it in found],
        "sample_times": [round(it.at, 4) for it in found],
        "sample_fastest": [it.fastest for it in found],
    } | _ratio(found, over)


def _ratio(found: Sequence[Sample], over: Sequence[Sample]) -> Row:
    """Return the ratio to the baseline implementation with its 95 % interval; None without a baseline."""
    known = ratios.ratio(samples_of(found), samples_of(over)) if over else ratios.UNKNOWN
    columns = zip(("ratio", "ratio_low", "ratio_high"), ratios.SAME if found is over else known, strict=True)
    return {name: value if math.isfinite(value) else None for name, value in columns}


def finite(value: Any) -> Any:
    """Replace numbers that are not finite by null, since JSON has no NaN or Infinity."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
