"""The page, the tables and the figures of a run."""

import re
from dataclasses import replace

import pandas as pd
import pytest
import synthetic_runs as synthetic
from conftest import EVIL, TINY
from outline import Outline

from reports.drawing import figure, svg, views
from reports.drawing.measures import MEASURES
from reports.drawing.palette import Palette
from reports.judging import grid
from reports.pages import page, tables
from reports.pages.figure import draw
from reports.pages.report import report
from reports.reading import runs, units, words
from stats import shares
from stats.ratios import NOT_RESOLVED, SLOWER

FIGURES = ("latency", "memory", "speedup")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """All files of the small stored run."""
    return page.write(report(runs.read(TINY)), tmp_path_factory.mktemp("tiny")).parent


def drawn(run, *names):
    """Figures by name, all by default; those that would be empty are left out."""
    this = report(run)
    with figure.style():
        made = {name: figure.draw(name, this.grid, this.palette, run.baseline_impl) for name in names or MEASURES}
    return {name: one for name, one in made.items() if one is not None}


def test_a_page_has_every_table_and_figure_beside_it(written):
    figures = {f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg")}
    assert {f.name for f in written.iterdir()} == {"index.html", "rows.csv", "skipped.csv", "summary.md", *figures}


def test_the_page_has_machine_command_and_skips(interleaved_data, as_run):
    machine = interleaved_data["machine_info"] | {"cores": 1}
    text = page.html(report(as_run({**interleaved_data, "machine_info": machine})))
    words = Outline(text).words
    assert re.search(r"packed\s✗</th>", text)  # in tables, too
    for expected in ("AMD EPYC 9B14 · 1 core · ", "2.13.0+cpu", "pytest bench/ --benchmark-save=x", "loop stops at T = 64",
                     "error 0.3 exceeds its bound", "environment LANG",
                     "packed ✗ did not pass the correctness check"):  # fmt: skip
        assert expected in words, expected
    assert 'title="packed: wrong: ' in text


def test_the_readers_own_kernel_comes_first(as_run):
    this = report(as_run(synthetic.by_length({"fused": 2e-3, "sdpa": 1e-3, "mine": 3e-3})))
    assert this.grid.impls[0] == "mine" and this.palette["mine"].own and not this.palette["fused"].own
    text = Outline(page.html(this)).words
    assert "mine: mean slowdown 3.0." in text


def test_implementations_of_one_colour_have_different_markers():
    palette = Palette(["mine", "theirs"], ["theirs", "mine", "mine+compile", "sdpa", "sdpa_flash", "sdpa_math"])
    assert palette["mine"].own and palette["theirs"].own and not palette["sdpa"].own
    named = {name: palette[name].marker for name in ("mine", "theirs", "sdpa_flash", "sdpa_math")}
    assert named["mine"] != named["theirs"] and named["sdpa_flash"] != named["sdpa_math"]
    assert palette["mine+compile"].marker == named["mine"] == Palette(["mine"])["mine"].marker


def test_ceilings_parts_and_drift_are_shown_where_they_were_measured(as_run):
    cells = [("fused", {}, 2e-3), ("fused+compile", {}, 1e-3), ("fused", {"scope": "core"}, 1e-3),
             ("fused", {"mode": "backward"}, 5e-3)]  # fmt: skip
    more = {"compile_s": 3.0417, "compile_graphs": 2, "roof": 0.4}
    rows = [synthetic.row(name, synthetic.case(**at), [s], **more) for name, at, s in cells]
    roofs = [{"device": "cpu", "dtype": "float32", "threads": 2, "flops_per_s": 2e11},
             {"device": "cpu", "footprint": 2**20, "threads": 2, "bytes_per_s": 4e10}]  # fmt: skip
    samples = {"product": [{"seconds": 4e-3}, {"seconds": 5e-3}]}
    data = synthetic.document(rows, roofs=roofs, controls={"drift": 0.11, "looks": samples})
    words = Outline(page.html(report(as_run(data)))).words
    for expected in ("(large copy, 40 GB/s; product in fp32, 200 GFLOP/s)", "varied by 11 %", "Roofline",
                     "The kernel as a share", "50.0 %", "40.0 %", "3,000 calls", "3.04 s, 2 graphs"):  # fmt: skip
        assert expected in words, expected


@pytest.mark.parametrize("T", [(64, 256), (256,)])
def test_a_case_table_leaves_out_what_supports_no_case(as_run, T):
    text = page.html(report(as_run(synthetic.by_length({"fused": 2e-5, "sdpa": 1e-5, "loop": 1e-4}, T))))
    cases = text.partition('id="case"')[2].partition("</section>")[0]
    assert "sdpa</th>" in cases and ("loop</th>" in cases) == (64 in T)


def test_a_slowdown_beyond_the_scale_has_an_arrow(as_run):
    text = page.html(report(as_run(synthetic.by_length({"sdpa": 1e-3, "fused": 2e-3, "loop": 1.0}, T=(64,)))))
    bars = re.findall(r'<svg class="bar (k\d)[^"]*">.*?(→|←|)(?:</text>)?</svg>', text)
    assert bars == [("k1", ""), ("k2", ""), ("k8", "→")]


def test_csv_holds_every_row_without_samples(written):
    frame = pd.read_csv(written / "rows.csv")
    assert len(frame) == 8 and not [column for column in frame if "sample" in column]


def test_the_case_table_is_in_the_order_of_slowdown_with_readable_units(interleaved_data, as_run):
    fused = next(row for row in interleaved_data["benchmarks"] if row["extra_info"]["impl"] == "fused")
    fused["stats"]["data"] = fused["stats"]["data"][:5]
    synthetic.interleaved(fused, (0.95, 1.0, 1.05))
    unsupported = {"impl": "linear", "id": fused["group"], "reason": "unsupported", "detail": "linear supports 1 head"}
    interleaved_data["skipped"].append(unsupported)  # is in the page's table alone
    this = report(as_run(interleaved_data))
    case = this.grid.cases[0]
    table = tables.of_case(case, tables.headings(this.grid))
    assert table.headings == ["implementation", "slowdown", "95 % interval", "median", "peak memory", "of tolerance"]
    assert table.rows == [
        ["sdpa", "1×", "fastest", "120 µs", "512 KiB", "50.0 %"],
        ["fused", "1.25×", "1.05 to 1.48", "150 µs", "1.50 MiB", "50.0 %"],
        ["packed", "wrong", "", "", "", ""],
    ]
    assert case.marks["packed"].state == grid.WRONG and "doubt" in case.marks["packed"].why


@pytest.mark.parametrize(
    ("low", "high", "state", "said"),
    [
        (1.0, 1.0, "tied", "tied"),
        (0.99, 1.1, "tied", "0.99 to 1.10 tied"),
        (0.1, 12.0, "not resolved", "not resolved"),
        (1.2, 30.0, "slower", "over 1.20"),
    ],
)
def test_an_interval_is_followed_by_what_it_leaves_open(interleaved_data, as_run, low, high, state, said):
    mark = replace(report(as_run(interleaved_data)).grid.cases[0].ranked[1], low=low, high=high, state=state)
    assert tables.columns(mark)["95 % interval"] == said


def test_one_case_is_printed_as_its_table_in_the_terminals_width_with_what_was_refused(
    interleaved_data, as_run, monkeypatch
):
    for row in interleaved_data["benchmarks"]:
        row["extra_info"] |= {"kernel": "a_kernel_with_quite_a_long_name", "roof": 0.5}
    made = report(as_run(interleaved_data)).grid
    lines = tables.printed(replace(made, cases=made.cases[:1])).splitlines()
    assert [line.split()[:2] for line in lines[2:]] == [["sdpa", "1×"], ["fused", "1.25×"], ["packed", "wrong"]]
    assert lines[1].endswith("of tolerance") and max(map(len, lines)) <= tables.WIDTH
    monkeypatch.setenv("COLUMNS", "120")
    assert tables.detailed(made).splitlines()[1].endswith("of roofline")
    several = tables.printed(made, every=True)
    assert several.startswith(tables.detailed(made)) and tables.terminal(made) in several and len(made.cases) > 1
    assert tables.printed(made).startswith(tables.terminal(made))
    assert tables.terminal(made).startswith("B=1 H=8 D_h=64 fp32 causal\nimplementation mean T=64 T=256 T=1024\n")
    assert "B=1 H=8 D_h=64 fp32 causal. 1 is the fastest" in Outline(page.html(report(as_run(interleaved_data)))).words


def test_a_wide_interval_costs_only_its_own_case_a_column(interleaved_data, as_run):
    made = report(as_run(interleaved_data)).grid
    wide = replace(made.cases[0].ranked[1], low=0.8, high=1.9, state="not resolved")
    first = replace(made.cases[0], marks=made.cases[0].marks | {wide.impl: wide})
    printed = tables.detailed(replace(made, cases=[first, *made.cases[1:]])).split("\n\n")
    assert [text.splitlines()[1].split("  ")[-1] for text in printed] == ["peak memory", "of tolerance", "of tolerance"]


def test_a_column_that_another_case_fills_is_not_printed_empty(as_run):
    data = synthetic.by_length({"fused": 1e-3, "sdpa": 1e-3}, (64,), mode=("forward", "decode"), mask="none")
    printed = tables.detailed(report(as_run(data)).grid).split("\n\n")
    assert ["tokens/s" in text for text in printed] == [False, True]


def test_a_mean_over_some_of_the_cases_says_of_how_many_and_the_key_explains_it(as_run):
    every, some = (
        report(as_run(synthetic.by_length({"sdpa": 1e-5, **more}, H=(1, 8)))).grid
        for more in ({"fused": 2e-5}, {"loop": 1})
    )
    assert tables.key(some).endswith("– unsupported, (n/m) mean over n of m cases.")
    assert tables.key(every).endswith("resolved.")
    column = some.columns("H")[-1]
    assert [some.entry(impl, column).text.partition(" ")[2] for impl in ("sdpa", "loop")] == ["", "(1/2)"]


def test_the_key_explains_abbreviations(as_run):
    data = synthetic.by_length({"fused": 1e-3, "sdpa": 1e-3}, (64,))
    data["skipped"] = [{"impl": impl, "id": data["benchmarks"][0]["group"], "reason": reason, "detail": ""} for impl, reason
                       in (("einsum", "error"), ("loop", "timeout"), ("linear", "out_of_memory"))]  # fmt: skip
    assert report(as_run(data)).grid.signs == "err: error, time: timeout, OOM: out of memory"


def test_one_implementation_is_shown_with_its_times_and_without_slowdowns(as_run):
    this = report(as_run(synthetic.by_length({"sdpa": 1e-6}, H=(1, 8))))
    everything = tables.printed(this.grid), page.summary(this), Outline(page.html(this)).words
    assert not [text for text in everything if "slowdown" in text.lower()]
    assert "Latency" in everything[2] and everything[0].count(" µs ") == len(this.grid.cases) == 4
    assert 'class="d"' not in page.html(this) and "Ratios are taken" not in everything[2]


def test_markdown_is_a_table_and_its_names_stay_in_their_cells(tiny):
    text = tables.markdown(("name", "b"), [("x", "12"), ("yyyyy", "3")])
    assert text == "| name  |  b |\n|-------|---:|\n| x     | 12 |\n| yyyyy |  3 |"
    rows = [synthetic.row(name, synthetic.case(), [1e-3]) for name in EVIL]
    this = report(replace(tiny, rows=rows, sweep="<x>", path=tiny.path.with_name("0001_<x>.json")))
    summary = page.summary(this)
    assert page.origin(this.run) in summary
    lines = [line for line in summary.splitlines() if line.startswith("|") and "ms" in line]
    assert len(lines) == len(EVIL)
    assert all(len(re.findall(r"(?<!\\)\|", line)) == len(tables.headings(this.grid)) + 1 for line in lines)
    assert "<" not in summary


def test_hostile_names_survive_in_figures(as_run, tmp_path):
    run = as_run(synthetic.by_length(dict.fromkeys(EVIL, 1e-3)))
    svg = draw("latency", run, tmp_path / "latency.svg").read_text()
    assert all(f">{name}</text>" in svg for name in ("注意力", "$x_1$ 'q'", "_hidden"))


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("nothing", synthetic.document([]), set()),
        ("many H", synthetic.by_length({"fused": 2e-5, "sdpa": 1e-5}, (512,), H=(1, 2, 4, 8)), {*FIGURES}),
        ("no baseline", synthetic.by_length({"a": 1e-3}, top={"baseline_impl": None}), {"latency", "memory"}),
    ],
)  # fmt: skip
def test_every_kind_of_run_gets_its_figures_and_no_empty_ones(name, data, expected, as_run):
    assert set(drawn(as_run(data))) == expected


