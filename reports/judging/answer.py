"""The first thing that a reader sees: which implementation to use, or that there is no answer yet; and how sure that is.

Every claim is made from the standings that the judge gives (`ratios.standings`), and from what was right everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
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
ENOUGH_PROCESSES, MOST_PROCESSES = 5, 20

Cell = Mapping[str, Any]


@dataclass(frozen=True)
class Trust:
    """How sure the run's claims are; why; and what would settle what is open, where something would."""

    word: str
    reasons: tuple[str, ...]
    command: str
    minutes: int | None


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


def headline(cells: Sequence[Cell], axes: Sequence[str]) -> tuple[str, str]:
    """The answer in a sentence, and what it leaves out in another, or ''.

    `cells` are those of `advice.advise`, `axes` those that vary among them.
    """
    rivals = [cell for cell in cells if cell["measured"] > 1]
    if not rivals:
        return "No answer: no case of this run has two implementations that were right everywhere.", ""
    if not any(cell["standing"] for cell in rivals):
        return f"No answer yet: {processes.NO_INTERVAL}.", ""
    cases = words.plural(len(rivals), "case")
    if text := _one_for_all(rivals):
        return f"Use {text}{',' * (' with less ' in text)} in {_all(len(rivals))}.", _memory(rivals)
    if parts := _by_axis(rivals, axes):
        answered, open_ = parts
        text = "; ".join(f"{where}, use {what}" for where, what in answered)
        rest = f"No one answer {words.listing(open_)}: see the table." if open_ else _memory(rivals)
        return f"{text[0].upper()}{text[1:]}.", rest
    unresolved = [cell for cell in rivals if cell["standing"] == ratios.NOT_RESOLVED]
    if 2 * len(unresolved) >= len(rivals):
        return f"No answer yet: {len(unresolved)} of {cases} are not resolved.", _leads(rivals)
    return f"No one implementation for {_all(len(rivals))}: {_leads(rivals)}", ""


def ranking(frame: pd.DataFrame) -> list[Rank]:
    """Implementations that were right everywhere, by the geometric mean over the cases; those that lack cases last."""
    usable = frame[(frame["median"] > 0) & ~frame["wrong"].astype(bool)]
    found: dict[str, list[float]] = {}
    for _, part in usable.groupby("id", sort=False):
        rows = fr.records(part)
        if len(rows) > 1:
            best = next((row for row in rows if row["leads"]), None) or min(rows, key=lambda row: float(row["median"]))
            over = [advice.times(row, best) for row in rows]
            for row, times in zip(rows, over, strict=True):  # who leads needn't be the best by what is not resolved
                found.setdefault(row["impl"], []).append(times / min(over))
    most = max(map(len, found.values()), default=0)
    ranks = [
        Rank(impl, math.exp(sum(map(math.log, each)) / len(each)), max(each), len(each), most)
        for impl, each in found.items()
    ]
    return sorted(ranks, key=lambda rank: (not rank.everywhere, rank.mean))


def trust(run: Run, frame: pd.DataFrame, cells: Sequence[Cell]) -> Trust:
    """From how well the leads are known, in how many cases, and the number of processes: what the machine did meanwhile is in
    the intervals of the leads."""
    grades, reasons = [], []
    fewest = int(frame["processes"].min()) if len(frame) else 0
    grades.append(HIGH if fewest >= estimate.ENOUGH_PROCESSES else MEDIUM)
    reasons.append("one process a cell" if fewest < 2 else f"{fewest} processes a cell")
    half = _half_width(cells)
    if half is not None:
        grades.append(_grade(half, HALF_WIDTH))
        reasons.append(f"leads are {_known_to(half)}")
    else:
        grades.append(LOW)
        reasons.append("no ratio has an interval")
    rivals = [cell for cell in cells if cell["measured"] > 1]
    if unresolved := sum(cell["standing"] in ("", ratios.NOT_RESOLVED) for cell in rivals):
        grades.append(LOW if 2 * unresolved >= len(rivals) else MEDIUM)
        reasons.append(f"{unresolved} of {words.plural(len(rivals), 'case')} not resolved")
    if run.wrong:
        reasons.append(f"left out, wrong somewhere: {words.listing(sorted(run.wrong))}")
    if not run.complete:
        grades.append(LOW)
        reasons.append("the run is not complete")
    if disturbed := conditions.disturbed(run.rows):
        reasons.append(disturbed)
    drift = run.controls.get("drift")
    if isinstance(drift, int | float) and conditions.DRIFT < drift < math.inf:
        reasons.append(f"meanwhile the control workload's time varied by {shares.varied(drift)}")
    word = min(grades, key=(LOW, MEDIUM, HIGH).index)
    return Trust(word, tuple(reasons), *(_settling(run, fewest, half) if word != HIGH else ("", None)))


def _known_to(half: float) -> str:
    """'known to ± 3.0 %', 'known to a factor of 2.1', or 'not resolved'."""
    if shares.too_wide(1, (1 + half) ** 2):
        return shares.UNRESOLVED
    return f"known to {f'± {units.percent(half)}' if half < 1 else f'a factor of {shares.significant(1 + half, 2)}'}"


