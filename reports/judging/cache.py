"""What many runs say of their cells, in little memory: a run without its rows, and their times as columns.

Read once, they are kept beside the runs of their machine, for as long as these have the same size and time. Nothing needs the
cache: one that is damaged is made anew, and where none can be written there is none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import orjson
import pyarrow as pa
from pyarrow import parquet

from ..reading import runs
from ..reading.axes import axis_names
from ..reading.runs import Run, RunError
from . import processes

NAME = ".times.cache"
"""In a machine's folder: Parquet behind its own digest, so that a damaged file is never taken for numbers."""

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
        "impl_hash": pa.string(),
        "ratio": pa.float64(),  # over the run's baseline implementation, by turns
    }
)
COLUMNS = tuple(SCHEMA.names)

_DIGEST = 32  # bytes
_UNKEPT: dict[str, Any] = {"rows": [], "skipped": [], "roofs": [], "controls": {}, "notes": (), "published": []}
_OF_STATE = ("environment",)
_FORM = [*map(str, SCHEMA), *Run.__dataclass_fields__, *_OF_STATE]  # another one is another version's


@dataclass(frozen=True)
class Kept:
    """A run without its rows, and one row of SCHEMA for each of its cells that has a time."""

    run: Run
    cells: pa.Table


@dataclass(frozen=True)
class _Entry:
    """What is cached of a file, and what the file was when it was read."""

    stamp: list[int]
    kept: Kept


def read(files: Iterable[Path], left_out: Callable[[RunError], None]) -> list[Kept]:
    """All runs that can be read; the others are metadata."""
    folders: dict[Path, list[Path]] = {}
    for file in files:
        folders.setdefault(file.parent, []).append(file)
    return [one for folder, inside in folders.items() for one in _read(folder / NAME, inside, left_out)]


def _read(path: Path, files: list[Path], left_out: Callable[[RunError], None]) -> Iterator[Kept]:
    known = _load(path)
    found: dict[str, _Entry] = {}
    for file in files:
        try:
            found[file.name] = _current(file, known.get(file.name))
        except RunError as error:
            left_out(error)
            continue
        yield found[file.name].kept
    if {name: entry.stamp for name, entry in found.items()} != {name: entry.stamp for name, entry in known.items()}:
        _save(path, found)


def _current(file: Path, known: _Entry | None) -> _Entry:
    stamp = _stamp(file)  # before reading: what is written meanwhile is read again
    return known if known and known.stamp == stamp else _Entry(stamp, kept(runs.read(file)))


def _stamp(file: Path) -> list[int]:
    try:
        status = file.stat()
    except OSError as error:
        raise RunError(f"{file}: can't be read ({error.strerror})") from None
    return [status.st_size, status.st_mtime_ns]


def _load(path: Path) -> dict[str, _Entry]:
    """What was kept, by the names of files; empty when that can't be trusted."""
    try:
        data = path.read_bytes()
        if data[:_DIGEST] != _digest(data[_DIGEST:]):
            return {}
        table = parquet.read_table(pa.BufferReader(data[_DIGEST:]))
        about = orjson.loads(table.schema.metadata[b"runs"])
    except (OSError, ValueError):
        return {}
    if about["form"] != _FORM:
        return {}
    return dict(_entries(path.parent, table.replace_schema_metadata(), about["runs"]))


def _entries(folder: Path, table: pa.Table, about: list[dict[str, Any]]) -> Iterator[tuple[str, _Entry]]:
    start = 0
    for one in about:
        run = Run(path=folder / one["file"], **{**_UNKEPT, **one["run"], "registry": tuple(one["run"]["registry"])})
        yield one["file"], _Entry(one["stamp"], Kept(run, table.slice(start, one["cells"])))
        start += one["cells"]


def _save(path: Path, entries: Mapping[str, _Entry]) -> None:
    """Whole or not at all; nothing is said where it can't be."""
    about = [_about(name, entry) for name, entry in entries.items()]
    table = pa.concat_tables([SCHEMA.empty_table(), *(entry.kept.cells for entry in entries.values())])
    sink = pa.BufferOutputStream()
    metadata = {"runs": json.dumps({"form": _FORM, "runs": about})}
    parquet.write_table(table.replace_schema_metadata(metadata), sink)
    body = sink.getvalue().to_pybytes()
    unfinished = path.with_name(f"{NAME}.{os.getpid()}")
    with contextlib.suppress(OSError):
        try:
            unfinished.write_bytes(_digest(body) + body)
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)


def _about(name: str, entry: _Entry) -> dict[str, Any]:
    run = {key: value for key, value in asdict(entry.kept.run).items() if key != "path" and key not in _UNKEPT}
    return {"file": name, "stamp": entry.stamp, "cells": len(entry.kept.cells), "run": run}


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST).digest()


def _json(value: Any) -> str:
    """orjson is the fast way; the standard library takes numbers of any length."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return json.dumps(value)


def kept(run: Run) -> Kept:
    """What is kept of a run."""
    columns = list(zip(*_cells(run), strict=True)) or [()] * len(COLUMNS)
    cells = pa.table(dict(zip(COLUMNS, columns, strict=True)), schema=SCHEMA)
    state = {name: run.state[name] for name in _OF_STATE if name in run.state}
    return Kept(replace(run, **_UNKEPT, state=state), cells)


def _cells(run: Run) -> Iterator[tuple[Any, ...]]:
    for row in run.rows:
        if found := processes.medians(row):
            extra, stats = row["extra_info"], row["stats"]
            few = len(found) == 1
            low, high = (stats["q1"] or found[0], stats["q3"] or found[0]) if few else (min(found), max(found))
            axes = _json({axis: extra[axis] for axis in axis_names() if axis in extra})
            hashes = (extra.get(name) for name in ("case_hash", "impl_hash"))
            about = (str(extra["impl"]), str(extra["id"]), axes)
            texts = (None if given is None else str(given) for given in hashes)
            ratio = extra.get("ratio")
            yield *about, median(found), low, high, len(found), *texts, ratio if processes.positive(ratio) else None
