"""`python -m tests.experiments.saved`: what two saved runs show: runs of one machine over some hours, all pairs.

The runs lie in `tests/data/saved_runs.npz`: every sample of each, in steps of a ten-thousandth, with the hour, the load, and
what was made slower inside the call of one implementation. `--add FILE` adds runs to it, from lines "RUN.json IMPL SHARE
LOAD": IMPL is `-` where nothing was made slower, LOAD says how many other processes kept the machine busy.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from reports.judging.rows import samples_of
from reports.pages.tables import markdown
from stats import conditions, ratios, saved, verdict
from stats.effects import Key
from stats.estimate import quantile
from stats.ratios import Samples
from stats.saved import Changes
from stats.verdict import CHANGED, MARGIN_OF_RUNS, SLIGHT, UNCHANGED

RECORD = Path(__file__).resolve().parents[1] / "data" / "saved_runs.npz"

STEP = 1e-4
"""Of a logarithm, in the record."""

DIFFERENT = "loop"
"""Of another kind than all others: reported separately."""

HEADINGS = ("pairs", "comparisons of an implementation", "alarms", "of cells", "unchanged shown", "without the loop",
            "95 % intervals that hold it", "standard error")  # fmt: skip
OF_SLOWER = ("pairs", "slower", "compared", "found", "95 % intervals that hold it", "its cells found")
RANKED = ("runs", "cases", "with a claim that the others contradict", "pairs significantly different", "of pairs")
ESTIMATED = ("runs of", "pairs", "unchanged cells move by", "unchanged implementations move by")
ALONE = ("one cell slower by", "cells", "found", "alarms elsewhere")


@dataclass(frozen=True)
class Timed:
    """A run."""

    name: str
    at: str
    """When it was made."""
    impl: str
    """Implementation whose calls were slowed down; or `-`."""
    share: float
    load: int
    """Other processes that kept the machine busy."""
    samples: dict[Key, Samples]
    disturbed: bool | None = None
    """Whether the run reported it; None if its file lacks what is needed: then it counts as such beside a load."""


Pair = tuple[Timed, Timed]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--add", type=Path, metavar="FILE")
    asked = options.parse_args()
    if asked.add:
        add(asked.add.read_text().split("\n"))
    runs = read()
    idle, loaded, slower = (
        [it for it in runs if it.impl == "-" and not it.load],
        [it for it in runs if it.impl == "-" and it.load],
        [it for it in runs if it.impl != "-"],
    )
    print(f"{len(idle)} idle runs, {len(loaded)} beside a load, {len(slower)} with a slow-down, "
          f"{min(it.at for it in runs)} to {max(it.at for it in runs)}\n")  # fmt: skip
    steady, moved = _by_shift(list(combinations(idle, 2)))
    few = {"sdpa", "fused", "packed"}
    unchanged = [
        _unchanged("idle", steady),
        _unchanged("idle, as on another machine", moved),
        _unchanged("one beside a load", [(a, b) for a in idle for b in loaded]),
        _unchanged("idle, of three implementations", steady, few),
    ]
    print(markdown(HEADINGS, unchanged), end="\n\n")
    for what, of in (("idle", [*idle, *slower]), ("loaded", loaded)):
        said = [it.disturbed for it in of if it.disturbed is not None]
        print(f"{sum(said)} of {len(said)} {what} runs say that they were disturbed")
    print()
    print(markdown(OF_SLOWER, [*_slower("idle", idle, slower), *_slower("beside a load", loaded, slower)]), end="\n\n")
    print("of three implementations:\n")
    print(markdown(OF_SLOWER, list(_slower("idle", idle, slower, few))), end="\n\n")
    print(markdown(ESTIMATED, list(_estimated(idle))), end="\n\n")
    print(markdown(RANKED, [_ranked(idle)]), end="\n\n")
    print(markdown(ALONE, [_alone(idle, share) for share in (0.05, 0.1, 0.2, 0.5)]))


def _by_shift(pairs: Sequence[Pair]) -> tuple[list[Pair], list[Pair]]:
    """Group pairs of runs by whether seconds changed little between them."""
    moved = [abs(changes(*pair).shift) > saved.STEADY for pair in pairs]
    steady, others = ([pair for pair, it in zip(pairs, moved, strict=True) if it == which] for which in (False, True))
    return steady, others


def _unchanged(what: str, pairs: Sequence[Pair], only: set[str] | None = None) -> tuple[str, ...]:
    counts: dict[str, list[float]] = defaultdict(list)
    for base, head in pairs:
        found = changes(base, head, only)
        cells, implementations = verdict.of_effects(found.cells, found.implementations, MARGIN_OF_RUNS)
        for name, said in implementations.items():
            counts["alarm"].append(said.word in (*CHANGED, SLIGHT))
            counts["shown"].append(said.word == UNCHANGED)
            counts["holds"].append(said.low <= 1 <= said.high)
            if name != DIFFERENT:
                counts["others shown"].append(said.word == UNCHANGED)
                counts["error"].append(found.implementations[name].error)
        counts["cell"] += [said.word in (*CHANGED, SLIGHT) for said in cells.values()]
    return (
        f"{len(pairs)} {what}", str(len(counts["alarm"])), str(sum(counts["alarm"])), _share(counts["cell"]),
        _share(counts["shown"]), _share(counts["others shown"]), _share(counts["holds"]), f"{np.median(counts['error']):.2%}",
    )  # fmt: skip


def _slower(
    what: str, bases: Sequence[Timed], slower: Sequence[Timed], only: set[str] | None = None
) -> Iterator[tuple[str, ...]]:
    """Compare each run with an injected slow-down with each base."""
    for share in sorted({it.share for it in slower}):
        runs = [it for it in slower if it.share == share and (only is None or it.impl in only)]
        names = ", ".join(it.impl for it in runs)
        kinds = what, f"{what}, as on another machine"
        for kind, pairs in zip(kinds, _by_shift([(base, head) for head in runs for base in bases]), strict=True):
            found, holds, of_cells = [], [], []
            for base, head in pairs:
                cells, implementations = _of_changed(changes(base, head, only), head.impl)
                said = implementations[head.impl]
                found.append(said.word in CHANGED and said.ratio > 1)
                holds.append(said.low <= 1 + share <= said.high)
                of_cells += [it.word in CHANGED and it.ratio > 1 for it in cells.values()]
            yield f"{len(found)} {kind}", f"{share:.0%}", names, _share(found), _share(holds), _share(of_cells)


def _ranked(runs: Sequence[Timed]) -> tuple[str, ...]:
    """Compare each run's order of the implementations of a case with that of all other runs together."""
    logs: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    by_run: list[dict[str, dict[tuple[str, str], ratios.Ratio]]] = []
    for run in runs:
        by_case: dict[str, dict[str, Samples]] = defaultdict(dict)
        for (impl, case), samples in run.samples.items():
            by_case[case][impl] = samples
        found = ratios.compared(by_case)[0]
        by_run.append(
            {case: {(a, b): over[a][b] for a in over for b in over if a != b} for case, over in found.items()}
        )
        for case, pairs in by_run[-1].items():
            for pair, it in pairs.items():
                logs[case, *pair].append(math.log(it.value))
    wrong = cases = resolved = of = 0
    for i, run in enumerate(by_run):
        for case, pairs in run.items():
            claims = [pair for pair, it in pairs.items() if it.faster]
            wrong += any(_contradicted([*logs[case, *pair][:i], *logs[case, *pair][i + 1 :]]) for pair in claims)
            cases, resolved, of = cases + 1, resolved + len(claims), of + len(pairs) // 2
    return str(len(runs)), str(cases), f"{wrong} ({wrong / cases:.1%})", str(resolved), str(of)


