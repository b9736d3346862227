"""Notebook interface: a saved run as a frame, and as its page."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import pandas as pd

from stats.arguments import as_typed

from ..judging.rows import rows_of, tidy
from ..reading import command
from ..reading.runs import Run, RunError
from . import page
from .report import report

HEIGHT = 900
"""Height in pixels of a page in a notebook; it scrolls."""


@dataclass(frozen=True)
class Page:
    """A page that notebooks display; `html` is complete and self-contained."""

    html: str = field(repr=False)  # megabytes in a terminal

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(self.html)}" width="100%" height="{HEIGHT}" style="border: 0"></iframe>'


def frame(run: str | Path | None = None, results: str | Path | None = None) -> pd.DataFrame:
    """Return one row per measured cell of a saved run, the newest by default; docs/columns.md lists the columns.

    `run` is a file or a name as on the command line (`x`, `0001`, `MACHINE/0001_x`), `results` the folder of runs.

    Raises:
        RunError: there is no such run, there are several, or it can't be read.
    """
    return tidy(rows_of(_read(run, results)))


def show(run: str | Path | None = None, results: str | Path | None = None) -> Page:
    """Return the page of a saved run for display in a notebook; raises as `frame` does."""
    return Page(page.html(report(_read(run, results))))


def _read(run: str | Path | None, results: str | Path | None) -> Run:
    try:
        return command.chosen(None if run is None else str(run), Path(results) if results else None)
    except RunError as error:
        raise RunError(as_typed(str(error))) from None