def test_a_figure_names_the_baseline_and_the_fastest_and_counts_lines_outside_its_panel(as_run):
    fast = {f"mine{i}": (1 + i / 100) * 1e-3 for i in range(9)}
    made = drawn(as_run(synthetic.by_length(fast | {"fused": 2e-3, "einsum": 1.0})), "latency")["latency"]
    assert {text.get_text() for text in made.axes[0].texts} == {"fused", *[*fast][: figure.MOST_LABELLED - 1]}
    assert made.texts[1].get_text().endswith(f" · grey: {10 - figure.MOST_LABELLED} others · 1 beyond the axis")


def test_points_that_are_not_resolved_are_pale(as_run):
    of = report(as_run(synthetic.by_length({"sdpa": 1e-3, "fused": 2e-3}, T=(64, 256, 1024))))
    states = zip(of.grid.cases, (SLOWER, SLOWER, NOT_RESOLVED), strict=True)
    cases = [
        replace(case, marks={name: replace(mark, state=state) for name, mark in case.marks.items()})
        for case, state in states
    ]
    keys = {case.id: "" for case in cases}
    ((_, _, [(title, chart), (memory, _)]),) = views.lines(replace(of.grid, cases=cases), of.palette, keys)
    assert title.endswith("(pale: not resolved)") and memory == "Peak memory"
    drawn = re.findall(r'<(path|use) class="(line|line pale|pale)"', chart)
    assert drawn == 2 * [("path", "line"), ("path", "line pale"), ("use", "pale")]


