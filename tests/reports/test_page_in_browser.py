"""The page as a reader meets it: opened from disk in a real browser that can't reach any network."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import synthetic_runs as synthetic

from reports import page, runs, side_by_side_page

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


def wait_for(browser: Any, condition: str) -> Any:
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 30, 0.05).until(lambda driver: driver.execute_script(f"return {condition}"))


def marks(browser: Any, chart: str, kind: str) -> int:
    """How many marks of a kind, `symbol`, `line` or `area`, stand in a chart's plot and are shown."""
    script = """return [...document.querySelectorAll(`#${arguments[0]}-chart .mark-${arguments[1]}.role-mark path`)]
        .filter((path) => path.getAttribute("d") && !path.classList.contains("background")).length"""
    return int(browser.execute_script(script, chart, kind))


def choose(browser: Any, name: str, label: str) -> None:
    """Sets one of the controls over the latency chart, as a reader does."""
    from selenium.webdriver.support.ui import Select

    box = browser.find_element("css selector", f"#latency-controls select[name='{name}']")
    Select(box).select_by_visible_text(label)


@pytest.mark.parametrize("night", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_every_chart_is_drawn_and_nothing_is_complained_about(
    browser: Any, quick: Path, width: int, night: bool
) -> None:
    assert opened(browser, quick, width, night) == []
    shown = {"latency": ("symbol", "line", "area"), "memory": ("symbol", "line"), "roofline": ("symbol", "line"),
             "drift": ("symbol", "line")}  # fmt: skip
    for chart, kinds in shown.items():
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
    before = marks(browser, "latency", "symbol"), marks(browser, "memory", "symbol")
    choose(browser, "at_H", "1")  # where those with a single head were measured too
    wait_for(browser, f"document.querySelectorAll('#memory-chart .mark-symbol.role-mark path').length != {before[1]}")
    assert marks(browser, "latency", "symbol") == marks(browser, "memory", "symbol") == before[0] + 6


def test_the_axis_and_its_scale_can_be_chosen(browser: Any, quick: Path) -> None:
    opened(browser, quick)
    ticks = "[...document.querySelectorAll('#latency-chart .role-axis-label text')].map((t) => t.textContent)"
    assert {"64", "256", "1,024"} <= set(browser.execute_script(f"return {ticks}"))
    choose(browser, "x_axis", "heads H")
    wait_for(browser, f"{ticks}.includes('8') && !{ticks}.includes('64')")
    assert marks(browser, "latency", "symbol") == 2 * 8 + 2  # eight have both H at the largest T, two only H = 1
    choose(browser, "x_axis", "tokens T")
    browser.find_element("css selector", "#latency-controls input[value='linear']").click()
    wait_for(browser, f"{ticks}.includes('0 ms')")


def test_a_click_in_the_legend_singles_one_out(browser: Any, quick: Path) -> None:
    opened(browser, quick)
    lines_drawn = "[...document.querySelectorAll('#latency-chart .mark-line.role-mark path')]"
    faint = f"{lines_drawn}.filter((path) => +path.getAttribute('opacity') < .5)"
    assert browser.execute_script(f"return {faint}.length") == 0
    labels = browser.find_elements("css selector", "#latency-chart .role-legend-label text")
    label = next(label for label in labels if label.text == "sdpa")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", label)
    label.click()
    wait_for(browser, f"{faint}.length == {marks(browser, 'latency', 'line') - 1}")


def test_hovering_tells_the_numbers(browser: Any, quick: Path) -> None:
    from selenium.webdriver import ActionChains

    opened(browser, quick)
    point = browser.find_element("css selector", "#latency-chart .mark-symbol.role-mark path")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", point)
    ActionChains(browser).move_to_element(point).perform()
    told = wait_for(browser, "document.querySelector('#vg-tooltip-element.visible')?.innerText")
    assert {"implementation", "median", "q1 to q3", "peak memory"} <= {
        line.split("\t")[0].strip(": ") for line in told.split("\n")
    }


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
    before = marks(browser, "memory", "symbol")
    choose(browser, "at_H", "1")
    wait_for(browser, f"document.querySelectorAll('#memory-chart .mark-symbol.role-mark path').length != {before}")
    points = marks(browser, "latency", "symbol")
    boxes = "document.querySelectorAll('#latency-controls select').length"
    controls = browser.execute_script(f"return {boxes}")
    stroke = "document.querySelector('#drift-chart .mark-line.role-mark path').getAttribute('stroke')"  # drawn last
    by_day = browser.execute_script(f"return {stroke}")
    for mode, differs in (("dark", "!="), ("light", "==")):
        media = {"features": [{"name": "prefers-color-scheme", "value": mode}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        wait_for(
            browser,
            f"document.querySelector('#drift-chart .mark-line.role-mark path') && {stroke} {differs} '{by_day}'",
        )
        assert marks(browser, "latency", "symbol") == marks(browser, "memory", "symbol") == points
        shown = browser.execute_script("return document.querySelector('#latency-controls select[name=at_H]').value")
        assert (shown, browser.execute_script(f"return {boxes}")) == ("1", controls)
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
    choose(browser, "at_mask", "padding")
    wait_for(browser, f"{said}.includes('Nothing was measured')")


def test_hostile_names_are_letters_and_nothing_else(browser: Any, tmp_path: Path) -> None:
    rows = [synthetic.row(name, synthetic.case(T=T), [1e-3 * T]) for name in EVIL for T in (64, 256)]
    path = page.write(
        runs.read(synthetic.save(synthetic.document(rows, shelf=EVIL), tmp_path, "0001_x")), tmp_path / "out"
    )
    assert opened(browser, path) == []
    assert browser.title == "0001_x · attention-bench"
    shown = browser.execute_script(
        "return [...document.querySelectorAll('#latency-chart .role-legend-label text')].map((t) => t.textContent)"
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
    assert opened(browser, pair, width) == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    both = marks(browser, "latency", "line")
    choose(browser, "at_run", "0002_b")
    for chart in ("latency", "memory"):
        wait_for(
            browser, f"document.querySelectorAll('#{chart}-chart .mark-line.role-mark path').length == {both // 2}"
        )
