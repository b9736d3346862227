"""Headline and confidence of synthetic runs, and that no two parts of a report contradict each other."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
import synthetic_runs as synthetic
from synthetic_runs import COSTS, Noise

from reports.judging import frame as fr
from reports.judging import grid as grids
from reports.judging import recommendation
from reports.pages import page, publish, tables
from reports.pages.report import report
from reports.reading import runs, units
from reports.reading.runs import Run
from stats import ratios

IMPLS = ("fused", "linear", "packed", "sdpa")
QUIET = Noise(run=0.0)


def injected(
    seed: int, times: dict[str, float], T: tuple[int, ...] = (64, 256), noise: Noise = QUIET, **top: Any
) -> dict[str, Any]:
    """A run in which implementations take these multiples of the time of `fused`; unnamed ones 1.3."""
    slower = {name: times.get(name, 1.3) * COSTS["fused"][0] / COSTS[name][0] for name in IMPLS}
    return synthetic.timed_interleaved(seed, slower, noise, T=T, impls=IMPLS, rounds=6, **top)


def first_screen(data: dict[str, Any], as_run: Any) -> tuple[str, str]:
    """Return the headline and its confidence."""
    this = report(as_run(data))
    return this.headline, "; ".join(this.trust.reasons)


def test_a_size_missing_in_some_cases_splits_the_recommendation(as_run: Any) -> None:
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
    assert report(as_run(data)).headline == "With H_kv = 4, use fused (fastest); with no H_kv, use sdpa (fastest)."


def test_one_clear_winner_is_named(as_run: Any) -> None:
    headline, _ = first_screen(injected(0, {"sdpa": 0.5}), as_run)
    assert re.fullmatch(
        r"Use sdpa: fastest in both cases, up to (2\.\d)× faster than fused \(.*\) at T = 256\.", headline
    ), headline


def test_machine_drift_widens_the_intervals_and_is_reported(as_run: Any) -> None:
    samples = {"product": [{"at": 0.0, "seconds": 1e-3}, {"at": 9.0, "seconds": 1.8e-3}]}
    data = injected(0, {"sdpa": 1.0}, noise=Noise(run=0.0, round=0.3))
    headline, trust = first_screen({**data, "controls": {"drift": 0.8, "looks": samples}}, as_run)
    _, calm = first_screen({**data, "controls": {"drift": 0.01, "looks": samples}}, as_run)
    assert trust == f"{calm}; meanwhile the reference workload's time varied by 80 %"
    assert not re.search("Use (fused|linear|packed)", headline)


def test_a_kernel_that_was_wrong_is_never_advised(as_run: Any) -> None:
    skipped = [{"impl": "linear", "id": "B1", "reason": "wrong", "detail": "error 0.3 exceeds its bound"}]
    headline, trust = first_screen(injected(0, {"linear": 0.5, "sdpa": 1.0}, skipped=skipped), as_run)
    assert headline.startswith("Use sdpa: fastest in both cases") and "left out, wrong somewhere: linear" in trust


def test_a_fastest_that_changes_with_the_length_is_reported_by_length(as_run: Any) -> None:
    data = injected(0, {"packed": 1.0}, T=(64,))
    data["benchmarks"] += injected(0, {"sdpa": 1.0}, T=(256, 1024))["benchmarks"]
    headline, _ = first_screen(data, as_run)
    assert headline == "At T = 64, use packed (fastest); from T = 256 to 1024, use sdpa (fastest)."


USUAL = ("sdpa", ratios.FASTEST, ratios.SLOWER, 2.0)
"""The implementation that is listed first in a case, the states of both, and how much slower the other one is."""


@pytest.mark.parametrize(
    ("leads", "says"),
    [
        ([USUAL, ("packed", ratios.FASTEST, ratios.SLOWER, 1.34), USUAL, USUAL],
         "fastest in 3 of 4 cases. Exceptions: 1 case slower; at T = 64, bf16 packed is 1.3× faster."),
        ([USUAL] * 4 + [("packed", ratios.FASTEST, ratios.SLOWER, 1.05), ("packed", *[ratios.NOT_RESOLVED] * 2, 1.8)],
         "fastest in 4 of 6 cases. Exceptions: 1 case slower, 1 case not resolved; at T = 192, fp32 packed is 1.05× faster."),
    ],
)  # fmt: skip
def test_exceptions_are_the_cases_in_which_it_is_slower(leads: list[tuple[str, str, str, float]], says: str) -> None:
    row = {"over": {}, "impl": "sdpa", "samples": None, "peak_bytes": float("nan")}
    cases = []
    for i, (first, state, other_state, slower) in enumerate(leads):
        second = {"sdpa": "packed", "packed": "sdpa"}[first]
        both = grids.Mark(first, state, 1.0, row=row), grids.Mark(second, other_state, slower, 1.0, row=row)
        at = {"T": 64 * (1 + i // 2), "dtype": ("float32", "bfloat16")[i % 2]}
        cases.append(grids.Case(str(i), at, "", {mark.impl: mark for mark in both}))
    made = grids.Grid(cases, ["sdpa", "packed"], ["T", "dtype"])
    assert recommendation.headline(made, "") == f"Use sdpa: {says}"


def test_a_case_with_one_implementation_does_not_count_as_fastest(as_run: Any) -> None:
    """As of a kernel of one's own with a limit."""
    data = injected(0, {"sdpa": 0.5})
    for T in (1024, 2048):
        data["benchmarks"].append(synthetic.row("sdpa", synthetic.case(T=T, H=1), [1e-3] * 3))
    assert first_screen(data, as_run)[0].startswith(
        "Use sdpa: fastest in both cases with several implementations, up to"
    )


