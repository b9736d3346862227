"""`python -m bench bisect GOOD BAD`: finds the commit that caused a regression, or with `--pythons A,B,C` the torch
version.

The ends are compared first; the regressions between them are the target. Each step compares GOOD with a commit in the
middle, and tests whether that has more or less than half of the change. Undecided commits are measured for longer, and
skipped if that doesn't help, as are broken ones. Every step is a saved comparison, and the same command resumes after
an interruption.
"""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.ab import ab
from bench.ab.options import add_cells
from bench.ab.plan import SameCode
from bench.ab.sources import commit_of, commits_between, subject_of
from bench.cases.outcome import Skip
from bench.selection.choice import listed
from bench.selection.errors import UsageError
from reports.judging import comparison
from reports.judging.comparison import Comparison
from reports.pages.compare import tell
from reports.reading.command import NOT_JUDGED
from stats.arguments import Parser, as_typed
from stats.verdict import REGRESSED

from .ab import exit_code_of

SEVERAL = 1
"""Exit code if commits that can't be judged lie between the last good one and the first bad one."""

TIMES = (1, 2, 4)
"""Multiples of the budget for which a step is measured until it is decided."""

WITHIN = 2.0
"""A step is decided if its share of the change differs from one half by more than this many standard errors."""

Change = Mapping[tuple[str, str], float]
"""log(bad / good) of each cell, by implementation and case."""


class Step(NamedTuple):
    """Share of the change between the ends at a point: 0 at the good end, 1 at the bad one."""

    share: float
    error: float
    """Its standard error; infinite if unknown."""

    @property
    def word(self) -> str:
        if abs(self.share - 0.5) <= WITHIN * self.error:
            return "undecided"
        return "bad" if self.share > 0.5 else "good"

    def __str__(self) -> str:
        if not math.isfinite(self.error):
            return f"{self.word}: nothing could be judged"
        low, high = (100 * (self.share + sign * WITHIN * self.error) for sign in (-1, 1))
        share = f"{100 * self.share:z.0f} % of the change ({low:z.0f} to {high:z.0f})".replace("-", "−")
        return f"{self.word}: {share}"


UNKNOWN = Step(0.5, math.inf)
SAME = Step(0.0, 0.0)
"""Result for a point with the same code as the good end."""

