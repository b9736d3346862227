"""The page of several runs beside each other: charts with a line a run, tables with a column a run."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ..drawing import interactive
from ..drawing.chart import Chart, Source
from ..drawing.palette import themed
from ..judging import frame as fr
from ..reading import fingerprint, units, words
from ..reading.runs import Run
from . import page
from . import side_by_side as sides
from .side_by_side import Cell, SideBySide, Value

_MEASURES = {
    Chart("latency", "Latency"): interactive.LATENCY,
    Chart("memory", "Peak memory"): interactive.MEMORY,
}

MOST_NAMES = 3
LONGEST_NAME = 120


@dataclass(frozen=True)
class Missing:
    """Cells of one implementation that only some of the runs have."""

    impl: str
    having: str
    why: list[str]
    cases: list[str]


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
    source = Source(this.frame, this.palette)
    made = {chart: interactive.turned(measure, this.labels)(source) for chart, measure in _MEASURES.items()}
    specs = {chart.name: spec for chart, spec in made.items() if spec is not None}
    numbers = [chart for chart in made if chart.name in specs]
    return page.rendered(
        "runs.html.j2",
        this.wrong,
        labels=this.labels,
        headline=_headline(this),
        sentences=list(_sentences(this)),
        other_machines=this.other_machines,
        about=sides.about(this),
        shared=sides.shared(this),
        charts=numbers,
        lines=_has_lines(this),
        **page.embedded(source, specs, this.labels, _placed(this)),
        controls=page.controls_of(source, numbers, this.labels),
        cases=this.cases,
        missing=_missing(this),
        palette=this.palette,
        colours=list(themed().values()),
        cells=len(this.frame),
        any_wrong=bool(this.wrong),
        wrong_mark=words.WRONG,
        times=units.times,
        described=_described,
    )


def _has_lines(this: SideBySide) -> bool:
    return bool(interactive.along(this.frame[this.frame["median"] > 0]))


def _placed(this: SideBySide) -> pd.DataFrame:
    """The rows with the place of their run among the runs."""
    return fr.exported(this.frame).assign(
        run_at=this.frame["run"].map({label: i for i, label in enumerate(this.labels)})
    )


def _headline(this: SideBySide) -> str:
    """Of two runs how they compare, of more how many there are."""
    if len(this.runs) == 2:
        for label, middle, *_ in sides.typical(this):
            return f"{label} takes {units.times(middle, 2)} the time of {this.labels[0]} in the median cell"
    shared = sum(len(case.cells) for case in this.cases)
    everywhere = words.plural(shared, "cell") if shared else "no cell"
    both = "both" if len(this.runs) == 2 else "all of them"
    return f"{words.plural(len(this.runs), 'run')} side by side, {everywhere} in {both}"


def _sentences(this: SideBySide) -> Iterator[str]:
    first = this.labels[0]
    for label, middle, low, high, count in sides.typical(this):
        spanned = f"{units.times(low, 2)} to {units.times(high, 2)} over the {words.plural(count, 'cell')} of both"
        typical = f"By medians, {label} takes {units.times(middle, 2)} the time of {first} in the median cell"
        yield f"{typical} ({spanned}){_verdicts(this, label)}."
    if not any(True for _ in sides.typical(this)):
        yield f"No run has a cell in common with {first}."


def _verdicts(this: SideBySide, label: str) -> str:
    at = list(this.labels).index(label)
    values = [cell.values[at] for cell in this.cells]
    counts = Counter(value.word for value in values if value and value.word)
    counted = ", ".join(f"{count} {word}" for word, count in counts.items())
    if label in this.other_machines:
        differences = fingerprint.differing(this.runs[0], this.runs[at])
        return f"; no verdict, since of another machine: {fingerprint.described(differences)}"
    return f"; {counted}" if counted else ""


def _described(value: Value | None) -> dict[str, str]:
    """What stands in a cell's column: time, ratio to the first, memory, verdict."""
    if value is None:
        return {"time": units.MISSING, "memory": "", "ratio": "", "word": "", "standing": ""}
    ratio = units.times(value.ratio, 2) if value.ratio == value.ratio else ""
    return {
        "time": units.seconds(value.seconds),
        "memory": units.memory(value.bytes),
        "ratio": ratio,
        "word": value.word,
        "standing": value.standing,
    }


def _missing(this: SideBySide) -> list[Missing]:
    """Cells that not every run has, those with the same implementation, runs and reasons once."""
    grouped: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for cell in this.not_everywhere:
        grouped.setdefault((cell.impl, *_where(cell, this.labels)), []).append(cell.case)
    return [Missing(impl, having, list(why), cases) for (impl, having, why), cases in grouped.items()]


def _where(cell: Cell, labels: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The runs that have the cell, and why the others don't."""
    sides_of = list(zip(labels, cell.values, cell.why, strict=True))
    having = words.listing([label for label, value, _ in sides_of if value])
    return having, tuple(f"{label}: {why}" for label, value, why in sides_of if value is None)