def test_a_column_has_the_sign_of_its_worst_case() -> None:
    fastest = {"sdpa": grids.Mark("sdpa", ratios.FASTEST, 1.0)}
    cases = [
        grids.Case(str(T), {"T": T}, "", fastest | {"mine": grids.Mark("mine", state)})
        for T, state in enumerate(("unsupported", grids.WRONG, "timeout"))
    ]
    made = grids.Grid(cases, ["mine", "sdpa"], ["T"])
    assert made.entry("mine", grids.Column(("all",), cases)).text == grids.SIGNS[grids.WRONG]


def open_case(T: int, leader: str = "sdpa", other: str = "packed") -> grids.Case:
    """Its two implementations may differ by anything."""
    marks = {
        leader: grids.Mark(leader, ratios.NOT_RESOLVED, 1.0, 1.0, 1.0),
        other: grids.Mark(other, ratios.NOT_RESOLVED, 1.2, 0.5, 3.0),
    }
    return grids.Case(str(T), {"T": T}, f"T={T}", marks)


def test_unresolved_cases_are_counted() -> None:
    def said(*cases: grids.Case) -> str:
        return recommendation.headline(grids.Grid(list(cases), ["sdpa", "packed"], ["T"]), "")

    assert said(open_case(64)) == "No recommendation yet: 1 of 1 case not resolved."
    three = [open_case(64), open_case(256), open_case(1024, "packed", "sdpa")]
    assert said(*three) == "No recommendation yet: 3 of 3 cases not resolved."


def test_one_implementation_gives_no_recommendation() -> None:
    marks = {
        "sdpa": grids.Mark("sdpa", ratios.FASTEST, 1.0),
        "mine": grids.Mark("mine", "unsupported", why="no package"),
    }
    said = recommendation.headline(
        grids.Grid([grids.Case("64", {}, "", marks)], ["mine", "sdpa"], [], frozenset({"mine"})), ""
    )
    assert (
        said == "No recommendation: no case of this run has times of two implementations that are correct everywhere."
    )


def test_a_kernel_of_ones_own_that_fails_everywhere_has_no_time(as_run: Any) -> None:
    at = synthetic.case()
    rows = [synthetic.row("sdpa", at, [1e-3]), synthetic.row("fused", at, [2e-3])]
    skipped = [{"impl": "mine", "id": synthetic.case_id(at), "reason": "error", "detail": "RuntimeError: x"}]
    this = report(as_run(synthetic.document(rows, skipped=skipped)))
    assert "mine: no time in 1 case." in page.html(this)


def test_a_column_is_not_resolved_where_at_least_half_of_its_cases_are() -> None:
    clear = [
        grids.Case(f"{T}", {"T": T}, "", {"sdpa": grids.Mark("sdpa", ratios.SLOWER, 2.0, 1.9, 2.1)}) for T in (1, 2)
    ]
    for cases, is_open in (([*clear, open_case(3)], False), ([clear[0], open_case(3)], True)):
        made = grids.Grid(cases, ["sdpa", "packed"], ["T"])
        assert made.entry("sdpa", grids.Column(("all",), cases)).open == is_open
        assert made.signs == "· not measured"


