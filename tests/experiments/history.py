"""`python -m tests.experiments.history`: which steps `history` finds.

`--table N` prints what is found in N series of simulated noise of each kind: false steps, also within a year of daily runs,
and steps within a run of their place.
`--real` prints what is found in the real runs of `saved.py`, of unchanged code, with an injected slow-down.
`--days N` prints what is found in N cells whose machine is faster on some days than on others: in seconds alone, and with what
is found relative to the other implementations of the case.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from statistics import median

import numpy as np
from numpy.typing import NDArray

from reports.judging import series
from reports.judging.series import Point
from reports.pages.tables import markdown
from stats import ratios, steps

from . import saved

YEAR = 365


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    kind = options.add_mutually_exclusive_group(required=True)
    kind.add_argument("--table", type=int, metavar="N", help="series of each kind, for the table")
    kind.add_argument("--days", type=int, metavar="N", help="cells of each kind, for the table of days")
    kind.add_argument("--real", action="store_true", help="the real runs")
    asked = options.parse_args()
    if asked.table:
        print(markdown(HEADINGS, list(table(asked.table))))
    elif asked.days:
        print(markdown(BY_DAY, list(found_by_day(asked.days))))
    else:
        print(markdown(OF_REAL, list(found_in_real())))


HEADINGS = ("noise", "cases", "runs", "injected", "where", "found")

NOISES: dict[str, Callable[[np.random.Generator, int], NDArray[np.float64]]] = {
    "normal": lambda rng, count: rng.normal(0, 1, count),
    "Student's, 3 degrees": lambda rng, count: rng.standard_t(3, count) / math.sqrt(3),
    "drifting": lambda rng, count: _drifting(rng.normal(0, 1, count)),
}
"""Each has standard deviation 1; drifting noise is autocorrelated by 0.6."""


def _drifting(fresh: NDArray[np.float64], kept: float = 0.6) -> NDArray[np.float64]:
    for i in range(1, len(fresh)):
        fresh[i] = kept * fresh[i - 1] + math.sqrt(1 - kept**2) * fresh[i]
    return fresh


def table(count: int) -> Iterator[list[str]]:
    """Yield rows on how often steps of several sizes are found, in the middle and three runs from the end."""
    for noise, draw in NOISES.items():
        for cases in (1, 12):
            rng = np.random.default_rng(YEAR)
            shown = sum(any(_steps_of(draw, rng, cases, YEAR)) for _ in range(count))
            yield [noise, str(cases), f"{YEAR}, one more a day", "nothing", "", f"{shown / count:.1%}"]
            for runs_ in (12, 40):
                for size, at in (
                    (0, 0),
                    (2, runs_ // 2),
                    (4, runs_ // 2),
                    (6, runs_ // 2),
                    (4, runs_ - 3),
                    (6, runs_ - 3),
                ):
                    rng = np.random.default_rng(runs_)
                    found = 0.0
                    for _ in range(count):
                        of = _steps_of(draw, rng, cases, runs_, size, at)
                        near = [any(abs(step.at - at) <= 1 for step in each) for each in of]
                        found += sum(near) / cases if size else any(of)
                    what = [f"{size} x noise", f"run {at + 1}"] if size else ["nothing", ""]
                    yield [noise, str(cases), str(runs_), *what, f"{found / count:.1%}"]


def _steps_of(
    draw: Callable[..., NDArray[np.float64]],
    rng: np.random.Generator,
    cases: int,
    runs_: int,
    size: float = 0,
    at: int = 0,
) -> list[list[steps.Step]]:
    """Return the steps of an implementation's cases, each with its own noise and common noise of the same size."""
    noise = np.array([draw(rng, runs_) for _ in range(cases)])
    if cases > 1:
        noise = (noise + draw(rng, runs_)) / math.sqrt(2)
    return [*steps.steps(0.01 * (noise + size * (np.arange(runs_) >= at)))]


OF_REAL = ("slower", "from run", "of", "cells found", "implementations with one", "of the unchanged cells")


