"""The page, the tables and the figures of a run."""

from __future__ import annotations

import csv
import html as html_module
import itertools
import json
import random
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pandas as pd
import pytest
import synthetic_runs as synthetic
from matplotlib.text import Text

import reports
from reports.drawing import interactive, palette
from reports.drawing.canvas import log_ticks, spread, style
from reports.drawing.charts import CHARTS, speed
from reports.judging import frame
from reports.pages import page, tables
from reports.reading import runs, units
from reports.reading.runs import Run
from stats import shares

EVIL = [
    'a"b',
    "<script>alert(1)</script>",
    "$x_1$ 'q'",
    "注意力",
    "_hidden",
    "new\nline\x07",
    "naïve & co|pipe",
    "x" * 60,
]
FIGURES = {"latency", "memory", "speedup", "ranking", "latency-against-memory", "dtype", "heads"}


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a whole `quick` run, written once."""
    folder = tmp_path_factory.mktemp("quick")
    page.write(runs.read(synthetic.save(synthetic.sweep(), folder, "0001_quick")), folder / "out")
    return folder / "out"


def drawn(run: Run) -> dict[str, Any]:
    """Figures by chart name; those that would be empty are None."""
    this = page.report(run)
    with style():
        return {chart.name: chart.draw(this.source, False) for chart in CHARTS if chart.draws}


def texts(svg: str) -> list[str]:
    """What is written in a figure."""
    return [node.text or "" for node in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


class Outline(HTMLParser):
    """Tags with their attributes, the text that is read, and what stands in each script by its id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.scripts: dict[str | None, str] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        tag, attributes = self.tags[-1] if self.tags else ("", {})
        if self.cdata_elem is None:
            self.words += data.replace("\N{NO-BREAK SPACE}", " ")
        elif tag == "script":
            self.scripts[attributes.get("id")] = self.scripts.get(attributes.get("id"), "") + data


