"""`python -m tests.experiments.scale`: 1,000 runs of 500 rows read, their history written, and the page of one large run.

The rows are those of a real run, their times drawn anew. Every step runs in a process of its own and prints its time on the
wall, its time on the processor, and the most memory it held.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
PATTERN = CHECKOUT / "results" / "published" / "0001_quick.json"
MACHINE = "Linux-CPython-3.11-64bit"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=1000)
    options.add_argument("--rows", type=int, default=500)
    options.add_argument("--large", type=int, default=5000, help="rows of the one large run")
    options.add_argument("--keep", type=Path, metavar="DIR", help="where the runs and pages stay")
    options.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.step:
        _step(given.step, given.keep)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = given.keep or Path(name)
        _write_runs(folder / "results" / MACHINE, given.runs, given.rows)
        _write_runs(folder / "large" / MACHINE, 1, given.large)
        print(f"{given.runs} runs of {given.rows} rows, one run of {given.large}")
        print(f"{'step':<10}{'wall':>9}{'processor':>11}{'memory':>11}")
        for step in STEPS:
            subprocess.run(
                [sys.executable, "-m", "tests.experiments.scale", "--step", step, "--keep", str(folder)],
                cwd=CHECKOUT, check=True,
            )  # fmt: skip


def _step(name: str, folder: Path) -> None:
    start = time.perf_counter()
    STEPS[name](folder)
    used = resource.getrusage(resource.RUSAGE_SELF)
    spent = time.perf_counter() - start
    print(f"{name:<10}{spent:>7.1f} s{used.ru_utime + used.ru_stime:>9.1f} s{used.ru_maxrss / 1024:>7.0f} MiB")


def _frame(folder: Path) -> None:
    import pandas as pd

    from reports.judging.rows import rows_of, tidy
    from reports.reading import runs

    files = runs.newest_first(folder / "results")
    rows = pd.concat([tidy(rows_of(run)).assign(run=run.name) for run in map(runs.read, files)], ignore_index=True)
    assert len(rows) and rows["median"].notna().all()


def _history(folder: Path) -> None:
    _quietly("history", "--results", str(folder / "results"), "--out", str(folder / "out"))


def _page(folder: Path) -> None:
    _quietly("--results", str(folder / "results"), "--out", str(folder / "out"))


def _large(folder: Path) -> None:
    _quietly("--results", str(folder / "large"), "--out", str(folder / "out" / "large"))


def _quietly(*arguments: str) -> None:
    from contextlib import redirect_stdout

    from reports.__main__ import main as reports

    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        assert reports(arguments) == 0


STEPS: dict[str, Callable[[Path], None]] = {"frame": _frame, "history": _history, "page": _page, "large": _large}


def _write_runs(folder: Path, runs: int, rows: int) -> None:
    """Write runs of one machine, an hour apart."""
    folder.mkdir(parents=True, exist_ok=True)
    pattern = json.loads(PATTERN.read_text(encoding="utf-8"))
    rng = random.Random(0)
    cells = [_cell(pattern["benchmarks"], i) for i in range(rows)]
    for number in range(1, runs + 1):
        pattern["benchmarks"] = [_timed(cell, rng) for cell in cells]
        pattern["datetime"] = f"2026-{1 + number // 672:02}-{1 + number // 24 % 28:02}T{number % 24:02}:00:00+00:00"
        (folder / f"{number:04}_scale.json").write_text(json.dumps(pattern), encoding="utf-8")


def _cell(rows: list[dict[str, Any]], i: int) -> dict[str, Any]:
    """Return the i-th cell: a real row, with another batch size in every pass over the rows."""
    row = copy.deepcopy(rows[i % len(rows)])
    columns, batch = row["extra_info"], 1 + i // len(rows)
    columns.update(id=columns["id"].replace("B1-", f"B{batch}-", 1), B=batch)
    for size in ("peak_bytes", "flops", "bytes"):
        columns[size] *= batch
    return row


def _timed(row: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    factor = rng.lognormvariate(0, 0.02)
    timed = {key: row["stats"][key] * factor for key in ("min", "max", "mean", "median", "q1", "q3", "iqr")}
    samples = [sample * factor for sample in row["stats"]["data"]]
    return {**row, "stats": {**row["stats"], **timed, "data": samples}}


if __name__ == "__main__":
    main()