def _settling(run: Run, fewest: int, half: float | None) -> tuple[str, int | None]:
    """The command that would settle what is open, and the minutes that it takes, by what this run took."""
    if not run.command:
        return "", None
    wider = (half / HALF_WIDTH[0]) ** 2 if half else 1.0
    wanted = min(MOST_PROCESSES, max(ENOUGH_PROCESSES, math.ceil(max(1, fewest) * wider)))
    if wanted <= fewest:
        return "", None
    given = run.command.split()
    kept = [
        part for i, part in enumerate(given)
        if not part.startswith("--processes") and (i == 0 or given[i - 1] != "--processes")
    ]  # fmt: skip
    seconds = run.seconds.get("timing"), sum(run.seconds.get(key, 0.0) for key in ("proof", "compiling"))
    timed = seconds[0] * wanted / max(1, fewest) + seconds[1] if seconds[0] else None
    return f"{' '.join(kept)} --processes {wanted}", max(1, round(timed / 60)) if timed else None


def _half_width(cells: Sequence[Cell]) -> float | None:
    """Of the middle case: half of the interval of the lead over the next best; None where there is none."""
    known = [cell for cell in cells if cell["ahead_low"]]
    return median((cell["ahead_high"] / cell["ahead_low"]) ** 0.5 - 1 for cell in known) if known else None


def _grade(value: float, limits: tuple[float, float]) -> str:
    return HIGH if value <= limits[0] else MEDIUM if value <= limits[1] else LOW


def _good(cell: Cell) -> list[str]:
    """Who is shown to be the fastest of a case, or level with it; the leader first."""
    return [cell["fastest"], *cell["ties"]] if advice.claimed(cell) else []


def _one_for_all(cells: Sequence[Cell]) -> str:
    """'sdpa, the fastest' or 'sdpa, the fastest or level with it', of those that are so in every case; '' of none."""
    common = [name for name in _good(cells[0]) if all(name in _good(cell) for cell in cells)]
    if not common:
        return ""
    leads = {name: sum(cell["fastest"] == name for cell in cells) for name in common}
    lean = {name: sum(cell["peaks"].get(name) or math.inf for cell in cells) for name in common}
    best = min(common, key=lambda name: -leads[name])
    leanest = min(common, key=lean.__getitem__)
    of_all = math.inf not in lean.values()
    if len(common) > 1 and of_all and sorted(lean.values())[1] > advice.LEANER * lean[leanest]:
        others = words.listing([name for name in common if name != leanest], most=3)
        return f"{leanest}, level with {others} in time with less memory"
    if all(cell["fastest"] == best and cell["standing"] == ratios.FASTEST for cell in cells):
        return f"{best}, the fastest"
    if len(common) > 1:
        return f"{words.listing([best, *(name for name in common if name != best)], most=3).replace(' and ', ' or ')}, level"
    return f"{best}, the fastest or level with it"


def _by_axis(cells: Sequence[Cell], axes: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]] | None:
    """Along the axis whose values have the most answers in the fewest words: where to use what, and where there is none."""
    tried = [_along(cells, axis) for axis in axes]
    tried = [(answered, open_) for answered, open_ in tried if len(open_) <= len(answered) <= 3 and answered]
    return min(tried, key=lambda it: (len(it[1]), len(it[0])), default=None)


def _along(cells: Sequence[Cell], axis: str) -> tuple[list[tuple[str, str]], list[str]]:
    values = list(dict.fromkeys(cell[axis] for cell in cells))
    on_a_line = axis in length_axes() and not any(map(pd.isna, values))
    values = sorted(values) if on_a_line else values
    stretches: list[list[Any]] = []
    for value in values:
        joined = [*(stretches[-1] if stretches else []), value]
        if on_a_line and stretches and _one_for_all(_where(cells, axis, joined)):
            stretches[-1] = joined
        else:
            stretches.append([value])
    answered, open_ = [], []
    for stretch in stretches:
        first, last = words.value(axis, stretch[0], equals=" = "), words.number(stretch[-1])
        where = f"at {first}" if len(stretch) == 1 else f"from {first} to {last}"
        where = where if on_a_line else where.replace("at ", "with ", 1)
        text = _one_for_all(_where(cells, axis, stretch))
        if text:
            answered.append((where, text))
        else:
            open_.append(where)
    return answered, open_


def _where(cells: Sequence[Cell], axis: str, values: Sequence[Any]) -> list[Cell]:
    return [cell for cell in cells if cell[axis] in values]


def _leads(cells: Sequence[Cell]) -> str:
    """'sdpa is the fastest or level with it in 5, packed in 4 of 12 cases.'"""
    names = dict.fromkeys(name for cell in cells for name in _good(cell))
    counts = {name: sum(name in _good(cell) for cell in cells) for name in names}
    ordered = sorted(counts.items(), key=lambda it: -it[1])[:3]
    if not ordered:
        return ""
    text = [
        f"{name} {'is the fastest or level with it ' if not i else ''}in {n}" for i, (name, n) in enumerate(ordered)
    ]
    return f"{words.listing(text)} of {words.plural(len(cells), 'case')}."


def _memory(cells: Sequence[Cell]) -> str:
    """What the one that is advised needs in the largest case, beside the most that another needs there."""
    known = [cell for cell in cells if cell["bytes"] and len(cell["peaks"]) > 1]
    if not known:
        return ""
    cell = max(known, key=lambda cell: max(cell["peaks"].values()))
    name, most = max(cell["peaks"].items(), key=lambda it: float(it[1]))
    times = most / cell["bytes"]
    if name == cell["fastest"] or times < advice.LEANER:
        return ""
    where = words.place(cell, always=("T", "H", "dtype"))
    return (
        f"At {where} {cell['fastest']} needs {units.memory(cell['bytes'])} of memory; {name} needs "
        f"{shares.significant(times, 2)} times as much."
    )


def _all(count: int) -> str:
    return "the one case" if count == 1 else "both cases" if count == 2 else f"all {count} cases"
