"""Page of a machine's history: a heat map of implementations x runs, then each changed cell, open slow-downs first."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import mean, median

import numpy as np
from markupsafe import Markup

from stats import conditions, shares
from stats.shares import bound
from stats.steps import FALSE_STEPS, MIN_OTHERS, MIN_RUNS, SMALLEST, Step
from stats.verdict import IMPROVED, INCONCLUSIVE, REGRESSED

from ..drawing import history_chart, views
from ..drawing.palette import Palette
from ..drawing.views import HeatCell, HeatMap, HeatRow
from ..judging.confirmations import Known, key
from ..judging.series import Point, Series
from ..reading import baseline_file, units, words
from ..reading.baseline_file import Entry
from ..reading.runs import Run
from . import page
from .tables import Table, flat

HEADINGS = ("run", "when", "commit", "torch", "median", "spread", "change", "notes")
"""Column headings of a cell's table."""

COLUMNS = ("impl", "id", "run", "date", "commit", "torch", "python", "seconds", *Point._fields[1:])

MOST_RUNS, WIDEST, STILL = 20, 0.25, 0.03
"""Runs of the heat map, the change with the darkest shade, and the largest speed-up that is not marked."""

POWER = 3.42
"""Effect size in standard errors that is detected with 80 % power and a false alarm rate of 1 %."""

NEWEST = 40
"""Newest runs of a cell that are marked in its chart and listed in its table; older ones only if something happened."""


@dataclass(frozen=True)
class Chapter:
    """One cell: its chart, its table, and its status in a sentence."""

    impl: str
    title: str
    status: str
    open: bool
    """Whether it has a slow-down that has not recovered."""
    drawing: Markup
    table: Table
    """Its runs, newest first."""


@dataclass(frozen=True)
class History:
    """Contents of the page. `baselines` maps positions of runs to the baseline file's entry."""

    runs: Sequence[Run]
    series: Sequence[Series]
    baselines: Mapping[int, list[Entry]]
    notes: Sequence[str]
    confirmed: Known = field(default_factory=dict)
    """Verdicts of interleaved comparisons of the runs' commits."""


def history(
    runs: Sequence[Run], series: Sequence[Series], notes: Sequence[str], confirmed: Known | None = None
) -> History:
    """Build the contents.

    Raises:
        RunError: a baseline file can't be read.
    """
    return History(runs, series, _baselines(runs), notes, confirmed or {})


