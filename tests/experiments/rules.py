"""`python -m tests.experiments.rules FILE...`: which rule finds most of what is slower, at equally few alarms?

The files are comparisons of unchanged code, from two folders, that go on until their time is over. `--run 20 FOLDER` measures
them (an hour), and goes on where it was stopped; options of `python -m bench ab` may follow. Every rule judges every comparison
as it is, and with one implementation after the other made slower. `--synthetic N` makes up N of them instead: `Noise` says how.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, polygamma, stdtr
from scipy.stats import false_discovery_control

from reports.judging.by_turns import CONTROL
from reports.pages.tables import markdown
from stats import estimate, verdict
from stats.verdict import UNCHANGED

CHECKOUT = Path(__file__).resolve().parents[2]

SHIFTS = (0.01, 0.02, 0.05, 0.10)

ALARMS = 0.01
"""Share of comparisons of unchanged code that may have any alarm, where rules are compared at equal alarms."""

SCREENED = 3
"""Pairs that screened all cells in the rule until now."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Comparison:
    """Unchanged code against itself."""

    impls: tuple[str, ...]
    """Of each cell."""
    seconds: Array
    """Of one call of each cell."""
    rounds: tuple[Array, ...]
    """log(head / base) of each cell: (pairs, rounds)."""

    def logs(self, rounds: Sequence[int] | None = None) -> Array:
        """(cells, pairs): the median over the rounds of a pair, or over the first so many."""
        counts = rounds or [of.shape[1] for of in self.rounds]
        return np.array([np.median(of[:, :count], axis=1) for of, count in zip(self.rounds, counts, strict=True)])


def main() -> None:
    options, others = _parser().parse_known_args()
    if options.run:
        sys.exit(measure(options.run, Path(options.files[0]), others))
    if others:
        sys.exit(f"unknown: {' '.join(others)}")
    known = synthetic(options.synthetic) if options.synthetic else [read(Path(file)) for file in options.files]
    known = [it for it in known if it.rounds and it.rounds[0].shape[0] >= 2 * SCREENED]
    if not known:
        sys.exit(
            "no comparison of unchanged code with six pairs: measure some (--run 20 FOLDER), or make them up (--synthetic 300)"
        )
    print(f"{len(known)} comparisons{' that are made up' if options.synthetic else ''}, "
          f"{len(known[0].impls)} cells, {known[0].rounds[0].shape[0]} pairs")  # fmt: skip
    print(markdown(HEADINGS, [line(name, rule, known) for name, rule in RULES.items()]))