def test_the_fastest_of_many_is_drawn(as_run):
    data = synthetic.by_length({f"mine{i}": (2 + i / 100) * 1e-5 for i in range(30)} | {"sdpa": 1e-5})
    of = report(as_run(data | {"registry": ["sdpa"]}))
    ((_, at, [(_, chart), _]),) = views.lines(of.grid, of.palette, {case.id: "" for case in of.grid.cases})
    assert ">sdpa</text>" in chart and "sdpa" not in at
    assert at.endswith("and 13 others")  # of 17
    grey = [it for it in drawn(of.run, "latency")["latency"].axes[0].lines if it.get_color() == figure.MUTED]
    assert {it.get_linewidth() for it in grey} == {1.0}  # thinner than those with a name


def test_a_line_that_is_not_drawn_is_told_with_its_largest_slowdown(as_run):
    data = synthetic.by_length({"sdpa": 1e-3, "fused": 2e-3, "einsum": 0.2})
    synthetic.sampled(data["benchmarks"][-1], [256 * 0.3], 1)
    of = report(as_run(data))
    ((_, at, _),) = views.lines(of.grid, of.palette, {case.id: "" for case in of.grid.cases})
    assert at == " · not drawn: einsum (up to 300× as slow)"


def test_long_names_that_end_differently_have_different_labels():
    names = [f"blockwise_streaming_softmax_{end}" for end in ("one", "two", "one+compile")]
    labels = {svg.label(name) for name in names}
    assert len(labels) == 3 and max(map(len, labels)) <= 20


