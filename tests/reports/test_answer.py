"""What the first screen says, of runs in which it is known what is true: headline, trust, ranking."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd
import pytest
import synthetic_runs as synthetic
from synthetic_runs import COSTS, Noise

from reports.judging import answer, frame
from reports.pages import page
from reports.reading.runs import Run
from stats import ratios

SEEDS = range(20)
IMPLS = ("fused", "linear", "packed", "sdpa")
QUIET = Noise(run=0.0)


def planted(
    seed: int, times: dict[str, float], T: tuple[int, ...] = (64, 256), noise: Noise = QUIET, **top: Any
) -> dict[str, Any]:
    """A run in which each implementation takes so many times as long as `fused`; those that aren't named 1.3 times."""
    slower = {name: times.get(name, 1.3) * COSTS["fused"][0] / COSTS[name][0] for name in IMPLS}
    return synthetic.timed_by_turns(seed, slower, noise, T=T, impls=IMPLS, rounds=6, **top)


def first_screen(data: dict[str, Any], as_run: Any) -> tuple[str, str]:
    """The headline, and the strip below it in words."""
    this = page.report(as_run(data))
    return this.headline, f"{this.trust.word}: {'; '.join(this.trust.reasons)}"


def test_a_size_that_some_cases_have_not_splits_the_answer(as_run: Any) -> None:
    data = synthetic.document([], axes=[{"name": "H_kv", "kind": "size"}])
    for heads, seconds in ((4, (1.0, 2.0)), (None, (2.0, 1.0))):
        case = synthetic.case(H_kv=heads)
        rows = [
            synthetic.row(name, case, [s, s, s], process_medians=[s, s, s]) | {"fullname": f"{name}{heads}"}
            for name, s in zip(("fused", "sdpa"), seconds, strict=True)
        ]
        for row in rows:
            row["extra_info"]["id"] += f"-H_kv={heads}"
        data["benchmarks"] += rows
    headline = page.report(as_run(data)).headline
    assert "H_kv" in headline and "None" not in headline and "nan" not in headline, headline


@pytest.mark.parametrize("seed", SEEDS)
def test_one_clear_winner_is_named(seed: int, as_run: Any) -> None:
    headline, trust = first_screen(planted(seed, {"sdpa": 1.0}), as_run)
    assert headline == "Use sdpa, the fastest in both cases." and trust.startswith(("HIGH", "MEDIUM"))


def test_of_two_that_are_level_neither_is_called_the_fastest(as_run: Any) -> None:
    said = [first_screen(planted(seed, {"sdpa": 1.0, "packed": 1.0}), as_run)[0] for seed in SEEDS]
    assert not [it for it in said if ", the fastest in" in it]
    both = {"Use sdpa or packed, level in both cases.", "Use packed or sdpa, level in both cases."}
    assert set(said) == both


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_drifting_machine_did_is_in_the_intervals_and_told(seed: int, as_run: Any) -> None:
    looks = {"product": [{"at": 0.0, "seconds": 1e-3}, {"at": 9.0, "seconds": 1.8e-3}]}
    data = planted(seed, {"sdpa": 1.0}, noise=Noise(run=0.0, round=0.3))
    headline, trust = first_screen({**data, "controls": {"drift": 0.8, "looks": looks}}, as_run)
    _, calm = first_screen({**data, "controls": {"drift": 0.01, "looks": looks}}, as_run)
    assert trust == f"{calm}; meanwhile the control workload's time varied by 80 %"
    assert not re.search("Use (fused|linear|packed)", headline)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_kernel_that_was_wrong_is_never_advised(seed: int, as_run: Any) -> None:
    skipped = [{"impl": "linear", "id": "B1", "reason": "wrong", "detail": "error 0.3 exceeds its bound"}]
    headline, trust = first_screen(planted(seed, {"linear": 0.5, "sdpa": 1.0}, skipped=skipped), as_run)
    assert headline == "Use sdpa, the fastest in both cases." and "left out, wrong somewhere: linear" in trust


@pytest.mark.parametrize("seed", SEEDS)
def test_a_winner_that_changes_with_the_length_is_told_by_length(seed: int, as_run: Any) -> None:
    data = planted(seed, {"packed": 1.0}, T=(64,))
    data["benchmarks"] += planted(seed, {"sdpa": 1.0}, T=(256, 1024))["benchmarks"]
    headline, _ = first_screen(data, as_run)
    assert headline == "At T = 64, use packed, the fastest; from T = 256 to 1024, use sdpa, the fastest."


def test_memory_decides_between_two_that_are_level(as_run: Any) -> None:
    said = []
    for seed in SEEDS:
        data = planted(seed, {"sdpa": 1.0, "packed": 1.0})
        for row in data["benchmarks"]:
            row["extra_info"]["peak_bytes"] = 2**20 if row["extra_info"]["impl"] == "sdpa" else 2**25
        said.append(first_screen(data, as_run)[0])
    wanted = "Use sdpa, level with packed in time with less memory, in both cases."
    assert set(said) == {wanted}


def test_without_intervals_there_is_no_answer_yet(tiny: Run) -> None:
    this = page.report(tiny)
    assert this.headline.startswith("No answer yet: no ratio of this run has an interval")
    assert this.trust.word == answer.LOW and "no ratio has an interval" in this.trust.reasons
    assert this.trust.command == "pytest bench/ --benchmark-save=x --processes 5"