def measure(count: int, folder: Path, others: Sequence[str]) -> int:
    """As the self-test of this machine does it, which knows what is there already."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        str(CHECKOUT / "bench"),
        "ab",
        f"--self-test={count}",
        "--plant=sdpa=0",
        "--whole",
        *others,
    ]
    return subprocess.run(command, cwd=folder).returncode


def read(path: Path) -> Comparison:
    """A saved comparison, less the cells that were lost on the way; of each as many rounds as its shortest pair has."""
    pairs = json.loads(path.read_text(encoding="utf-8"))["pairs"]
    cells = [(impl, case) for impl, case, _ in pairs[0]["logs"] if impl != CONTROL]
    found = [[_rounds(pair, cell) for pair in pairs] for cell in cells]
    counts = [min(len(rounds) for rounds, _ in of) for of in found]
    whole = [i for i, count in enumerate(counts) if count]
    return Comparison(
        tuple(cells[i][0] for i in whole),
        np.array([np.median([seconds for _, seconds in found[i]]) for i in whole]),
        tuple(np.array([rounds[: counts[i]] for rounds, _ in found[i]]) for i in whole),
    )


def _rounds(pair: dict[str, Any], cell: tuple[str, str]) -> tuple[list[float], float]:
    """log(head / base) of every round, and the seconds of a call."""
    keys = [(impl, case) for impl, case, _ in pair["logs"]]
    sides: tuple[list[float], list[float]] = ([], [])
    for at, side, seconds in zip(*(pair["blocks"][name] for name in ("cell", "side", "seconds")), strict=True):
        if keys[at] == cell:
            sides[side].append(seconds)
    logs = [math.log(head / base) for base, head in zip(*sides, strict=True)]
    return logs, float(np.median(sides[0])) if sides[0] else math.nan


@dataclass(frozen=True)
class Noise:
    """Made up after docs/measured.md: pairs of calls below 5 ms spread by 0.6 to 1.5 %, those of 100 ms and more by 12 %."""

    cells: int = 24
    impls: tuple[str, ...] = ("sdpa", "fused", "online")
    pairs: int = 13
    """In three minutes."""
    rounds: int = 40
    round: float = 0.03
    """Standard deviation of a round, in the median cell; cells differ by a factor of two either way."""
    pair: float = 0.006
    """... of a pair of processes beyond its rounds."""
    disturbed: float = 0.03
    """Share of pairs that spread eight times as much."""
    path: float = 0.001
    """... of what two folders with the same code differ by."""


def synthetic(count: int, noise: Noise = Noise()) -> list[Comparison]:
    return [_made_up(np.random.default_rng(seed), noise) for seed in range(count)]


def _made_up(rng: np.random.Generator, noise: Noise) -> Comparison:
    seconds = np.exp(rng.uniform(math.log(5e-5), math.log(8e-3), noise.cells))
    seconds[: noise.cells // 12] = 0.15
    found = []
    for one in seconds:
        louder = math.exp(rng.normal(0, 0.5)) * (4 if one > 0.1 else 1)
        rounds = max(1, round(noise.rounds * min(1.0, 5e-3 / max(one, 2e-3))))
        disturbed = np.where(rng.random((noise.pairs, 1)) < noise.disturbed, 8.0, 1.0)
        pair = rng.normal(0, noise.pair * louder, (noise.pairs, 1)) * disturbed
        found.append(rng.normal(0, noise.path) + pair + rng.normal(0, noise.round * louder, (noise.pairs, rounds)))
    impls = tuple(noise.impls[i % len(noise.impls)] for i in range(noise.cells))
    return Comparison(impls, seconds, tuple(found))


Rule = Callable[[Comparison, Array], Array]
"""(comparison, what is added to each cell) -> p of each cell, adjusted for all of them."""


@dataclass(frozen=True)
class By:
    """A rule, in parts."""

    null: float
    """What a change must exceed."""
    gate: bool = False
    """Simes' test over the cells of an implementation first, and not all cells at once."""
    trim: int = 0
    """Of so many pairs the lowest and the highest don't count; 0 for none."""
    moderated: bool = False
    """Variances drawn to each other, as far as all cells say that they are alike (empirical Bayes; Smyth 2004)."""
    screened: bool = False
    """Three pairs screen; others judge what these leave open."""
    half: bool = False
    """Half of the rounds alone."""
    neyman: bool = False
    """As many seconds, shared by the spread of a cell's rounds over the root of what one costs."""

    def __call__(self, of: Comparison, added: Array) -> Array:
        logs = of.logs(self._rounds(of)) + added[:, None]
        if not self.screened:
            return self._adjusted(self._p(logs), of.impls)
        found = np.ones(len(logs))
        mean, error, df = _student(logs[:, :SCREENED], 0)
        open_ = np.maximum(_beyond(0.01, mean, error, df), _beyond(0.01, -mean, error, df)) > estimate.LEVEL / 2
        found[open_] = self._adjusted(
            self._p(logs[open_, SCREENED:]), [i for i, it in zip(of.impls, open_, strict=True) if it]
        )
        return found

    def _p(self, logs: Array) -> Array:
        mean, error, df = _student(logs, logs.shape[1] // self.trim if self.trim else 0)
        if self.moderated:
            error, df = _moderated(error, float(df))
        size, limit = np.abs(mean), math.log1p(self.null)
        return np.minimum(1.0, stdtr(df, -(size - limit) / error) + stdtr(df, -(size + limit) / error))

    def _adjusted(self, p: Array, impls: Sequence[str]) -> Array:
        if not len(p):
            return p
        if not self.gate:
            return np.array(false_discovery_control(p))
        keys = list(zip(impls, range(len(p)), strict=True))
        found = estimate.adjusted(dict(zip(keys, p, strict=True)))
        return np.array([found[key] for key in keys])

    def _rounds(self, of: Comparison) -> list[int] | None:
        most = np.array([rounds.shape[1] for rounds in of.rounds])
        half = np.maximum(1, most // 2)
        if self.half:
            return list(half)
        if not self.neyman:
            return None
        cost = np.maximum(of.seconds, 2e-3)  # of a block
        spread = np.array([rounds[:SCREENED].std() for rounds in of.rounds])
        budget, wanted = float((half * cost).sum()), spread / np.sqrt(cost)
        low, high = 0.0, 1e6
        for _ in range(60):  # as many rounds as there are at most, one at least
            middle = (low + high) / 2
            spent = float((np.clip(middle * wanted, 1, most) * cost).sum())
            low, high = (middle, high) if spent < budget else (low, middle)
        return [int(count) for count in np.clip(low * wanted, 1, most)]


def _student(logs: Array, cut: int) -> tuple[Array, Array, float]:
    """Mean, standard error, degrees of freedom; trimmed (Yuen 1974)."""
    pairs = logs.shape[1]
    ordered, kept = np.sort(logs, axis=1), pairs - 2 * cut
    winsorized = ordered.clip(ordered[:, [cut]], ordered[:, [pairs - cut - 1]])
    error = winsorized.std(axis=1, ddof=1) * math.sqrt((pairs - 1) / (kept * (kept - 1)))
    return ordered[:, cut : pairs - cut].mean(axis=1), error, kept - 1.0


def _beyond(limit: float, mean: Array, error: Array, df: float) -> Array:
    return np.array(stdtr(df, -(math.log1p(limit) - mean) / error))


def _moderated(error: Array, df: float) -> tuple[Array, float]:
    logs = np.log(error**2) - digamma(df / 2) + math.log(df / 2)
    apart = logs.var(ddof=1) - polygamma(1, df / 2)
    if apart <= 0:
        return np.full_like(error, math.exp(logs.mean() / 2)), 1e6
    root = 0.5 + 1 / apart
    for _ in range(30):  # Newton's, of trigamma
        trigamma = polygamma(1, root)
        root += trigamma * (1 - trigamma / apart) / polygamma(2, root)
    prior, typical = 2 * root, math.exp(logs.mean() + digamma(root) - math.log(root))
    return np.sqrt((prior * typical + df * error**2) / (prior + df)), df + prior


def the_judge(of: Comparison, added: Array) -> Array:
    """The rule that is in use, by the code that is in use."""
    found = verdict.judge_pairs(_cells(of, added), {})
    return np.array([it.p if it.word != UNCHANGED else 1.0 for it in found.values()])


def _cells(of: Comparison, added: Array) -> dict[tuple[str, int], Array]:
    logs = of.logs() + added[:, None]
    return {(impl, i): logs[i] for i, impl in enumerate(of.impls)}


RULES: dict[str, Rule] = {
    "as until now: screened, Student, beyond 1 %": By(0.01, screened=True),
    "one stage": By(0.01),
    "beyond 0.5 %": By(0.005),
    "beyond 0.5 %, moderated": By(0.005, moderated=True),
    "beyond 0.5 %, gate": By(0.005, gate=True),
    "beyond 0.5 %, gate, moderated": By(0.005, gate=True, moderated=True),
    "beyond 0.5 %, gate, trimmed": By(0.005, gate=True, trim=10),
    "beyond 0.2 %, gate, trimmed": By(0.002, gate=True, trim=10),
    "the same, by the judge": the_judge,
    "beyond 0.2 %, gate, trimmed, moderated": By(0.002, gate=True, trim=10, moderated=True),
    "beyond 0.2 %, gate, trimmed, half of the rounds": By(0.002, gate=True, trim=10, half=True),
    "the same seconds, Neyman's": By(0.002, gate=True, trim=10, neyman=True),
    "beyond 0, gate, trimmed": By(0.0, gate=True, trim=10),
}

HEADINGS = (
    "rule", "alarms", "cells", *(f"{shift:.0%} found" for shift in SHIFTS), "at equal alarms:",
    *(f"{shift:.0%}" for shift in SHIFTS),
)  # fmt: skip


def line(name: str, rule: Rule, known: Sequence[Comparison]) -> list[str]:
    """Comparisons with an alarm, and cells; what is found at the level in use, and at one that gives equal alarms."""
    still = [rule(of, np.zeros(len(of.impls))) for of in known]
    least = np.array([p.min() for p in still])
    level = float(np.quantile(least, ALARMS, method="inverted_cdf"))
    found = [_found(rule, known, shift) for shift in SHIFTS]
    return [
        name,
        f"{(least <= verdict.FALSE_ALARMS).sum()} of {len(known)}",
        f"{sum(int((p <= verdict.FALSE_ALARMS).sum()) for p in still)} of {sum(map(len, still))}",
        *(f"{(p <= verdict.FALSE_ALARMS).mean():.0%}" for p in found),
        "",
        *(f"{(p < level).mean():.0%}" for p in found),
    ]


def _found(rule: Rule, known: Sequence[Comparison], shift: float) -> Array:
    """p of the cells that are slower: of each implementation in turn."""
    found = []
    for number, of in enumerate(known):
        names = sorted({*of.impls})
        slow = np.array([impl == names[number % len(names)] for impl in of.impls])
        found.append(rule(of, slow * math.log1p(shift))[slow])
    return np.concatenate(found)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE", help="saved comparisons; with --run, where they go")
    parser.add_argument("--run", type=int, default=0, metavar="N", help="measure so many, three minutes each")
    parser.add_argument("--synthetic", type=int, default=0, metavar="N", help="make up so many")
    return parser


if __name__ == "__main__":
    main()