LEAST_ERROR = 1e-6
"""Least standard error of a cell's share: a GPU's clock counts in steps, so that all replicates may agree."""


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 0 found; 1 found, except for commits that can't be judged; 2 the ends don't differ; 3 a usage
    error.
    """
    return exit_code_of(_execute, _parser().parse_intermixed_args(arguments))


def _execute(options: argparse.Namespace) -> int:
    points = _points(options.ends, options.pythons)

    def named(at: int) -> str:
        """Return the path of an interpreter, or a commit with its subject."""
        return points[at] if options.pythons else subject_of(points[at])

    def compared(good: int, bad: int, times: int = 1) -> Comparison:
        """Compare two points, and print it."""
        file = _measure(options, points[good], points[bad], times)
        found = comparison.of_file(file)
        tell(found, shlex.quote(str(file)))
        return found

    ends = compared(0, -1, 2)
    slower = {impl for impl, it in ends.implementations.items() if it.word == REGRESSED}  # perhaps in the mean alone
    cells = [cell for cell in ends.cells if cell.verdict.word == REGRESSED]
    cells = cells or [cell for cell in ends.cells if cell.impl in slower and cell.verdict.ratio > 1]
    change = {(cell.impl, cell.id): math.log(cell.verdict.ratio) for cell in cells}
    if not change:
        how = f"--budget {2 * options.budget:g} measures for longer"
        if any(cell.broken for cell in ends.cells):
            how = as_typed("`git bisect run python -m bench check ...` finds the commit that broke it")
        elif any(cell.regressed for cell in ends.cells):
            how = as_typed(
                "`git bisect run python -m bench ab --base GOOD ...` finds the commit that needs more memory"
            )
        elif not any(cell.verdict.ratio > 0 for cell in ends.cells):
            how = "no cell has a time at both"
        print(f"nothing is shown to be slower at the bad end; {how}")
        return NOT_JUDGED

    def judge(at: int) -> Step:
        step = _judge(options, points[0], points[at], change)
        print(f"{named(at)}: {step}", flush=True)
        return step

    good, bad, between = search(len(points), judge)
    print(f"the first that is slow: {named(bad)}\nagainst {named(good)}:", flush=True)
    compared(good, bad)
    if between:
        print("or one of these, which can't be judged:", *map(named, between), sep="\n  ")
    return SEVERAL if between else 0


def search(count: int, judge: Callable[[int], Step]) -> tuple[int, int, list[int]]:
    """Return the last good and the first bad of `count` points, and those between them that can't be judged. Point 0 is
    good, the last one bad.
    """
    good, bad, judged = 0, count - 1, set[int]()
    while left := [at for at in range(good + 1, bad) if at not in judged]:
        middle = min(left, key=lambda at: abs(2 * at - good - bad))
        judged.add(middle)
        match judge(middle).word:
            case "good":
                good = middle
            case "bad":
                bad = middle
    return good, bad, list(range(good + 1, bad))


def step_of(found: Comparison, change: Change) -> Step:
    """Derive a step from a comparison with the good end: mean over the changed cells, weighted by precision. `UNKNOWN` if the
    machine drifted.
    """
    share = weight = 0.0
    for cell in found.cells if not found.unjudged else ():
        full, verdict = change.get((cell.impl, cell.id)), cell.verdict
        if full and math.isfinite(verdict.high - verdict.low):
            wide = math.log(verdict.high / verdict.low)  # at least four standard errors in an interval of 95 %
            error = max(LEAST_ERROR, wide / 4 / full)
            share += math.log(verdict.ratio) / full * error**-2
            weight += error**-2
    return Step(share / weight, weight**-0.5) if weight else UNKNOWN


def _judge(options: argparse.Namespace, good: str, point: str, change: Change) -> Step:
    """Return the share of the change at a point; undecided points are measured for longer."""
    step, file = UNKNOWN, None
    try:
        for times in TIMES:
            file = _measure(options, good, point, times, file)
            found = comparison.of_file(file)
            step = step_of(found, change)
            timed = any(math.isfinite(it.verdict.ratio) for it in found.cells if (it.impl, it.id) in change)
            if step.word != "undecided" or not timed:
                break
    except SameCode:
        return SAME
    except (UsageError, Skip):
        pass
    return step


def _measure(options: argparse.Namespace, base: str, head: str, times: int = 1, earlier: Path | None = None) -> Path:
    """Return the comparison of two points, for `times` the budget, measured now or before; raises as `ab.measure`."""
    suffix = "_python" if options.pythons else ""
    given = {f"base{suffix}": base, f"head{suffix}": head, "budget": times * options.budget, "to_continue": earlier}
    return ab.measure(vars(options) | given, once="bisect")


def _points(ends: Sequence[str], pythons: str) -> list[str]:
    """Return the points to choose from, the good end first; raises `UsageError`."""
    points = listed([pythons])
    if len(points) > 1 and not ends:
        return points
    if len(ends) != 2 or points:
        raise UsageError(
            "give either two revisions, GOOD, which is fast, and BAD, which is slow, or --pythons A,B,C, the good one first"
        )
    good, bad = map(commit_of, ends)
    return [good, *commits_between(good, bad)]


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "python -m bench bisect",
        usage="%(prog)s GOOD BAD [options]\n       %(prog)s --pythons A,B,C [options]",
        description="Find the commit, or the version of torch, that made it slower.",
        epilog="Exit code: 0 found; 1 found, except for commits without a verdict; 2 the ends don't differ; 3 a usage error.",
    )
    parser.add_argument(
        "ends", nargs="*", metavar="GOOD BAD", help="two revisions: a fast one, and a slow one after it"
    )
    parser.add_argument(
        "--pythons", metavar="A,B,C", default="", help="interpreters instead, from the good one to the bad one"
    )
    add_cells(parser, minutes=1.0)
    return parser
