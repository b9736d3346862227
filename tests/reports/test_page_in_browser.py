"""The page as a reader meets it: opened from disk in a real browser that can't reach any network."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import synthetic_runs as synthetic
import tracked_runs as tracked
import vl_convert
from markupsafe import Markup

from reports.__main__ import main
from reports.drawing.charts import masks
from reports.pages import page, side_by_side_page
from reports.reading import runs

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.skipif(not BROWSER, reason="no chromium here (Debian: apt-get install chromium)"),
    pytest.mark.skipif(not DRIVER, reason="no chromedriver here (Debian: apt-get install chromium-driver)"),
    pytest.mark.xdist_group("browser"),  # one browser, not one for every worker
]

ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-sync",
             "--disable-background-networking", "--disable-component-update", "--no-first-run",
             "--host-resolver-rules=MAP * ~NOTFOUND")  # fmt: skip
EVIL = ['a"b', "<script>document.title='bad'</script>", "注意力", "it's ${x} \\ 'q'", "</script>"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for argument in (*ARGUMENTS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=str(DRIVER)))
    yield driver
    driver.quit()


@pytest.fixture(scope="module", autouse=True)
def pages_alone() -> Iterator[None]:
    """The figures that lie beside a page take half of its time, and are read elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "save", lambda figure, path: None)
        yield


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a whole `quick` run with roofs and controls."""
    folder = tmp_path_factory.mktemp("quick")
    data = synthetic.sweep()
    data["roofs"] = [
        {"device": "cpu", "dtype": dtype, "threads": 2, "flops_per_s": 2e11} for dtype in ("float32", "bfloat16")
    ]
    data["roofs"] += [{"device": "cpu", "footprint": 2**n, "threads": 2, "bytes_per_s": 2e12 / 2**n} for n in (16, 20)]
    looks = [{"at": 20.0 * i, "seconds": 4e-3 + 1e-4 * i} for i in range(4)]
    data["controls"] = {"drift": 0.04, "looks": {"product": looks, "python": looks}}
    return page.write(runs.read(synthetic.save(data, folder, "0001_quick")), folder / "out")


def opened(browser: Any, path: Path, width: int = 1280, night: bool = False) -> list[str]:
    """Opens it and waits until all is drawn; returns what the console said."""
    media = {"features": [{"name": "prefers-color-scheme", "value": "dark" if night else "light"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get_log("browser")
    browser.get(path.as_uri())
    wait_for(browser, "document.documentElement.dataset.drawn")
    return [f"{line['level']}: {line['message']}" for line in browser.get_log("browser")]


def seen(browser: Any, element: Any) -> Any:
    """The element, scrolled to where nothing else is in the way."""
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
    return element


def names(browser: Any, chart: str) -> dict[str, Any]:
    """The buttons of a chart's legend."""
    return {button.text: button for button in browser.find_elements("css selector", f"#{chart}-legend button")}


def faint(chart: str, kind: str = "symbol") -> str:
    """A script that counts the marks of a chart that are singled out by nobody."""
    marks = f"[...document.querySelectorAll('#{chart}-chart .mark-{kind}.role-mark path')]"
    return f"{marks}.filter((path) => +path.getAttribute('opacity') < .5).length"


def wait_for(browser: Any, condition: str) -> Any:
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 30, 0.05).until(lambda driver: driver.execute_script(f"return {condition}"))


def marks(browser: Any, chart: str, kind: str) -> int:
    """How many marks of a kind, `symbol`, `line` or `area`, stand in a chart's plot and are shown."""
    script = """return [...document.querySelectorAll(`#${arguments[0]}-chart .mark-${arguments[1]}.role-mark path`)]
        .filter((path) => path.getAttribute("d") && !path.classList.contains("background")).length"""
    return int(browser.execute_script(script, chart, kind))


def choose(browser: Any, name: str, label: str) -> None:
    """Sets one of the page's controls, as a reader does, and waits until all follows."""
    from selenium.webdriver.support.ui import Select

    before = browser.execute_script("return document.documentElement.dataset.turn")
    Select(browser.find_element("css selector", f"select[name='{name}']")).select_by_visible_text(label)
    wait_for(browser, f"document.documentElement.dataset.turn != '{before}'")


NUMBERS = {"latency": "Latency", "memory": "Peak memory", "rate": "Operations per second", "roofline": "Roofline",
           "drift": "Drift of the control workload", "blocks": "Every block", "masks": "Mask efficiency"}  # fmt: skip


def show(browser: Any, chart: str) -> None:
    if not browser.execute_script(f"return document.getElementById('{chart}').checkVisibility()"):
        choose(browser, "show", NUMBERS[chart])


