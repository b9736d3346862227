"""Page of a machine's history: a heat map of implementations x runs, then each changed cell, open regressions first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import mean, median

import pandas as pd
from markupsafe import Markup

from stats import shares, steps
from stats.estimate import grouped
from stats.steps import MIN_RUNS, Step
from stats.verdict import IMPROVED, INCONCLUSIVE, REGRESSED

from ..drawing import history_chart, views
from ..drawing.palette import Palette
from ..drawing.views import HeatCell, HeatMap
from ..judging.series import Known, Point, Series, commits_around
from ..reading import baseline_file, units, words
from ..reading.baseline_file import Entry
from ..reading.runs import Run
from . import page
from .tables import Table

HEADINGS = ("run", "when", "commit", "torch", "median", "spread", "change", "notes")
"""Column headings of a cell's table."""

COLUMNS = ("impl", "id", "run", "date", "commit", "torch", "python", "baseline", *Point._fields)

MOST_RUNS, WIDEST, STILL = 20, 0.25, 0.03
"""Runs of the heat map, the change with the darkest shade, and the share above which faster is marked."""

NEWEST = 40
"""Newest runs of a cell that are marked in its chart and listed in its table; older ones only if something happened."""


@dataclass(frozen=True)
class Chapter:
    """One cell: its chart, its table, and its status in a sentence."""

    impl: str
    title: str
    status: str
    open: bool
    """Whether it has a regression that has not recovered."""
    drawing: Markup
    table: Table
    """Its runs, newest first."""


@dataclass(frozen=True)
class History:
    """Contents of the page."""

    runs: Sequence[Run]
    series: Sequence[Series]
    notes: Sequence[str] = ()
    confirmed: Known = field(default_factory=dict)
    """Verdicts of interleaved comparisons of the runs' commits."""

    @cached_property
    def baselines(self) -> Mapping[int, list[Entry]]:
        """Entries of the baseline files by run; raises `RunError` if a file can't be read."""
        positions = {run.path.resolve(): at for at, run in enumerate(self.runs)}
        files = filter(None, map(baseline_file.read, dict.fromkeys(path.parent for path in positions)))
        entries = ((positions.get(file.folder / entry.run), entry) for file in files for entry in file.history)
        return grouped((at, entry) for at, entry in entries if at is not None)


def write(this: History, folder: Path) -> Path:
    """Write the page and `points.csv`; returns the page's path.

    Raises:
        RunError: a baseline file can't be read.
        OSError: the folder can't be made or written to.
    """
    rows = [
        (one.impl, one.id, run.name, run.date, run.commit_id, *map(run.machine.get, ("torch", "python")),
         run.baseline_impl, *point)
        for one in this.series
        for at, point in one.points.items()
        for run in [this.runs[at]]
    ]  # fmt: skip
    return page.save_page(folder, html(this), points=pd.DataFrame(rows, columns=COLUMNS))


def html(this: History) -> str:
    """Return the page. All texts from runs are escaped; only our own SVG and CSS are not."""
    names, registry = {one.impl for one in this.series}, {name for run in this.runs for name in run.registry}
    palette = Palette(words.own(names, registry), names)
    count = words.plural(len(this.runs), "run")
    return page.render(
        "history.html.j2",
        title="History",
        kicker=["history", f"{count}, {' to '.join(dict.fromkeys(this.runs[at].name for at in (0, -1)))}"],
        headline=headline(this),
        lead=[*tally(this)],
        notices=this.notes,
        runs=this.runs,
        map=_map(this),
        widest=units.change(1 + WIDEST, 0),
        marked=shares.percent(STILL),
        chapters=list(_chapters(this, palette)),
        still=_still(this),
        styles=palette,
        wrong=this.runs[-1].wrong,
        machine=this.runs[-1].machine,
        steps=steps,
        named=NEWEST,
    )


def _map(this: History) -> HeatMap:
    """Return a heat map of the newest runs and the implementations measured in them: time relative to the first runs since
    the last break.
    """
    newest = range(len(this.runs))[-MOST_RUNS:]
    headings = [(this.runs[at].name.split("_")[0], 1) for at in newest]
    by_impl = grouped((one.impl, one) for one in sorted(this.series, key=lambda one: one.impl))
    rows = []
    for impl, its in by_impl.items():
        logs = [*map(_since, its)]
        if not any(at in of for of in logs for at in newest):
            continue
        cells = [_changed([of[at] for of in logs if at in of], impl, this.runs[at]) for at in newest]
        rows.append((impl, _smallest(its), cells))
    return HeatMap(None, "each run", "smallest step", [headings], rows)


