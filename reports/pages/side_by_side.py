"""Several runs beside each other: one frame with a column `run`, their cells matched, and what differs between them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Any

import pandas as pd

from ..drawing.palette import Palette
from ..judging import frame as fr
from ..reading import fingerprint, units
from ..reading.runs import Run

#: Axes that a machine may decide: what each run has one value of, and not all the same, is no part of a cell's name.
_THE_MACHINES = ("device", "threads")


@dataclass(frozen=True)
class Value:
    """One cell in one run: seconds, bytes, and its time over that in the first run."""

    seconds: float
    bytes: float
    ratio: float = math.nan


@dataclass(frozen=True)
class Cell:
    """One implementation in one case, and its values by run; None where a run has none, and then `why`."""

    impl: str
    case: str
    values: tuple[Value | None, ...]
    why: tuple[str, ...]

    @property
    def everywhere(self) -> bool:
        return None not in self.values


@dataclass(frozen=True)
class SideBySide:
    """The runs in the order asked for, `labels` that tell them apart, and all rows of all of them."""

    runs: Sequence[Run]
    labels: Sequence[str]
    frame: pd.DataFrame
    skipped: pd.DataFrame
    palette: Palette
    wrong: frozenset[str] = field(default_factory=frozenset)

    @cached_property
    def other_machines(self) -> list[str]:
        """Labels of those whose machine is not that of the first: no verdict holds between them."""
        first = self.runs[0]
        pairs = zip(self.labels, self.runs, strict=True)
        return [label for label, run in pairs if fingerprint.differing(first, run)]

    @cached_property
    def cells(self) -> list[Cell]:
        """Every cell of any run, cases in the order of the frame."""
        found = {(label, row["impl"], row["cell"]): row for label, row in _labelled(self.frame)}
        refused = {(label, row["impl"], row["cell"]): _reason(row) for label, row in _labelled(self.skipped)}
        return [_cell(impl, case, self.labels, found, refused) for impl, case in self._keys()]

    def _keys(self) -> list[tuple[str, str]]:
        """(implementation, case) of every row, sorted as a reader looks for them."""
        frame = self.frame
        order = {case: i for i, case in enumerate(_in_order(frame))}
        keys = dict.fromkeys(zip(frame["impl"], frame["cell"], strict=True))
        return sorted(keys, key=lambda key: order[key[1]])


def side_by_side(runs: Sequence[Run]) -> SideBySide:
    labels = labels_of(runs)
    frames = [fr.tidy(run).assign(run=label) for run, label in zip(runs, labels, strict=True)]
    skipped = [fr.skipped(run).assign(run=label) for run, label in zip(runs, labels, strict=True)]
    devices = [_only(frame, "device") for frame in frames]
    free = len(set(devices)) > 1 and None not in devices
    for frame, gone, device in zip(frames, skipped, devices, strict=True):
        for table in (frame, gone):
            table["cell"] = [_without(str(case), device) if free else str(case) for case in table["id"]]
    whole = pd.concat([frame.dropna(axis=1, how="all") for frame in frames], ignore_index=True)
    whole = whole.reindex(columns=list(dict.fromkeys(column for frame in frames for column in frame)))
    wrong = frozenset(name for run in runs for name in run.wrong)
    whole["wrong"] = whole["impl"].isin(wrong)
    gone = pd.concat(skipped, ignore_index=True)
    registry = dict.fromkeys(name for run in runs for name in run.registry)
    return SideBySide(runs, labels, _without_the_machines(whole, frames), gone, Palette(registry), wrong)


def labels_of(runs: Sequence[Run]) -> list[str]:
    """Each run's name; where several have one name, with the folder that tells them apart: '0001_x (laptop)'."""
    labels = [_label(run, [other for other in runs if other.name == run.name]) for run in runs]
    unique = len(set(labels)) == len(labels)
    return labels if unique else [f"{label} #{i}" for i, label in enumerate(labels, 1)]