@pytest.mark.parametrize("night", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_every_chart_is_drawn_and_nothing_is_complained_about(
    browser: Any, quick: Path, width: int, night: bool
) -> None:
    assert opened(browser, quick, width, night) == []
    shown = {"ranking": ("symbol",), "speedup": ("symbol",), "latency": ("symbol", "line", "area"),
             "memory": ("symbol", "line"), "rate": ("symbol", "line"), "roofline": ("symbol", "line"),
             "drift": ("symbol", "line"), "blocks": ("symbol", "rect")}  # fmt: skip
    for chart, kinds in shown.items():
        show(browser, chart)
        for kind in kinds:
            assert marks(browser, chart, kind) > 1, (chart, kind)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def test_the_published_run_opens_without_a_word_in_the_console(browser: Any, tmp_path: Path) -> None:
    published = runs.CHECKOUT / "results" / "published" / "0001_quick.json"
    assert opened(browser, page.write(runs.read(published), tmp_path)) == []


def test_a_point_for_every_measured_cell(browser: Any, quick: Path) -> None:
    opened(browser, quick)
    table = json.loads(browser.execute_script("return document.getElementById('rows').textContent"))
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    here = [row for row in rows if row["H"] == 8 and row["dtype"] == "float32"]
    assert marks(browser, "latency", "symbol") == len(here)
    assert marks(browser, "latency", "line") == len({row["impl"] for row in here})


def test_a_filter_holds_in_both_charts(browser: Any, quick: Path) -> None:
    opened(browser, quick)
    before = marks(browser, "latency", "symbol")
    choose(browser, "at_H", "1")  # where those with a single head were measured too
    assert marks(browser, "latency", "symbol") == before + 6
    show(browser, "memory")
    assert marks(browser, "memory", "symbol") == before + 6


def test_the_axis_and_its_scale_can_be_chosen(browser: Any, quick: Path) -> None:
    opened(browser, quick)
    ticks = "[...document.querySelectorAll('#latency-chart .role-axis-label text')].map((t) => t.textContent)"
    assert {"64", "256", "1,024"} <= set(browser.execute_script(f"return {ticks}"))
    choose(browser, "x_axis", "heads H")
    wait_for(browser, f"{ticks}.includes('8') && !{ticks}.includes('64')")
    assert marks(browser, "latency", "symbol") == 2 * 8 + 2  # eight have both H at the largest T, two only H = 1
    choose(browser, "x_axis", "tokens T")
    choose(browser, "scale", "linear")
    wait_for(browser, f"{ticks}.includes('0 ms')")


def test_a_click_in_a_legend_singles_one_out_in_every_chart(browser: Any, quick: Path) -> None:
    opened(browser, quick)
    assert [browser.execute_script(f"return {faint(chart)}") for chart in ("latency", "speedup")] == [0, 0]
    seen(browser, names(browser, "latency")["sdpa"]).click()
    for chart in ("latency", "memory", "roofline"):
        show(browser, chart)
        others = marks(browser, chart, "symbol") - (3 if chart != "roofline" else 6)  # three T, and in one also two H
        wait_for(browser, f"{faint(chart)} == {others}")
        pressed = [
            name for name, button in names(browser, chart).items() if button.get_attribute("aria-pressed") == "true"
        ]
        assert pressed == ["sdpa"]
    assert "picked: sdpa" in browser.find_element("css selector", "#roofline-caption").text
    seen(browser, names(browser, "roofline")["sdpa"]).click()
    wait_for(browser, f"{faint('roofline')} == 0 && {faint('speedup')} == 0")


def test_controls_and_legends_are_reached_and_used_with_the_keyboard(browser: Any, quick: Path) -> None:
    from selenium.webdriver import ActionChains, Keys

    opened(browser, quick)
    visited = set()
    for _ in range(60):
        ActionChains(browser).send_keys(Keys.TAB).perform()
        here = browser.switch_to.active_element
        visited.add(here.get_attribute("name"))
        if here.tag_name == "button" and here.get_attribute("value") == "packed":
            break
    assert {"x_axis", "scale", "at_H", "at_dtype", "over", "show"} <= visited
    ActionChains(browser).send_keys(Keys.SPACE).perform()
    wait_for(browser, f"{faint('latency')} > 0")
    assert browser.switch_to.active_element.get_attribute("aria-pressed") == "true"  # it keeps the focus


def test_captions_follow_what_is_chosen(browser: Any, quick: Path) -> None:
    opened(browser, quick)
    table = json.loads(browser.execute_script("return document.getElementById('rows').textContent"))
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]

    def told(chart: str, shown: str, **at: Any) -> list[str]:
        """The caption's lines, once its last says this; it names the least and the most of the cells at these axes."""
        show(browser, chart)
        text = f"document.getElementById('{chart}-caption').innerText"
        lines = str(wait_for(browser, f"{text}.includes({json.dumps(shown)}) && {text}")).split("\n\n")
        column = {"latency": "median", "memory": "peak_bytes"}[chart]
        here = sorted((r for r in rows if at.items() <= r.items()), key=lambda row: float(row[column]))
        ends = re.search(r": \S+ \S+ \((\S+)\) to \S+ \S+ \((\S+)\)$", lines[-1])
        least, most = (row[column] for row in (here[0], here[-1]))
        assert ends and [[r[column] for r in here if r["shown"] == name] for name in ends.groups()] == [[least], [most]]
        return lines

    for chart in ("latency", "memory"):
        assert len(told(chart, "Shown: H = 8, dtype = fp32 · at T = 1024", H=8, dtype="float32", T=1024)) == 2
    choose(browser, "at_dtype", "bf16")
    for chart in ("latency", "memory"):  # the finding was one of another choice
        assert len(told(chart, "Shown: H = 8, dtype = bf16 · at T = 1024", H=8, dtype="bfloat16", T=1024)) == 1
    choose(browser, "x_axis", "heads H")
    for chart in ("latency", "memory"):
        assert len(told(chart, "Shown: T = 1024, dtype = bf16 · at H = 8", H=8, dtype="bfloat16", T=1024)) == 1


