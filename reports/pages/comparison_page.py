"""Page of a comparison: its text, and every change as a dot with its interval."""

from __future__ import annotations

from stats import shares

from ..drawing.palette import Palette
from ..judging.comparison import Comparison
from . import changes, page
from .comparison_text import counted, headline, machine, table
from .tables import Table


def html(this: Comparison) -> str:
    """Return the page; all texts from files are escaped."""
    first, others = headline(this)
    return page.render(
        "changes.html.j2",
        title=f"{this.base} → {this.head}",
        kicker=[f"{this.base} → {this.head}"],
        headline=first,
        lead=[*others, counted(this)],
        notices=[],
        lists=[("Changes", changes.of_cells(this.cells, shares.percent(this.margin)))],
        more=[Table("All numbers", *table(this.cells, without=("verdict", "why")))],
        notes=this.notes,
        machine=machine(this),
        commands=this.commands,
        styles=Palette(),
    )
