"""What the machine could do, and what it did: roofs, and the control workload over the run."""

from __future__ import annotations

from ...judging import controls, findings
from .. import interactive
from ..chart import NUMBERS, Chart, Source, Spec


def roofline(source: Source) -> Spec | None:
    return interactive.roofs(source.frame, source.palette, source.run.roofs) if source.run else None


def drift(source: Source) -> Spec | None:
    return interactive.drift(controls.seen(source.run.controls)) if source.run else None


CHARTS = (
    Chart("rate", "Operations per second", NUMBERS, spec=interactive.turned(interactive.RATE), order=3),
    Chart("roof", "Share of the roof", NUMBERS, spec=interactive.turned(interactive.ROOF), order=4),
    Chart("roofline", "Roofline", NUMBERS, spec=roofline, finding=lambda it: findings.roof(it.frame), holds=True, order=5),
    Chart(
        "drift", "Drift of the control workload", NUMBERS, spec=drift, order=6,
        finding=lambda it: "Time of a fixed workload over the run, beside its median: the machine's own drift.",
    ),
)  # fmt: skip
