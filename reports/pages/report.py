"""Results of a run, computed once for its page, tables, figures and terminal output."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from ..drawing.palette import Palette
from ..judging import answer, findings, grid
from ..judging import frame as fr
from ..judging.answer import Trust
from ..judging.grid import Grid
from ..reading.runs import Run


@dataclass(frozen=True)
class Report:
    run: Run
    frame: pd.DataFrame
    skipped: pd.DataFrame
    grid: Grid
    palette: Palette
    headline: str
    trust: Trust
    findings: list[str]


def report(run: Run) -> Report:
    frame, skipped = fr.tidy(run), fr.skipped(run)
    made = grid.grid(frame, skipped, run.registry)
    headline = answer.headline(made, run.baseline_impl)
    return Report(
        run,
        frame,
        skipped,
        made,
        Palette(run.registry),
        headline,
        answer.trust(run, made),
        [*filter(None, [findings.page_faults(frame), findings.hidden_memory(frame)])],
    )
