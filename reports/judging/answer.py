"""The first thing that a reader sees: which implementation to use, or that there is no answer yet; and how sure that is.

Every claim is made from the standings that the judge gives (`ratios.standings`), and from what was right everywhere.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median
from typing import Any

import pandas as pd

from stats import conditions, estimate, ratios, shares

from ..reading import units, words
from ..reading.axes import length_axes
from ..reading.runs import Run
from . import advice, processes
from . import frame as fr

LOW, MEDIUM, HIGH = "LOW", "MEDIUM", "HIGH"

#: Up to the first a value counts as HIGH, up to the second as MEDIUM.
HALF_WIDTH = (0.03, 0.10)
ADVISED_PROCESSES, MOST_PROCESSES = 5, 20

Cell = Mapping[str, Any]


@dataclass(frozen=True)
class Trust:
    """How sure the run's claims are; why; and what would settle what is open, where something would."""

    word: str
    reasons: tuple[str, ...]
    command: str


@dataclass(frozen=True)
class Rank:
    """One implementation over the cases that it has: its time over the best of each case, 1 where it is the best."""

    impl: str
    mean: float
    worst: float
    cases: int
    of: int

    @property
    def everywhere(self) -> bool:
        return self.cases == self.of


def headline(cells: Sequence[Cell], axes: Sequence[str]) -> str:
    """The answer in a sentence. `cells` are those of `advice.advise`, `axes` those that vary among them."""
    rivals = [cell for cell in cells if cell["measured"] > 1]
    if not rivals:
        return "No answer: no case of this run has two implementations that were right everywhere."
    if not any(cell["standing"] for cell in rivals):
        return f"No answer yet: {processes.NO_INTERVAL}."
    count = len(rivals)
    everywhere = "the one case" if count == 1 else "both cases" if count == 2 else f"all {count} cases"
    if text := _one_for_all(rivals):
        return f"Use {text}{',' * (' with less ' in text)} in {everywhere}."
    if parts := _by_axis(rivals, axes):
        text = "; ".join(f"{where}, {f'use {what}' if what else 'no one answer'}" for where, what in parts)
        return f"{text[0].upper()}{text[1:]}."
    unresolved = sum(cell["standing"] == ratios.NOT_RESOLVED for cell in rivals)
    if 2 * unresolved >= count:
        return f"No answer yet: {unresolved} of {words.plural(count, 'case')} are not resolved."
    counts = Counter(name for cell in rivals for name in _good(cell)).most_common(3)
    leads = words.listing([f"{name} in {n}" for name, n in counts])
    return f"No one implementation for {everywhere}: the fastest or level with it is {leads}."


def ranking(frame: pd.DataFrame) -> list[Rank]:
    """Implementations that were right everywhere, by the geometric mean over the cases; those that lack cases last."""
    found: dict[str, list[float]] = {}
    for _, part in fr.trusted(frame).groupby("id", sort=False):
        rows = fr.ranked(part)
        if len(rows) > 1:
            over = [advice.times(row, rows[0]) for row in rows]
            for row, times in zip(rows, over, strict=True):  # who leads needn't be the best by what is not resolved
                found.setdefault(row["impl"], []).append(times / min(over))
    most = max(map(len, found.values()), default=0)
    ranks = [Rank(impl, geometric_mean(each), max(each), len(each), most) for impl, each in found.items()]
    return sorted(ranks, key=lambda rank: (not rank.everywhere, rank.mean))


def trust(run: Run, frame: pd.DataFrame, cells: Sequence[Cell]) -> Trust:
    """From how well the leads are known, in how many cases, and the number of processes: what the machine did meanwhile is in
    the intervals of the leads."""
    fewest = int(frame["processes"].min()) if len(frame) else 0
    half = _half_width(cells)
    said = [
        (
            HIGH if fewest >= estimate.ENOUGH_PROCESSES else MEDIUM,
            f"{'one process' if fewest < 2 else f'{fewest} processes'} a cell",
        ),
        (LOW, "no ratio has an interval") if half is None else (_grade(half), f"leads are {_known_to(half)}"),
    ]
    rivals = [cell for cell in cells if cell["measured"] > 1]
    if unresolved := sum(cell["standing"] in ("", ratios.NOT_RESOLVED) for cell in rivals):
        many = f"{unresolved} of {words.plural(len(rivals), 'case')} not resolved"
        said.append((LOW if 2 * unresolved >= len(rivals) else MEDIUM, many))
    if run.wrong:
        said.append((HIGH, f"left out, wrong somewhere: {words.listing(sorted(run.wrong))}"))
    if not run.complete:
        said.append((LOW, "the run is not complete"))
    if "device" in frame and (frame["device"] == "cuda").any():
        said.append((HIGH, "times on CUDA are unverified on a GPU"))
    if disturbed := conditions.disturbed(run.rows):
        said.append((HIGH, disturbed))
    drift = run.controls.get("drift")
    if isinstance(drift, int | float) and conditions.DRIFT < drift < math.inf:
        said.append((HIGH, f"meanwhile the control workload's time varied by {shares.varied(drift)}"))
    grades, reasons = zip(*said, strict=True)
    word = min(grades, key=(LOW, MEDIUM, HIGH).index)
    return Trust(word, reasons, "" if word == HIGH else _settling(run.command, fewest, half))


