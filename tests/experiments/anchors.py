"""`python -m tests.experiments.anchors RUN...`: how far unchanged implementations move between processes of one run, by what
they are compared with: nothing (seconds), the other implementations of the case, or the reference workload.

A move is the change of an implementation's mean log time over its cases from one process to another. The reference workload's
time at a visit is interpolated between its samples; visits are spread evenly from its second sample to its last.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from statistics import mean, median

import numpy as np

from reports.judging.rows import samples_of
from reports.pages.tables import markdown
from reports.reading import runs
from reports.reading.runs import Run

HEADINGS = ("run", "compared with", "moves", "standard deviation", "median", "beyond 5 %")
DIFFERENT = "loop"
"""Limited by the interpreter, unlike all others."""

Levels = dict[str, dict[str, dict[tuple[int, int], float]]]
"""Log seconds by case, implementation, and process and visit."""


def main() -> None:
    print(markdown(HEADINGS, [line for path in sys.argv[1:] for line in lines(runs.read(Path(path)))]))


def lines(run: Run) -> Iterator[tuple[str, ...]]:
    levels: Levels = defaultdict(dict)
    for row in run.rows:
        visits = samples_of(row).by_visit()
        facts = row["extra_info"]
        levels[facts["id"]][facts["impl"]] = {
            at: math.log(median(seconds for _, seconds in of)) for at, of in visits.items()
        }
    fixed = fixed_work(run, 1 + max(visit for of in levels.values() for visits in of.values() for _, visit in visits))
    for name in ("nothing", "others", "reference workload"):
        moves = list(moved(levels, fixed if name == "reference workload" else None, name == "others"))
        spread = math.sqrt(mean(move**2 for move in moves))
        beyond = sum(abs(move) > math.log(1.05) for move in moves) / len(moves)
        yield run.name, name, str(len(moves)), f"{spread:.1%}", f"{median(map(abs, moves)):.1%}", f"{beyond:.0%}"


def fixed_work(run: Run, visits: int) -> list[float]:
    """Return the mean of the log times of the reference workload's parts at each visit."""
    looks = runs.parse(run.path)["controls"]["looks"]
    logs = np.mean([[math.log(it["seconds"]) for it in of] for of in looks.values()], axis=0)
    times = [it["at"] for it in next(iter(looks.values()))]
    found: list[float] = np.interp(np.linspace(times[1], times[-1], visits), times, logs).tolist()
    return found


def moved(levels: Levels, fixed: list[float] | None, to_others: bool) -> Iterator[float]:
    """Yield the moves of each implementation between each two processes."""
    by_process: dict[tuple[str, int], list[float]] = defaultdict(list)
    for of in levels.values():
        usual = {impl: median(visits.values()) for impl, visits in of.items()}
        for impl, visits in of.items() if len(of) > 3 else ():
            for process in {process for process, _ in visits}:
                at = [it for it in visits if it[0] == process]
                other = [
                    median(of[name][it] - usual[name] for name in of if name != impl and it in of[name])
                    if to_others else fixed[it[1]] if fixed else 0.0
                    for it in at
                ]  # fmt: skip
                by_process[impl, process].append(mean(visits[it] for it in at) - mean(other) - usual[impl])
    for (one, a), (two, b) in combinations(by_process, 2):
        if one == two != DIFFERENT:
            yield mean(by_process[one, a]) - mean(by_process[two, b])


if __name__ == "__main__":
    main()
