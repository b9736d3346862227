"""The page of several runs beside each other: changes from the first to each other, and a table with a column a run."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..judging import comparison
from ..judging import frame as fr
from ..reading import fingerprint, units, words
from ..reading.runs import Run
from . import changes, page
from . import side_by_side as sides
from .changes import Changes
from .side_by_side import Cell, SideBySide, Value
from .tables import Table

MOST_NAMES = 3
LONGEST_NAME = 120


def write(runs: Sequence[Run], folder: Path) -> Path:
    """Writes page and `rows.csv` of several runs into `folder`; returns the page's path.

    Raises:
        OSError: the folder can't be made or written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    this = sides.side_by_side(runs)
    fr.exported(this.frame).to_csv(folder / "rows.csv", index=False)
    written = folder / "index.html"
    written.write_text(html(this), encoding="utf-8")
    return written


def folder_name(runs: Sequence[Run]) -> str:
    """'0001_a+0002_b'; of many, or with long names, the first and a number that the same runs always have."""
    names = [label.replace(" ", "-") for label in sides.labels_of(runs)]
    whole = "+".join(names)
    if len(names) <= MOST_NAMES and len(whole.encode()) <= LONGEST_NAME:
        return whole
    digest = hashlib.sha256("\n".join(str(run.path.resolve()) for run in runs).encode()).hexdigest()[:8]
    return f"{runs[0].name[:40]}+{len(runs) - 1}-{digest}"


def html(this: SideBySide) -> str:
    """Whatever came from the runs is escaped; only our own SVG, CSS and JavaScript are not."""
    found = [_changes(this, at) for at in range(1, len(this.runs))]
    return page.rendered(
        "changes.html.j2",
        this.wrong,
        title=" + ".join(this.labels),
        kicker=this.labels,
        headline=_headline(this, found),
        lead=list(_sentences(this)),
        notices=list(_notices(this)),
        lists=[(f"{this.labels[0]} → {label}", one) for label, one in zip(this.labels[1:], found, strict=True)],
        more=[_numbers(this), _runs(this), _missing(this)],
        notes=[
            "Medians of separate runs, hours or machines apart: 5 to 50 % between two runs of unchanged code is ordinary. "
            "Verdicts are those of `python -m reports compare`; they need one machine, and several processes a cell."
        ],
        machine=sides.shared(this),
        commands=[run.command for run in this.runs if run.command],
        looks=this.palette,
    )


def _notices(this: SideBySide) -> Iterator[str]:
    if this.other_machines:
        yield "Measured on different machines: no verdicts."
    if this.wrong:
        yield f"{words.WRONG} wrong in at least one cell of these runs: {words.listing(sorted(this.wrong))}."


def _changes(this: SideBySide, at: int) -> Changes:
    """From the first run to another: judged where both are of one machine."""
    if this.labels[at] not in this.other_machines:
        return changes.of_cells(comparison.compare(this.runs[0], this.runs[at]).cells)
    both = [(cell, cell.values[at]) for cell in this.cells if cell.values[0]]
    return changes.of_ratios((cell.impl, cell.case, value.ratio) for cell, value in both if value)


def _headline(this: SideBySide, found: Sequence[Changes]) -> str:
    """What changed from the first run to each other; of many runs how many there are."""
    listed = dict(zip(this.labels[1:], found, strict=True))
    said = [
        f"{label}: {_moved(listed[label], middle)} {words.plural(count, 'cell')}"
        for label, middle, _, _, count in sides.typical(this)
    ]
    if said and len(this.runs) <= MOST_NAMES:
        return f"{this.labels[0]} → {'; → '.join(said)}"
    shared = sum(cell.everywhere for cell in this.cells)
    everywhere = words.plural(shared, "cell") if shared else "no cell"
    return f"{words.plural(len(this.runs), 'run')} side by side, {everywhere} in all"


def _moved(found: Changes, middle: float) -> str:
    """'2 regressed and 1 improved of', or '+0.3 % in the median of'"""
    kinds = Counter(row.kind for row in found.rows)
    named = {"worse": "regressed", "better": "improved"}
    moved = " and ".join(f"{kinds[kind]} {text}" for kind, text in named.items() if kinds[kind])
    return f"{moved} of" if moved else f"{units.change(middle)} in the median of"


def _sentences(this: SideBySide) -> Iterator[str]:
    first = this.labels[0]
    for label, middle, low, high, count in sides.typical(this):
        spanned = f"{units.change(low)} to {units.change(high)} over {words.plural(count, 'cell')}"
        differs = fingerprint.differing(this.runs[0], this.runs[list(this.labels).index(label)])
        machine = f"; another machine: {fingerprint.described(differs)}" if label in this.other_machines else ""
        yield f"{first} → {label}: {units.change(middle)} in the median cell ({spanned}){machine}."
    if not any(True for _ in sides.typical(this)):
        yield f"No run has a cell in common with {first}."


def _numbers(this: SideBySide) -> Table:
    rows = [(cell.impl, cell.case, *map(_described, cell.values)) for cell in this.cells if cell.everywhere]
    return Table("All numbers", ("implementation", "case", *this.labels), rows, "Median and peak memory.", True, (1,))


def _described(value: Value | None) -> str:
    return f"{units.seconds(value.seconds)}, {units.memory(value.bytes)}" if value else units.MISSING


def _runs(this: SideBySide) -> Table:
    rows = [(key, *texts) for key, texts in sides.about(this)]
    return Table("Runs, and what differs", ("", *this.labels), rows, left=range(1, 1 + len(this.labels)))


def _missing(this: SideBySide) -> Table:
    """Cells that not every run has, those with the same implementation, runs and reasons once."""
    grouped: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for cell in this.cells:
        if not cell.everywhere:
            grouped.setdefault((cell.impl, *_where(cell, this.labels)), []).append(cell.case)
    rows = [
        (impl, str(len(cases)), having, "; ".join(why), ", ".join(cases))
        for (impl, having, why), cases in grouped.items()
    ]
    return Table("Not in every run", ("implementation", "cells", "only in", "why not in the others", "cases"), rows,
                 "" if rows else "Every cell is in every run.", True, (2, 3, 4))  # fmt: skip


def _where(cell: Cell, labels: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The runs that have the cell, and why the others don't."""
    sides_of = list(zip(labels, cell.values, cell.why, strict=True))
    having = words.listing([label for label, value, _ in sides_of if value])
    return having, tuple(f"{label}: {why}" for label, value, why in sides_of if value is None)