def test_quick_writes_every_table_and_figure(quick: Path) -> None:
    figures = {f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg")}
    assert {f.name for f in quick.iterdir()} == {"index.html", "rows.csv", "skipped.csv", "summary.md", *figures}


def test_the_page_loads_nothing(quick: Path) -> None:
    text = (quick / "index.html").read_text()
    for tag, attributes in Outline(text).tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base")
        assert not attributes.get("src")
        for key in ("href", "xlink:href"):
            assert re.match(r"#|[\w.-]+\.(csv|md|png|svg)$", attributes.get(key) or "#"), attributes
    assert "default-src 'none'" in text  # and where something slips through, the browser refuses
    ours = text.replace(Outline(text).scripts["vega"], "")
    assert "http:" not in ours and "https:" not in ours and "@import" not in ours
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", ours))


def test_lines_run_along_an_axis_where_it_varies_alone(as_run: Any) -> None:
    def axes(bias: bool) -> list[str]:
        rows = [synthetic.row("a", synthetic.case(H=H, qkv_bias=bias and H > 8), [1e-3], id=f"H{H}") for H in (8, 16)]
        return interactive.along(frame.tidy(as_run(synthetic.document(rows))))

    assert (axes(bias=False), axes(bias=True)) == (["H"], [])


def test_a_cache_of_three_lengths_is_the_first_thing_to_run_along_beside_prompts_of_two(as_run: Any) -> None:
    decode = [synthetic.case(mode="decode", T=1, T_kv=T) for T in (256, 1024, 4096)]
    cases = [*decode, *(synthetic.case(T=T) for T in (256, 1024))]
    rows = [synthetic.row("a", case, [1e-3], id=str(i)) for i, case in enumerate(cases)]
    found = frame.tidy(as_run(synthetic.document(rows)))
    assert interactive.along(found) == ["T_kv", "T"]
    assert {"mode": "decode", "T": 1, "T_kv": 4096}.items() <= interactive.start(found, "T_kv").items()


def test_a_chart_of_some_cells_stands_where_the_page_does(as_run: Any) -> None:
    cells = [("sdpa", 32), ("sdpa", 64), ("fused", 64)]
    run = as_run(
        synthetic.document([synthetic.row(name, synthetic.case(D_h=D_h), [1e-3], id=f"D{D_h}") for name, D_h in cells])
    )
    source = page.report(run).source
    assert interactive.start(source.frame, None)["D_h"] == 64  # where there is more to see
    assert "datum['D_h'] == at_D_h" in json.dumps(speed.spec(source))


def test_a_ratio_that_is_shown_to_differ_is_seen_to() -> None:
    assert units.bounded_times(2.9, 1.2, 7.4) == "2.9× (1.2 to 7.4)"
    assert [units.between(*ends) for ends in ((1.04, 1.04), (0.634, 1.52), (12.3, 40))] == [
        "1.04×", "0.63 to 1.52×", "12 to 40×",
    ]  # fmt: skip


def test_a_size_is_spelled_as_a_browser_spells_it() -> None:
    """Where others are missing, a column of sizes holds floats: an option `128.0` would never be found chosen."""
    found = interactive._options(pd.DataFrame({"page": [None, 128, 16]}), "page")
    assert json.dumps(found) == '[[null, "none"], [16, "16"], [128, "128"]]'
    assert frame.plain(0.5) == 0.5
    assert frame.plain(float("nan")) is None


def test_ids_in_the_page_are_unique_and_every_reference_has_its_target(quick: Path) -> None:
    tags = Outline((quick / "index.html").read_text()).tags
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    wanted = {a.get(key) or "" for _, a in tags for key in ("href", "xlink:href")}
    clips = {match for _, a in tags for match in re.findall(r"url\(#([^)]*)\)", a.get("clip-path") or "")}
    assert {w[1:] for w in wanted if w.startswith("#")} | clips <= set(ids)


def test_the_page_opens_with_the_computed_sentence(turns: Run, tmp_path: Path) -> None:
    text = page.write(turns, tmp_path / "out").read_text()
    heading = re.search(r"<h1>(.*?)</h1>", text)
    assert heading and html_module.unescape(heading[1]) == ("Use sdpa, the fastest in all 3 cases.")


def test_the_page_tells_machine_command_skips_and_findings_of_charts(turns: Run, tmp_path: Path) -> None:
    text = page.write(turns, tmp_path / "out").read_text()
    outline = Outline(text)
    for expected in ("AMD EPYC 9B14", "2.13.0+cpu", "pytest bench/ --benchmark-save=x", "loop stops at T = 64",
                     "error 0.3 exceeds its bound", "environment LANG", "4.00×, by sdpa", "left out, wrong somewhere: packed",
                     "Confidence: "):  # fmt: skip
        assert expected in outline.words
    assert "sdpa needs least memory" in outline.words[outline.words.index("Peak memory") :]


def test_colours_follow_the_readers_scheme(quick: Path) -> None:
    text = (quick / "index.html").read_text()
    assert "prefers-color-scheme: dark" in text
    svg = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert "var(--c0)" in svg
    assert not [light for light in palette.themed() if light in svg]


def test_the_page_of_a_quick_run_is_small(quick: Path) -> None:
    assert (quick / "index.html").stat().st_size < 3_000_000


def test_our_own_javascript_is_short() -> None:
    script = Path(reports.__file__).parent / "templates" / "page.js"
    assert len(script.read_text().splitlines()) < 120


def test_the_pages_rows_are_the_runs_rows(tiny: Run, tmp_path: Path) -> None:
    outline = Outline(page.write(tiny, tmp_path).read_text())
    table = json.loads(outline.scripts["rows"])
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    medians = {(row["impl"], row["id"]): row["median"] for row in rows}
    assert medians == {(r["extra_info"]["impl"], r["extra_info"]["id"]): r["stats"]["median"] for r in tiny.rows}
    assert {row["shown"] for row in rows if row["impl"] == "packed"} == {"packed ✗"}


def test_what_is_used_where_is_told_and_never_what_was_wrong(tiny: Run, tmp_path: Path) -> None:
    said = Outline(page.write(tiny, tmp_path).read_text()).words
    assert "left out, wrong somewhere: packed" in said
    use = said[said.index("Use this here") : said.index("Numbers")]
    use = use[: use.index("packed ✗ did not pass")]
    assert "sdpa" in use and "packed" not in use


def test_an_interval_between_processes_is_shown_where_there_are_several(as_run: Any, tmp_path: Path) -> None:
    two, three = (synthetic.document([synthetic.row("a", synthetic.case(), [1e-3], (1.0,) * n)]) for n in (2, 3))
    assert "no interval between processes" in page.write(as_run(two), tmp_path / "two").read_text()
    text = page.write(as_run(three), tmp_path / "three").read_text()
    assert '<th scope="col">between processes</th>' in text and "within process</th>" not in text
    assert "1.00 ms to 1.00 ms, n = 3" in Outline(text).words and "no interval between processes" not in text


@pytest.mark.parametrize(
    ("seconds", "told"), [((1, 2), False), ((1, 2, 4), True), ((1, 8, 4), False), ((1, 2, 4, 8), True)]
)
def test_exponents_are_told_where_they_are_resolved(
    as_run: Any, tmp_path: Path, seconds: tuple[int, ...], told: bool
) -> None:
    rows = [synthetic.row("a", synthetic.case(T=64 * 2**i), [1e-6 * s], peak_bytes=None) for i, s in enumerate(seconds)]
    text = page.write(as_run(synthetic.document(rows)), tmp_path / "out").read_text()
    assert ('id="scaling"' in text) == told


def test_who_is_not_resolved_is_named_and_has_no_interval(as_run: Any, tmp_path: Path) -> None:
    rows = [synthetic.row(name, synthetic.case(T=T), [1e-6 * T * noise], peak_bytes=None)
            for name, odd in (("clear", 1), ("noisy", 8)) for T, noise in ((64, 1), (128, odd), (256, 1))]  # fmt: skip
    said = Outline(page.write(as_run(synthetic.document(rows)), tmp_path / "out").read_text()).words
    assert "1.00 (1.00 to 1.00)" in said and "Not resolved: noisy." in said and "(-" not in said


def test_roofs_parts_and_drift_are_shown_where_they_were_measured(as_run: Any, tmp_path: Path) -> None:
    cells = [("fused", {}, 2e-3), ("fused+compile", {}, 1e-3), ("fused", {"scope": "core"}, 1e-3),
             ("fused", {"mode": "backward"}, 5e-3)]  # fmt: skip
    rows = [synthetic.row(name, synthetic.case(**at), [s], compile_s=3.0, roof=0.4) for name, at, s in cells]
    for row, (_, at, _) in zip(rows, cells, strict=True):
        row["extra_info"]["id"] += "".join(f"-{key}={value}" for key, value in at.items())
    roofs = [{"device": "cpu", "dtype": "float32", "threads": 2, "flops_per_s": 2e11},
             {"device": "cpu", "footprint": 2**20, "threads": 2, "bytes_per_s": 4e10}]  # fmt: skip
    looks = {"product": [{"at": 0.0, "seconds": 4e-3}, {"at": 20.0, "seconds": 5e-3}]}
    data = synthetic.document(rows, roofs=roofs, controls={"drift": 0.11, "looks": looks})
    outline = Outline(page.write(as_run(data), tmp_path).read_text())
    for expected in ("a product in fp32", "200 GFLOP", "a copy of 1.00 MiB", "varied by 11 %", "3,000 calls",
                     "1.00 ms of 2.00 ms", "5.00 ms over 2.00 ms", "40.0 % of it"):  # fmt: skip
        assert expected in outline.words, expected
    assert {"roofline", "roof", "rate", "drift"} <= set(json.loads(outline.scripts["specs"]))


@pytest.mark.parametrize(
    "odd", [{"roofs": {"a": 1}, "controls": []}, {"roofs": [3, {}], "controls": {"looks": {"a": [1]}}}]
)
def test_roofs_and_controls_of_another_shape_are_passed_over(odd: Any, as_run: Any, tmp_path: Path) -> None:
    data = synthetic.document([synthetic.row("a", synthetic.case(), [1e-3])], **odd)
    assert page.write(as_run(data), tmp_path).is_file()


def test_an_unfinished_run_says_so(tiny_data: dict[str, Any], as_run: Any, tmp_path: Path) -> None:
    assert "not complete" not in page.write(as_run(tiny_data), tmp_path / "a").read_text()
    assert "not complete" in page.write(as_run({**tiny_data, "complete": False}), tmp_path / "b").read_text()


def test_csv_holds_seconds_and_bytes_row_by_row(tiny: Run, tmp_path: Path) -> None:
    page.write(tiny, tmp_path)
    with (tmp_path / "rows.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    first = rows[0]
    assert (first["impl"], float(first["median"]), float(first["peak_bytes"])) == ("fused", 150e-6, 1.5 * 2**20)
    assert {"ratio", "ratio_low", "ratio_high", "rank_low", "rank_high", "page_faults", "switches_involuntary"} <= set(
        first
    )
    assert not [column for column in first if "sample" in column]


def test_tables_are_in_the_order_of_time_with_readable_units(turns_data: dict[str, Any], as_run: Any) -> None:
    fused = next(row for row in turns_data["benchmarks"] if row["extra_info"]["impl"] == "fused")
    fused["stats"]["data"] = fused["stats"]["data"][:5]
    synthetic.by_turns(fused, (0.95, 1.0, 1.05))
    table = tables.case_tables(frame.tidy(as_run(turns_data)))[0]
    assert table.id == "B1-T64-H8-D_h64-float32-cpu"
    assert [line.cells() for line in table.lines] == [
        ("sdpa", "1", "120 µs", "120 µs to 120 µs, n = 3", "1.2× (1.1 to 1.5)", "512 KiB", "–", "3.0e-07", "50.0 %"),
        ("fused", "2", "150 µs", "132 µs to 170 µs, n = 3", "1.00×", "1.50 MiB", "–", "3.0e-07", "50.0 %"),
        (
            "packed ✗",
            "–",
            "100 µs",
            "100 µs to 100 µs, n = 3",
            "1.5× (1.3 to 1.8)",
            "1.00 MiB",
            "–",
            "3.0e-07",
            "50.0 %",
        ),
    ]
    assert [line.best for line in table.lines] == [True, False, False]


def test_tables_of_cells_timed_one_after_the_other_give_no_rank(tiny: Run) -> None:
    tidy = frame.tidy(tiny)
    lines = tables.case_tables(tidy)[0].lines
    assert [(line.name, line.rank, line.spread, line.ratio) for line in lines] == [
        ("sdpa", "–", "± 4.2 %", "1.2×"),
        ("fused", "–", "± 6.7 %", "1.00×"),
        ("packed ✗", "–", "± 5.0 %", "1.5×"),
    ]
    assert not any(line.best for line in lines)
    assert "There are no ranks" in tables.legend(tidy, "fused")


def test_speedups_are_drawn_with_their_intervals(turns_data: dict[str, Any], as_run: Any, tiny: Run) -> None:
    for row in turns_data["benchmarks"]:
        if row["extra_info"]["impl"] == "fused":
            row["stats"]["data"] = row["stats"]["data"][:5]
            synthetic.by_turns(row, (0.95, 1.0, 1.05))
    assert sorted(whiskers(as_run(turns_data)))[-1] == pytest.approx((3.52, 4.53), abs=0.02)
    assert whiskers(tiny) == []


def whiskers(run: Run) -> list[tuple[float, float]]:
    """Both ends of every interval drawn."""
    figure = speed.draw(page.report(run).source)
    assert figure is not None
    lines = [line for ax in figure.axes for line in ax.lines if line.get_label() == speed.WHISKER]
    return [tuple(map(float, line.get_xdata())) for line in lines]  # type: ignore[misc]


def test_processes_on_nodes_of_their_own_tell_an_interval_between_nodes(as_run: Any, tmp_path: Path) -> None:
    def text(*cells: str) -> str:
        rows = [synthetic.row("a", synthetic.case(T=i), [1e-3], process_nodes=[*of]) for i, of in enumerate(cells, 64)]
        return page.write(as_run(synthetic.document(rows, notes=["nodes <differ>"])), tmp_path / cells[0]).read_text()

    apart = text("xyz")
    assert '<th scope="col">between nodes</th>' in apart and "“Between nodes” is Student's" in apart
    assert '<p class="notice">nodes &lt;differ&gt;.</p>' in apart
    assert '<th scope="col">between processes</th>' in text("wxy", "wyw")


@pytest.mark.parametrize(("processes", "name"), [(3, "between processes"), (2, "within the run's processes")])
def test_the_markdown_says_what_an_interval_of_a_ratio_is(
    processes: int, name: str, as_run: Any, tmp_path: Path
) -> None:
    rows = [
        synthetic.by_turns(synthetic.row(impl, synthetic.case(), [s] * 4, ()), (1.0,) * processes, visits=2)
        for impl, s in (("fused", 2), ("sdpa", 1))
    ]
    page.write(as_run(synthetic.document(rows)), tmp_path)
    said = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert f"above 1 is faster; with the interval, {name}." in said and "speed-up over fused |" in said


def test_markdown_is_a_table_and_its_names_stay_in_their_cells(tiny: Run) -> None:
    text = tables.markdown(("name", "b"), [("x", "12"), ("yyyyy", "3")])
    assert text == "| name  |  b |\n|-------|---:|\n| x     | 12 |\n| yyyyy |  3 |"
    rows = [synthetic.row(name, synthetic.case(), [1e-3]) for name in EVIL]
    tidy = frame.tidy(Run(Path("x.json"), rows))
    summary = tables.summary(["a <b>"], [], tidy, frame.skipped(tiny), "0001_<x>")
    lines = [line for line in summary.splitlines() if line.startswith("|") and "ms" in line]
    assert len(lines) == len(EVIL)
    assert all(len(re.findall(r"(?<!\\)\|", line)) == len(tables.HEADINGS) + 1 for line in lines)
    assert "<" not in summary


def test_hostile_names_are_escaped_in_the_page_and_survive_in_figures(as_run: Any, tmp_path: Path) -> None:
    rows = [
        synthetic.row(name, synthetic.case(T=T, dtype=dtype), [1e-3 * (i + 1) * T, 1.1e-3 * (i + 1) * T])
        for i, name in enumerate(EVIL) for T in (64, 256) for dtype in ("float32", "bfloat16")
    ]  # fmt: skip
    skipped = [{"impl": EVIL[1], "id": "<i>", "reason": "wrong", "detail": "<img src=x onerror=alert(1)>"}]
    data = synthetic.document(
        rows, skipped=skipped, registry=EVIL, baseline_impl=EVIL[0], command="<b>&", machine_info={"<k>": "<v>"},
        state={"<a>": {"b": "</style><script>"}}, sweep='"><script>',
    )  # fmt: skip
    text = page.write(as_run(data), tmp_path / "out").read_text()
    tags = [tag for tag, _ in Outline(text).tags]
    assert not {"img", "k", "v"} & set(tags)
    assert [a.get("id") for tag, a in Outline(text).tags if tag == "script"] == [
        "rows",
        "pairs",
        "controls",
        "specs",
        "colours",
        "vega",
        None,
    ]
    for name in ("rows", "specs"):
        assert json.loads(Outline(text).scripts[name])
    assert not any(key.startswith("on") for _, attributes in Outline(text).tags for key in attributes)
    for name in ('a"b', "<script>alert(1)</script>", "$x_1$ 'q'", "注意力", "_hidden", "naïve & co|pipe"):
        assert name in Outline(text).words
    for file in (tmp_path / "out").glob("*.svg"):
        written = " ".join(texts(file.read_text()))
        assert "注意力" in written and "$x_1$ 'q'" in written and "_hidden" in written, file.name


def test_an_implementation_that_was_wrong_is_marked_in_every_figure(tiny: Run) -> None:
    with style():
        for name, figure in drawn(tiny).items():
            if figure is not None and name not in (
                "latency-against-memory",
                "ranking",
            ):  # no number at the largest T; no rank
                assert any("packed ✗" in text for text in texts(page.svg(figure))), name


def test_one_colour_everywhere_whatever_was_selected() -> None:
    registry = ["a", "b", "c", "b+compile"]
    everything, few = palette.Palette(registry), palette.Palette(registry, ["c", "mine"])
    assert few["c"] == everything["c"]
    assert everything["b+compile"].colour == everything["b"].colour
    assert everything["b+compile"] != everything["b"]
    assert everything["b+compile"].line != everything["b"].line
    assert few["mine"].colour not in {everything[name].colour for name in "abc"}


@pytest.mark.parametrize("seed", range(40))
def test_eight_that_are_present_never_share_a_colour_or_a_marker(seed: int) -> None:
    rng = random.Random(seed)
    registry = [f"impl{i}" for i in range(40)]
    present = [*rng.sample(registry, rng.randint(1, 6)), "mine", "mine too"]
    looks = palette.Palette(registry, [*present, *(f"{name}+compile" for name in present)])
    for compiled in ("", "+compile"):
        ours = [looks[f"{name}{compiled}"] for name in present]
        assert len({look.colour for look in ours}) == len({look.marker for look in ours}) == len(present)
    assert not looks.weak


def test_of_more_than_eight_the_foremost_have_colours_and_the_others_are_grey() -> None:
    registry = [f"impl{i}" for i in range(20)]
    looks = palette.Palette(registry, [*registry, "mine"], first=["impl19", "impl18"])
    strong = [name for name in looks.order if not looks[name].weak]
    assert len(strong) == len({looks[name].colour for name in strong}) == len(palette.COLOURS) == 8
    assert {"mine", "impl18", "impl19"} < set(strong) and looks.weak
    assert {looks[name].colour for name in looks.order if looks[name].weak} == {palette.WEAK[0]}


def test_the_readers_own_kernel_has_the_strongest_look() -> None:
    looks = palette.Palette(["a", "b", "c"], ["a", "b", "c", "mine", "mine+compile"])
    assert [looks[name].own for name in looks.order] == [False, False, False, True, True]
    assert looks["mine"].slot == 0 and looks["mine"].width > 1.5 * looks["a"].width
    assert 0 not in {looks[name].slot for name in "abc"}


def test_the_foremost_are_the_yardstick_and_the_nearest_to_the_fastest() -> None:
    rows = [synthetic.row(name, synthetic.case(T=T), [seconds * T])
            for name, seconds in (("slow", 3e-3), ("fused", 2e-3), ("sdpa", 1e-3)) for T in (64, 128)]  # fmt: skip
    tidy = frame.tidy(Run(Path("x.json"), rows))
    assert palette.foremost(tidy, "slow") == ["slow", "sdpa", "fused", "slow"]
    assert palette.foremost(tidy, None) == ["sdpa", "fused", "slow"]


#: Colours as people with protanopia, deuteranopia and tritanopia see them: Machado, Oliveira and Fernandes, 2009.
SIGHTS = (
    ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
)  # fmt: skip


def linear(colour: str) -> Any:
    """sRGB as amounts of light."""
    levels = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)


def oklab(light: Any) -> Any:
    """Björn Ottosson, "A perceptual color space for image processing", 2020."""
    cones = np.array([[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
                      [0.0883024619, 0.2817188376, 0.6299787005]]) @ np.clip(light, 0, 1)  # fmt: skip
    return np.array([[0.2104542553, 0.793617785, -0.0040720468], [1.9779984951, -2.428592205, 0.4505937099],
                     [0.0259040371, 0.7827717662, -0.808675766]]) @ np.cbrt(cones)  # fmt: skip


def apart(one: str, other: str) -> float:
    """The distance of two colours to whom they look most alike."""
    return min(
        float(np.linalg.norm(oklab(np.array(s) @ linear(one)) - oklab(np.array(s) @ linear(other)))) for s in SIGHTS
    )


def contrast(one: str, other: str) -> float:
    """As WCAG 2 has it."""
    low, high = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("ground", [0, 1])
def test_colours_stay_apart_and_are_seen_on_either_ground(ground: int) -> None:
    strong = [pair[ground] for pair in palette.COLOURS]
    assert min(apart(one, other) for one, other in itertools.combinations(strong, 2)) > 0.08
    assert min(apart(one, palette.WEAK[ground]) for one in strong) > 0.07
    assert min(contrast(one, palette.SURFACE[ground]) for one in (*strong, palette.WEAK[ground])) >= 3
    for words in (palette.INK, palette.MUTED, palette.GOOD, palette.BAD):
        assert contrast(words[ground], palette.SURFACE[ground]) >= 4.5


def test_all_words_in_figures_can_be_read(tiny: Run) -> None:
    for name, figure in drawn(tiny).items():
        for text in figure.findobj(Text) if figure else ():
            if text.get_text():
                colour = matplotlib.colors.to_hex(text.get_color())
                assert contrast(colour, palette.SURFACE[0]) >= 4.5, (name, text.get_text())


def test_lines_in_a_figure_have_the_colours_of_the_palette(tiny: Run) -> None:
    looks = page.report(tiny).palette
    figures = drawn(tiny)
    for name in ("latency", "memory"):
        lines = [line for ax in figures[name].axes for line in ax.lines if line.get_linestyle() != ":"]
        assert {line.get_color() for line in lines} == {looks[impl].colour for impl in ("sdpa", "fused", "packed")}
        assert {line.get_marker() for line in lines} == {looks[impl].marker for impl in ("sdpa", "fused", "packed")}


def test_the_name_of_a_line_that_stops_stands_at_its_last_point(as_run: Any) -> None:
    cells = [("sdpa", 64), ("sdpa", 256), ("sdpa", 1024), ("loop", 64), ("loop", 256)]
    figure = drawn(as_run(synthetic.document([synthetic.row(n, synthetic.case(T=T), [1e-5 * T]) for n, T in cells])))[
        "latency"
    ]
    [ax] = figure.axes
    [name] = [text for text in ax.texts if text.get_text() == "loop"]
    end = ax.transAxes.inverted().transform(ax.transData.transform((256, 256e-5)))
    assert name.xy == pytest.approx(end, abs=0.02)
    leaders = [line for line in ax.lines if line.get_linestyle() == ":"]
    assert [min(line.get_xdata()) > 0.9 for line in leaders] == [True]  # none crosses the panel
    assert {line.get_color() for line in leaders} == {palette.MUTED[0]}


@pytest.mark.parametrize("base", [2, 10])
@pytest.mark.parametrize("ratio", [1.33, 1.5, 2, 3, 7, 20, 100, 1e4, 1e7])
def test_a_logarithmic_axis_has_several_round_ticks(base: int, ratio: float) -> None:
    for low in np.geomspace(1e-6, 1, 97) if base == 10 else np.geomspace(1, 2**30, 97):
        ticks = log_ticks(low, low * ratio, base)
        assert 3 <= len(ticks) <= 12 and all(low <= tick <= low * ratio for tick in ticks)
    assert log_ticks(0.9e-3, 60e-3, 10) == pytest.approx([1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3])
    assert log_ticks(1, 64, 2) == [1, 2, 4, 8, 16, 32, 64]


def test_points_have_their_implementations_marker(tiny: Run) -> None:
    looks = page.report(tiny).palette
    [ax] = drawn(tiny)["latency-against-memory"].axes
    points = {line.get_color(): line for line in ax.lines if line.get_marker() != "None"}
    for impl, expected in (("sdpa", (2.5 * 2**20, 900e-6)), ("fused", (72 * 2**20, 3600e-6))):
        point = points[looks[impl].colour]
        assert (point.get_marker(), point.get_xdata()[0], point.get_ydata()[0]) == (looks[impl].marker, *expected)


def test_the_latency_chart_holds_the_measured_points(tiny: Run) -> None:
    ax = drawn(tiny)["latency"].axes[0]
    colour = page.report(tiny).palette["sdpa"].colour
    [line] = [line for line in ax.lines if line.get_color() == colour and line.get_marker() != "None"]
    assert list(line.get_xdata()) == [64, 256, 1024]
    assert list(line.get_ydata()) == [120e-6, 200e-6, 900e-6]
    assert list(ax.get_xticks()) == [1024, 256, 64]


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("one row", synthetic.document([synthetic.row("fused", synthetic.case(), [1e-3])]),
         {"latency", "memory", "latency-against-memory"}),
        ("only skips", synthetic.document([], skipped=[{"impl": "a", "id": "B1", "reason": "error"}]), set()),
        ("nothing", synthetic.document([]), set()),
        ("one dtype", synthetic.sweep(dtype=("bfloat16",)), FIGURES - {"dtype"}),
        ("one T", synthetic.sweep(T=(64,), H=(8,)), FIGURES - {"heads"}),
        ("many H", synthetic.sweep(T=(512,), H=(1, 2, 4, 8, 16, 32), dtype=("float32",)), FIGURES - {"dtype"}),
        ("threads", synthetic.sweep(T=(64, 128), H=(8,), threads=(1, 2, 4, 8)), (FIGURES | {"threads"}) - {"heads"}),
        ("devices", synthetic.sweep(T=(64, 128), device=("cpu", "cuda")), FIGURES),
        ("parts", synthetic.document(
            [synthetic.row("fused", synthetic.case(T=T, scope=scope), [1e-3]) for T in (64, 128)
             for scope in ("core", "layer")]), {"latency", "memory", "latency-against-memory", "core"}),
        ("passes", synthetic.document(
            [synthetic.row("fused", synthetic.case(mode=mode), [1e-3]) for mode in ("forward", "backward")]),
         {"latency", "memory", "latency-against-memory", "passes"}),
        ("compiling", synthetic.document(
            [synthetic.row("sdpa", synthetic.case(), [2e-3]),
             synthetic.row("sdpa+compile", synthetic.case(), [1e-3], compile_s=2.0, compile_cache="cold")]),
         {"latency", "memory", "latency-against-memory", "compiling", "ranking"}),
        ("no memory", synthetic.document([synthetic.row("a", synthetic.case(), [1e-3], peak_bytes=None)]), {"latency"}),
        ("no yardstick", synthetic.document([synthetic.row("a", synthetic.case(T=T), [1e-3]) for T in (1, 2)],
                                            baseline_impl=None), {"latency", "memory", "latency-against-memory"}),
    ],
)  # fmt: skip
def test_every_kind_of_run_gets_its_figures_and_no_empty_ones(
    name: str, data: dict[str, Any], expected: set[str], as_run: Any
) -> None:
    figures = {chart for chart, figure in drawn(as_run(data)).items() if figure is not None}
    assert figures == expected