def _known_to(half: float) -> str:
    """'known to ± 3.0 %', 'known to a factor of 2.1', or 'not resolved'."""
    if shares.too_wide(1, (1 + half) ** 2):
        return shares.UNRESOLVED
    return f"known to {f'± {units.percent(half)}' if half < 1 else f'a factor of {shares.significant(1 + half, 2)}'}"


def _settling(command: str, fewest: int, half: float | None) -> str:
    """The command that would settle what is open; '' where more processes would not."""
    wider = (half / HALF_WIDTH[0]) ** 2 if half else 1.0
    wanted = min(MOST_PROCESSES, max(ADVISED_PROCESSES, math.ceil(max(1, fewest) * wider)))
    kept = re.sub(r" --processes[ =]\S+", "", command)
    return f"{kept} --processes {wanted}" if command and wanted > fewest else ""


def _half_width(cells: Sequence[Cell]) -> float | None:
    """Of the middle case: half of the interval of the lead over the next best; None where there is none."""
    known = [cell for cell in cells if cell["ahead_low"]]
    return median((cell["ahead_high"] / cell["ahead_low"]) ** 0.5 - 1 for cell in known) if known else None


def _grade(half: float) -> str:
    return HIGH if half <= HALF_WIDTH[0] else MEDIUM if half <= HALF_WIDTH[1] else LOW


def _good(cell: Cell) -> list[str]:
    """Who is shown to be the fastest of a case, or level with it; the leader first."""
    return [cell["fastest"], *cell["ties"]] if advice.claimed(cell) else []


def _one_for_all(cells: Sequence[Cell]) -> str:
    """'sdpa, the fastest' or 'sdpa, the fastest or level with it', of those that are so in every case; '' of none."""
    common = [name for name in _good(cells[0]) if all(name in _good(cell) for cell in cells)]
    if not common:
        return ""
    common.sort(key=lambda name: -sum(cell["fastest"] == name for cell in cells))
    lean, *others = sorted(common, key=lambda name: _peaks(cells, name))
    if (
        others
        and _peaks(cells, others[-1]) < math.inf
        and _peaks(cells, others[0]) > advice.LEANER * _peaks(cells, lean)
    ):
        return (
            f"{lean}, level with {words.listing([it for it in common if it != lean], most=3)} in time with less memory"
        )
    if all((cell["fastest"], cell["standing"]) == (common[0], ratios.FASTEST) for cell in cells):
        return f"{common[0]}, the fastest"
    if others:
        return f"{words.listing(common, most=3).replace(' and ', ' or ')}, level"
    return f"{common[0]}, the fastest or level with it"


def _peaks(cells: Sequence[Cell], impl: str) -> float:
    """Bytes, of all cases together; infinite where one isn't known."""
    return float(sum(cell["peaks"].get(impl, math.inf) for cell in cells))


def _by_axis(cells: Sequence[Cell], axes: Sequence[str]) -> list[tuple[str, str]]:
    """Along the axis whose values have the most answers in the fewest words: where, and what to use there or ''."""
    tried = (_along(cells, axis) for axis in axes)
    told = [it for it in tried if 0 < sum(bool(what) for _, what in it) <= 3 and 2 * _open(it) <= len(it)]
    return min(told, key=lambda it: (_open(it), len(it)), default=[])


def _open(parts: Sequence[tuple[str, str]]) -> int:
    return sum(not what for _, what in parts)


def _along(cells: Sequence[Cell], axis: str) -> list[tuple[str, str]]:
    """Each value of an axis, or each stretch of lengths with one answer, and the answer."""
    values = list(dict.fromkeys(cell[axis] for cell in cells))
    on_a_line = axis in length_axes() and None not in values
    stretches: list[list[Any]] = []
    for value in sorted(values) if on_a_line else values:
        if on_a_line and stretches and _one_for_all(_where(cells, axis, [*stretches[-1], value])):
            stretches[-1].append(value)
        else:
            stretches.append([value])
    said = []
    for stretch in stretches:
        first, last = words.value(axis, stretch[0], equals=" = "), words.number(stretch[-1])
        where = f"{'at' if on_a_line else 'with'} {first}" if len(stretch) == 1 else f"from {first} to {last}"
        said.append((where, _one_for_all(_where(cells, axis, stretch))))
    return said


def _where(cells: Sequence[Cell], axis: str, values: Sequence[Any]) -> list[Cell]:
    return [cell for cell in cells if cell[axis] in values]
