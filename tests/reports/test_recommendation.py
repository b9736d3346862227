"""Headline and confidence of synthetic runs, and that no two parts of a report contradict each other."""

import json
import re
from dataclasses import replace
from html import unescape

import pytest
import synthetic_runs as synthetic
from synthetic_runs import Noise

from reports.__main__ import main
from reports.judging import findings
from reports.judging import grid as grids
from reports.judging.rows import rows_of
from reports.pages import page, publish, tables
from reports.pages.report import report
from reports.reading import runs, units
from stats import ratios

IMPLS = ("fused", "linear", "packed", "sdpa")
QUIET = Noise(run=0.0)


def injected(seed, times, T=(64, 256), noise=QUIET, **top):
    """A run in which implementations take these multiples of the time of `fused`; unnamed ones 1.3."""
    slower = {name: times.get(name, 1.3) for name in IMPLS}
    return synthetic.timed_interleaved(seed, slower, noise, T=T, impls=IMPLS, rounds=6, **top)


def test_machine_drift_is_reported(as_run):
    """Once: a machine that became many times slower has a warning of its own."""
    data = injected(0, {"sdpa": 1.0})
    calm, loud, wild = (report(as_run(data | {"controls": {"drift": it}})).trust for it in (0.01, 0.8, 29.0))
    assert calm == wild and loud == f"{calm[:-1]}; meanwhile the reference workload's time varied by 80 %."


def test_a_machine_that_became_many_times_slower_is_warned_of_beside_the_recommendation(
    results, printed, capsys, monkeypatch
):
    monkeypatch.setattr(page, "_figures", lambda this, folder: ())
    said = "The reference workload's time changed by a factor of 30 between the halves of this run: measure again"
    for name, drift in (("0001_calm", 0.8), ("0002_wild", 29.0)):
        path = synthetic.save(injected(0, {"sdpa": 0.5}) | {"controls": {"drift": drift}}, results, name)
        warned = drift > 1
        above, below = printed(path).split("index.html\n")
        assert below.startswith("Use sdpa") and (said in " ".join(above.split())) is warned
        assert (f'<p class="notice">{said}' in unescape(page.html(report(runs.read(path))))) is warned
        main(["advise", "--run", str(path), "--json"])
        assert (f"warning: {name}: {said}" in capsys.readouterr().err) is warned


@pytest.mark.parametrize("count", [1, 4])
def test_a_disturbed_run_says_so_once_on_the_page_and_in_the_terminal(count, results, printed, monkeypatch, capsys):
    """Also where one implementation has nothing to be compared with."""
    monkeypatch.setattr(page, "_figures", lambda this, folder: ())
    data = synthetic.timed_interleaved(0, noise=QUIET, impls=IMPLS[:count], rounds=6) | {"controls": {"drift": 0.2}}
    path = synthetic.save(synthetic.disturbed(data), results, "0001_loud")
    said = "The run was disturbed: timed calls were interrupted 500 times a second; stop other work and measure it"
    assert " ".join(printed(path).split()).count(said) == 1
    html = unescape(page.html(report(runs.read(path)))).replace("\N{NO-BREAK SPACE}", " ")
    assert html.count(f'<p class="notice">{said}') == html.count("interrupted 500") == 1
    assert html.count("eanwhile the reference workload's time varied by 20 %") == 1
    assert "o ratio has an interval" not in html
    main(["advise", "--run", str(path)])
    assert capsys.readouterr().err.count(f"0001_loud: {said[:30]}") == 1


def test_a_fastest_that_changes_with_the_length_is_reported_by_length(as_run):
    data = injected(0, {"packed": 1.0}, T=(64,))
    data["benchmarks"] += injected(0, {"sdpa": 1.0}, T=(256, 1024))["benchmarks"]
    said = report(as_run(data)).headline
    assert said == "With T = 64, use packed (fastest); with T = 256 and T = 1024, use sdpa (fastest)."
    data = injected(0, {"packed": 1.0}, T=(64,))
    data["benchmarks"] += injected(0, {"sdpa": 1.01, "fused": 1.0}, T=(256,))["benchmarks"]
    for row in data["benchmarks"]:
        row["extra_info"]["peak_bytes"] = 2**20 if row["extra_info"]["impl"] == "sdpa" else 2**25
    said = report(as_run(data)).headline
    assert said.endswith("with T = 256, use sdpa (tied with fused, 32× less memory than fused)."), said