def test_shares_and_calls_are_drawn_where_they_were_computed(as_run: Any) -> None:
    rows = [
        synthetic.row("sdpa", synthetic.case(), [4e-3], id="layer"),
        synthetic.row("sdpa", synthetic.case(scope="core"), [1e-3], id="core"),
        synthetic.row("sdpa+compile", synthetic.case(), [2e-3], id="layer", compile_s=2.0),
    ]
    figures = drawn(as_run(synthetic.document(rows)))
    widths = [round(patch.get_width(), 6) for patch in figures["core"].axes[0].patches]
    assert widths == [1, 0.25] and "25%" in [text.get_text() for text in figures["core"].axes[0].texts]
    [line] = figures["compiling"].axes[0].lines
    assert list(line.get_xdata()) == [1000]


@pytest.mark.parametrize("rows", [0, 1])
def test_a_page_of_one_row_and_of_none(rows: int, as_run: Any, tmp_path: Path) -> None:
    skipped = [{"impl": "a", "id": "B1", "reason": "out_of_memory", "detail": "needs 9 GiB"}]
    data = synthetic.document([synthetic.row("fused", synthetic.case(), [1e-3])][:rows], skipped=skipped)
    outline = Outline(page.write(as_run(data), tmp_path / "out").read_text())
    assert "needs 9 GiB" in outline.words
    assert len(list((tmp_path / "out").glob("*.png"))) == 3 * rows
    assert set(json.loads(outline.scripts["specs"])) == (
        {"latency", "memory", "rate", "roofline", "blocks"} if rows else set()
    )


