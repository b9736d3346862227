"""Results of a run, computed once for its page, tables, figures and terminal output."""

from __future__ import annotations

from dataclasses import dataclass

from ..drawing.palette import Palette
from ..judging import findings, grid
from ..judging.grid import Grid
from ..judging.rows import Rows, rows_of
from ..reading.runs import Run


@dataclass(frozen=True)
class Report:
    run: Run
    rows: Rows
    grid: Grid
    palette: Palette
    headline: str
    trust: str
    """What confidence in the ratios follows from."""
    page_faults: str


def report(run: Run) -> Report:
    rows = rows_of(run)
    made = grid.grid(rows, run.skipped, run.registry)
    return Report(
        run,
        rows,
        made,
        Palette(made.own, made.impls),
        findings.headline(made, run.baseline_impl),
        findings.confidence(run, made),
        findings.page_faults(rows, run.machine),
    )
