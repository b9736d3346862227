"""`python -m tests.experiments.interim [FILE...]`: interleaved comparisons, judged again after each of their replicates.

FILE is a comparison as `python -m bench ab` saves it; without one, those that `--keep` has put into `tests/data/`. Prints, of
each kind of comparison (by what `python -m bench ab --self-test` injected), what is found of it, alarms,
comparisons whose sentence and cells contradict each other, facts that were taken back and signs that flipped as replicates
were added. `--levels` prints instead by how much an interval must be wider to hold at every interim analysis
(`stats.estimate.per_analysis`); `--last` the half-widths at the last analysis within a comparison's time, and how often
intervals miss the truth.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtr

from reports.pages.tables import markdown
from stats import effects, verdict
from stats.effects import FIRST_ANALYSIS, Key
from stats.estimate import LEVEL, per_analysis, quantile
from stats.verdict import CHANGED, SLIGHT, UNCHANGED, Verdict

RECORD = Path(__file__).resolve().parents[1] / "data" / "ab_pairs.json"

LEVELS = (0.1, 0.05, 0.01, 0.001, 0.0001)
WALKS, STEPS = 1_200_000, 200

REPLICATES, COMPARISONS, HEAVY = (5, 7, 10, 13, 30), 300, 3
"""Replicates at which a comparison's time ends, simulated comparisons, and degrees of freedom of heavy tails."""

LAST_HEADINGS = ("replicates", "half-width, interim", "last", "normal: missed", "continued", "heavy tails: missed",
                 "continued")  # fmt: skip

HEADINGS = ("injected", "comparisons", "replicates", "implementation found", "its cells found", "alarms: comparisons",
            "of cells", "contradictions", "retracted", "of facts", "flips")  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("files", type=Path, nargs="*")
    options.add_argument("--levels", action="store_true")
    options.add_argument("--last", action="store_true")
    options.add_argument("--keep", action="store_true")
    asked = options.parse_args()
    if asked.levels:
        print(markdown(("level", "simulated", "used"), list(levels())))
        return
    if asked.last:
        print(markdown(LAST_HEADINGS, list(map(last_analysis, REPLICATES))))
        return
    found = list(map(_read, asked.files)) or json.loads(RECORD.read_text(encoding="utf-8"))
    if asked.keep:
        RECORD.write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="utf-8")
    by_injection = defaultdict(list)
    for one in found:
        by_injection[tuple(one["injected"])].append(one)
    print(markdown(HEADINGS, [_line(*injection, found) for injection, found in sorted(by_injection.items())]))


