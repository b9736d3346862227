"""A chart: its data, title, finding and place in one entry, drawn by matplotlib for files and by Vega-Lite for the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from ..judging import frame as fr
from ..reading import words
from ..reading.runs import Run
from .canvas import label
from .palette import Palette

FIRST, NUMBERS, FILE = "first", "numbers", "file"
"""Where a chart stands: on the first screen, among those of which a reader picks one, or beside the page."""

Spec = dict[str, Any]
"""Of Vega-Lite."""


@dataclass(frozen=True)
class Source:
    """What every chart is drawn from."""

    frame: pd.DataFrame
    palette: Palette
    baseline_impl: str | None = None
    run: Run | None = None

    def name(self, impl: str) -> str:
        """The implementation's name as drawn, with a mark if it was wrong anywhere."""
        return words.marked(label(impl), [label(impl)] if impl in self._wrong else [])

    def at_ends_of(self, axis: str) -> Source:
        """Only the rows at the smallest and the largest value of an axis."""
        ends = (self.frame[axis].min(), self.frame[axis].max())
        known = self.frame[axis].notna().any()
        return replace(self, frame=self.frame[self.frame[axis].isin(ends)] if known else self.frame)

    @cached_property
    def usable(self) -> pd.DataFrame:
        """Rows with a time, as findings want them."""
        return fr.own_keys_unsaid(self.frame.dropna(subset=["median"]))

    @property
    def _wrong(self) -> set[str]:
        return set(self.frame.loc[self.frame["wrong"], "impl"])


def _nothing(source: Source, narrow: bool = False) -> None:
    """Of what a chart is not drawn as."""


@dataclass(frozen=True)
class Chart:
    """One chart. `draw` makes a figure, wide or narrow, and `spec` what the page draws; None where there is nothing to show.
    `finding` is what it shows in a sentence, '' where nothing is shown to be so."""

    name: str
    title: str
    section: str = FILE
    draw: Callable[[Source, bool], Figure | None] = _nothing
    spec: Callable[[Source], Spec | None] = _nothing
    finding: Callable[[Source], str] = lambda source: ""
    holds: bool = False
    """Whether the finding is true of all that a reader may choose."""
    order: int = 100
    """Among those of its section: the lowest first."""

    @property
    def draws(self) -> bool:
        """Whether it can be a file."""
        return self.draw is not _nothing

    def caption(self, source: Source) -> str:
        return self.finding(source) or f"{self.title}, by medians."