def typical(this: SideBySide) -> Iterator[tuple[str, float, float, float, int]]:
    """For every run but the first: label, the middle, smallest and largest ratio of its cells to the first run's, and
    how many cells both have."""
    for i, label in enumerate(this.labels[1:], 1):
        values = [cell.values[i] for cell in this.cells if cell.values[0] is not None]
        ratios = sorted(value.ratio for value in values if value is not None and value.ratio > 0)
        if ratios:
            yield label, median(ratios), ratios[0], ratios[-1], len(ratios)


def about(this: SideBySide) -> list[tuple[str, list[str]]]:
    """What is said of every run, a line each: when, by what, and those parts of machine and software that differ."""
    facts = {
        "made": [run.date[:16].replace("T", " ") for run in this.runs],
        "commit": [run.commit_id for run in this.runs],
        "sweep": [run.sweep for run in this.runs],
        "rows": [str(len(run.rows)) for run in this.runs],
        "command": [run.command for run in this.runs],
    }
    if any(run.notes for run in this.runs):
        facts["notes"] = ["; ".join(run.notes) for run in this.runs]
    keys = dict.fromkeys(key for run in this.runs for key in run.machine)
    machine = {key: [_text(run.machine.get(key)) for run in this.runs] for key in keys}
    differing = {key: texts for key, texts in machine.items() if len(set(texts)) > 1}
    return [(key, [text or units.MISSING for text in texts]) for key, texts in {**facts, **differing}.items()]


def shared(this: SideBySide) -> dict[str, str]:
    """Parts of the machine that all runs have in common."""
    first = this.runs[0].machine
    return {
        key: _text(value) or units.MISSING
        for key, value in first.items()
        if all(r.machine.get(key) == value for r in this.runs)
    }


def _label(run: Run, namesakes: Sequence[Run]) -> str:
    """The name, and from the file upwards the first folder that no run of the same name has in this place."""
    mine, *others = (other.path.resolve().parts[::-1] for other in (run, *(o for o in namesakes if o is not run)))
    for depth, folder in enumerate(mine[1:-1], 1):
        if others and folder not in [path[depth] for path in others if depth < len(path)]:
            return f"{run.name} ({folder})"
    return run.name


def _without(case: str, device: str | None) -> str:
    """The case's id less its device."""
    return "-".join(part for part in case.split("-") if part != device)


def _only(frame: pd.DataFrame, axis: str) -> Any:
    """The one value of an axis, or None."""
    values = frame[axis].dropna().unique()
    return values[0] if len(values) == 1 else None


def _without_the_machines(whole: pd.DataFrame, frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Less the axes that vary only because the machines do: the run says them."""
    for axis in _THE_MACHINES:
        each = [_only(frame, axis) for frame in frames]
        if None not in each and len(set(each)) > 1:
            whole = whole.assign(**{axis: None})
    return whole


def _in_order(frame: pd.DataFrame) -> list[str]:
    """Every case once, in the order of its axes."""
    parts = fr.groups(frame, fr.varying(frame))
    return list(dict.fromkeys(str(case) for _, part in parts for case in part["cell"]))


def _labelled(frame: pd.DataFrame) -> Iterator[tuple[str, dict[str, Any]]]:
    for row in fr.records(frame):
        yield row["run"], row


def _reason(row: dict[str, Any]) -> str:
    reason = str(row["reason"]).replace("_", " ")
    return f"{reason}: {row['detail']}" if row["detail"] else reason


def _cell(
    impl: str, case: str, labels: Sequence[str], found: dict[tuple[str, str, str], dict[str, Any]],
    refused: dict[tuple[str, str, str], str],
) -> Cell:  # fmt: skip
    rows = [found.get((label, impl, case)) for label in labels]
    first = rows[0]["median"] or math.nan if rows[0] else math.nan
    values = tuple(Value(row["median"], row["peak_bytes"], row["median"] / first) if row else None for row in rows)
    return Cell(impl, case, values, tuple(refused.get((label, impl, case), "not in this run") for label in labels))


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else "" if value in (None, {}) else str(value)