def test_nothing_is_left_of_our_drawing_style() -> None:
    before = dict(matplotlib.rcParams)
    with style():
        assert matplotlib.rcParams["svg.fonttype"] == "none"
    assert dict(matplotlib.rcParams) == before


def test_the_same_run_gives_the_same_page(tiny: Run, tmp_path: Path) -> None:
    assert page.write(tiny, tmp_path / "a").read_bytes() == page.write(tiny, tmp_path / "b").read_bytes()
    svg = (tmp_path / "a" / "latency.svg").read_text()
    assert svg == (tmp_path / "b" / "latency.svg").read_text()
    assert "<dc:date>" not in svg  # equal today, different tomorrow


def test_labels_keep_their_distance_and_their_order() -> None:
    placed = spread([0.5, 0.51, 0.52, 0.1], 0.1, 0.0, 1.0)
    assert placed == pytest.approx([0.41, 0.51, 0.61, 0.1])
    assert spread([0.99, 0.98], 0.1, 0.0, 1.0) == pytest.approx([1.0, 0.9])


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (units.seconds(0.00123), "1.23 ms"), (units.seconds(9.996e-4), "1.00 ms"), (units.seconds(12.34), "12.3 s"),
        (units.seconds(2e-7), "200 ns"), (units.seconds(float("nan")), "–"), (units.memory(2_621_440), "2.50 MiB"),
        (units.memory(512), "512 B"), (units.memory(0), "0 B"), (units.times(0.0521), "0.0521×"),
        (units.times(12.34), "12.3×"), (units.percent(0.0312), "3.1 %"), (units.percent(64.278), "6428 %"),
        (shares.significant(1234.5), "1234"), (units.tick("2.500 MiB"), "2.5 MiB"), (units.tick("10.00 ms"), "10 ms"),
        (units.tick("100 ms"), "100 ms"), (units.tick("1.125 KiB"), "1.125 KiB"),
    ],
)  # fmt: skip
def test_units(shown: str, expected: str) -> None:
    assert shown == expected