def answers(browser: Any) -> list[list[str]]:
    """The lines of the table of cases that are shown."""
    script = """return [...document.querySelectorAll('.answers tbody tr:not([hidden])')]
        .map((row) => [...row.children].map((cell) => cell.innerText))"""
    return list(browser.execute_script(script))


def speedups(browser: Any) -> dict[str, str]:
    """The column of the table of implementations that is shown."""
    script = """return [...document.querySelectorAll('.case:not([hidden]) tbody tr')]
        .map((row) => [row.children[0].innerText, row.children[4].innerText])"""
    return dict(browser.execute_script(script))


def test_the_address_opens_what_was_looked_at(browser: Any, quick: Path) -> None:
    opened(browser, quick)
    rows = [
        row["extra_info"] | row["stats"] for row in runs.read(next(quick.parents[1].glob("*/0001_quick.json"))).rows
    ]
    for name, label in (
        ("at_dtype", "bf16"),
        ("at_H", "1"),
        ("at_T", "256"),
        ("over", "fused"),
        ("show", "Peak memory"),
    ):
        choose(browser, name, label)
    seen(browser, names(browser, "memory")["packed"]).click()
    wait_for(browser, f"{faint('memory')} > 0")
    here = {row["impl"]: row["median"] for row in rows if (row["dtype"], row["H"], row["T"]) == ("bfloat16", 1, 256)}
    address = browser.current_url
    browser.switch_to.new_window("window")
    browser.get(address)
    wait_for(browser, f"document.documentElement.dataset.drawn && {faint('memory')} > 0")
    assert (
        browser.find_element("id", "memory").is_displayed() and not browser.find_element("id", "latency").is_displayed()
    )
    assert [line[0] for line in answers(browser)] == ["H=1 T=64 bf16", "H=1 T=256 bf16", "H=1 T=1024 bf16"]
    told = speedups(browser)
    assert told.pop("fused") == "1"
    assert {name: float(text.split("×")[0]) for name, text in told.items()} == pytest.approx(
        {name: here["fused"] / seconds for name, seconds in here.items() if name != "fused"}, rel=0.06
    )
    browser.close()
    browser.switch_to.window(browser.window_handles[0])


def test_speed_is_filled_where_it_is_told_apart(browser: Any, tmp_path: Path) -> None:
    cells = [
        ("fused", 2e-3, (1, 1, 1)),
        ("sdpa", 1e-3, (0.99, 1, 1.01)),
        ("packed", 2e-3, (0.9, 1, 1.1)),
        ("loop", 0.1, (1, 1, 1)),
    ]
    rows = [
        synthetic.row(name, synthetic.case(T=64, T_kv=T_kv), [s] * 4, apart, id=f"T64-T_kv{T_kv}")
        for name, s, apart in cells for T_kv in (64, 128)
    ]  # fmt: skip
    opened(
        browser, page.write(runs.read(synthetic.save(synthetic.document(rows), tmp_path, "0001_x")), tmp_path / "out")
    )
    choose(browser, "over", "fused")
    texts = "[...document.querySelectorAll('#speedup-chart text')].map((text) => text.textContent)"
    assert {"T = 64", "T = 64, T_kv = 128"} <= set(browser.execute_script(f"return {texts}"))
    script = """return [...document.querySelectorAll('#speedup-chart .mark-symbol.role-mark path')].map((path) => {
        const { impl, speed, at, from_ } = path.__data__.datum; return [impl, speed, path.getAttribute('fill'), at, from_] })"""
    points = browser.execute_script(script)
    (edge,) = {at for impl, _, _, at, _ in points if impl == "loop"}
    assert edge == min(low for *_, low in points) > 0.2 and "0.02×" in browser.execute_script(f"return {texts}")
    points = [point[:3] for point in points if point[0] != "loop"]  # which stands, with its number, where others end
    speed = {(impl, round(value, 2)) for impl, value, _ in points}
    assert len(points) == 4 and speed == {("sdpa", 2.0), ("packed", 1.0)}
    ground = "getComputedStyle(document.documentElement).getPropertyValue('--surface').trim()"
    surface = browser.execute_script(f"return {ground}")
    hollow = {impl: fill == surface for impl, _, fill in points}
    assert hollow == {"sdpa": False, "packed": True}