def levels() -> Iterator[tuple[str, ...]]:
    """Return the nominal level of each interim analysis after 3 to 200 steps of a normal walk, for a total error rate."""
    rng = np.random.default_rng(0)
    counts = np.sqrt(np.arange(1, STEPS + 1))
    farthest = np.concatenate([
        (abs(rng.standard_normal((20_000, STEPS), np.float32).cumsum(1)) / counts)[:, FIRST_ANALYSIS - 1 :].max(1)
        for _ in range(WALKS // 20_000)
    ])  # fmt: skip
    for level in LEVELS:
        nominal = 2 * ndtr(-np.quantile(farthest, 1 - level))
        yield f"{level:g}", f"{nominal:.3g}", f"{per_analysis(level):.3g}"


def last_analysis(count: int) -> tuple[str, ...]:
    """Return half-widths, in spreads of a replicate, after this number of replicates of a cell beside one that spreads three
    times as much, and the share of cells whose interval misses the truth by then, and after as many again.
    """
    widths: dict[int, list[float]] = {0: [], count: []}
    missed = []
    for draw in (np.random.default_rng(count).standard_normal, partial(np.random.default_rng(count).standard_t, HEAVY)):
        wrong = np.zeros(2)
        for _ in range(COMPARISONS):
            drawn = draw((2, 2 * count)) * ((1.0,), (3.0,))
            for i, until in enumerate((count, 2 * count)):
                logs = {(str(cell), ""): of[:until] for cell, of in enumerate(drawn)}
                cells = effects.of_replicates(logs, ends=(count, 2 * count))[0].values()
                wrong[i] += sum(not low <= 0 <= high for low, high in (it.interval() for it in cells))
            for end in widths:
                first = effects.of_replicates({("", ""): drawn[0, :count]}, ends=(end,))[0]["", ""]
                widths[end].append(first.error * quantile(first.df, 1 - first.levels(LEVEL)[-1] / 2))
        missed += [f"{share:.1%}" for share in wrong / 2 / COMPARISONS]
    return str(count), *(f"{np.median(of):.2f}" for of in widths.values()), *missed


def _read(path: Path) -> dict[str, Any]:
    """Return what was injected, as implementation and share, and the replicates without blocks."""
    data = json.loads(path.read_text(encoding="utf-8"))
    pairs = [
        {"logs": [[*key, round(log, 6)] for *key, log in pair["logs"]], "last": pair.get("last", False)}
        for pair in data["pairs"]
    ]
    return {"injected": data["asked"].get("inject", ["", 0.0]), "margin": data["margin"], "pairs": pairs}


def _line(impl: str, share: float, found: list[dict[str, Any]]) -> tuple[str, ...]:
    right = 1 if share > 0 else -1
    seen = cells_seen = injected = alarms = alarmed = contradictions = cells_of_others = back = facts = flips = 0
    for data in found:
        cells, implementations = judged(data, len(data["pairs"]))
        own = [it for key, it in cells.items() if share and key[0] == impl]
        others = [it for key, it in cells.items() if not (share and key[0] == impl)]
        others_whole = [it for name, it in implementations.items() if not (share and name == impl)]
        injected, cells_of_others = injected + len(own), cells_of_others + len(others)
        seen += impl in implementations and implementations[impl].way == right
        cells_seen += sum(it.way == right for it in own)
        alarms += sum(it.way != 0 for it in others)
        alarmed += any(it.way for it in (*others, *others_whole))
        contradictions += contradicts(cells, implementations)
        taken, known, flipped = taken_back(data)
        back, facts, flips = back + taken, facts + known, flips + flipped
    pairs = sorted(len(data["pairs"]) for data in found)
    of = len(found)
    return (
        f"{share:+.1%} in {impl}" if share else "nothing", str(of), f"{pairs[0]} to {pairs[-1]}",
        f"{seen} of {of}" if share else "–", f"{cells_seen} of {injected}" if share else "–", f"{alarmed} of {of}",
        f"{alarms} of {cells_of_others}", str(contradictions), str(back), str(facts), str(flips),
    )  # fmt: skip


def judged(data: Mapping[str, Any], count: int) -> tuple[dict[Key, Verdict], dict[str, Verdict]]:
    """Return the verdicts after this number of replicates."""
    return verdict.of_replicates(*effects.of_saved(data["pairs"][:count]), data["margin"])


def taken_back(data: Mapping[str, Any]) -> tuple[int, int, int]:
    """Count verdicts that are missing after more replicates, all verdicts, and flipped signs."""
    last: dict[object, tuple[int, bool]] = {}
    back = known = flips = 0
    for count in range(effects.FIRST_ANALYSIS, len(data["pairs"]) + 1):
        cells, implementations = judged(data, count)
        for key, it in (*cells.items(), *implementations.items()):
            before, now = last.get(key, (0, False)), (it.way, it.word in (SLIGHT, UNCHANGED))
            back += (before[0] not in (0, now[0])) + (before[1] and not now[1])
            known += (before[0] == 0 != now[0]) + (now[1] and not before[1])
            flips += before[0] * now[0] < 0
            last[key] = now
    return back, known, flips


def contradicts(cells: Mapping[Key, Verdict], implementations: Mapping[str, Verdict]) -> bool:
    """Whether a cell regressed although its interval holds a change that is within its implementation's."""
    return any(
        it.word in CHANGED and whole.word in (SLIGHT, UNCHANGED) and it.low <= whole.high and whole.low <= it.high
        for (impl, _), it in cells.items()
        if (whole := implementations.get(impl))
    )


if __name__ == "__main__":
    main()
