"""`python -m bench bisect GOOD BAD`: which commit made it slower? Or, of several interpreters, which torch: `--pythons A,B,C`.

The ends are compared first: what regressed between them is what is looked for. Each step compares GOOD with a commit in the
middle, and asks whether that has more or less than half of the change. What can't be told is measured for longer, and left
out where that doesn't help; so is what is broken. Every step is kept, and the same command goes on after an interruption.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from pytest_benchmark.utils import get_machine_id

from .. import CHECKOUT
from ..runs.saving import results_root
from ..selection.command import Parser, complain
from ..selection.mistake import Mistake, positive
from .sources import commit_of, commits_between, refuse_elsewhere, subject_of

UNJUDGED, USAGE_ERROR = 2, 3
SEVERAL = 1
"""Exit code where commits that can't be judged stand between the last good one and the first bad one."""

DOUBLINGS = 3
"""How often a step that can't be told is measured again, each time for twice as long."""

WITHIN = 2.0
"""Standard errors that a step must be away from half of the change."""

Compare = Callable[[str, str, float], dict[str, Any] | None]
"""(base, head, minutes) -> what `ab --json` writes; None where head can't be measured at all."""


@dataclass(frozen=True)
class Step:
    """How much of the change between the ends a point has: 0 as the good end, 1 as the bad one."""

    share: float
    error: float
    """Its standard error; infinite where nothing is known."""

    @property
    def word(self) -> str:
        if abs(self.share - 0.5) <= WITHIN * self.error or not math.isfinite(self.error):
            return "open"
        return "bad" if self.share > 0.5 else "good"

    def __str__(self) -> str:
        if not math.isfinite(self.error):
            return f"{self.word}: nothing could be measured"
        low, high = (100 * (self.share + side * WITHIN * self.error) for side in (-1, 1))
        return f"{self.word}: {100 * self.share:.0f} % of the change ({low:.0f} to {high:.0f})"


UNKNOWN = Step(0.5, math.inf)


def main(arguments: Sequence[str]) -> int:
    """Exit code: 0 found; 1 found but for what can't be judged; 2 the ends aren't shown to differ; 3 a mistake."""
    ends = list(
        takewhile(lambda word: not word.startswith("-"), arguments)
    )  # of what follows, ab's options have values too
    options, others = _parser().parse_known_args(arguments[len(ends) :])
    try:
        points, kind = _points(ends, options.pythons)
        known = Known(_file(points, others))
        return _bisected(points, kind, known, _by_ab(kind, others), options.budget)
    except Mistake as mistake:
        return complain(mistake, USAGE_ERROR)
    except KeyboardInterrupt:
        return complain("interrupted; the same command goes on", UNJUDGED)


def _bisected(points: Sequence[str], kind: str, known: Known, compare: Compare, minutes: float) -> int:
    ends = known.ends or compare(points[0], points[-1], minutes * 2)
    if ends is None:
        return USAGE_ERROR  # `ab` has said why
    change = {
        (cell["impl"], cell["id"]): math.log(cell["ratio"]) for cell in ends["cells"] if cell["word"] == "REGRESSED"
    }
    if not change:
        print("between the ends nothing is shown to be slower:", *ends["sentences"], sep="\n  ")
        return UNJUDGED
    known.keep(ends)
    print("to be explained:", *ends["sentences"], sep="\n  ", flush=True)
    look = _looking(points, kind, change, compare, known, minutes)
    good, bad, between = search(len(points), look)
    return _told(points, kind, good, bad, between, compare, minutes)


def search(count: int, look: Callable[[int], Step]) -> tuple[int, int, list[int]]:
    """The last good and the first bad of so many points, of which the first is good and the last is bad, and what stands
    between them because it can't be judged.
    """
    good, bad, left_out = 0, count - 1, set[int]()
    while open_ := [at for at in range(good + 1, bad) if at not in left_out]:
        middle = min(open_, key=lambda at: abs(at - (good + bad) / 2))
        word = look(middle).word
        if word == "bad":
            bad = middle
        elif word == "good":
            good = middle
        else:
            left_out.add(middle)
    return good, bad, list(range(good + 1, bad))


def step_of(found: dict[str, Any] | None, change: dict[tuple[str, str], float]) -> Step:
    """What a comparison with the good end tells, over the cells that changed between the ends, by their certainty."""
    weights, shares = [0.0], [0.0]
    for cell in found["cells"] if found else ():
        full = change.get((cell["impl"], cell["id"]))
        if full and cell["ratio"] and cell["low"] and cell["high"]:
            error = math.log(cell["high"] / cell["low"]) / 4 / full  # an interval of 95 % is four standard errors wide
            weights.append(error**-2)
            shares.append(math.log(cell["ratio"]) / full)
    whole = sum(weights)
    return Step(sum(w * s for w, s in zip(weights, shares, strict=True)) / whole, whole**-0.5) if whole else UNKNOWN


def together(one: Step, other: Step) -> Step:
    """Two measurements of one point."""
    steps = [step for step in (one, other) if math.isfinite(step.error)]
    if not steps:
        return UNKNOWN
    whole = sum(step.error**-2 for step in steps)
    return Step(sum(step.share * step.error**-2 for step in steps) / whole, whole**-0.5)