def _contradicted(others: Sequence[float]) -> bool:
    """Whether the mean of other runs is above 1, beyond its 95 % interval."""
    error = float(np.std(others, ddof=1)) / math.sqrt(len(others))
    return float(np.mean(others)) > quantile(len(others) - 1) * error


def _estimated(idle: Sequence[Timed]) -> Iterator[tuple[str, ...]]:
    """Estimates of the machine's noise from pairs of runs: in the first hour, the second, and between them."""
    half = len(idle) // 2
    first, second = sorted(idle, key=lambda run: run.at)[:half], sorted(idle, key=lambda run: run.at)[half:]
    for pairs in (list(combinations(first, 2)), list(combinations(second, 2)), [(a, b) for a in first for b in second]):
        found = [changes(base, head) for base, head in pairs]
        moved = np.transpose([np.median([*it.spreads.values()], axis=0) for it in found])
        quartiles = (np.quantile(of, (0.25, 0.5, 0.75)) for of in moved)
        times = f"{min(it[0].at for it in pairs)[11:]} and {max(it[1].at for it in pairs)[11:]}"
        yield times, str(len(pairs)), *(f"{middle:.2%} ({low:.2%} to {high:.2%})" for low, middle, high in quartiles)


def _of_changed(found: Changes, impl: str) -> tuple[dict[Key, verdict.Verdict], dict[str, verdict.Verdict]]:
    cells = {key: it for key, it in found.cells.items() if key[0] == impl}
    return verdict.of_effects(cells, {impl: found.implementations[impl]}, MARGIN_OF_RUNS)


