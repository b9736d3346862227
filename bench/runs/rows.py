"""Builds a row of the run file: the results of a cell, in pytest-benchmark's format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any, NamedTuple

from pytest_benchmark.stats import Stats

from stats import ratios

from ..cases.case_hash import case_hash
from ..cases.cells import Cell
from ..cases.counting import cache_bytes, flops, least_bytes, padding_share

Row = dict[str, Any]

UNMEASURED = dict.fromkeys(
    ("cold_s", "cold_low", "cold_high", "device_s", "graph_s", "kept_pages_s", "fresh_pages_s", "sm_mhz", "power_w",
     "temperature_c", "throttled", "roof")
)  # fmt: skip
"""Columns that are null unless a device and a cell have them."""


class Sample(NamedTuple):
    """One timed block of a cell."""

    seconds: float
    """Seconds of a call."""
    round: int
    """Number of the round within the case and the run: blocks of other cells with this number are paired with it."""
    visit: int
    process: int
    fastest: float
    """Seconds of a call in the fastest slice of the block."""
    at: float
    """Seconds since the run began."""
    calls: int
    """Number of timed calls in the block."""
    page_faults: float
    """Minor page faults per call; the next two fields are per call too."""
    voluntary: float
    involuntary: float


@dataclass
class Results:
    """Results of a cell: of one reply or visit, as in the journal, or of the run so far."""

    seconds: float = 0.0
    """Seconds of the first checked call on fresh inputs."""
    columns: Row = field(default_factory=dict)
    """Columns of the row that are not derived from its samples."""
    samples: list[Sample] = field(default_factory=list)
    compared: int = 0
    """Untimed calls whose outputs were compared with a checked output."""

    @property
    def usual(self) -> float:
        """Median seconds of a timed call; before the timing, those of the first checked call."""
        return median([it.seconds for it in self.samples] or [self.seconds])

    def add(self, later: Results) -> None:
        """Add later results, whose samples may be lists from JSON."""
        throttled = [it["throttled"] for it in (self.columns, later.columns) if it.get("throttled")]
        self.seconds = self.seconds or later.seconds
        self.columns |= later.columns
        self.samples += map(Sample._make, later.samples)
        self.compared += later.compared
        if throttled:  # at any time
            self.columns["throttled"] = ", ".join(dict.fromkeys(", ".join(throttled).split(", ")))


def samples_of(found: Sequence[Sample]) -> ratios.Samples:
    """Convert samples to the format of `stats.ratios`."""
    names = ("seconds", "round", "visit", "process")
    return ratios.Samples(*([getattr(it, name) for it in found] for name in names))


def row(cell: Cell, found: Results, over: Sequence[Sample]) -> Row:
    """Build the whole row. `over`: samples of the baseline implementation, if there are any."""
    (impl, case), samples = cell.key, found.samples
    test, drops = f"test_{cell.case.mode}", cell.case.drops
    of_all: Any = Sample._make(zip(*samples, strict=True))
    processes = sorted({*of_all.process})
    stats = Stats()
    for seconds in of_all.seconds:
        stats.update(seconds)
    return {
        "group": case,
        "name": f"{test}[{impl}-{case}]",
        "fullname": f"bench/test_attention.py::{test}[{impl}-{case}]",
        "params": {"impl": impl, "case": case},
        "param": f"{impl}-{case}",
        "extra_info": {
            "impl": impl,
            "id": case,
            "case_hash": case_hash(cell.case),
            "pins": cell.impl.pins,
            **cell.case.columns(),
            **UNMEASURED,
            "repeats": None if drops else True,
            **found.columns,
            "calls_compared": 0 if drops else len(samples) + found.compared,
            "flops": flops(cell.case),
            "bytes": least_bytes(cell.case),
            "tokens_per_s": cell.case.B * cell.case.T / found.usual,
            "padding_share": padding_share(cell.impl, cell.case),
            "cache_bytes_per_token": cache_bytes(cell.case),
            "calls": of_all.calls[-1],
            "processes": len(processes),
            "process_medians": [median(it.seconds for it in samples if it.process == process) for process in processes],
            "page_faults": median(of_all.page_faults),
            "switches_voluntary": mean(of_all.voluntary),
            "switches_involuntary": mean(of_all.involuntary),
            "sample_rounds": of_all.round,
            "sample_visits": of_all.visit,
            "sample_processes": of_all.process,
            "sample_times": [round(at, 4) for at in of_all.at],
            "sample_fastest": of_all.fastest,
            "ratio": ratios.ratio(samples_of(samples), samples_of(over)).value if over else None,
        },
        "options": {},
        "stats": stats.as_dict() | {"data": of_all.seconds, "iterations": of_all.calls[-1]},
    }


def finite(value: Any) -> Any:
    """Return a value as JSON has it, where numbers that are not finite are null."""
    return json.loads(json.dumps(value), parse_constant=lambda _: None)
