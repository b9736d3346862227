"""`python -m bench bisect GOOD BAD`: finds the commit that caused a slow-down, or with `--pythons A,B,C` the torch
version.

The ends are compared first; the regressions between them are the target. Each step compares GOOD with a commit in the
middle, and tests whether that has more or less than half of the change. Undecided commits are measured for longer, and
skipped if that doesn't help, as are broken ones. Every step is a saved comparison, and the same command resumes after
an interruption.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.ab import ab
from bench.ab.options import add_cells, defaults
from bench.ab.plan import Unjudgeable
from bench.ab.planning import SameCode
from bench.ab.sources import commit_of, commits_between, repository, subject_of
from bench.cases.outcome import Skip
from bench.selection.choice import listed
from bench.selection.errors import UsageError
from reports.judging import ab_file
from reports.judging.comparison import Comparison
from reports.pages.comparison_text import changed, sentences
from stats.arguments import Parser
from stats.verdict import INCONCLUSIVE, REGRESSED

from .ab import UNJUDGED, exit_code_of

SEVERAL = 1
"""Exit code if commits that can't be judged lie between the last good one and the first bad one."""

DOUBLINGS = 3
"""How often an undecided step is measured, each time for twice as long."""

WITHIN = 2.0
"""Distance in standard errors from half of the change that decides a step."""

Change = Mapping[tuple[str, str], float]
"""log(bad / good) of each cell, by implementation and case."""


@dataclass(frozen=True)
class Step:
    """Share of the change between the ends at a point: 0 at the good end, 1 at the bad one."""

    share: float
    error: float
    """Its standard error; infinite if unknown."""

    @property
    def word(self) -> str:
        if abs(self.share - 0.5) <= WITHIN * self.error or not math.isfinite(self.error):
            return "open"
        return "bad" if self.share > 0.5 else "good"

    def __str__(self) -> str:
        if not math.isfinite(self.error):
            return f"{self.word}: nothing could be measured"
        low, high = (100 * (self.share + sign * WITHIN * self.error) for sign in (-1, 1))
        return f"{self.word}: {100 * self.share:.0f} % of the change ({low:.0f} to {high:.0f})"


UNKNOWN = Step(0.5, math.inf)
SAME = Step(0.0, 0.0)
"""Result for a point with the same code as the good end."""


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 0 found; 1 found up to unjudgeable commits; 2 the ends don't differ; 3 a usage error."""
    options = _parser().parse_intermixed_args(arguments)
    return exit_code_of(lambda: _execute(options))


def _execute(options: argparse.Namespace) -> int:
    points = _points(options.ends, options.pythons)
    ends = ab_file.comparison(_measure(options, points[0], points[-1], 2))
    change = {
        (cell.impl, cell.id): math.log(cell.verdict.ratio) for cell in ends.cells if cell.verdict.word == REGRESSED
    }
    lines = [*sentences(ends)]
    if not change:
        untimed = (cell for cell in ends.cells if not math.isfinite(cell.verdict.ratio))
        lines += dict.fromkeys(f"{cell.impl} is {cell.verdict.word}: {cell.verdict.reason}" for cell in untimed)
        if any(cell.verdict.word == INCONCLUSIVE for cell in ends.cells):
            lines.append(f"some of it is INCONCLUSIVE: --budget {2 * options.budget:g} measures for longer")
        print("nothing is significantly slower between the ends:", *lines, sep="\n  ")
        return UNJUDGED
    print("slower between the ends:", *lines, sep="\n  ", flush=True)

    def named(at: int) -> str:
        """Return the path of an interpreter, or a commit with its subject."""
        return points[at] if options.pythons else subject_of(points[at], repository())

    def judge(at: int) -> Step:
        step = _judge(options, points[0], points[at], change)
        print(f"{named(at)}: {step}", flush=True)
        return step

    good, bad, between = search(len(points), judge)
    print(f"the first that is slow: {named(bad)}")
    found = ab_file.comparison(_measure(options, points[good], points[bad]))
    changes = [f"{it.impl} {it.id}: {', '.join(map(changed, it.changes))}" for it in found.cells if it.changes]
    print(f"against {named(good)}:", *sentences(found), *changes, sep="\n  ")
    if between:
        print("or one of these, which can't be judged:", *map(named, between), sep="\n  ")
    return SEVERAL if between else 0