def test_what_is_known_well_needs_no_more_processes(turns_data: dict[str, Any], as_run: Any) -> None:
    trust = page.report(as_run({**turns_data, "command": "pytest bench/ --processes 3 --benchmark-save=x"})).trust
    assert (trust.word, trust.command) == (answer.HIGH, "")


def test_a_run_is_told_to_take_more_processes_than_it_had_or_none(as_run: Any) -> None:
    noisy = planted(
        1, {"sdpa": 0.97}, noise=Noise(process=0.03), command="pytest bench/ --processes 4 --benchmark-save=x"
    )
    trust = page.report(as_run(noisy)).trust
    assert trust.word == answer.MEDIUM and re.fullmatch(
        r"pytest bench/ --benchmark-save=x --processes (5|1?\d)", trust.command
    )
    wanted = [answer._settling(noisy["command"], had, 0.02).rpartition(" ")[2] for had in (1, 4, 5, 20)]
    assert wanted == ["5", "5", "", ""]


def test_nobody_is_better_than_the_best_of_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"id": "x", "impl": name, "median": 1.0, "wrong": False, "leads": name == "a"} for name in "ab"]
    monkeypatch.setattr(answer.advice, "times", lambda row, best: {"a": 1.0, "b": 0.5}[row["impl"]])
    assert [(it.impl, it.mean, it.worst) for it in answer.ranking(pd.DataFrame(rows))] == [
        ("b", 1.0, 1.0),
        ("a", 2.0, 2.0),
    ]


def test_memory_that_is_not_known_decides_nothing() -> None:
    level = {
        "T": 64,
        "standing": ratios.LEVEL_WITH_IT,
        "fastest": "sdpa",
        "ties": ["openvino"],
        "peaks": {"sdpa": 100.0},
    }
    assert answer._one_for_all([level]) == "sdpa or openvino, level"


def test_answers_along_an_axis_are_joined_without_a_stray_comma() -> None:
    cells = [
        {"T": T, "standing": standing, "fastest": name, "ties": ties, "peaks": {"sdpa": 100.0, "packed": 40.0}}
        for T, standing, name, ties in (
            (64, ratios.LEVEL_WITH_IT, "sdpa", ["packed"]), (256, ratios.FASTEST, "fused", [])
        )
    ]  # fmt: skip
    assert answer._by_axis(cells, ["T"]) == (
        [("at T = 64", "packed, level with sdpa in time with less memory"), ("at T = 256", "fused, the fastest")]
    )  # fmt: skip


def test_the_ranking_is_the_geometric_mean_over_the_best_of_each_case(as_run: Any) -> None:
    cells = [("a", 64, 1.0), ("b", 64, 2.0), ("c", 64, 3.0), ("a", 256, 8.0), ("b", 256, 4.0)]
    rows = [synthetic.row(name, synthetic.case(T=T), [seconds] * 3) for name, T, seconds in cells]
    ranks = answer.ranking(frame.tidy(as_run(synthetic.document(rows))))
    told = {rank.impl: (rank.mean, rank.worst, rank.cases, rank.everywhere) for rank in ranks}
    assert told["a"] == (pytest.approx(2**0.5), pytest.approx(2), 2, True) == told["b"]
    assert told["c"] == (pytest.approx(3), pytest.approx(3), 1, False) and ranks[-1].impl == "c"


def ratio(low: float, high: float) -> ratios.Ratio:
    return ratios.Ratio((low * high) ** 0.5, low, high, 3, 3)


@pytest.mark.parametrize(
    ("rivals", "expected"),
    [
        ([(1.01, 1.2)], ["fastest", "slower"]),
        ([(0.99, 1.2)], ["level", "level"]),
        ([(0.99, 1.6)], ["level", "not resolved"]),  # it may be half as slow again
        ([(0.99, 12.0), (0.99, 1.1)], ["not resolved", "not resolved", "not resolved"]),  # so wide that it says nothing
        ([(1.01, 12.0)], ["fastest", "slower"]),
        (
            [(0.6, 1.8), (0.99, 1.1)],
            ["not resolved", "not resolved", "not resolved"],
        ),  # the first may be far ahead of all
        ([(1.01, 9.0), (0.99, 1.1)], ["level", "slower", "level"]),
    ],
)
def test_standings_follow_the_interval_of_the_ratio_to_the_leader(
    rivals: list[tuple[float, float]], expected: list[str]
) -> None:
    names = ["first", *map(str, range(len(rivals)))]
    pairs = {(a, b): ratio(0.9, 1.1) for a in names for b in names if a != b}
    for name, ends in zip(names[1:], rivals, strict=True):
        pairs[name, "first"] = ratio(*ends)
        pairs["first", name] = pairs[name, "first"].inverse
    assert list(ratios.standings(names, pairs).values()) == expected


def test_intervals_of_many_pairs_are_wider() -> None:
    rows = {name: ratios.Samples([1.0, 1.1, 0.9], [0, 1, 2], [0, 1, 2], [0, 1, 2]) for name in "abcd"}
    rows["a"] = ratios.Samples([1.0, 1.0, 1.0], [0, 1, 2], [0, 1, 2], [0, 1, 2])
    two, four = (
        ratios.compared({"case": {it: rows[it] for it in names}})["case"]["a", "b"] for names in ("ab", "abcd")
    )
    assert four.low < two.low < two.value == four.value < two.high < four.high