@pytest.mark.parametrize("name", ["wmma_warp_gmem", "sdpa+compile", "W" * 30])
@pytest.mark.parametrize("narrow", [False, True])
def test_no_label_of_a_figure_is_cut(name, narrow, as_run):
    this = report(as_run(synthetic.by_length({"fused": 1e-3, name: 1e-3})))
    with figure.style():
        made = figure.draw("latency", this.grid, this.palette, "fused", narrow)
        assert max(text.get_window_extent().x1 for text in made.axes[0].texts) <= made.bbox.x1


@pytest.mark.parametrize(("name", "place"), [("0002_heads", "d_model=1024 T=512"), ("0003_backward", "H=8 D_h=64")])
def test_the_lines_above_a_narrow_figure_fit_and_hold_everywhere_in_it(name, place):
    this = report(runs.read(runs.CHECKOUT / "results" / "published" / f"{name}.json"))
    with figure.style():
        made = figure.draw("speedup", this.grid, this.palette, "fused", narrow=True)
        assert max(text.get_window_extent().x1 for text in made.texts) < made.bbox.x1
        assert f"\nB=1 {place} fp32 causal" in made.texts[1].get_text()
        assert made.texts[1].get_fontsize() >= 7 and made.texts[1].get_window_extent().y0 > made.axes[0].bbox.y1


