"""Format of a run file: which values a report relies on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain
from types import UnionType
from typing import Any

from stats.axes import AXES


def _positive(value: Any) -> bool:
    """Whether it is a positive finite number, valid as a time."""
    return isinstance(value, int | float) and 0 < value < math.inf


def _none_or_positive(value: Any) -> bool:
    return value is None or _positive(value)


def _all_positive(value: Any) -> bool:
    return isinstance(value, list) and value != [] and all(map(_positive, value))


def _numbers(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(it, int | float) for it in value)


_NUMBER = int | float | None
_TEXT = str | None
SAMPLES = ("sample_rounds", "sample_visits", "sample_processes")
"""Columns with a value for each sample."""

_STATS = dict.fromkeys(("median", "q1", "q3"), _positive) | {"data": _all_positive}
_COLUMNS = {"impl": str, "id": str, "process_medians": _all_positive} | dict.fromkeys(SAMPLES, _numbers)
_FURTHER = (
    {"ratio": _none_or_positive}
    | dict.fromkeys(("peak_bytes", "error", "error_bound", "flops", "bytes", "switches_involuntary"), _NUMBER)
    | dict.fromkeys(("case_hash", "impl_hash"), _TEXT)
)
RUN: dict[str, Any] = {
    "benchmarks": [{"stats": _STATS, "extra_info": _COLUMNS | _FURTHER}],
    "skipped": [{"impl": str, "id": str, "reason": str}],
    "registry": [str],
    "notes": [str],
    **dict.fromkeys(("baseline_impl", "sweep", "command", "datetime"), _TEXT),
    "asked": {},
    "commit_info": {},
    "models": {},
    "machine_info": {"allocator": {}},
    "state": {"environment": {}},
    "roofs": [{"device": str, "dtype": _TEXT} | dict.fromkeys(("flops_per_s", "bytes_per_s"), _none_or_positive)],
    "controls": {"drift": _NUMBER, "looks": {"python": [{"seconds": _positive}]}},
    "published": [{"id": str, "seconds": _positive}],
}
"""Shape of a file: an object's keys, a list's items, a value's type or test. Lists and objects may be absent."""


def misfit(data: dict[str, Any]) -> str:
    """Return where a file's contents aren't those of a run, `benchmarks[0].extra_info.T`; empty if they are."""
    return next(chain(_misfits(data, RUN), _inconsistent(data)), "")


def _misfits(value: Any, shape: Any, where: str = "") -> Iterator[str]:
    """Yield where a value isn't of a shape."""
    match shape:
        case dict() | list() if not isinstance(value, type(shape)):
            yield where
        case dict():
            for key, of in shape.items():
                yield from _misfits(value.get(key, empty(of)), of, f"{where}.{key}".lstrip("."))
        case [of]:
            for index, item in enumerate(value):
                yield from _misfits(item, of, f"{where}[{index}]")
        case _ if not (isinstance(value, shape) if isinstance(shape, type | UnionType) else shape(value)):
            yield where


def empty(shape: Any) -> Any:
    """Return the value of an absent key."""
    return type(shape)() if isinstance(shape, dict | list) else "" if shape == _TEXT else None


def _inconsistent(data: dict[str, Any]) -> Iterator[str]:
    """Yield columns of rows whose value isn't one of their axis, or which have another length than the times."""
    known = set[tuple[str, str]]()
    for index, row in enumerate(data["benchmarks"]):
        columns, where = row["extra_info"], f"benchmarks[{index}].extra_info"
        if (key := (columns["impl"], columns["id"])) in known:
            yield f"{where}.id: a second row of this cell"
        known.add(key)
        for name, axis in AXES.items():
            value = columns.get(name)
            usual = isinstance(value, _NUMBER if axis.kind == "share" else _NUMBER | str)
            if not (_none_or_positive(value) if axis.kind == "size" else usual):
                yield f"{where}.{name}"
        for name in SAMPLES:
            if len(columns[name]) != len(row["stats"]["data"]):
                yield f"{where}.{name}"
