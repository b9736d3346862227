"""The runs of several processes as one run: a process gives one datum a cell, the median of its samples."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any

from pytest_benchmark.stats import Stats

Run = dict[str, Any]
Row = dict[str, Any]
Key = tuple[str, str]


def merged(runs: list[Run], command: str) -> Run:
    """One run file's contents. A cell has a row when it has one in every process; else it is among the skipped.

    Raises ValueError when the processes ran on different machines, with different versions, also of the benchmark, or at
    different commits.
    """
    first = runs[0]
    if any(run["machine_info"] != first["machine_info"] for run in runs):
        raise ValueError("its processes were measured on different machines, or with different versions")
    if any(run["commit_info"].get("id") != first["commit_info"].get("id") for run in runs):
        raise ValueError("the code was committed anew while it was measured")
    rows = [{_key(row["extra_info"]): row for row in run["benchmarks"]} for run in runs]
    skipped = _skipped(runs)
    whole = [key for key in rows[0] if all(key in of for of in rows)]
    if any(_meaning(of[key]) != _meaning(rows[0][key]) for of in rows for key in whole):
        raise ValueError("the benchmark itself was changed between its processes")
    return first | {
        "command": command,
        "journal": None,
        "benchmarks": [_row([of[key] for of in rows]) for key in whole],
        "skipped": list(skipped.values()),
        "samples": [
            {"impl": impl, "id": case, "process": i, "data": of[impl, case]["stats"]["data"]}
            for i, of in enumerate(rows)
            for impl, case in whole
        ],
        "roofs": _highest(roof for run in runs for roof in run["roofs"]),
        "controls": _controls([run["controls"] for run in runs]),
        "seconds": {
            purpose: sum(run["seconds"].get(purpose, 0.0) for run in runs)
            for purpose in dict.fromkeys(purpose for run in runs for purpose in run["seconds"])
        },
        "states": [run["state"] for run in runs],
    }


def _key(of: dict[str, Any]) -> Key:
    return of["impl"], of["id"]


def _meaning(row: Row) -> Any:
    return row["extra_info"].get("case_hash")


def _row(rows: list[Row]) -> Row:
    """The row of a cell: statistics over the processes' medians, the worst error and peak, the usual share of the roof."""
    medians = [row["stats"]["median"] for row in rows]
    columns = [row["extra_info"] for row in rows]
    stats = Stats()
    for seconds in medians:
        stats.update(seconds)
    return rows[0] | {
        "stats": stats.as_dict() | {"data": medians, "iterations": rows[0]["stats"]["iterations"]},
        "extra_info": columns[0]
        | {
            "error": max(of["error"] for of in columns),
            "peak_bytes": max(of["peak_bytes"] for of in columns),
            "roof": median(of["roof"] for of in columns),
            "kernel": ", ".join(dict.fromkeys(of["kernel"] for of in columns)),
            "processes": len(rows),
            "process_medians": medians,
        },
    }


def _skipped(runs: list[Run]) -> dict[Key, dict[str, str]]:
    """Every cell that a process has no row for, as the first such process told it."""
    found: dict[Key, dict[str, str]] = {}
    for i, run in enumerate(runs):
        for entry in run["skipped"]:
            if entry["reason"] != "unsupported" and len(runs) > 1:
                entry = entry | {"detail": f"{entry['detail']} (in process {i + 1} of {len(runs)})"}
            found.setdefault(_key(entry), entry)
    return found


def _highest(roofs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The most that any process saw, for each dtype and each footprint."""
    best: dict[tuple[Any, ...], dict[str, Any]] = {}
    for roof in roofs:
        rate = "flops_per_s" if "flops_per_s" in roof else "bytes_per_s"
        of = tuple(value for name, value in roof.items() if name != rate)
        if of not in best or roof[rate] > best[of][rate]:
            best[of] = roof
    return list(best.values())


def _controls(tables: list[dict[str, Any]]) -> dict[str, Any]:
    """Every look of every process, and the largest distance of one from the median of all."""
    looks: dict[str, list[dict[str, Any]]] = {}
    for i, table in enumerate(tables):
        for name, seen in table["looks"].items():
            looks.setdefault(name, []).extend({"process": i, **look} for look in seen)
    drift = 0.0
    for seen in looks.values():
        middle = median(look["seconds"] for look in seen)
        drift = max(drift, *(abs(look["seconds"] / middle - 1) for look in seen))
    return {"drift": drift, "looks": looks}