def test_the_terminal_has_every_case_however_many_lengths_there_are() -> None:
    lengths, name = range(1000, 1025), "my" * 40
    marks = {T: {it: grids.Mark(it, ratios.SLOWER, T / 100, 1.9, 2.1) for it in ("sdpa", name)} for T in lengths}
    cases = [grids.Case(f"{T}", {"T": T}, "", marks[T]) for T in lengths]
    lines = tables.terminal(grids.Grid(cases, ["sdpa"], ["T"])).splitlines()
    assert max(map(len, lines)) <= tables.WIDTH
    shown = " ".join(lines)
    assert all(f" {grids.slowdown(T / 100)}" in shown and f"T={T}" in shown for T in lengths)
    lines = tables.terminal(grids.Grid(cases[:2], [name], ["T"])).splitlines()  # no number is cut
    assert [line.split() for line in lines if line.startswith(name)] == [[name, "10", "10"]] * 2


def test_the_gain_is_the_largest_that_the_heat_map_shows_and_each_number_has_its_place(as_run: Any) -> None:
    """1.6 times with a wider interval, rather than the 1.4 times of another case."""
    known = {64: (1.4, (1.0, 1.001, 0.999)), 256: (1.6, (1.0, 1.1, 0.91))}
    rows = [
        synthetic.row(impl, synthetic.case(T=T), [seconds] * 3, apart)
        for T, (slower, scatter) in known.items()
        for impl, seconds, apart in (("sdpa", 1e-3, (1.0, 1.0, 1.0)), ("fused", slower * 1e-3, scatter))
    ]
    for row, peak in zip(rows, (1, 4, 1, 2), strict=True):
        row["extra_info"]["peak_bytes"] = peak << 20
    headline = report(as_run(synthetic.document(rows))).headline
    assert re.search(r"up to 1\.6× faster than fused \(.*\) at T = 256, 4\.0× less memory at T = 64\.$", headline), (
        headline
    )


@pytest.mark.parametrize(("lean", "other", "why"), [
    ("sdpa", "packed", " at T = 256, 32× less memory."),  # packed is the baseline implementation
    ("fused", "sdpa", "32× less memory than sdpa"),
])  # fmt: skip
def test_memory_decides_between_two_that_are_tied(as_run: Any, lean: str, other: str, why: str) -> None:
    data = injected(0, {lean: 1.002, other: 1.0})
    for row in data["benchmarks"]:
        row["extra_info"]["peak_bytes"] = 2**20 if row["extra_info"]["impl"] == lean else 2**25
    said = first_screen(data, as_run)[0]
    assert said.startswith(f"Use {lean}: tied with {other} in both cases") and why in said, said


def test_without_intervals_there_is_no_recommendation(tiny: Run) -> None:
    this = report(tiny)
    assert this.headline == "No recommendation yet: 3 of 3 cases not resolved."
    assert "no ratio has an interval" in this.trust.reasons
    assert this.trust.command == "pytest bench/ --benchmark-save=x --processes 5"


def test_narrow_intervals_need_no_more_processes(interleaved_data: dict[str, Any], as_run: Any) -> None:
    trust = report(as_run({**interleaved_data, "command": "pytest bench/ --processes 3 --benchmark-save=x"})).trust
    assert trust.command == ""


def test_the_suggested_number_of_processes_exceeds_that_of_the_run(as_run: Any) -> None:
    noisy = injected(
        1, {"sdpa": 0.97}, noise=Noise(process=0.03), command="pytest bench/ --processes 4 --benchmark-save=x"
    )
    assert report(as_run(noisy)).trust.command == "pytest bench/ --benchmark-save=x --processes 5"
    for row in noisy["benchmarks"]:
        row["extra_info"]["sample_processes"] = [i % 5 for i in range(len(row["stats"]["data"]))]
        row["extra_info"]["processes"] = 5
    assert report(as_run(noisy)).trust.command == ""


def test_the_mean_is_the_geometric_one_over_the_fastest_of_each_case(as_run: Any) -> None:
    cells = [("a", 64, 1.0), ("b", 64, 2.0), ("c", 64, 3.0), ("a", 256, 8.0), ("b", 256, 4.0)]
    run = as_run(synthetic.document([synthetic.row(name, synthetic.case(T=T), [s] * 3) for name, T, s in cells]))
    made = grids.grid(fr.rows_of(run), run.skipped)
    assert [(name, made.count(name)) for name in made.impls] == [("a", 2), ("b", 2), ("c", 1)]
    means = [grids.mean_slowdown(name, made.cases) for name in "abc"]
    assert means == pytest.approx([2**0.5, 2**0.5, 3])


