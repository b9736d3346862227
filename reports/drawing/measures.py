"""Quantities that charts draw along an axis, for the page and for figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from stats.estimate import grouped

from ..judging.grid import Cases, Mark
from ..reading import units

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Measure:
    """A quantity of an implementation in a case; NaN if unavailable."""

    title: str
    value: Callable[[Mark], float]
    text: Callable[[float], str]
    base: int = 10
    """Base of its logarithmic axis."""


SLOWDOWN = Measure("Slowdown over the fastest", lambda mark: mark.slowdown, lambda value: f"{value:g}×")

MEASURES = {
    "latency": Measure("Latency", lambda mark: mark.row["median"], lambda value: units.tick(units.seconds(value))),
    "memory": Measure(
        "Peak memory", lambda mark: mark.row["peak_bytes"], lambda value: units.tick(units.memory(value)), 2
    ),
    "speedup": Measure("Speedup", lambda mark: mark.row["speedup"], lambda value: f"{value:g}×"),
}
"""Figures by name."""


def series(measure: Measure, cases: Cases, impls: Iterable[str], axis: str) -> dict[str, Points]:
    """Return the points of each implementation that has any."""
    return grouped(
        (impl, (float(case.at[axis]), float(value)))
        for impl in impls
        for case in cases
        if (mark := case.mark(impl)).counts and (value := measure.value(mark)) > 0
    )