def test_another_choice_has_the_room_for_its_names_and_no_room_for_panels_that_it_lacks(
    browser: Any, tmp_path: Path
) -> None:
    cells = [("causal", T, name) for T in (64, 128, 256) for name in ("fused", "sdpa")]
    cells += [("none", T, name) for T in (64, 128, 256) for name in ("fused", "of_a_long_name")]
    cells += [("padding", 64, name) for name in ("fused", "sdpa")]
    rows = [synthetic.row(name, synthetic.case(T=T, mask=mask), [1e-3]) for mask, T, name in cells]
    run = runs.read(synthetic.save(synthetic.document(rows), tmp_path, "0001_x"))
    opened(browser, page.write(run, tmp_path / "out"))
    panels = """[...document.querySelectorAll('#speedup-chart .mark-group.cell > g > path.background')]
        .map((panel) => panel.getBoundingClientRect().width)"""
    room = "document.getElementById('speedup-chart').clientWidth"
    before = browser.execute_script(f"return {panels}")
    choose(browser, "at_mask", "padding")
    [alone], whole = browser.execute_script(f"return [{panels}, {room}]")
    assert len(before) == 3 and max(before) < whole / 3 and alone > whole / 2
    choose(browser, "at_mask", "no mask")
    assert browser.execute_script(f"return {panels}") == pytest.approx(before, abs=2)
    left = "(element) => element.getBoundingClientRect().left"
    texts = f"[...document.querySelectorAll('#speedup-chart text')].map({left})"
    edge = f"({left})(document.querySelector('#speedup-chart svg'))"
    assert browser.execute_script(f"return Math.min(...{texts}) >= {edge}")


def test_every_block_stands_beside_its_median(browser: Any, tmp_path: Path) -> None:
    from selenium.webdriver import ActionChains

    seconds = {"sdpa": [1e-3, 1.1e-3, 0.9e-3, 5e-3], "fused": [2e-3, 2e-3, 2.2e-3, 1.8e-3]}
    rows = [
        synthetic.row(name, synthetic.case(T=T), [one * (1 + T / 1000 * i) for i, one in enumerate(data)], (0.9, 1, 1.1))
        for name, data in seconds.items() for T in (64, 128)
    ]  # fmt: skip
    rows[0]["extra_info"] |= {"page_faults": 12.34, "switches_involuntary": 0.5}
    saved = [row["stats"]["data"] for row in rows]
    opened(
        browser, page.write(runs.read(synthetic.save(synthetic.document(rows), tmp_path, "0001_x")), tmp_path / "out")
    )
    assert "Shown" not in browser.find_element("id", "latency-caption").text  # its lines run along all that varies
    show(browser, "blocks")
    ticks = "[...document.querySelectorAll('#blocks-chart .mark-rect.role-mark path')]"
    drawn = browser.execute_script(f"return {ticks}.map((path) => path.__data__.datum)")
    for row, data in zip(rows, saved, strict=True):
        median, name, T = row["stats"]["median"], row["extra_info"]["impl"], row["extra_info"]["T"]
        beside = sorted(datum["beside"] for datum in drawn if (datum["impl"], datum["T"]) == (name, T))
        assert beside == pytest.approx(sorted(min(s / median - 1, 1.0) for s in data), abs=1e-3)
    point = seen(browser, browser.find_elements("css selector", "#blocks-chart .mark-symbol.role-mark path")[0])
    assert browser.execute_script("return arguments[0].__data__.datum.impl", point) == "sdpa"
    ActionChains(browser).move_to_element_with_offset(point, 1, 1).move_to_element(point).perform()
    tip = "document.querySelector('#vg-tooltip-element.visible')"
    said = wait_for(browser, f"{tip} && {tip}.innerText.includes('page faults') && {tip}.innerText")
    assert "sdpa" in said and "12 a call" in said and "0.50 a call" in said and "undefined" not in said
    assert "T = 64" in point.get_attribute("aria-label")


def test_windows_beside_no_window(browser: Any, tmp_path: Path) -> None:
    shares = {None: 1.0, 8: 0.1, 16: 0.3, 32: 0.5}
    rows = [
        synthetic.row(name, synthetic.case(T=T, scope="core", mask="none", window=window), [1e-3 * share] * 3,
                      flops=round(1e9 * share), id=f"T{T}-{window}")
        for name in ("fused", "sdpa") for T in (64, 128) for window, share in shares.items()
    ]  # fmt: skip
    window = {"name": "window", "kind": "size", "unsaid": None, "hides": True}
    data = synthetic.document(rows, schema=2, axes=[window])
    silent = opened(browser, page.write(runs.read(synthetic.save(data, tmp_path, "0001_x")), tmp_path / "out"))
    assert silent == [] and marks(browser, "latency", "symbol") == 2 * 3  # what has no window lies nowhere along it
    show(browser, "masks")
    lines = (
        "[...document.querySelectorAll('#masks-chart .mark-rule line[stroke-dasharray]')].map((line) => line.__data__)"
    )
    at = browser.execute_script(
        f"return {lines}.map(({{ x, mark: {{ group }} }}) => [group.datum.mask, x / group.width])"
    )
    dotted = {(mask, round(share * masks.END, 3)) for mask, share in at}
    assert dotted == {("no mask window=8", 0.1), ("no mask window=16", 0.3), ("no mask window=32", 0.5)}


