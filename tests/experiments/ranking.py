"""`python -m tests.experiments.ranking FILE`: how well does the ranking of a run repeat? Runs of unchanged code, interleaved.

Each run is a `quick` of this checkout; with `--other CHECKOUT` it is interleaved with a run of another commit, which may be so
old that rows have no rounds. Printed for both, over all pairs of runs: how far two runs disagree about the ratio of an
implementation to the baseline; how many pairs of implementations of a case differ significantly; how many significant
differences another run contradicts; how often a run's interval contains the pooled ratio of the others; the members of the
fastest tie; seconds. Appends to FILE, and continues where it was stopped. `--replay` evaluates this checkout's runs in FILE
again, by whole blocks and by their fastest slices.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, permutations
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from stats import ratios

from . import CHECKOUT, measured

BASELINE = "fused"
CLOSE = (1.05, 1.5)
"""Pooled ratios of pairs most of which should be significantly different."""

Pair = tuple[str, str, str]
"""case, implementation, implementation"""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("file", type=Path, help="JSON lines, one a run")
    options.add_argument("--runs", type=int, default=8, help="of either checkout")
    options.add_argument("--other", type=Path, help="another checkout, interleaved with this one")
    options.add_argument(
        "--first", action="store_true", help="nothing compiled before: every run has a cache of its own"
    )
    options.add_argument("--options", default="", help="for `pytest bench/`: --sweep, --impl, ...")
    options.add_argument("--replay", action="store_true", help="run nothing; print a line for each datum")
    asked = options.parse_args()
    if asked.replay:
        return replay([json.loads(line) for line in asked.file.read_text().splitlines()])
    checkouts = {"this": CHECKOUT} | ({"other": asked.other.resolve()} if asked.other else {})
    lines = asked.file.read_text().splitlines() if asked.file.exists() else []
    runs = [json.loads(line) for line in lines]
    for _ in range(asked.runs):
        for name, checkout in checkouts.items():
            if sum(run["of"] == name for run in runs) < asked.runs:
                runs.append(_run(name, checkout, asked.options.split(), asked.first))
                with asked.file.open("a") as file:
                    file.write(json.dumps(runs[-1]) + "\n")
                print(f"{name}: {len(runs[-1]['rows'])} rows in {runs[-1]['seconds']:.0f} s", flush=True)
    for name in checkouts:
        report(name, [Run(run) for run in runs if run["of"] == name])


def _run(name: str, checkout: Path, options: list[str], first: bool) -> dict[str, Any]:
    """Return the rows of one run, and its seconds from the command to its end."""
    with tempfile.TemporaryDirectory() as folder:
        cache = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/cache"} if first else {}
        start = perf_counter()
        file = measured(Path(folder), *options, checkout=checkout, environment=cache)
        seconds = perf_counter() - start
        data = json.loads(file.read_text())
    rows = [{"data": row["stats"]["data"], "iqr": [row["stats"]["q1"], row["stats"]["q3"]], "median": row["stats"]["median"]}
            | {key: value for key, value in row["extra_info"].items() if key in ("impl", "id") or key.startswith("sample_")}
            for row in data["benchmarks"]]  # fmt: skip
    spent = {"spent": data["seconds"], "drift": data["controls"]["drift"]}
    return {"of": name, "seconds": seconds, "rows": rows} | spent


@dataclass
class Run:
    """One run, and its ratios of pairs of implementations."""

    told: dict[str, Any]
    known: dict[Pair, ratios.Ratio] = field(default_factory=dict)

    @cached_property
    def rows(self) -> dict[tuple[str, str], dict[str, Any]]:
        return {(row["id"], row["impl"]): row for row in self.told["rows"]}

    @property
    def pairs(self) -> set[Pair]:
        """Every two implementations of a case, in both orders."""
        cases: dict[str, list[str]] = {}
        for case, impl in self.rows:
            cases.setdefault(case, []).append(impl)
        return {(case, *pair) for case, names in cases.items() for pair in permutations(names, 2)}

    def ratio(self, pair: Pair) -> ratios.Ratio:
        """Return the first over the second. Rows without rounds have no interval,
        and are significantly different if their quartiles don't overlap.
        """
        if pair not in self.known:
            case, a, b = pair
            self.known[pair] = _ratio(self.rows[case, a], self.rows[case, b])
        return self.known[pair]

    def first(self, case: str) -> set[str]:
        """Implementations that tie for fastest."""
        names = [impl for of, impl in self.rows if of == case]
        return {a for a in names if not any(self.ratio((case, b, a)).faster for b in names if b != a)}


def _ratio(a: dict[str, Any], b: dict[str, Any]) -> ratios.Ratio:
    if "sample_rounds" in a:
        return ratios.ratio(_samples(a), _samples(b))
    value, apart = a["median"] / b["median"], a["iqr"][0] > b["iqr"][1] or b["iqr"][0] > a["iqr"][1]
    end = value if apart else math.nan
    return ratios.Ratio(value, end, end)


def _samples(row: dict[str, Any]) -> ratios.Samples:
    return ratios.Samples(row["data"], row["sample_rounds"], row["sample_visits"], row["sample_processes"])


@dataclass(frozen=True)
class Figures:
    """Figures of the runs of one checkout."""

    apart: list[float]
    """Of every pair of runs, how far apart they see an implementation over the baseline one; sorted."""
    all_pairs: tuple[int, int]
    """Number of significantly different pairs, and of all; so are the next fields."""
    close_pairs: tuple[int, int]
    contradictions: tuple[int, int]
    held: tuple[int, int]
    ties: list[int]
    """Members of the winning tie, in every case of every run."""
    winners: tuple[int, int]

    @classmethod
    def of(cls, runs: list[Run]) -> Figures:
        shared = set.intersection(*(run.pairs for run in runs))
        based = [pair for pair in shared if pair[2] == BASELINE]
        said = [(run, pair) for run in runs for pair in shared if run.ratio(pair).faster]
        close = [pair for pair in shared if CLOSE[0] <= _pooled(runs, pair) <= CLOSE[1]]
        opposite = sum(other.ratio(pair).slower for run, pair in said for other in runs if other is not run)
        held = [hit for run in runs for pair in based if (hit := _held(run, runs, pair)) is not None]
        cases = sorted({case for case, *_ in shared})
        winners = {case: _winner(runs, case, shared) for case in cases}
        return cls(
            apart=sorted(_distances(runs, based)),
            all_pairs=(len(said), len(runs) * len(shared) // 2),
            close_pairs=(sum(run.ratio(pair).slower for run in runs for pair in close), len(runs) * len(close)),
            contradictions=(opposite, len(said) * (len(runs) - 1)),
            held=(sum(held), len(held)),
            ties=[len(run.first(case)) for run in runs for case in cases],
            winners=(sum(winners[case] in run.first(case) for run in runs for case in cases), len(runs) * len(cases)),
        )

    @property
    def nine_in_ten(self) -> float:
        return self.apart[len(self.apart) * 9 // 10]


def report(name: str, runs: list[Run]) -> None:
    """Print what the runs of one checkout say."""
    if len(runs) < 2:
        return
    it = Figures.of(runs)
    drifts = [run.told["drift"] for run in runs]
    print(f"{name}: {len(runs)} runs of {median(run.told['seconds'] for run in runs):.0f} s, "
          f"drift {min(drifts):.0%} to {max(drifts):.0%}")  # fmt: skip
    print(f"  ratios to {BASELINE}: usual distance {median(it.apart):.1%}, 9 of 10 below {it.nine_in_ten:.1%}, "
          f"largest {it.apart[-1]:.0%}")  # fmt: skip
    print(
        f"  significantly different: {_of(*it.all_pairs)} pairs, "
        f"{_of(*it.close_pairs)} of a pooled ratio of {CLOSE[0]} to {CLOSE[1]}"
    )
    print(f"  contradictions: {_of(*it.contradictions)}")
    print(f"  a run's 95 % interval holds the pooled ratio of the others: {_of(*it.held)}")
    print(f"  tie for fastest: {median(it.ties):.0f} in the median case, {max(it.ties)} at most; "
          f"holds the pooled winner in {_of(*it.winners)}")  # fmt: skip


def replay(lines: list[dict[str, Any]]) -> None:
    """Print the figures of this checkout's runs, by what counts of a block."""
    mine = [line for line in lines if line["of"] == "this"]
    for datum in ("whole block", "fastest slice"):
        if datum == "fastest slice":
            mine = [line | {"rows": [row | {"data": row["sample_fastest"]} for row in line["rows"]]} for line in mine]
        it = Figures.of([Run(line) for line in mine])
        print(f"{datum:16}: usual {median(it.apart):.2%}, 9 of 10 {it.nine_in_ten:.1%}, ", end="")
        print(f"close told {_of(*it.close_pairs)}, contradictions {_of(*it.contradictions)}, ", end="")
        print(f"held {_of(*it.held)}, tie {median(it.ties):.0f}, winner {_of(*it.winners)}", flush=True)


def _of(count: int, whole: int) -> str:
    """`3 of 40 (7.50%)`"""
    return f"{count} of {whole} ({count / whole:.2%})" if whole else "none"


def _distances(runs: list[Run], pairs: Iterable[Pair]) -> Iterator[float]:
    for pair in pairs:
        for a, b in combinations(runs, 2):
            yield math.expm1(abs(math.log(a.ratio(pair).value / b.ratio(pair).value)))


def _pooled(runs: Iterable[Run], pair: Pair) -> float:
    """Return the median over runs."""
    return median(run.ratio(pair).value for run in runs)


def _held(run: Run, runs: list[Run], pair: Pair) -> bool | None:
    case, one, other = pair
    known = _ratio(run.rows[case, one], run.rows[case, other])  # one comparison, not one of many
    if not known.known:
        return None
    return known.low <= _pooled((other for other in runs if other is not run), pair) <= known.high


def _winner(runs: list[Run], case: str, shared: set[Pair]) -> str:
    """Return the fastest implementation by all runs together."""
    names = {pair[1] for pair in shared if pair[0] == case}
    return min(names, key=lambda name: 1.0 if name == BASELINE else _pooled(runs, (case, name, BASELINE)))


if __name__ == "__main__":
    main()
