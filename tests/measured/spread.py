"""`python -m tests.measured.spread FILE`: runs of unchanged code, by the suite's clock and by pytest-benchmark's own.

They measure the cells of `quick`, by turns; the suite also in its quiet setting (`--quiet-machine`). For each cell and each
pair of runs of one clock, how far apart its two medians lie; printed are the usual distance, the largest, and the wall time.
Appends to a file, and goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
CLOCKS = ("suite", "quiet suite", "pytest-benchmark")
OWN_CLOCK = """
import pytest
from bench import cell as cells
from bench.gate import Gate
from bench.modes import recording
from bench.options import Cell
from bench.outcome import NoRow
from bench.sweep import SWEEPS
import impls

names = [i.name for i in impls.shelf() if i.common]
names += [i.name + impls.COMPILE for i in impls.shelf() if i.compiled_by_default and i.common]
grid = [(n, c) for c in SWEEPS["quick"].cases("cpu") for n in names if impls.get(n).refusal(c) is None]
GATE = Gate()

@pytest.mark.parametrize(("name", "case"), grid, ids=[f"{n}-{c.id}" for n, c in grid])
def test_cell(benchmark, name, case):
    ready = cells.ready(Cell(impls.get(name), case), GATE)
    benchmark.extra_info.update(impl=name, id=case.id)
    with recording(case):
        benchmark(ready.call.run)
"""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("file", type=Path, help="JSON lines, one a run")
    options.add_argument("--runs", type=int, default=8)
    options.add_argument("--clock", choices=CLOCKS, action="append", help="only this one (default: all)")
    asked = options.parse_args()
    runs = _read(asked.file)
    for clock in (asked.clock or CLOCKS) * asked.runs:
        if sum(run["clock"] == clock for run in runs) < asked.runs:
            runs.append(_run(clock))
            with asked.file.open("a") as file:
                file.write(json.dumps(runs[-1]) + "\n")
            print(f"{clock}: {len(runs[-1]['medians'])} cells in {runs[-1]['seconds']:.0f} s", flush=True)
    cells = set.intersection(*(set(run["medians"]) for run in runs))
    print(f"{len(cells)} cells, all pairs of runs of a clock: distance of a cell's two medians")
    for clock in CLOCKS:
        of = [run for run in runs if run["clock"] == clock]
        if len(of) < 2:
            continue
        apart = sorted(_distances([run["medians"] for run in of], cells))
        seconds = median(run["seconds"] for run in of)
        print(f"{clock:<18} {len(of)} runs  median {median(apart):7.2%}  9 of 10 below {apart[len(apart) * 9 // 10]:7.2%}  "
              f"largest {apart[-1]:8.1%}  {seconds:4.0f} s a run")  # fmt: skip


def _read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _run(clock: str) -> dict[str, Any]:
    """The medians of one run, and what it took."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_own_clock.py").write_text(OWN_CLOCK)
        pytest = ["pytest", "-q", "--benchmark-save=x"]
        command = {
            "suite": [*pytest, str(CHECKOUT / "bench")],
            "quiet suite": ["bench", "sweep", "--processes", "1", "--quiet-machine", "--save", "x"],
            "pytest-benchmark": [*pytest, str(folder / "test_own_clock.py")],
        }[clock]
        start = perf_counter()
        subprocess.run(
            [sys.executable, "-m", *command, f"--benchmark-storage=file://{folder}"],
            cwd=folder, env=os.environ | {"PYTHONPATH": str(CHECKOUT)}, stdout=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        seconds = perf_counter() - start
        (file,) = folder.glob("*/*.json")
        rows = json.loads(file.read_text())["benchmarks"]
    medians = {" ".join(row["extra_info"][key] for key in ("impl", "id")): row["stats"]["median"] for row in rows}
    return {"clock": clock, "seconds": seconds, "medians": medians}


def _distances(runs: list[dict[str, float]], cells: set[str]) -> Iterator[float]:
    for a, b in combinations(runs, 2):
        for cell in cells:
            yield math.expm1(abs(math.log(a[cell] / b[cell])))


if __name__ == "__main__":
    main()