def test_wrong_cells_that_differ_in_numbers_alone_are_one_line() -> None:
    details = ["error 0.12, over 3e-07, at T = 64", "error 1.5, over 2.1e-07, at T = 1024", "raises ValueError"]
    found = [{"impl": "mine", "id": f"c{i}", "reason": "wrong", "detail": detail} for i, detail in enumerate(details)]
    one, other = tables.skipped_groups(pd.DataFrame(found))
    assert (one.detail, one.cases, other.cases) == (details[0], ["c0", "c1"], ["c2"])


def test_a_median_has_as_many_digits_as_its_spread_warrants(as_run: Any) -> None:
    times = {"a": [1.234e-3] * 4, "b": [1e-3, 1.234e-3, 2e-3]}
    rows = [synthetic.row(name, synthetic.case(), data, ()) for name, data in times.items()]
    (table,) = tables.case_tables(frame.tidy(as_run(synthetic.document(rows))))
    assert {line.impl: line.median for line in table.lines} == {"a": "1.23 ms", "b": "1.2 ms"}


def test_captions_of_shares_tell_only_what_is_shown(as_run: Any) -> None:
    cells = [("core", 64, 1e-3, (1, 1, 1)), ("layer", 64, 4e-3, (1, 1, 1)),
             ("core", 128, 3.9e-3, (0.7, 1, 1.3)), ("layer", 128, 4e-3, (1, 1, 1))]  # fmt: skip
    rows = [
        synthetic.row("sdpa", synthetic.case(scope=scope, T=T), [s], apart, id=f"{scope} {T}")
        for scope, T, s, apart in cells
    ]
    document = synthetic.document(rows)
    [core] = [chart for chart in CHARTS if chart.name == "core"]
    assert core.caption(page.report(as_run(document)).source) == "The core is 25.0 % to 25.0 % of its layer."
    old = page.report(as_run(synthetic.as_old(document)))
    assert core.caption(old.source) == "What a layer is made of, by medians."