def found_in_real() -> Iterator[list[str]]:
    """Yield rows on the steps found in the real runs when each implementation in turn becomes slower."""
    real = sorted((it for it in saved.read() if it.impl == "-" and not it.load), key=lambda it: it.at)
    impls = dict.fromkeys(impl for impl, _ in real[0].samples)
    timed = [{key: _timed(run, key) for key in run.samples} for run in real]
    for share, (at, count) in product((0.0, 0.05, 0.1, 0.2), ((6, 12), (9, 12), (10, 19), (16, 19))):
        cells, moved, others = [], [], []
        for slower in impls:
            found = list(_series(timed[:count], slower, share, at))
            mine = [any(abs(it.at - at) <= 1 and it.slower for it in one.steps) for one in found if one.impl == slower]
            cells += mine
            moved.append(any(mine))
            others += [bool(one.steps) for one in found if one.impl != slower]
        yield [f"{share:.0%}", str(at + 1), str(count), *(f"{sum(of)} of {len(of)}" for of in (cells, moved, others))]


def _timed(run: saved.Timed, key: saved.Key) -> tuple[float, float]:
    """Return the seconds, and their ratio to those of `fused`."""
    return median(run.samples[key].seconds), ratios.ratio(run.samples[key], run.samples["fused", key[1]]).value


def _series(
    timed: Sequence[Mapping[saved.Key, tuple[float, float]]], slower: str, share: float, at: int
) -> Iterator[series.Series]:
    points: dict[saved.Key, dict[int, Point]] = {}
    for run, cells in enumerate(timed):
        by = 1 + share if run >= at else 1.0
        for (impl, case), (seconds, ratio) in cells.items():
            own, over = by if impl == slower else 1.0, by if slower == "fused" else 1.0
            point = Point(seconds * own, 0, 0, "", f"{impl} {own}", ratio * own / over)
            points.setdefault((impl, case), {})[run] = point
    return series.of_points(points, {})


OTHERS = 3
INJECTED_BY_DAY = {"nothing": (0.0, 0.0), "another +20%": (0.0, 0.2)}
INJECTED_BY_DAY |= {f"+{size:.0%}": (size, 0.0) for size in (0.05, 0.1, 0.2, 0.4)}
"""How much slower the cell becomes, and one of the others, whose `impl_hash` stays as it was."""

BY_DAY = ("days", "own noise", "runs", *INJECTED_BY_DAY)


def found_by_day(count: int) -> Iterator[list[str]]:
    """Share of cells with any step, or with the injected one within a run of its place: in seconds alone, and by `history`."""
    for day, own, (before, after) in product((0.0, 0.06, 0.3), (0.01, 0.03), ((6, 3), (6, 6), (20, 20))):
        shares = []
        for size, other in INJECTED_BY_DAY.values():
            rng = np.random.default_rng(0)
            hits = [0, 0]
            for _ in range(count):
                common, each = rng.normal(0, day, before + after), rng.normal(0, own, (1 + OTHERS, before + after))
                cell = _cell(common + each, before, size, other)
                [alone] = steps.steps(np.log([[point.median for point in cell.points.values()]]))
                for i, found in enumerate((alone, cell.steps)):
                    hits[i] += any(not size or abs(step.at - before) <= 1 for step in found)
            shares.append(" → ".join(f"{hit / count:.1%}" for hit in hits))
        yield [f"{day:.0%}", f"{own:.0%}", f"{before} + {after}", *shares]


def _cell(logs: NDArray[np.float64], before: int, size: float, other: float) -> series.Series:
    """Return the steps of the first row, after it and the second became slower."""
    logs[:2, before:] += np.log1p([[size], [other]])
    rows = np.exp(logs).tolist()
    points = {
        (str(impl), ""): {run: Point(s, s, s, "", "") for run, s in enumerate(row)} for impl, row in enumerate(rows)
    }
    return next(series.of_points(points, {}))


if __name__ == "__main__":
    main()