class Known:
    """What earlier calls of the same command found out, in a file; raises `Mistake` where that can't be read or written."""

    def __init__(self, path: Path):
        self._path = path
        self._data: dict[str, Any] = {"ends": None, "steps": {}}
        try:
            if path.exists():
                self._data |= json.loads(path.read_text())
            self._write()
        except OSError as error:
            raise Mistake(f"steps can't be kept in {path}: {error.strerror}") from None
        except ValueError:
            raise Mistake(f"{path} is damaged: remove it, and all steps are measured again") from None

    @property
    def ends(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self._data["ends"]
        return found

    def keep(self, ends: dict[str, Any]) -> None:
        self._data["ends"] = ends
        self._write()

    def step(self, point: str) -> Step | None:
        found = self._data["steps"].get(point)
        return Step(found["share"], math.inf if found["error"] is None else found["error"]) if found else None

    def add(self, point: str, step: Step) -> None:
        record = asdict(step)
        self._data["steps"][point] = record | {"error": record["error"] if math.isfinite(step.error) else None}
        self._write()

    def _write(self) -> None:
        """Whole or not at all."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_suffix(".new")
        beside.write_text(json.dumps(self._data))
        beside.replace(self._path)


def _looking(
    points: Sequence[str],
    kind: str,
    change: dict[tuple[str, str], float],
    compare: Compare,
    known: Known,
    minutes: float,
) -> Callable[[int], Step]:
    def look(at: int) -> Step:
        step = known.step(points[at])
        if step is None:
            step = UNKNOWN
            for doubling in range(DOUBLINGS):
                found = compare(points[0], points[at], minutes * 2**doubling)
                step = together(step, step_of(found, change))
                if step.word != "open" or found is None:
                    break
            known.add(points[at], step)
        print(f"{_name(points[at], kind)}: {step}", flush=True)
        return step

    return look


def _told(
    points: Sequence[str], kind: str, good: int, bad: int, between: list[int], compare: Compare, minutes: float
) -> int:
    print(f"the first that is slow: {_name(points[bad], kind)}")
    found = compare(points[good], points[bad], minutes)
    if found:
        changes = [
            f"{cell['impl']} {cell['id']}: {', '.join(it['text'] for it in cell['changes'])}"
            for cell in found["cells"]
            if cell["changes"]
        ]
        print(f"against {_name(points[good], kind)}:", *found["sentences"], *changes, sep="\n  ")
    if between:
        print("or one of these, which can't be judged:", *(_name(points[at], kind) for at in between), sep="\n  ")
    return SEVERAL if between else 0


def _name(point: str, kind: str) -> str:
    """A commit with its subject, or the path of an interpreter."""
    return subject_of(point) if kind == "commits" else point


def _points(ends: Sequence[str], pythons: str | None) -> tuple[list[str], str]:
    """What there is to choose from, the good end first; raises `Mistake`."""
    if pythons:
        if ends:
            raise Mistake("either GOOD BAD, or --pythons A,B,C")
        points = [name.strip() for name in pythons.split(",") if name.strip()]
        if len(points) < 2:
            raise Mistake("--pythons names interpreters from the good one to the bad one, two at least")
        return points, "pythons"
    if len(ends) != 2:
        raise Mistake("give two revisions before all options: GOOD, which is fast, and BAD, which is slow")
    refuse_elsewhere()
    good, bad = map(commit_of, ends)
    return [good, *commits_between(good, bad)], "commits"


def _by_ab(kind: str, others: Sequence[str]) -> Compare:
    """By `python -m bench ab`, in a process of its own."""
    base_option, head_option = ("--base", "--head") if kind == "commits" else ("--base-python", "--head-python")

    def compare(base: str, head: str, minutes: float) -> dict[str, Any] | None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "found.json"
            command = [sys.executable, str(CHECKOUT / "bench"), "ab", base_option, base, head_option, head]
            command += [f"--budget={minutes}", f"--json={file}", *others]
            done = subprocess.run(command, stdout=subprocess.DEVNULL)
            if done.returncode == USAGE_ERROR or not file.exists() or not file.stat().st_size:
                return None
            found: dict[str, Any] = json.loads(file.read_text())
            return found

    return compare


def _file(points: Sequence[str], others: Sequence[str]) -> Path:
    """Where the steps are kept: one file for each pair of ends and the cells that are compared."""
    what = hashlib.sha256("\0".join([*points, *others]).encode()).hexdigest()[:10]
    return results_root(Path.cwd(), None) / str(get_machine_id()) / "ab" / f"bisect-{what}.steps"


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "bisect",
        USAGE_ERROR,
        usage="%(prog)s GOOD BAD [options]\n       %(prog)s --pythons A,B,C [options]",
        description="Find the commit, or the version of torch, that made it slower.",
        epilog="All other options are those of `python -m bench ab`: --impl, --T, --sweep, --margin, ...",
    )
    parser.add_argument("--pythons", metavar="A,B,C", help="interpreters instead, from the good one to the bad one")
    parser.add_argument(
        "--budget",
        type=positive,
        default=1.0,
        metavar="MINUTES",
        help="about how long to measure at each step (default: 1)",
    )
    return parser
