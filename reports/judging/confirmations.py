"""Matches steps between runs with interleaved comparisons: which commits to compare, and the known verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stats.verdict import Verdict

from ..reading.axes import KNOWN_AXES
from ..reading.runs import Run, RunError
from . import ab_file
from .comparison import VARIANTS
from .series import Series

Commits = tuple[str, str]

Known = Mapping[tuple[Commits, str, str], Verdict]
"""Verdicts by commits, implementation and case."""


@dataclass(frozen=True)
class Asked:
    """Cells that changed between two runs, to be compared by their commits."""

    commits: Commits
    cells: Sequence[Series]
    own: Mapping[str, str] = field(default_factory=dict)
    """The user's own implementations by name, as NAME=module:attr."""

    def options(self) -> dict[str, Any]:
        """Return options of `python -m bench ab` by name: commits, implementations, and axes of the cells as lists."""
        axes: dict[str, dict[str, None]] = {}
        for one in self.cells:
            for name, value in one.axes.items():
                known = KNOWN_AXES.get(name)
                if known and value is not None and value != known.usual(one.axes):
                    given = str(value) if not isinstance(value, bool) else "on" if value else "off"
                    axes.setdefault(name, {})[given] = None
        base, head = self.commits
        impls = list(dict.fromkeys(self.own.get(one.impl, one.impl) for one in self.cells))
        return {"base": base, "head": head, "impl": impls} | {name: ",".join(values) for name, values in axes.items()}


def commits(series: Series, at: int, runs: Sequence[Run]) -> Commits | None:
    """Return the commits before and after a step; None if they are missing, equal, or the code was not committed."""
    base, head = (runs[series.points[i].run].committed for i in (at - 1, at))
    return (base, head) if base and head and base != head else None


def open_steps(series: Sequence[Series], runs: Sequence[Run], known: Known) -> Iterator[Asked]:
    """Yield slow-downs that have not recovered and have no comparison."""
    by_commits: dict[Commits, list[Series]] = {}
    for one in series:
        between = commits(one, one.open_step.at, runs) if one.open_step else None
        if between and (between, one.impl, one.id) not in known:
            by_commits.setdefault(between, []).append(one)
    own = {name: given for run in runs for name, given in run.own.items()}
    yield from (Asked(between, cells, own) for between, cells in by_commits.items())


def known(folder: Path) -> Known:
    """Return the verdicts of a machine's comparisons; of several comparisons of the same commits the newest counts."""
    found = {}
    for path in sorted((folder / ab_file.FOLDER).glob("[0-9]*.json")):
        try:
            data = ab_file.read(path)
        except RunError:
            continue
        base, head = (data["sides"][variant].get("commit") for variant in VARIANTS)
        if base and head:
            for cell in ab_file.comparison(path).cells:
                found[(base, head), cell.impl, cell.id] = cell.verdict
    return found
