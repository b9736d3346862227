"""Page of a comparison: its text, and every change as a dot with its interval."""

from __future__ import annotations

from stats import shares

from ..drawing.palette import Palette
from ..judging.comparison import Comparison
from ..reading import units
from ..reading.command import REGRESSED
from . import changes, page
from .comparison_text import HEADINGS, answer, columns, counted, sentences
from .tables import Table

MOST_SENTENCES = 2
"""Most sentences in a headline; if there are more, only the first is shown when something regressed."""


def html(this: Comparison) -> str:
    """Return the page; all texts from files are escaped."""
    lines = list(sentences(this))
    first = len(lines) if len(lines) <= MOST_SENTENCES else int(this.code == REGRESSED)
    numbers = [dict(zip(HEADINGS, columns(cell), strict=True)) for cell in this.cells]
    used = [name for name in HEADINGS[1:-1] if any(line[name] not in ("", units.MISSING) for line in numbers)]
    return page.render(
        "changes.html.j2",
        title=f"{this.base} → {this.head}",
        kicker=[f"{this.base} → {this.head}"],
        headline=": ".join([answer(this), *(["; ".join(lines[:first])] if lines[:first] else [])]),
        lead=[*lines[first:], counted(this)],
        notices=[],
        lists=[("Changes", changes.of_cells(this.cells, shares.percent(this.margin)))],
        more=[
            Table("All numbers", used, [[line[name] for name in used] for line in numbers], of_impls=True, left=(1,))
        ],
        notes=this.notes,
        machine=dict(page.flat({key: value for key, value in this.machine.items() if value not in (None, "", {})})),
        commands=this.commands,
        styles=Palette(),
    )