@pytest.mark.parametrize(("sdpa", "fused", "said"), [
    ((1.04, 1.04), (1.0, 1.0), "Use sdpa: fastest in 2 of 4 cases, up to 1.04× slower in the others, up to 2.0× faster"),
    ((1.06, 1.06), (1.0, 1.0), "With T = 64, use fused (fastest); with T = 256, use sdpa (fastest)."),
    ((1.5, 1.0), (1.0, 1.04), "With T = 64, use fused (fastest in 1 of 2 cases, up to 1.04× slower in the other); with "),
])  # fmt: skip
def test_one_that_is_nowhere_much_slower_is_recommended_as_well(sdpa, fused, said, as_run):
    """The times at T = 64 are those with one head and with eight."""
    rows = [
        synthetic.row(impl, synthetic.case(T=T, H=H), [1e-3 * times])
        for T, of in ((64, {"sdpa": sdpa, "fused": fused}), (256, {"sdpa": (1.0, 1.0), "fused": (2.0, 2.0)}))
        for impl, by_heads in of.items()
        for H, times in zip((1, 8), by_heads, strict=True)
    ]
    assert report(as_run(synthetic.document(rows))).headline.startswith(said)


@pytest.mark.parametrize(("lean", "other", "why"), [
    ("sdpa", "packed", ", 32× less memory in the largest case."),  # packed is the baseline implementation
    ("fused", "sdpa", "32× less memory than sdpa in the largest case"),
])  # fmt: skip
def test_memory_decides_between_two_that_are_tied(as_run, lean, other, why):
    data = injected(0, {lean: 1.002, other: 1.0})
    for row in data["benchmarks"]:
        row["extra_info"]["peak_bytes"] = 2**20 if row["extra_info"]["impl"] == lean else 2**25
    said = report(as_run(data)).headline
    assert said.startswith(f"Use {lean}: tied with {other} in both cases") and why in said, said


def test_of_an_implementation_and_its_forms_that_are_tied_it_is_recommended(as_run):
    slower = {"fused": 1.3, "sdpa": 1.004, "sdpa_flash": 1.002, "sdpa+compile": 1.0}
    data = synthetic.timed_interleaved(0, slower, QUIET, impls=(*slower,), rounds=6)
    for row in data["benchmarks"]:
        row["extra_info"]["pins"] = "sdpa" if row["extra_info"]["impl"] == "sdpa_flash" else None
    assert report(as_run(data)).headline.startswith("Use sdpa: tied with sdpa_flash and sdpa+compile")


@pytest.mark.parametrize(
    ("faster", "said"),
    [
        (
            [(64, 1)],
            "Use sdpa: fastest in 3 of 4 cases, up to 2.0× slower in the other, up to 2.0× faster than fused",
        ),
        ([(64, 1), (256, 8)], "No single recommendation: fastest or tied are fused in 2 and sdpa in 2 of 4 cases."),
    ],
)
def test_what_is_fastest_in_two_thirds_is_recommended(faster, said, as_run):
    """Where no axis tells which is the fastest."""
    rows = [
        synthetic.row(impl, synthetic.case(T=T, H=H), [1e-3 if (impl == "fused") == ((T, H) in faster) else 2e-3])
        for T in (64, 256)
        for H in (1, 8)
        for impl in ("fused", "sdpa")
    ]
    assert report(as_run(synthetic.document(rows))).headline.startswith(said)


def test_the_largest_case_of_memory_is_one_of_both(as_run):
    seconds, peaks = {"sdpa": 1e-5, "fused": 2e-5, "einsum": 3e-5}, {"sdpa": 1000, "fused": 3000, "einsum": 2000}
    data = synthetic.by_length(seconds, peaks=peaks)
    assert report(as_run(data)).headline.endswith(", 3.0× less memory in the largest case.")
    del data["benchmarks"][4]  # the second one of fused
    assert report(as_run(data)).headline.endswith(", 3.0× less memory in the largest case of both.")


def test_a_small_speedup_is_no_factor_of_1(as_run):
    said = report(as_run(synthetic.by_length({"sdpa": 1e-5, "fused": 1.004e-5}))).headline
    assert said == "Use sdpa: fastest in both cases, up to 1.004× faster than fused (1.004 to 1.004)."


def test_without_intervals_there_is_no_recommendation(tiny):
    this = report(tiny)
    assert this.headline == "No recommendation yet: 3 of 3 cases not resolved."
    assert this.trust == "No ratio has an interval; one process per cell."
    assert page.summary(this).count("3 of 3 cases not resolved") == 1


def test_cases_with_one_implementation_are_not_among_those_it_is_fastest_in(as_run):
    data = synthetic.by_length({"sdpa": 1e-3, "fused": 2e-3}, (64, 256, 1024))
    del data["benchmarks"][-1]
    said = report(as_run(data)).headline
    assert said.startswith("Use sdpa: fastest in both cases with several implementations, up to")


