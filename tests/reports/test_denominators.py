"""What times are divided by, and the replay that chooses it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import synthetic_runs as synthetic

from reports.judging import denominators
from reports.judging.denominators import BASELINE, MIDDLE, OTHERS, Timed
from reports.reading import runs
from tests.experiments import denominator as replay

STILL = synthetic.Noise(day=0.1, round=0.1, run=0, process=0, visit=0, block=0)
IMPLS = ("fused", "einsum", "sdpa")


def timed(tmp_path: Path, seed: int, slower: dict[str, float] | None = None, **options: Any) -> Timed:
    data = synthetic.timed_by_turns(seed, slower, **{"noise": STILL, "impls": IMPLS, "T": (64,), **options})
    return Timed(runs.read(synthetic.save(data, tmp_path, f"{seed:04}_x")))


def moved(base: Timed, head: Timed, kind: str) -> dict[str, float]:
    """The change of each implementation's ratio."""
    both = [key for key in base.samples if key in head.samples]
    found = denominators.sides(base, head, denominators.unchanged(base, head), both, kind)
    return {impl: math.exp(replay.verdict.change(*sides)[0]) for (impl, _), sides in found.items()}


@pytest.mark.parametrize("kind", [BASELINE, OTHERS, MIDDLE])
def test_only_what_changed_has_another_ratio(kind: str, tmp_path: Path) -> None:
    found = moved(timed(tmp_path, 1), timed(tmp_path, 2, {"sdpa": 1.07}), kind)
    assert found["sdpa"] == pytest.approx(1.07) and found["einsum"] == pytest.approx(1)
    assert ("fused" in found) == (kind != BASELINE)  # it has no ratio to itself


def test_the_median_is_that_of_what_changed_and_not_of_levels(tmp_path: Path) -> None:
    """Of levels it would be the ratio to `einsum`, the middle one, which looks faster in half of head's visits."""
    impls = ("fused", "einsum", "packed", "linear")
    base, head = timed(tmp_path, 1, impls=impls), timed(tmp_path, 2, {"linear": 1.07}, impls=impls)
    of = next(key for key in head.samples if key[0] == "einsum")
    was = head.samples[of]
    seconds = [s * (0.5 if process < 2 else 1.0) for s, process in zip(was.seconds, was.processes, strict=True)]
    head.samples[of] = type(was)(seconds, was.rounds, was.visits, was.processes)
    assert moved(base, head, MIDDLE)["linear"] == pytest.approx(1.07)


def test_a_baseline_implementation_that_changed_is_no_denominator(tmp_path: Path) -> None:
    sides = timed(tmp_path, 1), timed(tmp_path, 2, {"fused": 1.07})
    assert moved(*sides, BASELINE) == {} and moved(*sides, OTHERS)["fused"] == pytest.approx(1.07)


def test_what_sat_out_some_visits_is_no_denominator_of_what_did_not(tmp_path: Path) -> None:
    base, head = timed(tmp_path, 1), timed(tmp_path, 2)
    key = next(key for key in base.samples if key[0] == "einsum")
    for side in (base, head):
        few = side.samples[key]
        last = few.seconds[-12:]
        side.samples[key] = type(few)([9 * s for s in last], few.rounds[-12:], few.visits[-12:], few.processes[-12:])
    both = denominators.sides(
        base, head, denominators.unchanged(base, head), [key for key in base.samples if key[0] == "sdpa"]
    )
    [(logs, _)] = both.values()
    assert {process: len(visits) for process, visits in logs.items()} == {0: 1, 1: 1, 2: 1, 3: 1}


def test_the_replay_prints_a_line_for_every_denominator_and_shift(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = synthetic.Noise(louder={"fused": 4})
    files = [
        str(synthetic.save(synthetic.timed_by_turns(seed, noise=noise, visits=2, T=(64,)), tmp_path, f"{seed:04}_x"))
        for seed in (1, 2, 3)
    ]
    replay.main(files)
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "3 runs, 3 pairs, 6 cells, 6 implementations"
    assert told[1].startswith("between processes, beyond their visits: ")
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in told[5:]]
    assert [(line[0], line[1]) for line in lines] == [
        (kind, shift)
        for kind in ("none: seconds", BASELINE, OTHERS, MIDDLE)
        for shift in ("0%", "2%", "5%", "10%")
    ]  # fmt: skip
    judged = {line[0]: int(line[5]) for line in lines if line[1] == "0%"}
    assert judged == {"none: seconds": 18, BASELINE: 15, OTHERS: 18, MIDDLE: 18}


def test_a_large_shift_is_found_and_a_noisy_baseline_implementation_finds_less(tmp_path: Path) -> None:
    noise = synthetic.Noise(day=0.06, run=0.001, process=0.002, visit=0.001, block=0.002, louder={"fused": 20})
    known = [
        timed(tmp_path, seed, noise=noise, impls=("fused", "linear", "einsum", "sdpa", "packed")) for seed in range(6)
    ]
    pairs = [(a, b) for i, a in enumerate(known) for b in known[i + 1 :]]
    found = {kind: replay._line(pairs, kind, 0.10, 0.0, 0.01)[7] for kind in (BASELINE, OTHERS)}
    share = {kind: float(text.rstrip("%")) for kind, text in found.items()}
    assert share[OTHERS] > share[BASELINE]


def test_the_term_is_as_large_as_what_runs_disagree_about() -> None:
    spread = [0.03 * math.sin(i) for i in range(400)]
    differences = [(mean, 0.001, 6.0) for mean in spread]
    assert replay._calibrated(differences) == pytest.approx(0.03 / 1.96, rel=0.05)
    assert replay._calibrated([(0.0001, 0.001, 6.0)] * 10) == 0.0


def test_runs_without_rounds_can_not_be_replayed(tmp_path: Path) -> None:
    data = synthetic.as_old(synthetic.timed_by_turns(1, T=(64,)))
    files = [str(synthetic.save(data, tmp_path, name)) for name in ("0001_x", "0002_x")]
    with pytest.raises(SystemExit, match="no rounds in which implementations took turns: 0001_x, 0002_x"):
        replay.main(files)
    with pytest.raises(SystemExit, match="at least two runs"):
        replay.main(files[:1])
