"""Matches steps between runs with interleaved comparisons: which commits to compare, and the known verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from stats.estimate import grouped
from stats.verdict import INCONCLUSIVE, Verdict

from ..reading.axes import without_defaults
from ..reading.runs import COMPARISONS, Run, RunError
from . import ab_file
from .comparison import VARIANTS, without_threads
from .series import Series

Key = tuple[str, str, str, str, int]
"""Commits, implementation, case, which a comparison names without its threads, and threads."""

Options = Mapping[str, Any]
"""Options of `python -m bench ab` by name; `cases` are the axes of each case, for a file."""

Known = Mapping[Key | None, Verdict]
"""Verdicts by commits, implementation and case."""


def key(series: Series, at: int, runs: Sequence[Run]) -> Key | None:
    """Return the key of the comparison of the commits before and after a step; None if they are missing, equal, or the
    code was not committed.
    """
    base, head = (runs[run].committed for run in (series.before[at], at))
    case, threads = without_threads(series.id), series.axes.get("threads") or 1
    return (base, head, series.impl, case, threads) if base and head and base != head else None


def open_steps(series: Sequence[Series], runs: Sequence[Run], known: Known) -> Iterator[Options]:
    """Yield the comparisons of regressions that have not recovered and have no conclusive one. A comparison has one device
    and one number of threads.
    """
    together = grouped(
        ((*asked[:2], asked[-1], one.axes.get("device")), one)
        for one in series
        if one.open_step
        and (asked := key(one, one.open_step.at, runs))
        and (asked not in known or known[asked].word == INCONCLUSIVE)
    )
    own = {name: given for run in runs for name, given in run.own.items()}
    for (base, head, threads, device), cells in together.items():
        impls = list(dict.fromkeys(own.get(one.impl, one.impl) for one in cells))
        cases = [*{one.id: without_defaults(one.axes) for one in cells}.values()]
        yield {"base": base, "head": head, "threads": threads, "device": device, "impl": impls, "cases": cases}


def known(folder: Path) -> Known:
    """Return the verdicts of a machine's comparisons; of several comparisons of the same commits the newest counts."""
    found: dict[Key | None, Verdict] = {}
    for path in sorted((folder / COMPARISONS).glob("[0-9]*.json")):
        with suppress(RunError):
            data = ab_file.read(path)
            base, head = (data["sides"][variant].get("commit") for variant in VARIANTS)
            for cell in ab_file.comparison(path).cells if base and head else ():
                found[base, head, cell.impl, cell.id, data["threads"]] = cell.verdict
    return found