def test_headline_heat_map_and_case_table_never_contradict(as_run: Any) -> None:
    published = runs.read(next(publish.PUBLISHED.glob("*_quick.json")))
    for run in (published, *map(as_run, (injected(0, {"packed": 0.8, "sdpa": 1.05}), injected(0, {}, T=(64,))))):
        this = report(run)
        read, made = Read(page.html(this)), this.grid
        for case in made.cases:
            heat = read.heat.get(case.id)
            assert (heat is None) == (len(made.cases) == 1)  # one case is its table alone
            table = read.cases[case.id]
            for mark in case.ranked:
                assert mark.slowdown >= 1
                factor = grids.slowdown(mark.slowdown)
                assert heat is None or heat[mark.impl] == (factor, mark.best), (run.name, case.id, mark.impl)
                assert table[mark.impl][0] == f"{factor}×"
            fastest = next(iter(table))
            assert table[fastest][0] == "1×" and fastest == case.ranked[0].impl
            medians = [mark.row["median"] for mark in case.ranked]
            assert medians[0] == min(medians)
        assert this.headline == read.headline and this.headline in page.summary(this).replace("\\", "")


class Read:
    """What a reader sees on a page: the heat map's numbers, and each case's table."""

    def __init__(self, html: str) -> None:
        self.headline = unescape(re.findall("<h1>(.*?)</h1>", html)[0]).replace("\N{NO-BREAK SPACE}", " ")
        ids = dict(re.findall(r'class="case" data-case="(\w+)" id="([^"]*)"', html))
        first = "".join(re.findall(r'<table class="heat">.*?</table>', html, re.S)[:1])
        self.heat: dict[str, dict[str, tuple[str, bool]]] = {id_: {} for id_ in ids.values() if first}
        for row in re.findall(r"<tr[^>]*><th scope=\"row\">.*?</tr>", first, re.S):
            name = self.name(row)
            for kind, key, text in re.findall(
                r'<td[^>]*class="(\w*)"><button[^>]*data-to="(\w+)"[^>]*>(.*?)</button>', row
            ):
                self.heat[ids[key]][name] = text, kind == "best"
        self.cases: dict[str, dict[str, list[str]]] = {}
        for id_, body in re.findall(r'class="case" data-case="\w+" id="([^"]*)".*?<tbody>(.*?)</tbody>', html, re.S):
            rows = re.findall(r"<tr[^>]*>.*?</tr>", body, re.S)
            found = {self.name(row): re.findall(r"<td>(.*?)</td>", row) for row in rows}
            self.cases[id_] = {name: cells for name, cells in found.items() if cells}

    def name(self, row: str) -> str:
        found = re.search(r"</svg>([^<]*)</th>", row)
        assert found
        return found[1].removesuffix(" ✗")


def ratio(low: float, high: float) -> ratios.Ratio:
    return ratios.Ratio((low * high) ** 0.5, low, high)


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([(1.01, 1.2)], ["fastest", "slower"]),
        ([(0.99, 1.2)], ["tied", "tied"]),
        ([(0.99, 1.6)], ["tied", "not resolved"]),  # it may be half as slow again
        ([(0.99, 12.0), (0.99, 1.1)], ["not resolved", "not resolved", "not resolved"]),  # too wide to be informative
        ([(1.01, 12.0)], ["fastest", "slower"]),
        (
            [(0.6, 1.8), (0.99, 1.1)],
            ["not resolved", "not resolved", "not resolved"],
        ),  # the first may be far ahead of all
        ([(1.01, 9.0), (0.99, 1.1)], ["tied", "slower", "tied"]),
    ],
)
def test_ranks_follow_the_interval_of_the_ratio_to_the_fastest(
    others: list[tuple[float, float]], expected: list[str]
) -> None:
    names = ["first", *map(str, range(len(others)))]
    over = {a: {b: ratio(0.9, 1.1) for b in names} for a in names}
    for name, ends in zip(names[1:], others, strict=True):
        over[name]["first"] = ratio(*ends)
        over["first"][name] = over[name]["first"].inverse
    assert list(ratios.states(names, over).values()) == expected


def test_a_slower_implementation_is_not_called_unresolved_however_wide_its_interval() -> None:
    assert (units.interval(1.15, 40.0), units.interval(0.9, 40.0)) == ("over 1.15", "not resolved")
    assert units.interval(1.003, 1.2) == "1.003 to 1.20"  # not from 1.00 on