@pytest.mark.parametrize(
    ("chart", "version"), [("latency", "newest"), ("latency", "6.1"), ("memory", "5.21"), ("memory", "newest")]
)
def test_hovering_tells_the_numbers_of_the_nearest_point(
    browser: Any, tmp_path: Path, chart: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from selenium.webdriver import ActionChains

    if version != "newest":
        script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version)
        monkeypatch.setattr(page, "vega", lambda: Markup(script))
    run = runs.read(synthetic.save(synthetic.sweep(dtype=("float32",)), tmp_path, "0001_x"))
    opened(browser, page.write(run, tmp_path / "out"))
    show(browser, chart)
    points = browser.find_elements("css selector", f"#{chart}-chart .mark-symbol.role-mark path")
    tip = "document.querySelector('#vg-tooltip-element.visible')"
    for index in (0, len(points) // 2, len(points) - 1):
        point = seen(browser, points[index])
        at = browser.execute_script("return arguments[0].__data__.datum", point)
        ActionChains(browser).move_to_element_with_offset(point, 1, 1).move_to_element(point).perform()
        column = {"latency": "median", "memory": "peak_bytes"}[chart]
        rows = [row["extra_info"] | row["stats"] for row in run.rows]
        here = [
            row for row in rows if all(row[name] == at[name] for name in ("T", "H", column))
        ]  # they may lie on each other
        names = json.dumps([row["impl"] for row in here])
        cells = "(line) => [...line.children].map((cell) => cell.textContent)"
        table = f"[...{tip}.querySelectorAll('tr')].map({cells})"  # if need be of where the pointer was before
        lines = dict(wait_for(browser, f"{tip} && {table}.some((line) => {names}.includes(line[1])) && {table}"))
        [row] = [row for row in here if (row["impl"], str(row["H"])) == (lines["implementation"], lines["H"])]
        assert in_seconds(lines["median"]) == pytest.approx(row["median"], rel=5e-3)
        low, high = map(in_seconds, lines["q1 to q3"].split(" to "))
        assert (low, high) == pytest.approx((row["q1"], row["q3"]), rel=5e-3)
        same = [other for other in rows if (other["T"], other["H"]) == (row["T"], row["H"]) and other is not row]
        text = {other["impl"]: lines[other["impl"]] for other in same}  # all series in one tip
        if chart == "latency":
            assert {name: in_seconds(told) for name, told in text.items()} == pytest.approx(
                {other["impl"]: other["median"] for other in same}, rel=5e-3
            )
        number, unit = lines["peak memory"].split()
        size = {"B": 1, "KiB": 2**10, "MiB": 2**20}[unit]
        assert float(number.replace(",", "")) * size == pytest.approx(row["peak_bytes"], rel=5e-3)
        ActionChains(browser).move_to_element(browser.find_element("css selector", f"#{chart} h3")).perform()
        wait_for(browser, f"!{tip}")


def test_a_tip_says_what_its_chart_shows(browser: Any, quick: Path) -> None:
    from selenium.webdriver import ActionChains

    opened(browser, quick)
    titles = {"ranking": "geometric mean", "speedup": "speed-up", "latency": "median", "memory": "peak memory",
              "rate": "operations per second", "roofline": "operations per second", "drift": "beside its median"}  # fmt: skip
    tip = "document.querySelector('#vg-tooltip-element.visible')"
    for chart, title in titles.items():
        show(browser, chart)
        point = seen(browser, browser.find_element("css selector", f"#{chart}-chart .mark-symbol.role-mark path"))
        ActionChains(browser).move_to_element_with_offset(point, 1, 1).move_to_element(point).perform()
        lines = wait_for(browser, f"{tip} && {tip}.innerText.includes('{title}') && {tip}.innerText")
        assert not re.search("undefined|NaN|null|float32", lines), (chart, lines)
        ActionChains(browser).move_to_element(browser.find_element("css selector", f"#{chart} h3")).perform()
        wait_for(browser, f"!{tip}")


@pytest.mark.parametrize(("last", "said"), [(4.4e-3, {"median", "+10 %"}), (80e-3, {"10×", "20×"})])
def test_drift_is_told_as_the_first_screen_tells_it(browser: Any, tmp_path: Path, last: float, said: set[str]) -> None:
    looks = [{"at": 20.0 * i, "seconds": seconds} for i, seconds in enumerate((4e-3, 4e-3, last))]
    data = synthetic.document([synthetic.row("fused", synthetic.case(), [1e-3])])
    data["controls"] = {"drift": last / 4e-3 - 1, "looks": {"product": looks}}
    opened(browser, page.write(runs.read(synthetic.save(data, tmp_path, "0001_x")), tmp_path / "out"))
    show(browser, "drift")
    texts = "[...document.querySelectorAll('#drift-chart .role-axis-label text')].map((text) => text.textContent)"
    assert said <= set(browser.execute_script(f"return {texts}"))
    assert not browser.find_element("css selector", ".marks").is_displayed()  # here, dashed is no compiled form


def in_seconds(text: str) -> float:
    number, unit = text.split()
    return float(number.replace(",", "")) * {"s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[unit]


@pytest.mark.parametrize("ratio", [1.02, 1.6, 4, 30])
def test_logarithmic_axes_have_several_marks(browser: Any, tmp_path: Path, ratio: float) -> None:
    rows = [
        synthetic.row(name, synthetic.case(T=T), [1.9e-3 * factor], peak_bytes=int(2.9e6 * factor))
        for name, factor in (("fused", 1), ("sdpa", ratio)) for T in (64, 128)
    ]  # fmt: skip
    run = runs.read(synthetic.save(synthetic.document(rows), tmp_path, "0001_x"))
    opened(browser, page.write(run, tmp_path / "out"))
    for chart in ("latency", "memory"):
        show(browser, chart)
        texts = browser.execute_script(
            "return [...document.querySelectorAll(`#${arguments[0]}-chart .role-axis-label text`)]"
            ".filter((text) => +text.getAttribute('opacity') !== 0).map((text) => text.textContent)", chart
        )  # fmt: skip
        marked = [text for text in texts if " " in text]
        assert 3 <= len(marked) == len(set(marked)), (chart, texts)
        assert all(len(text) <= 10 for text in marked), marked


def test_what_is_saved_has_a_legend(browser: Any, quick: Path) -> None:
    opened(browser, quick)
    browser.execute_script(
        "URL.createObjectURL = (blob) => { window.blob = blob; return '#'; };"
        "HTMLAnchorElement.prototype.click = function () { window.saved = this.download; }"
    )
    choose(browser, "at_dtype", "bf16")
    seen(browser, browser.find_elements("css selector", "#latency-save button")[1]).click()
    name = wait_for(browser, "window.saved")
    svg = browser.execute_async_script("window.blob.text().then(arguments[0])")
    assert name == "latency.svg" and {"sdpa+compile", "mask_after_softmax"} <= set(re.findall(r">([^<>]+)</text>", svg))


#: A table's cell, or anything in a chart, that reaches beyond the edge of the screen or of the paper.
CUT = """const wide = arguments[0];
    return [...document.querySelectorAll('td, th, .chart svg, figure svg')].filter((it) => it.checkVisibility())
        .filter((it) => !it.closest('thead') || getComputedStyle(it.closest('thead')).position !== 'absolute')
        .filter((it) => it.getBoundingClientRect().right > wide + .5).map((it) => it.innerText || it.tagName)"""


def test_on_a_phone_no_number_is_cut(browser: Any, quick: Path) -> None:
    opened(browser, quick, width=390)
    assert browser.execute_script(CUT, 390) == []
    row = "document.querySelector('.case:not([hidden]) tbody tr')"
    assert ", n\xa0=\xa03" in browser.execute_script(f"return {row}.innerText")  # its uncertainty
    before = f"[...{row}.querySelectorAll('td')].map((it) => getComputedStyle(it, '::before').content)"
    assert '"between processes"' in browser.execute_script(f"return {before}")


def test_on_paper_nothing_is_cut(browser: Any, quick: Path) -> None:
    opened(browser, quick)
    paper = 703  # A4 less margins of 12 mm, in CSS pixels
    size = {"width": paper, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert browser.execute_script(CUT, paper) == []
        headings = [it.text for it in browser.find_elements("css selector", ".case thead th")]
        assert "between processes" in headings and any(text.startswith("speed-up over sdpa") for text in headings)
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "screen"})


@pytest.fixture(scope="module")
def axe() -> str:
    """axe-core's own script; skips where there is none."""
    if shutil.which("node") is None:
        pytest.skip("axe-core is found by node")
    where = os.pathsep.join([str(runs.CHECKOUT / "node_modules"), os.environ.get("NODE_PATH", "")])
    command = ["node", "-p", "require.resolve('axe-core/axe.min.js')"]
    done = subprocess.run(command, env=os.environ | {"NODE_PATH": where}, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("axe-core is not there: `npm install --no-save --no-package-lock axe-core`")
    return Path(done.stdout.strip()).read_text(encoding="utf-8")


@pytest.mark.parametrize("night", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("kind", ["quick", "pair"])
def test_nobody_is_kept_out(
    browser: Any, axe: str, kind: str, width: int, night: bool, request: pytest.FixtureRequest
) -> None:
    opened(browser, request.getfixturevalue(kind), width, night)
    browser.execute_script(axe)
    found = browser.execute_async_script("axe.run().then(({ violations }) => arguments[0](violations))")
    grave = [it for it in found if it["impact"] in ("serious", "critical")]
    assert [(it["id"], [node["html"][:160] for node in it["nodes"]][:4]) for it in grave] == []


def test_the_rows_can_be_had_from_the_page_alone(browser: Any, quick: Path) -> None:
    opened(browser, quick)
    browser.execute_script(
        "URL.createObjectURL = (blob) => { window.saved = blob; return '#'; };"
        "document.getElementById('download').click();"
    )
    text = browser.execute_async_script("window.saved.text().then(arguments[0])")
    with (quick.parent / "rows.csv").open(newline="") as file:
        beside = list(csv.DictReader(file))
    inside = list(csv.DictReader(io.StringIO(text)))
    assert [(row["impl"], row["id"], float(row["median"])) for row in inside] == [
        (row["impl"], row["id"], float(row["median"])) for row in beside
    ]


def test_dark_is_drawn_dark(browser: Any, quick: Path) -> None:
    colours = "[...document.querySelectorAll('#latency-chart .mark-line.role-mark path')].map((p) => p.getAttribute('stroke'))"
    opened(browser, quick)
    light = set(browser.execute_script(f"return {colours}"))
    opened(browser, quick, night=True)
    assert light.isdisjoint(browser.execute_script(f"return {colours}"))


def test_what_a_reader_chose_stays_when_night_falls(browser: Any, quick: Path) -> None:
    opened(browser, quick)
    choose(browser, "at_H", "1")
    points = marks(browser, "latency", "symbol")
    stroke = "document.querySelector('#latency-chart .mark-line.role-mark path').getAttribute('stroke')"  # drawn last
    by_day = browser.execute_script(f"return {stroke}")
    for mode, differs in (("dark", "!="), ("light", "==")):
        media = {"features": [{"name": "prefers-color-scheme", "value": mode}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        wait_for(
            browser,
            f"document.querySelector('#latency-chart .mark-line.role-mark path') && {stroke} {differs} '{by_day}'",
        )
        assert marks(browser, "latency", "symbol") == points
        assert browser.execute_script("return document.querySelector('select[name=at_H]').value") == "1"
    assert browser.get_log("browser") == []


def test_settings_without_a_cell_say_so(browser: Any, tmp_path: Path) -> None:
    cells = [(64, "none"), (256, "none"), (64, "causal"), (256, "causal"), (64, "padding")]
    rows = [
        synthetic.row("fused", synthetic.case(T=T, mask=mask, H=1 if mask == "padding" else 8), [1e-3])
        for T, mask in cells
    ]
    run = runs.read(synthetic.save(synthetic.document(rows), tmp_path, "0001_x"))
    opened(browser, page.write(run, tmp_path / "out"))
    said = "getComputedStyle(document.getElementById('latency-chart'), '::after').content"
    assert browser.execute_script(f"return {said}") == "none"
    choose(browser, "at_mask", "padding")  # what was measured there has one head
    chosen = "[...document.querySelectorAll('select[name^=at_]')].map((box) => box.value)"
    assert {"padding", "1"} <= set(browser.execute_script(f"return {chosen}")) and marks(
        browser, "latency", "symbol"
    ) == 1
    browser.execute_script("location.hash = 'mask=padding&H=8'")
    wait_for(browser, f"{said}.includes('Nothing was measured')")


def test_hostile_names_are_letters_and_nothing_else(browser: Any, tmp_path: Path) -> None:
    rows = [synthetic.row(name, synthetic.case(T=T), [1e-3 * T]) for name in EVIL for T in (64, 256)]
    path = page.write(
        runs.read(synthetic.save(synthetic.document(rows, registry=EVIL), tmp_path, "0001_x")), tmp_path / "out"
    )
    assert opened(browser, path) == []
    assert browser.title == "0001_x · attention-bench"
    shown = browser.execute_script(
        "return [...document.querySelectorAll('#latency-legend button')].map((button) => button.textContent)"
    )
    assert {'a"b', "注意力", "</script>", "it's ${x} \\ 'q'"} <= set(shown)


@pytest.mark.parametrize("rows", [0, 1])
def test_a_run_of_one_row_and_of_none_opens(browser: Any, rows: int, tmp_path: Path) -> None:
    data = synthetic.document([synthetic.row("fused", synthetic.case(), [1e-3])][:rows])
    path = page.write(runs.read(synthetic.save(data, tmp_path, "0001_x")), tmp_path / "out")
    assert opened(browser, path) == []
    assert marks(browser, "latency", "symbol") == rows


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of two runs of one sweep."""
    folder = tmp_path_factory.mktemp("pair")
    both = [runs.read(synthetic.save(synthetic.sweep(), folder, name)) for name in ("0001_a", "0002_b")]
    return side_by_side_page.write(both, folder / "out")


@pytest.mark.parametrize("width", [390, 1280])
def test_two_runs_stand_in_one_chart_and_one_can_be_chosen(browser: Any, pair: Path, width: int) -> None:
    from selenium.webdriver import ActionChains

    assert opened(browser, pair, width) == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    wide = "[...document.querySelectorAll('.sides td')].filter((it) => it.scrollWidth > it.clientWidth + 1)"
    assert browser.execute_script(f"return {wide}.length") == 0
    if width > 600:
        point = seen(browser, browser.find_element("css selector", "#latency-chart .mark-symbol.role-mark path"))
        ActionChains(browser).move_to_element_with_offset(point, 1, 1).move_to_element(point).perform()
        tip = "document.querySelector('#vg-tooltip-element.visible')"
        told = wait_for(browser, f"{tip} && {tip}.innerText")
        assert (
            {"sdpa, 0001_a", "sdpa, 0002_b"} & set(re.findall(r"[\w, +]+", told))
            and ", 0001_a" in told
            and ", 0002_b" in told
        )
    both = marks(browser, "latency", "line")
    choose(browser, "at_run", "0002_b")
    for chart in ("latency", "memory"):
        show(browser, chart)
        assert marks(browser, chart, "line") == both // 2


def test_history_and_comparison_show_all_that_they_say(browser: Any, tmp_path: Path) -> None:
    for i in range(8):
        data = tracked.run(i, {"sdpa": 1.2} if i > 4 else None, datetime=f"2026-11-{i + 1:02d}T10:00:00+00:00")
        tracked.save(data, tmp_path, f"{i + 1:04d}_night")
    assert main(["history", "--results", str(tmp_path), "--out", str(tmp_path)]) == 0
    base, head = (synthetic.timed_by_turns(seed, slower) for seed, slower in ((1, None), (2, {"sdpa": 1.09})))
    both = [str(synthetic.save(data, tmp_path / "two", name)) for data, name in ((base, "0001_a"), (head, "0002_b"))]
    main(["compare", *both, "--html", str(tmp_path / "compare.html")])
    size = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get((tmp_path / "history" / "index.html").as_uri())
    said = [it.text for it in browser.find_elements("css selector", ".cells figcaption")]
    assert len(said) == len(tracked.CASES) and all(text.startswith("Became slower by ") for text in said)
    browser.get((tmp_path / "compare.html").as_uri())
    assert browser.execute_script(
        "const it = document.querySelector('.scroll'); return it.scrollWidth <= it.clientWidth"
    )


def test_the_lengths_of_a_setting_are_all_drawn_where_they_are_few(browser: Any, tmp_path: Path) -> None:
    """Decoding beside forward: five pairs of lengths, of which no choice has more than three."""
    at = [{"T": T} for T in (64, 128)] + [{"T": 1, "T_kv": T_kv, "mode": "decode"} for T_kv in (64, 128, 256)]
    rows = [synthetic.row(name, synthetic.case(**axes), [1e-3] * 4) for axes in at for name in ("fused", "sdpa")]
    for row in rows:
        case = row["extra_info"]
        case["id"] = f"{case['mode']}-{case['T']}-{case['T_kv']}"
    written = page.write(runs.read(synthetic.save(synthetic.document(rows), tmp_path, "0001_x")), tmp_path / "out")
    opened(browser, written)
    texts = "[...document.querySelectorAll('#speedup-chart text')].map((text) => text.textContent)"
    shown = set(browser.execute_script(f"return {texts}"))
    assert {f"T = 1, T_kv = {T_kv}" for T_kv in (64, 128, 256)} <= shown
    assert "lengths are drawn" not in written.read_text()


def test_on_paper_a_name_keeps_its_swatch_and_a_heading_its_table(browser: Any, quick: Path) -> None:
    opened(browser, quick)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        style = "getComputedStyle(document.querySelector('{}')).{}"
        told = [style.format(*it) for it in (("tbody th > svg.dot", "position"), (".case", "breakInside"))]
        assert browser.execute_script(f"return [{', '.join(told)}]") == ["absolute", "avoid"]
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_level_is_marked_on_the_axis_of_every_panel_however_narrow(browser: Any, tmp_path: Path) -> None:
    times = (("fused", 1e-3), ("of_a_name_that_takes_room", 7e-3), ("sdpa", 1.1e-3))
    rows = [synthetic.row(name, synthetic.case(T=T), [s] * 4) for T in (64, 128, 256, 512) for name, s in times]
    written = page.write(runs.read(synthetic.save(synthetic.document(rows), tmp_path, "0001_x")), tmp_path / "out")
    opened(browser, written)
    script = """return [...document.querySelectorAll('#speedup-chart .role-axis-label text')]
        .filter((text) => text.textContent === '1\u00d7' && text.getAttribute('opacity') !== '0').length"""
    assert browser.execute_script(script) == 4


def test_most_of_a_ranking_lies_on_its_axis_and_no_number_is_cut(browser: Any, tmp_path: Path) -> None:
    """One is far ahead of all; the slowest is a thousand times as slow, and lacks a case."""
    lacking = "mask_after_softmax"
    seconds = {"fused": 1e-4, "a": 1.2e-3, "b": 2e-3, "c": 3e-3, "d": 4e-3, "e": 5e-3, lacking: 0.1}
    cases = [synthetic.case(T=T) for T in (64, 128)]
    rows = [
        synthetic.row(name, case, [s * (1 + i)] * 4)
        for i, case in enumerate(cases)
        for name, s in seconds.items()
        if not (i and name == lacking)
    ]
    written = page.write(runs.read(synthetic.save(synthetic.document(rows), tmp_path, "0001_x")), tmp_path / "out")
    for width in (390, 1280):
        opened(browser, written, width)
        texts, points, edge = browser.execute_script("""
            const box = (mark) => mark.getBoundingClientRect();
            const all = (what) => [...document.querySelectorAll(`#ranking-chart ${what}`)];
            return [all('.mark-text.role-mark text').map((text) => [text.textContent, box(text).right]),
                    all('.mark-symbol.role-mark path').map((path) => Math.round(box(path).left)),
                    box(all('svg')[0]).right]""")
        assert {text for text, _ in texts} == {"1.0×", "12×", "20×", "30×", "40×", "50×", "→ 1000× (1/2)"}
        assert all(right <= edge for _, right in texts) and len(set(points)) >= 6