def search(count: int, judge: Callable[[int], Step]) -> tuple[int, int, list[int]]:
    """Find the last good and the first bad of `count` points, of which the first is good and the last is bad, and those
    between them that can't be judged.
    """
    good, bad, left_out = 0, count - 1, set[int]()
    while open_ := [at for at in range(good + 1, bad) if at not in left_out]:
        middle = min(open_, key=lambda at: abs(at - (good + bad) / 2))
        word = judge(middle).word
        if word == "bad":
            bad = middle
        elif word == "good":
            good = middle
        else:
            left_out.add(middle)
    return good, bad, list(range(good + 1, bad))


def step_of(found: Comparison, change: Change) -> Step:
    """Derive a step from a comparison with the good end: mean over the changed cells, weighted by precision."""
    weights, shares = [0.0], [0.0]
    for cell in found.cells:
        full, verdict = change.get((cell.impl, cell.id)), cell.verdict
        if full and math.isfinite(verdict.ratio) and math.isfinite(verdict.low) and math.isfinite(verdict.high):
            error = math.log(verdict.high / verdict.low) / 4 / full  # an interval of 95 % is four standard errors wide
            weights.append(error**-2)
            shares.append(math.log(verdict.ratio) / full)
    whole = sum(weights)
    return Step(sum(w * s for w, s in zip(weights, shares, strict=True)) / whole, whole**-0.5) if whole else UNKNOWN


def _judge(options: argparse.Namespace, good: str, point: str, change: Change) -> Step:
    """Return the share of the change at a point; undecided points are measured for longer."""
    step, file = UNKNOWN, None
    try:
        for doubling in range(DOUBLINGS):
            file = _measure(options, good, point, 2**doubling, file)
            found = ab_file.comparison(file)
            step = step_of(found, change)
            timed = any(math.isfinite(it.verdict.ratio) for it in found.cells if (it.impl, it.id) in change)
            if step.word != "open" or not timed:
                break
    except SameCode:
        return SAME
    except (UsageError, Unjudgeable, Skip):
        pass
    return step


def _measure(options: argparse.Namespace, base: str, head: str, times: int = 1, earlier: Path | None = None) -> Path:
    """Return the comparison of two points, for `times` the budget, measured now or before; raises as `ab.measure`."""
    suffix = "_python" if options.pythons else ""
    given = vars(options) | {f"base{suffix}": base, f"head{suffix}": head}
    given |= {"budget": times * options.budget, "to_continue": earlier}
    known = {name: value for name, value in given.items() if name not in ("ends", "pythons")}
    return ab.measure(argparse.Namespace(**defaults() | known), once="bisect")


def _points(ends: Sequence[str], pythons: str | None) -> list[str]:
    """Return the points to choose from, the good end first; raises `UsageError`."""
    if pythons:
        if ends:
            raise UsageError("either GOOD BAD, or --pythons A,B,C")
        points = listed([pythons])
        if len(points) < 2:
            raise UsageError("--pythons names interpreters from the good one to the bad one, two at least")
        return points
    if len(ends) != 2:
        raise UsageError("give two revisions: GOOD, which is fast, and BAD, which is slow")
    root = repository()
    good, bad = (commit_of(revision, root) for revision in ends)
    return [good, *commits_between(good, bad, root)]


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "python -m bench bisect",
        usage="%(prog)s GOOD BAD [options]\n       %(prog)s --pythons A,B,C [options]",
        description="Find the commit, or the version of torch, that made it slower.",
    )
    parser.add_argument(
        "ends", nargs="*", metavar="GOOD BAD", help="two revisions: a fast one, and a slow one after it"
    )
    parser.add_argument("--pythons", metavar="A,B,C", help="interpreters instead, from the good one to the bad one")
    add_cells(parser, minutes=1.0)
    return parser