@pytest.mark.parametrize("name", FIGURES)
def test_a_tick_of_a_figure_has_its_exact_value(name, as_run):
    (figure_,) = drawn(as_run(synthetic.by_length({"sdpa": 1e-6, "fused": 1.15e-6}, T=(100, 101))), name).values()
    (ax,) = figure_.axes
    units_of = {"s": 1, "ms": 1e-3, "µs": 1e-6, "MiB": 2**20, "KiB": 2**10, "×": 1}
    for value, label in zip(ax.get_yticks(), ax.get_yticklabels(), strict=True):
        number, unit = re.fullmatch(r"([\d.]+) ?(.+)", label.get_text()).groups()
        assert float(number) * units_of[unit] == pytest.approx(value, rel=2e-3)


def test_titles_of_figures_if_the_baseline_is_the_fastest(as_run):
    made = drawn(as_run(synthetic.by_length({"fused": 1e-5, "einsum": 3e-5}, peaks={"fused": 2**21})))
    place = "B=1 H=8 D_h=64 fp32 causal"
    assert {name: [text.get_text() for text in of.texts] for name, of in made.items()} == {
        "memory": ["einsum needs 2.0× less memory than fused at T = 256", f"Peak memory · {place}"],
        "latency": ["Latency", place],
        "speedup": ["Speedup over fused", place],
    }


def test_a_figure_of_speedups_has_their_intervals(interleaved_data, as_run):
    run = as_run(interleaved_data)
    made, this = drawn(run, "speedup")["speedup"], report(run)
    assert ", 95 % intervals" in " ".join(text.get_text() for text in made.texts)
    upright = [line for line in made.axes[0].lines if len(xs := line.get_xdata()) == 2 and xs[0] == xs[1]]
    rows = [
        mark.row for case in this.grid.cases for mark in case.ranked if mark.row["ratio_low"] < mark.row["ratio_high"]
    ]
    low, high = min(1 / row["ratio_high"] for row in rows), max(1 / row["ratio_low"] for row in rows)
    assert low == min(min(line.get_ydata()) for line in upright) and high == max(
        max(line.get_ydata()) for line in upright
    )


@pytest.mark.parametrize("own", [0, 9])
def test_a_figure_names_what_its_title_names(own, as_run):
    """The leanest of those whose memory is known; the fastest allocates outside of torch."""
    names = ["sdpa", "fused", *(f"mine{i}" for i in range(9)), "lean"]
    peaks = {"sdpa": None, "lean": 2**19}
    data = synthetic.by_length({name: (1 + i) * 1e-5 for i, name in enumerate(names)}, peaks=peaks)
    made = drawn(as_run(data | {"registry": ["sdpa", "fused", "lean", *names[own + 2 :]]}), "memory")["memory"]
    assert made.texts[0].get_text() == "lean needs 2.0× less memory than fused at T = 256"
    assert {"lean", "fused"} < {text.get_text() for text in made.axes[0].texts}


def test_the_same_run_gives_the_same_page(written, tmp_path):
    run = runs.read(TINY)
    assert page.html(report(run), [*MEASURES]) == (written / "index.html").read_text()
    svg = draw("latency", run, tmp_path / "latency.svg").read_text()
    assert svg == (written / "latency.svg").read_text()
    assert "<dc:date>" not in svg  # equal today, different tomorrow


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (units.seconds(9.996e-4), "1.00 ms"), (units.seconds(float("nan")), "–"), (units.memory(2_621_440), "2.50 MiB"),
        (grid.slowdown_text(1.034), "1.03"), (grid.slowdown_text(9.96), "10"), (units.ratio(1.0003), "1.0003"),
        (shares.significant(1234.5), "1234"), (shares.percent(0.996), "100 %"), (words.number(2.0**20), "1048576"),
        (units.tick("10.00 ms"), "10 ms"), (units.tick("1.125 KiB"), "1.125 KiB"),
    ],
)  # fmt: skip
def test_units(shown, expected):
    assert shown == expected
