"""What many runs say of their cells, in little memory: a run without its rows, and their times as columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import pyarrow as pa

from . import processes
from .frame import AXES
from .runs import Run

SCHEMA = pa.schema(
    {
        "impl": pa.string(),
        "id": pa.string(),
        "axes": pa.string(),  # JSON: whatever a run says of them
        "median": pa.float64(),  # of the processes' medians; seconds
        "low": pa.float64(),  # their extremes, or one process's quartiles
        "high": pa.float64(),
        "processes": pa.int64(),
        "case_hash": pa.string(),
    }
)
COLUMNS = tuple(SCHEMA.names)


@dataclass(frozen=True)
class Kept:
    """A run without its rows, and one row of SCHEMA for each of its cells that has a time."""

    run: Run
    cells: pa.Table


def kept(run: Run) -> Kept:
    columns = list(zip(*_cells(run), strict=True)) or [()] * len(COLUMNS)
    cells = pa.table(dict(zip(COLUMNS, columns, strict=True)), schema=SCHEMA)
    return Kept(replace(run, rows=[], skipped=[], state={}, roofs=[], controls={}), cells)


def _cells(run: Run) -> Iterator[tuple[Any, ...]]:
    for row in run.rows:
        if found := processes.medians(row):
            extra, stats = row["extra_info"], row["stats"]
            few = len(found) == 1
            low, high = (stats["q1"] or found[0], stats["q3"] or found[0]) if few else (min(found), max(found))
            axes = json.dumps({axis: extra[axis] for axis in AXES if axis in extra})
            case_hash = extra.get("case_hash")
            about = (str(extra["impl"]), str(extra["id"]), axes)
            yield *about, median(found), low, high, len(found), None if case_hash is None else str(case_hash)