def write(this: History, folder: Path) -> Path:
    """Write the page and `points.csv`; returns the page's path.

    Raises:
        OSError: the folder can't be made or written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _write_points(this, folder / "points.csv")
    written = folder / "index.html"
    written.write_text(html(this), encoding="utf-8")
    return written


def html(this: History) -> str:
    """Return the page. All texts from runs are escaped; only our own SVG and CSS are not."""
    palette = Palette({name for run in this.runs for name in run.registry})
    count = words.plural(len(this.runs), "run")
    return page.render(
        "history.html.j2",
        title="History",
        kicker=["history", f"{count}, {this.runs[0].name} to {this.runs[-1].name}"],
        headline=headline(this),
        lead=[tally(this)],
        notices=this.notes,
        runs=this.runs,
        map=_map(this),
        widest=f"{WIDEST:+.0%}".replace("%", " %"),
        chapters=list(_chapters(this, palette)),
        more=[it for it in (_marks(this), _still(this)) if it.rows],
        styles=palette,
        machine=dict(flat(this.runs[-1].machine)),
        min_runs=MIN_RUNS,
        false_steps=FALSE_STEPS,
        min_others=MIN_OTHERS,
        named=NEWEST,
    )


def _map(this: History) -> HeatMap:
    """Return a heat map of implementations x newest runs: time relative to the first runs since the last break."""
    by_impl: dict[str, list[Series]] = {}
    for one in sorted(this.series, key=lambda one: one.impl):
        by_impl.setdefault(one.impl, []).append(one)
    first = max(0, len(this.runs) - MOST_RUNS)
    newest = range(first, len(this.runs))
    headings = [(this.runs[at].commit_id[:7] or this.runs[at].name.split("_")[0], 1) for at in newest]
    rows = []
    for impl, those in by_impl.items():
        logs = [_since(one) for one in those]
        cells = [_changed([of[at] for of in logs if at in of], f"{impl}, {this.runs[at].name}") for at in newest]
        rows.append(HeatRow(impl, _smallest(logs), cells))
    return HeatMap(None, "each run", "smallest step", [headings], rows)


def _since(series: Series) -> dict[int, float]:
    """Return by run the log of its time relative to its first runs, with drift removed around a step."""
    piece = series.pieces[-1]
    at = {run: math.log(series.without_drift.get(run, series.points[run].median)) for run in piece}
    level = median(list(at.values())[:MIN_RUNS])
    return {run: log - level for run, log in at.items()}


def _changed(logs: Sequence[float], where: str) -> HeatCell:
    if not logs:
        return HeatCell("–", f"{where}: not measured", "gone")
    change = math.expm1(mean(logs))
    text = units.change(1 + change, 0).removesuffix(" %")
    shade = round(views.SHADE * min(1.0, max(0.0, change / WIDEST)))
    return HeatCell(text, f"{where}: {units.percent(change)}", "good" if change < -STILL else "", shade)


def _smallest(logs: Sequence[Mapping[int, float]]) -> str:
    """Return the minimum detectable step of the median cell (`POWER`), from differences of neighbouring runs."""
    noises = [conditions.scatter(np.diff(list(of.values()))) for of in logs if len(of) > MIN_RUNS]
    if not noises:
        return units.MISSING
    noise = median(noises)
    return f"± {shares.percent(max(SMALLEST, math.expm1(POWER * noise * (2 / MIN_RUNS) ** 0.5)))}"


def headline(this: History) -> str:
    """Describe the last slow-down that has not recovered and its number of cells; without one, the latest change."""
    first = this.series[0] if this.series else None
    if first is None or not first.steps:
        most = max((len(one.points) for one in this.series), default=0)
        few = f"Too few runs to see a change: a cell has at most {most}, and it takes {2 * MIN_RUNS}."
        return few if most < 2 * MIN_RUNS else "No change detected."
    if first.open_step is None:
        return f"{first.impl} at {title(first)} {_what_happened(first.steps[-1], this.runs)}."
    run = first.open_step.at
    slower = [(one.impl, one.open_step.ratio) for one in this.series if one.open_step and one.open_step.at == run]
    names = dict.fromkeys(impl for impl, _ in slower)
    cells = sum(one.impl in names for one in this.series)
    typical = units.percent(median(ratio for _, ratio in slower) - 1)
    where = (
        f"in {len(slower)} of {'their' if len(names) > 1 else 'its'} {cells} cells"
        if len(slower) > 1
        else f"at {title(first)}"
    )
    return f"{words.listing(names)} became slower by {typical} in {this.runs[run].name}, {where}."


def tally(this: History) -> str:
    """Count the cells that changed, and those that are still slower."""
    moved = [one for one in this.series if one.steps]
    counted = (
        f"{len(moved)} of {words.plural(len(this.series), 'cell')} changed over {words.plural(len(this.runs), 'run')}"
    )
    open_ = sum(one.open_step is not None for one in moved)
    return f"{counted}; {open_} slower than before and not recovered." if open_ else f"{counted}."


def title(series: Series) -> str:
    """Return the case in words, with the axes that its id names, such as threads."""
    named = (part.partition("=")[0] for part in series.id.split("-") if "=" in part)
    return words.place(series.axes, always=("B", "H", "D_h", "T", *named)) or series.id


def _baselines(runs: Sequence[Run]) -> dict[int, list[Entry]]:
    positions = {run.path.resolve(): position for position, run in enumerate(runs)}
    found: dict[int, list[Entry]] = {}
    for folder in dict.fromkeys(path.parent for path in positions):
        baseline = baseline_file.read(folder)
        for entry in baseline.history if baseline else ():
            if (position := positions.get(folder / entry.run)) is not None:
                found.setdefault(position, []).append(entry)
    return found


def _chapters(this: History, palette: Palette) -> Iterator[Chapter]:
    for series in this.series:
        if series.steps or series.breaks:
            lines = _lines(series, this)
            titles = {
                at: f"{run}: {seconds}, {when}, commit {commit}, torch {torch}; {notes}".removesuffix("; ")
                for at, (run, when, commit, torch, seconds, _, _, notes) in lines.items()
            }
            drawing = history_chart.draw(series, this.runs, palette[series.impl], this.baselines, titles)
            status = _status(series, this.runs) + _confirmation(series, this) + _broken(series, this.runs)
            yield Chapter(
                series.impl, title(series), status, series.open_step is not None, drawing, _table(series, lines)
            )


def _table(series: Series, lines: Mapping[int, Sequence[str]]) -> Table:
    older = "Older runs only with a step, a break or a baseline; points.csv has all." * (
        len(lines) < len(series.points)
    )
    title_of = f"{words.plural(len(series.points), 'run')}, {series.id}"
    return Table(title_of, HEADINGS, list(lines.values())[::-1], older, left=("when", "commit", "torch", "notes"))


def _still(this: History) -> Table:
    rows = [
        (one.impl, title(one), units.seconds(one.points[max(one.points)].median, 4),
         _status(one, this.runs) + _broken(one, this.runs))
        for one in this.series if not (one.steps or one.breaks)
    ]  # fmt: skip
    heads = ("implementation", "case", "newest", "result")
    return Table(f"{words.plural(len(rows), 'cell')} without a change", heads, rows, left=("case", "result"))


def _lines(series: Series, this: History) -> dict[int, Sequence[str]]:
    """Return rows of HEADINGS by run: the newest points, and older ones with events."""
    moved = {step.at: step for step in series.steps}
    back = {step.recovered for step in series.steps}
    found: dict[int, Sequence[str]] = {}
    newest = [*series.points][-NEWEST:]
    for at, point in series.points.items():
        run = this.runs[at]
        notes = [_what_happened(moved[at], this.runs)] if at in moved else []
        notes += ["recovered"] if at in back else []
        notes += ["the benchmark itself was changed"] if at in series.breaks else []
        entries = this.baselines.get(at, ())
        notes += [f"baseline, accepted: {it.reason}" if it.reason else "baseline" for it in entries]
        if notes or at in newest:
            if at in series.without_drift:
                notes.append(f"{units.seconds(series.without_drift[at], 4)} with drift removed")
            spread = f"{units.seconds(point.low)} to {units.seconds(point.high)}"
            before = math.nan if at in series.breaks else series.points[series.before.get(at, at)].median
            change = units.change(point.median / before) if at in series.before else units.MISSING
            texts = run.name, _when(run.date), _commit(run), _torch(run), units.seconds(point.median, 4), spread
            found[at] = (*texts, change, "; ".join(notes))
    return found


def _status(series: Series, runs: Sequence[Run]) -> str:
    """Describe a cell's status: one sentence per step, the last first; or how long it has been unchanged.

    A recovery is described together with its slow-down.
    """
    if series.steps:
        back = {step.recovered for step in series.steps}
        sentence = "; ".join(_what_happened(step, runs) for step in reversed(series.steps) if step.at not in back)
        return f"{sentence[0].upper()}{sentence[1:]}."
    if len(series.points) < 2 * MIN_RUNS:
        return f"{words.plural(len(series.points), 'run')}: too few to see a step."
    return f"No step in {words.plural(len(series.points), 'run')}."


def _confirmation(series: Series, this: History) -> str:
    """Return the verdict of an interleaved comparison of the commits around the open slow-down, else the last step."""
    step = series.open_step or next(reversed(series.steps), None)
    found = this.confirmed.get(key(series, step.at, this.runs)) if step else None
    if step is None or found is None:
        return ""
    expected = REGRESSED if step.slower else IMPROVED
    words = {expected: "confirmed", INCONCLUSIVE: "open"}.get(found.word, "not confirmed")
    return (
        f" Interleaved: {words} ({bound(found.low, found.high)})."
        if found.low == found.low
        else f" Interleaved: {found.reason}."
    )


def _broken(series: Series, runs: Sequence[Run]) -> str:
    """Name the run from which on the benchmark itself was changed; '' if there is none."""
    if not series.breaks:
        return ""
    return f" The benchmark itself was changed in {runs[series.breaks[-1]].name}."


def _what_happened(step: Step, runs: Sequence[Run]) -> str:
    """Return 'became slower by 5.1 % relative to the case's other implementations in 0007_x, and recovered in 0011_x'."""
    how = f"slower by {units.percent(step.ratio - 1)}" if step.slower else f"faster by {units.percent(1 - step.ratio)}"
    how += " relative to the case's other implementations" if step.relative else ""
    sentence = f"became {how} in {runs[step.at].name}"
    return sentence if step.recovered is None else f"{sentence}, and recovered in {runs[step.recovered].name}"


def _marks(this: History) -> Table:
    entries = [(position, entry) for position, found in this.baselines.items() for entry in found]
    rows = [
        (this.runs[position].name, _when(entry.at), "; ".join(entry.accepted) or units.MISSING, entry.reason or units.MISSING)
        for position, entry in sorted(entries, key=lambda pair: pair[1].at, reverse=True)
    ]  # fmt: skip
    heads = ("run", "set", "accepted with it", "because")
    return Table("Baselines", heads, rows, left=heads)


def _when(iso: str) -> str:
    return iso[:16].replace("T", " ") or units.MISSING


def _commit(run: Run) -> str:
    known = run.commit_id
    return f"{known}, with changes" if known and run.commit.get("dirty") else known or units.MISSING


def _torch(run: Run) -> str:
    return str(run.machine.get("torch") or units.MISSING)


def _write_points(this: History, path: Path) -> None:
    runs = [(it.name, it.date, it.commit.get("id"), _torch(it), it.machine.get("python")) for it in this.runs]
    rows = ((one.impl, one.id, *runs[at], *point) for one in this.series for at, point in one.points.items())
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(chain([COLUMNS], rows))