def _alone(idle: Sequence[Timed], share: float) -> tuple[str, ...]:
    """Slow down a single cell of sdpa (its samples are multiplied), one case after the other, in neighbouring runs."""
    found, alarms, of = 0, 0, 0
    for base, head in pairwise(idle):
        for key in [key for key in head.samples if key[0] == "sdpa"]:
            it = head.samples[key]
            slow = Samples([s * (1 + share) for s in it.seconds], it.rounds, it.visits, it.processes)
            changed = saved.changes(_paired(base.samples, {**head.samples, key: slow}), {"sdpa"})
            cells, _ = verdict.of_effects(changed.cells, changed.implementations, MARGIN_OF_RUNS)
            found += cells[key].word in CHANGED
            alarms += any(said.word in CHANGED for other, said in cells.items() if other != key)
            of += 1
    return f"{share:.0%}", str(of), f"{found / of:.0%}", f"{alarms} of {of}"


_known: dict[tuple[str, str, frozenset[str]], Changes] = {}


def changes(base: Timed, head: Timed, only: set[str] | None = None) -> Changes:
    """`only` these implementations are in the runs."""
    where = base.name, head.name, frozenset(only or ())
    if where not in _known:
        sides = ({key: it for key, it in run.samples.items() if only is None or key[0] in only} for run in (base, head))
        disturbed = any(run.load > 0 if run.disturbed is None else run.disturbed for run in (base, head))
        _known[where] = saved.changes(
            _paired(*sides), {it for run in (base, head) for it in _with_compiled(run.impl)}, disturbed
        )
    return _known[where]


def _paired(base: Mapping[Key, Samples], head: Mapping[Key, Samples]) -> dict[Key, tuple[Samples, Samples]]:
    return {key: (of, head[key]) for key, of in base.items() if key in head}


def _with_compiled(impl: str) -> tuple[str, ...]:
    return (impl, f"{impl}+compile")


def _share(flags: Sequence[float]) -> str:
    return f"{sum(flags):.0f} of {len(flags)} ({np.mean(flags):.1%})" if flags else "–"


def add(lines: Sequence[str]) -> None:
    """Append the runs of the files to the known ones."""
    known: Mapping[str, Any] = dict(np.load(RECORD))
    about = json.loads(str(known["about"]))
    columns = {name: [of] for name, of in known.items() if name != "about"}
    for i, line in enumerate(filter(None, lines), len(about)):
        path, impl, share, load = line.split()
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        about.append(
            {"name": f"{i:02}", "at": data["datetime"][:16], "impl": impl, "share": float(share), "load": int(load),
             "disturbed": bool(conditions.disturbed(data["benchmarks"], data["controls"]))}
        )  # fmt: skip
        about[-1]["cells"] = cells = []
        for row in data["benchmarks"]:
            samples = samples_of(row)
            logs = np.log(samples.seconds)
            level = float(np.median(logs))
            cells.append([row["extra_info"]["impl"], row["extra_info"]["id"], len(logs), round(level, 6)])
            columns["logs"].append(((logs - level) / STEP).round().clip(-32000, 32000).astype(np.int16))
            for name in ("rounds", "visits", "processes"):
                columns[name].append(np.array(getattr(samples, name), np.int16))
    arrays: dict[str, Any] = {name: np.concatenate(of) for name, of in columns.items()}
    np.savez_compressed(RECORD, about=np.array(json.dumps(about)), **arrays)


@cache
def read() -> list[Timed]:
    data: Mapping[str, Any] = dict(np.load(RECORD))
    runs, at = [], 0
    for about in json.loads(str(data["about"])):
        samples = {}
        for impl, case, count, level in about.pop("cells"):
            part = slice(at, at := at + count)
            columns = (data[name][part].tolist() for name in ("rounds", "visits", "processes"))
            samples[impl, case] = Samples(
                [math.exp(level + STEP * log) for log in data["logs"][part].tolist()], *columns
            )
        runs.append(Timed(**about, samples=samples))
    return runs


if __name__ == "__main__":
    main()