def _since(series: Series) -> dict[int, float]:
    """Return by run the log of its time relative to its first runs."""
    at = {run: math.log(series.points[run].median) for run in series.pieces[-1]}
    level = median(list(at.values())[:MIN_RUNS])
    return {run: log - level for run, log in at.items()}


def _changed(logs: Sequence[float], impl: str, run: Run) -> HeatCell:
    where = f"{impl}, {run.name}"
    if impl in run.wrong:
        return HeatCell(words.WRONG, f"{where}: wrong", "bad")
    if not logs:
        return HeatCell("–", f"{where}: not measured, or before a line breaks", "gone")
    change = math.expm1(mean(logs))
    text = units.change(1 + change, 0).removesuffix(" %")
    kind = "good" if change < -STILL else ""
    return HeatCell(text, f"{where}: {units.change(1 + change)}", kind, views.shade(change / WIDEST))


def _smallest(of: Iterable[Series]) -> str:
    """Return the smallest step that the median cell would show."""
    every = [one.smallest for one in of if one.smallest > 0]
    if not every:
        return units.MISSING
    return f"± {shares.percent(median(every))}" if median(every) <= 1 else "above 100 %"


def headline(this: History) -> str:
    """Describe the last regression that has not recovered, without one the latest change, and its number of cells."""
    first = this.series[0] if this.series else None
    if first is None or not first.steps:
        few = f"Too few runs to see a change: a cell has at most {_most(this)}, and it takes {2 * MIN_RUNS}."
        return few if _most(this) < 2 * MIN_RUNS else "No change detected."
    last = first.open_step or first.steps[-1]
    moved = [
        (one.impl, it.ratio)
        for one in this.series
        if one.steps and (one.open_step is None) == (first.open_step is None)
        if ((it := one.open_step or one.steps[-1]).at, it.slower) == (last.at, last.slower)
    ]
    names = dict.fromkeys(impl for impl, _ in moved)
    cells = sum(one.impl in names for one in this.series)
    where = f"in {len(moved)} of {cells} cells" if len(moved) > 1 else f"at {title(first)}"
    became = _became(median(ratio for _, ratio in moved))
    return f"{words.listing(names)} {became} in {this.runs[last.at].name}, {where}."


def _most(this: History) -> int:
    """Return the most runs of a cell."""
    return max((len(one.points) for one in this.series), default=0)


def tally(this: History) -> Iterator[str]:
    """Yield what is wrong in the newest run; if there are enough runs to see any change, the number of cells that changed, and
    of those that are still slower, and which changes can be seen.
    """
    if wrong := this.runs[-1].wrong:
        yield f"{words.WRONG} wrong in {this.runs[-1].name}: {words.listing(sorted(wrong))}."
    if _most(this) < 2 * MIN_RUNS:
        return
    moved = [one for one in this.series if one.steps]
    cells, count = words.plural(len(this.series), "cell"), words.plural(len(this.runs), "run")
    counted = f"{len(moved)} of {cells} changed over {count}"
    open_ = sum(one.open_step is not None for one in moved)
    yield f"{counted}; {open_} slower than before and not recovered." if open_ else f"{counted}."
    if confirmed := Counter(outcome for one in moved if one.open_step and (outcome := _confirmation(one, this)[0])):
        yield f"Interleaved: {', '.join(f'{cells} {outcome}' for outcome, cells in confirmed.items())}."
    yield f"The smallest step that the median cell would show: {_smallest(this.series)}."


def title(series: Series) -> str:
    """Return the case in words, with the axes that its id names, such as threads."""
    named = (part.partition("=")[0] for part in series.id.split("-") if "=" in part)
    return words.setting(series.axes, always=("B", "H", "D_h", "T", *named)) or series.id


def _chapters(this: History, palette: Palette) -> Iterator[Chapter]:
    for series in this.series:
        if series.steps or series.breaks:
            lines = _lines(series, this)
            titles = {
                at: ", ".join(f"{heading} {text}" for heading, text in zip(HEADINGS, line, strict=True) if text)
                for at, line in lines.items()
            }
            drawing = history_chart.draw(series, this.runs, palette[series.impl], this.baselines, titles)
            status, (outcome, interval) = _status(series, this.runs), _confirmation(series, this)
            status += f" Interleaved: {outcome}{interval}." if outcome else ""
            yield Chapter(
                series.impl, title(series), status, series.open_step is not None, drawing, _table(series, lines)
            )


