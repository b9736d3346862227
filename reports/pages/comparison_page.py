"""Page of a comparison: its text, and every change as a dot with its interval, regressions first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stats import shares, verdict

from ..drawing.palette import Palette
from ..drawing.svg import Scale
from ..judging.comparison import Cell, Comparison
from ..reading import words
from . import page
from .comparison_text import columns, counted, examples, headline, left_out, shared_reasons
from .tables import Table, filled, of_lines

NARROWEST, WIDEST = 0.02, 3.0
"""Smallest and largest change at which the axis may end."""

STEPS = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0)
"""Changes that may be ticks; each has a mirrored tick on the other side."""


@dataclass(frozen=True)
class Changes:
    """A list of changes. `ticks` of the scale, which is in percent of the width; `margin` in words."""

    rows: Sequence[tuple[Cell, str, str, str]]
    """Cells, each with its change, `worse`, `better` or `still`, and the reason."""
    scale: Scale
    ticks: Sequence[tuple[float, str]]
    margin: str
    left_out: str
    """Number of omitted unchanged or not significant rows, and the reasons shared by several rows, each once."""


def html(this: Comparison) -> str:
    """Return the page; all texts from files are escaped."""
    first, others = headline(this)
    return page.render(
        "changes.html.j2",
        title=f"{this.base} → {this.head}",
        kicker=[f"{this.base} → {this.head}"],
        headline=first,
        lead=[*(f"{other}." for other in others), words.sentence(counted(this))],
        notices=[],
        lists=[("Changes", of_cells(this.cells, shares.percent(this.margin)))] if this.cells else [],
        more=[_numbers(this.cells)] if this.cells else [],
        notes=this.notes,
        machine=this.machine,
        commands=this.commands,
        styles=Palette(this.own, {cell.impl for cell in this.cells}),
    )


def _numbers(cells: Iterable[Cell]) -> Table:
    lines = [*map(columns, cells)]
    headings = [heading for heading in filled(lines) if heading not in ("verdict", "why")]
    return of_lines("All numbers", lines, [*headings, "verdict"])


def of_cells(cells: Sequence[Cell], margin: str = "") -> Changes:
    """List a comparison's cells, worst first."""
    scale = _scale(end for cell in cells for end in (cell.verdict.low, cell.verdict.high, cell.verdict.ratio))
    step = max((it for it in STEPS if it <= 0.9 * (scale.high - 1)), default=STEPS[0])
    ticks = [(scale(1 / (1 + step)), f"\N{MINUS SIGN}{100 * step / (1 + step):.2g} %"), (scale(1), "0"),
             (scale(1 + step), f"+{100 * step:g} %")]  # fmt: skip
    shown, reasons = examples(cells), shared_reasons(cells)
    hidden = left_out(cells, shown)
    explained = "; ".join([*[f"{hidden} more, in “All numbers”"] * bool(hidden), *reasons.values()])
    return Changes([_row(cell, reasons) for cell in shown], scale, ticks, margin, explained)


def _row(cell: Cell, shared: Iterable[str]) -> tuple[Cell, str, str, str]:
    line = columns(cell, shared)
    kind = "worse" if cell.regressed else "better" if cell.verdict.word == verdict.IMPROVED else "still"
    return cell, line["change"], kind, line["why"]


def _scale(ratios: Iterable[float]) -> Scale:
    """Return a scale symmetric about no change, as wide as the changes, in percent of the width."""
    reach = max([abs(math.log(it)) for it in ratios if it > 0 and math.isfinite(it)], default=0.0)
    widest = min(WIDEST, max(NARROWEST, math.expm1(1.1 * reach)))
    return Scale(1 / (1 + widest), 1 + widest, 0, 100)
