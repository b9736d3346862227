"""`python -m bench bisect GOOD BAD`: finds the commit that caused a slow-down, or with `--pythons A,B,C` the torch
version.

The ends are compared first; the regressions between them are the target. Each step compares GOOD with a commit in the
middle, and tests whether that has more or less than half of the change. Undecided commits are measured for longer, and
skipped if that doesn't help, as are broken ones. Every step is a saved comparison, and the same command resumes after
an interruption.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import CHECKOUT
from bench.ab import ab, selftest
from bench.ab.comparison import Unjudgeable
from bench.ab.options import add_cells, defaults
from bench.ab.planning import SameCode, interpreter
from bench.ab.sources import commit_of, commits_between, digest, repository, subject_of
from bench.cases.outcome import Skip
from bench.runs.saving import run_files
from bench.selection.choice import listed, own_files
from bench.selection.errors import UsageError, positive
from reports.judging import ab_file
from reports.judging.comparison import Comparison
from reports.pages.comparison_text import changed, sentences
from stats.arguments import Parser
from stats.verdict import INCONCLUSIVE, REGRESSED

from .ab import UNJUDGED, answered, unmeasured

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
    return answered(lambda: _answer(options))


def _answer(options: argparse.Namespace) -> int:
    points, kind = _points(options.ends, options.pythons)
    bisection = Bisection(points, kind, options)
    ends = bisection.compare(points[0], points[-1], options.budget * 2)
    change = {
        (cell.impl, cell.id): math.log(cell.verdict.ratio) for cell in ends.cells if cell.verdict.word == REGRESSED
    }
    lines = [*sentences(ends), *(ends.notes if not ends.cells else ())]
    if not change:
        untimed = (cell for cell in ends.cells if not math.isfinite(cell.verdict.ratio))
        lines += dict.fromkeys(f"{cell.impl} is {cell.verdict.word}: {cell.verdict.reason}" for cell in untimed)
        if any(cell.verdict.word == INCONCLUSIVE for cell in ends.cells):
            lines.append(f"some of it is INCONCLUSIVE: --budget {2 * options.budget:g} measures for longer")
        print("nothing is significantly slower between the ends:", *lines, sep="\n  ")
        return UNJUDGED
    print("slower between the ends:", *lines, sep="\n  ", flush=True)
    good, bad, between = search(len(points), lambda at: bisection.judge(at, change))
    return bisection.print_result(good, bad, between)


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


@dataclass(frozen=True)
class Bisection:
    """The points to choose from, the good end first, and how they are compared."""

    points: Sequence[str]
    kind: str
    """`commits` or `pythons`"""
    options: argparse.Namespace

    def judge(self, at: int, change: Change) -> Step:
        """Return the share of the change at a point; undecided points are measured for longer."""
        step = UNKNOWN
        for doubling in range(DOUBLINGS):
            try:
                found = self.compare(self.points[0], self.points[at], self.options.budget * 2**doubling, doubling)
            except (UsageError, Unjudgeable, Skip):
                break
            step = step_of(found, change) if found.cells else SAME
            if step.word != "open" or not math.isfinite(step.error):
                break
        print(f"{self._name(at)}: {step}", flush=True)
        return step

    def compare(self, base: str, head: str, minutes: float, times: int = 0) -> Comparison:
        """Return the comparison of two points, continued `times` times, saved or measured now; raises as `ab.measure`."""
        suffix = "" if self.kind == "commits" else "_python"
        given = vars(self.options) | {f"base{suffix}": base, f"head{suffix}": head}
        for name in ("ends", "pythons"):
            del given[name]
        pythons = self.kind == "pythons"
        in_tree = not pythons and Path.cwd().is_relative_to(repository())  # a revision has the user's modules
        own = {} if in_tree else own_files(" ".join(self.options.impl), Path.cwd())
        versions = [interpreter(it)[1] for it in (base, head)] if pythons else []
        code = {"code": digest(CHECKOUT / "impls", own, *versions)} if pythons or own else {}
        conditions = given | code | selftest.conditions()
        name = f"bisect-{hashlib.sha256(json.dumps(conditions).encode()).hexdigest()[:10]}"
        files = run_files(ab.comparisons(), name)
        if len(files) > times:
            return ab_file.comparison(files[times])
        more = {"budget": minutes, "save": name, "to_continue": files[-1] if files else None}
        options = argparse.Namespace(**defaults() | given | more)
        try:
            return ab_file.comparison(ab.measure(options))
        except SameCode as same:
            return unmeasured(same, options)

    def print_result(self, good: int, bad: int, between: Sequence[int]) -> int:
        """Print the result; returns the exit code."""
        print(f"the first that is slow: {self._name(bad)}")
        found = self.compare(self.points[good], self.points[bad], self.options.budget)
        changes = [f"{it.impl} {it.id}: {', '.join(map(changed, it.changes))}" for it in found.cells if it.changes]
        print(f"against {self._name(good)}:", *sentences(found), *changes, sep="\n  ")
        if between:
            print("or one of these, which can't be judged:", *map(self._name, between), sep="\n  ")
        return SEVERAL if between else 0

    def _name(self, at: int) -> str:
        """Return a commit with its subject, or the path of an interpreter."""
        point = self.points[at]
        return subject_of(point, repository()) if self.kind == "commits" else point


def _points(ends: Sequence[str], pythons: str | None) -> tuple[list[str], str]:
    """Return the points to choose from, the good end first; raises `UsageError`."""
    if pythons:
        if ends:
            raise UsageError("either GOOD BAD, or --pythons A,B,C")
        points = listed([pythons])
        if len(points) < 2:
            raise UsageError("--pythons names interpreters from the good one to the bad one, two at least")
        return points, "pythons"
    if len(ends) != 2:
        raise UsageError("give two revisions: GOOD, which is fast, and BAD, which is slow")
    root = repository()
    good, bad = (commit_of(revision, root) for revision in ends)
    return [good, *commits_between(good, bad, root)], "commits"


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
    parser.add_argument(
        "--budget",
        type=positive,
        default=1.0,
        metavar="MINUTES",
        help="about how long to measure at each step (default: 1)",
    )
    add_cells(parser)
    return parser