def _table(series: Series, lines: Mapping[int, Sequence[str]]) -> Table:
    older = (
        "Older runs only with a step, a break or a baseline; points.csv has all."
        if len(lines) < len(series.points)
        else ""
    )
    title_of = f"{words.plural(len(series.points), 'run')}, {series.impl}, {series.id}"
    return Table(title_of, HEADINGS, list(lines.values())[::-1], older)


def _still(this: History) -> Table:
    rows = [
        (one.impl, title(one), units.seconds(one.points[max(one.points)].median, 4), _status(one, this.runs))
        for one in this.series
        if not (one.steps or one.breaks)
    ]
    title_of = f"{words.plural(len(rows), 'cell')} without a detected change"
    return Table(title_of, ("implementation", "case", "newest", "result"), rows)


def _lines(series: Series, this: History) -> dict[int, Sequence[str]]:
    """Return rows of HEADINGS by run: the newest points, and older ones with events."""
    moved = {step.at: _what_happened(step, this.runs) for step in series.steps}
    back = {step.recovered for step in series.steps}
    newest = [*series.points][-NEWEST:]
    found: dict[int, Sequence[str]] = {}
    for at, point in series.points.items():
        changed = "the benchmark itself was changed" if at in series.breaks else ""
        notes = [*filter(None, (moved.get(at), "recovered" if at in back else "", changed))]
        entries = this.baselines.get(at, ())
        notes += [f"baseline, accepted: {it.reason}" if it.reason else "baseline" for it in entries]
        if notes or at in newest:
            run = this.runs[at]
            before = series.points[series.before[at]].median if at in series.before else math.nan
            found[at] = (
                run.name,
                run.when or units.MISSING,
                run.commit_id or units.MISSING,
                str(run.machine.get("torch") or units.MISSING),
                units.seconds(point.median, 4),
                f"{units.seconds(point.q1, 4)} to {units.seconds(point.q3, 4)}",
                units.MISSING if at in series.breaks else units.change(point.median / before),
                "; ".join(notes),
            )
    return found


def _status(series: Series, runs: Sequence[Run]) -> str:
    """Describe a cell: each step, the last first, together with its recovery, or how long it has been unchanged; and the
    last change of the benchmark itself.
    """
    back = {step.recovered for step in series.steps}
    moved = "; ".join(_what_happened(step, runs) for step in reversed(series.steps) if step.at not in back)
    count = words.plural(len(series.points), "run")
    few = f"{count}: too few to see a step" if len(series.points) < 2 * MIN_RUNS else f"no step in {count}"
    text = words.sentence(moved or few)
    if series.breaks:
        text += f" The benchmark itself was changed in {runs[series.breaks[-1]].name}."
    return text


def _confirmation(series: Series, this: History) -> tuple[str, str]:
    """Return the outcome of an interleaved comparison of the commits around the open regression, else the last step, and its
    interval; both empty without one.
    """
    step = series.open_step or next(reversed(series.steps), None)
    found = this.confirmed.get(commits_around(series, step.at, this.runs)) if step else None
    if step is None or found is None:
        return "", ""
    if math.isnan(found.low):
        return found.reason, ""
    expected = REGRESSED if step.slower else IMPROVED
    said = {expected: "confirmed", INCONCLUSIVE: "inconclusive"}.get(found.word, "not confirmed")
    return said, f" ({shares.bound(found.low, found.high)})"


def _what_happened(step: Step, runs: Sequence[Run]) -> str:
    """Return 'became slower by 5.1 % relative to the case's other implementations in 0007_x, and recovered in 0011_x'."""
    others = " relative to the case's other implementations" if step.relative else ""
    sentence = f"{_became(step.ratio)}{others} in {runs[step.at].name}"
    return sentence if step.recovered is None else f"{sentence}, and recovered in {runs[step.recovered].name}"


def _became(ratio: float) -> str:
    """Return 'became slower by 5.1 %', or 'by a factor of 40'."""
    return (
        f"became slower by {shares.varied(ratio - 1)}" if ratio > 1 else f"became faster by {shares.varied(1 - ratio)}"
    )
