"""`python -m tests.experiments.denominator FILE...`: by what to divide times, so that two saved runs can be compared.

The files are runs of unchanged code on one machine. Every pair is compared: as it is, and with one implementation of head made
slower by 2, 5 and 10 %, a different one for every pair. Of unchanged cells that were called REGRESSED or IMPROVED, these are
false alarms; of slower ones that were called REGRESSED, these are found. `--synthetic N` replays N runs made up by the noise
model of `tests/reports/synthetic_runs.py` instead.

First it calibrates: how far apart processes of a run lie beyond their visits (`estimate.BETWEEN_PROCESSES`), and how far runs
lie beyond their processes (`verdict.BETWEEN_RUNS`), the latter so that 95 % of the intervals of unchanged cells hold 0. Each
denominator is judged with its own, from the pairs themselves: with few runs, alarms will be somewhat more than here. The
line of seconds that are divided by nothing calibrates `verdict.BETWEEN_RUNS_SECONDS`.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from reports.judging import denominators
from reports.judging.denominators import Key, Timed
from reports.pages.tables import markdown
from reports.reading import fingerprint, runs
from stats import estimate, ratios, verdict
from stats.estimate import Logs

SHIFTS = (0.0, 0.02, 0.05, 0.10)
SECONDS = "none: seconds"
COVERAGE = 0.95

Pair = tuple[Timed, Timed]
Sides = dict[Key, tuple[Logs, Logs]]


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        files = _made_up(options.synthetic, Path(folder)) if options.synthetic else options.files
        known = [runs.read(file) for file in files]
    if len(known) < 2:
        sys.exit("at least two runs are needed to compare them")
    if other := [run.name for run in known if fingerprint.differing(known[0], run)]:
        sys.exit(f"of another machine than {known[0].name}: {', '.join(other)}")
    timed = [Timed(run) for run in known]
    if empty := [run.name for run, one in zip(known, timed, strict=True) if not one.samples]:
        sys.exit(f"no rounds in which implementations took turns: {', '.join(empty)}")
    replay(timed, options.margin)


def replay(known: Sequence[Timed], margin: float | None = None) -> None:
    """Prints what was calibrated, and the table."""
    pairs = list(itertools.combinations(known, 2))
    cells = {impl for one in known for impl, _ in one.samples}
    print(f"{len(known)} runs, {len(pairs)} pairs, {len(known[0].samples)} cells, {len(cells)} implementations")
    print(_processes_told(known))
    print(
        f"between runs, now: {verdict.BETWEEN_RUNS:.2%} of ratios, {verdict.BETWEEN_RUNS_SECONDS:.2%} of seconds; "
        f"margin {'as the two runs allow' if margin is None else f'{margin:.1%}'}"
    )
    lines = []
    for kind in (SECONDS, *denominators.CANDIDATES):
        terms = _between_runs([_sides(pair, kind, None) for pair in pairs])
        lines += [_line(pairs, kind, shift, terms, margin) for shift in SHIFTS]
    print(markdown(HEADINGS, lines))


HEADINGS = (
    "divided by", "planted", "between runs", "usual distance", "9 of 10", "judged", "false alarms", "found", "UNCHANGED",
    "INCONCLUSIVE",
)  # fmt: skip


def _line(pairs: Sequence[Pair], kind: str, shift: float, between_runs: float, margin: float | None) -> list[str]:
    words: Counter[tuple[bool, str]] = Counter()
    distances = []
    for number, pair in enumerate(pairs):
        planted = _planted(pair, number) if shift else None
        sides = _sides(pair, kind, planted, math.log1p(shift))
        within = verdict.margin_between_runs(sides.values()) if margin is None else margin
        alarm = verdict.ALARM * (verdict.MARGIN if margin is None else margin)
        for (impl, _), said in verdict.judge_changes(sides, within, between_runs, alarm).items():
            words[impl == planted, said.word] += 1
            distances += [] if impl == planted else [abs(said.ratio - 1)]
    steady = {word: count for (moved, word), count in words.items() if not moved}
    moved = {word: count for (moved, word), count in words.items() if moved}
    alarms = steady.get(verdict.REGRESSED, 0) + steady.get(verdict.IMPROVED, 0)
    distances.sort()
    return [
        kind, f"{shift:.0%}", f"{between_runs:.2%}", f"{statistics.median(distances or [math.nan]):.1%}",
        f"{distances[int(0.9 * len(distances))] if distances else math.nan:.1%}", str(sum(words.values())),
        _share(alarms, steady), _share(moved.get(verdict.REGRESSED, 0), moved),
        _share(steady.get(verdict.UNCHANGED, 0), steady), _share(steady.get(verdict.INCONCLUSIVE, 0), steady),
    ]  # fmt: skip


def _planted(pair: Pair, number: int) -> str:
    """The implementation that is made slower in this pair."""
    impls = sorted({impl for impl, _ in pair[0].samples.keys() & pair[1].samples.keys()})
    return impls[number % len(impls)]


def _sides(pair: Pair, kind: str, planted: str | None, shift: float = 0.0) -> Sides:
    """What the judge gets of a pair. All are unchanged, whatever their hashes say, but for what is planted."""
    base, head = pair
    both = [key for key in base.samples if key in head.samples]
    if kind == SECONDS:
        found: Sides = {key: (_seconds(base, key), _seconds(head, key)) for key in both}
    else:
        steady = [key for key in both if key[0] != planted]
        found = denominators.sides(base, head, steady, both, kind)
    return {key: (logs[0], _moved(logs[1], shift if key[0] == planted else 0.0)) for key, logs in found.items()}


def _moved(logs: Logs, shift: float) -> Logs:
    return {process: [log + shift for log in visits] for process, visits in logs.items()}


def _seconds(run: Timed, key: Key) -> Logs:
    """Logarithms of seconds: divided by nothing."""
    samples = run.samples[key]
    return ratios.log_ratios(
        samples, ratios.Samples([1.0] * len(samples.seconds), samples.rounds, samples.visits, samples.processes)
    )


def _between_runs(pairs: Sequence[Sides]) -> float:
    return _calibrated([verdict.change(*sides) for pair in pairs for sides in pair.values()])


def _calibrated(differences: Sequence[tuple[float, float, float]]) -> float:
    """The smallest term with which COVERAGE of the intervals hold 0: by bisection. Each brings mean, error and df."""
    known = [one for one in differences if math.isfinite(one[1])]

    def covered(term: float) -> bool:
        return statistics.fmean(estimate.holds(*one, term) for one in known) >= COVERAGE

    if not known or covered(0.0):
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (low, middle) if covered(middle) else (middle, high)
    return high


def _processes_told(known: Sequence[Timed]) -> str:
    """Of ratios to the baseline implementation: how far a process lies from the others of its run beyond its visits."""
    apart = [one for run in known for key in run.samples for one in _processes_apart(run, key)]
    if not apart:
        return "between processes: not known, since no process has two visits of a cell"
    return f"between processes, beyond their visits: {_calibrated(apart):.2%} (now {estimate.BETWEEN_PROCESSES:.2%})"


def _processes_apart(run: Timed, key: Key) -> Iterator[tuple[float, float, float]]:
    """Every process's mean less that of the others, its standard error over its visits, degrees of freedom."""
    impl, case = key
    if run.baseline_impl in (None, impl) or (run.baseline_impl, case) not in run.samples:
        return
    logs = [visits for visits in run.logs(key, str(run.baseline_impl)).values() if len(visits) > 1]
    alone = math.sqrt(1 - 1 / len(logs)) if logs else 0.0  # the others' mean is uncertain too
    for visits in logs if len(logs) > 1 else []:
        others = statistics.fmean(statistics.fmean(other) for other in logs if other is not visits)
        error = math.sqrt(statistics.variance(visits) / len(visits))
        yield alone * (statistics.fmean(visits) - others), error, len(visits) - 1


def _share(count: int, among: dict[str, int]) -> str:
    whole = sum(among.values())
    return f"{count / whole:.1%}" if whole else "–"


def _made_up(count: int, folder: Path) -> list[Path]:
    """Runs of the noise model, the baseline implementation being the noisiest."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "reports"))
    import synthetic_runs as synthetic

    noise = synthetic.Noise(louder={"fused": 4.0})
    made = (synthetic.timed_by_turns(seed, noise=noise, visits=2) for seed in range(count))
    return [synthetic.save(data, folder, f"{number:04}_x") for number, data in enumerate(made, 1)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="runs of unchanged code, of one machine")
    parser.add_argument("--synthetic", type=int, default=0, metavar="N", help="runs of the noise model instead")
    parser.add_argument(
        "--margin", type=float, help="what UNCHANGED lies within (default: as well as two runs can tell)"
    )
    return parser


if __name__ == "__main__":
    main()