def test_a_case_of_a_stopped_run_with_one_implementation_is_not_in_the_mean(as_run):
    def means(*cells, skipped=()):
        rows = [synthetic.row(name, synthetic.case(T=T), [seconds]) for name, T, seconds in cells]
        made = grids.grid(rows_of(as_run(synthetic.document(rows))), skipped)
        return {name: made.mean_text(name) for name in made.impls}

    cells = [("a", 64, 1.0), ("b", 64, 3.0), ("b", 256, 4.0)]
    out_of_memory = {
        "impl": "a",
        "id": synthetic.case_id(synthetic.case(T=256)),
        "reason": "out_of_memory",
        "detail": "",
    }
    assert means(*cells) == {"a": "1 (1/2)", "b": "3.0 (1/2)"}
    assert means(*cells, skipped=[out_of_memory]) == {"b": "1.73", "a": "1 (1/2)"}
    assert means(*cells[1:]) == {"b": "1"}


def test_an_own_mean_is_marked_if_it_is_not_resolved_in_half_of_the_cases(as_run):
    known = [name for name in IMPLS if name != "linear"]
    noisy = injected(0, {}, noise=Noise(process=0.5))
    for data, end in ((injected(0, {}), r"\."), (noisy, r", not resolved in 2 of 2 cases\.")):
        this = report(as_run({**data, "registry": known}))
        (told,) = findings.own_results(this.grid, frozenset())
        assert re.fullmatch(rf"linear: mean slowdown [\d.]+{end}", told), told
    assert not [
        *findings.own_results(replace(this.grid, own=frozenset(IMPLS)), frozenset())
    ]  # the table lists more than three


def test_headline_heat_map_and_case_table_never_contradict(as_run):
    published = json.loads(next(publish.PUBLISHED.glob("*_quick.json")).read_text())
    published["benchmarks"] = [row for row in published["benchmarks"] if row["group"].startswith("B1-T1024-")]
    for run in map(as_run, (published, injected(0, {"packed": 0.8, "sdpa": 1.05}))):
        this = report(run)
        html, made = page.html(this), this.grid
        heat = heat_map(html)
        for case in made.cases:
            table = [row for row in tables.of_case(case, tables.headings(made)).rows if "×" in row[1]]
            factors = [grids.slowdown_text(mark.slowdown) for mark in case.ranked]
            assert table[0][1] == "1×" and [row[:2] for row in table] == [
                [mark.impl, f"{factor}×"] for mark, factor in zip(case.ranked, factors, strict=True)
            ]
            for mark, factor in zip(case.ranked, factors, strict=True):
                text, best, title = heat[case.id][mark.impl]
                assert (text, best) == (factor, mark.best), (run.name, case.id, mark.impl)
                between = "" if mark is case.ranked[0] else f" ({units.interval(mark.low, mark.high)})"
                assert title.endswith(f": {mark.state}, {factor}× the fastest{between}")
            medians = [mark.row["median"] for mark in case.ranked]
            assert medians[0] == min(medians)
        headline = unescape(re.findall("<h1>(.*?)</h1>", html)[0]).replace("\N{NO-BREAK SPACE}", " ")
        assert this.headline == headline and this.headline in page.summary(this).replace("\\", "")


def heat_map(html):
    """Return the text, whether it is marked as the best, and the title of each cell, by case and implementation."""
    ids = dict(re.findall(r'class="case" data-case="(\w+)" id="([^"]*)"', html))
    found = {id_: {} for id_ in ids.values()}
    [first, *_] = re.findall(r'<table class="heat">.*?</table>', html, re.S)
    for row in re.findall(r"<tr[^>]*><th scope=\"row\">.*?</tr>", first, re.S):
        name = re.search(r"</svg>([^<]*)</th>", row)[1].removesuffix(" ✗")
        cell = r'<td[^>]*class="(\w*)"><button[^>]*data-to="(\w+)" title="([^"]*)">(.*?)</button>'
        for kind, key, title, text in re.findall(cell, row):
            found[ids[key]][name] = text, kind == "best", title
    return found


def ratio(low, high):
    return ratios.Ratio((low * high) ** 0.5, low, high)


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([(1.01, 1.2)], ["fastest", "slower"]),
        ([(0.99, 1.2)], ["tied", "tied"]),
        ([(0.99, 1.6)], ["not resolved", "not resolved"]),  # it may be half as slow again
        ([(0.99, 1.6), (0.99, 1.1)], ["tied", "not resolved", "tied"]),
        ([(0.99, 12.0), (0.99, 1.1)], ["not resolved"] * 3),  # too wide to be informative
        ([(0.6, 1.8), (0.99, 1.1)], ["not resolved"] * 3),  # the first may be far ahead of all
        ([(1.01, 9.0), (0.99, 1.1)], ["tied", "slower", "tied"]),
    ],
)
def test_ranks_follow_the_interval_of_the_ratio_to_the_fastest(others, expected):
    names = ["first", *map(str, range(len(others)))]
    over = {a: {b: ratio(0.9, 1.1) for b in names} for a in names}
    for name, ends in zip(names[1:], others, strict=True):
        over[name]["first"] = ratio(*ends)
        over["first"][name] = over[name]["first"].inverse
    assert [state for state, *_ in ratios.ranks(names, over).values()] == expected
