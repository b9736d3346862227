"""Format of run files and of saved comparisons: which values a report relies on."""

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


def _none_or_size(value: Any) -> bool:
    """Whether it is unknown or a finite number from 0 on, such as bytes."""
    return value == 0 or _none_or_positive(value)


def _facts(value: Any) -> bool:
    """Whether it describes a variant of a comparison; null if it failed."""
    return value is None or not any(_misfits(value, {"peak_bytes": _none_or_size, "error": _NUMBER}))


def _log(value: Any) -> bool:
    """Whether it is implementation, case, and log ratio."""
    if not isinstance(value, list) or len(value) != 3:
        return False
    return isinstance(value[0], str) and isinstance(value[1], str) and isinstance(value[2], _NUMBER)


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
    | dict.fromkeys(("peak_bytes", "flops", "bytes", "switches_involuntary"), _none_or_size)
    | dict.fromkeys(("error", "error_bound"), _NUMBER)
    | dict.fromkeys(("case_hash", "impl_hash"), _TEXT)
    | dict.fromkeys(("repeats", "proved_ragged"), bool | None)
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
    "machine_info": {"allocator": {}} | dict.fromkeys(("cpu", "gpu", "torch"), _TEXT),
    "state": {"environment": {}},
    "roofs": [
        {"device": str, "dtype": _TEXT}
        | dict.fromkeys(("flops_per_s", "bytes_per_s", "footprint", "threads"), _none_or_positive)
    ],
    "controls": {"drift": _NUMBER, "looks": {"python": [{"seconds": _positive}]}},
    "published": [
        {"seconds": _positive} | dict.fromkeys(("id", "impl", "kernel", "source", "machine", "differs"), str)
    ],
}
"""Shape of a file: an object's keys, a list's items, a value's type or test. Lists and objects may be absent."""

COMPARISON: dict[str, Any] = {
    "sides": {name: {"label": str, "commit": _TEXT} for name in ("base", "head")},
    "cells": [{"impl": str, "id": str, "reason": str, "ratio": _none_or_positive, "base": _facts, "head": _facts}],
    "pairs": [{"logs": [_log], "blocks": {"seconds": [_positive]}, "seconds": _none_or_positive}],
    "neither": [str],
    "seconds": _none_or_size,
    "threads": _positive,
}
"""Shape of a comparison that `python -m bench ab` saved."""


def misfit(data: dict[str, Any]) -> str:
    """Return where a file's contents aren't those of a run, `benchmarks[0].extra_info.T`; empty if they are."""
    return next(chain(_misfits(data, RUN), _inconsistent(data)), "")


def misfit_of_comparison(data: Any) -> str:
    """Return the same of a comparison's file."""
    return next(_misfits(data, COMPARISON), "")


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
    """Yield names of models that aren't text, and columns of rows whose value isn't one of their axis, or which have another
    length than the times.
    """
    yield from (f"models.{key}" for key, name in data.get("models", {}).items() if not isinstance(name, str))
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
