"""The pages as a reader meets them: opened from disk in a real browser that can't reach any network."""

import base64
import itertools
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import synthetic_runs as synthetic
import tracked_runs as tracked

from reports.__main__ import main
from reports.pages import page, side_by_side_page
from reports.pages.report import report
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


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for argument in (*ARGUMENTS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=str(DRIVER)))
    yield driver
    driver.quit()


@pytest.fixture(scope="module", autouse=True)
def pages_alone():
    """Leave out the figures, which take half of a page's time and are tested elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "_figures", lambda this, folder: ())
        yield


def made(folder, data, name="0001_x"):
    return page.write(report(runs.read(synthetic.save(data, folder, name))), folder / "out")


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """The page of twelve cases."""
    seconds = {"fused": 3e-6, "einsum": 4e-6, "sdpa": 1.1e-6, "sdpa+compile": 1e-6, "loop": 4e-5}
    data = synthetic.by_length(seconds, (64, 256, 1024), H=(1, 8), dtype=("float32", "bfloat16"))
    return made(tmp_path_factory.mktemp("quick"), data)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The page of two runs, of which one is slower."""
    folder = tmp_path_factory.mktemp("pair")
    data = [tracked.run(1), tracked.run(2, slower={"fused": 1.5})]
    both = [runs.read(synthetic.save(of, folder, name)) for of, name in zip(data, ("0001_a", "0002_b"), strict=True)]
    return side_by_side_page.write(both, folder / "out")


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    folder = tmp_path_factory.mktemp("history")
    for i in range(8):
        data = tracked.run(i, {"sdpa": 1.2} if i > 4 else None, datetime=f"2026-11-{i + 1:02d}T10:00:00+00:00")
        synthetic.save(data, folder, f"{i + 1:04d}_night")
    assert main(["history", "--results", str(folder), "--out", str(folder)]) == 0
    return folder / "history" / "index.html"


def opened(browser, path, width=1280, night=False):
    """Open it; returns the messages of the console."""
    media = {"features": [{"name": "prefers-color-scheme", "value": "dark" if night else "light"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get_log("browser")
    browser.get(path.as_uri())
    return [f"{line['level']}: {line['message']}" for line in browser.get_log("browser")]


def run(browser, script):
    return browser.execute_script(f"return {script}")


def shown(browser):
    """The case that is shown."""
    [case] = run(browser, "[...document.querySelectorAll('.case')].filter((it) => !it.hidden).map((it) => it.id)")
    return str(case)


def test_a_click_and_the_keyboard_choose_the_case(browser, quick):
    from selenium.webdriver import ActionChains, Keys

    opened(browser, quick)
    assert shown(browser) == "B1-T1024-H8-D_h64-float32-cpu"  # what takes longest
    cell = browser.find_element("css selector", "[data-to=c0]")
    cell.click()
    assert shown(browser) == "B1-T64-H1-D_h64-float32-cpu" and browser.current_url.endswith(
        "#B1-T64-H1-D_h64-float32-cpu"
    )
    ActionChains(browser).send_keys(Keys.ARROW_RIGHT, Keys.ARROW_DOWN).perform()
    assert shown(browser) == "B1-T64-H1-D_h64-bfloat16-cpu"
    assert (
        run(browser, "document.activeElement.closest('tr').rowIndex") == 4
    )  # below three lines of headings and the first
    assert run(browser, "document.querySelectorAll('.heat [tabindex=\"0\"]').length") == run(
        browser, "document.querySelectorAll('.heat').length"
    )
    browser.get(f"{quick.as_uri()}#B1-T256-H1-D_h64-float32-cpu")
    browser.refresh()
    assert shown(browser) == "B1-T256-H1-D_h64-float32-cpu"


def test_the_keyboard_reaches_no_cell_behind_the_names(browser, quick):
    from selenium.webdriver import ActionChains, Keys

    opened(browser, quick, width=390)
    browser.find_element("css selector", "[data-to=c0]").click()
    for key in [Keys.ARROW_RIGHT] * 11 + [Keys.ARROW_LEFT] * 11:
        ActionChains(browser).send_keys(key).perform()
        middle = "const { left, right, top, bottom } = document.activeElement.getBoundingClientRect();"
        seen = f"{middle} return document.elementFromPoint((left + right) / 2, (top + bottom) / 2)"
        assert browser.execute_script(f"{seen} === document.activeElement")


def test_columns_can_be_chosen_and_all_cases_shown(browser, quick):
    from selenium.webdriver.support.ui import Select

    opened(browser, quick)
    Select(browser.find_element("id", "view")).select_by_value("dtype")
    visible = "[...document.querySelectorAll('.heat')].filter((it) => it.checkVisibility())"
    assert run(browser, f"{visible}.length") == 1 and run(browser, f"{visible}[0].rows[0].cells.length") == 4
    for cell in browser.find_elements("css selector", "[data-view=dtype] tr:last-child [data-to]"):
        cell.click()
        assert shown(browser) in run(browser, "location.href") and cell.get_attribute("data-on") is not None
        on = browser.find_elements("css selector", "[data-view=dtype] tr:last-child [data-on]")
        assert on == [cell]
    Select(browser.find_element("id", "pick")).select_by_value("c11")  # no column's first
    assert len(browser.find_elements("css selector", "[data-view=dtype] tr:last-child [data-on]")) == 1
    browser.find_element("id", "every").click()
    assert run(browser, "[...document.querySelectorAll('.case')].filter((it) => it.checkVisibility()).length") == 12


CUT = """
    const wide = arguments[0];
    return [...document.querySelectorAll('td, th, figure svg')].filter((it) => it.checkVisibility() && !it.closest('.heat'))
        .filter((it) => !it.closest('thead') || getComputedStyle(it.closest('thead')).position !== 'absolute')
        .filter((it) => it.getBoundingClientRect().right > wide + .5).map((it) => it.innerText || it.tagName)"""


@pytest.mark.parametrize("kind", ["quick", "pair"])
def test_on_a_phone_no_number_is_cut(browser, kind, request):
    opened(browser, request.getfixturevalue(kind), width=390)
    assert browser.execute_script(CUT, 390) == []


SMALLEST = """
    return Math.min(...[...document.querySelectorAll('.plot text')].filter((it) => it.checkVisibility())
        .map((it) => parseFloat(getComputedStyle(it).fontSize) * it.getScreenCTM().a))"""


BEYOND = """
    const edges = (it) => it.getBoundingClientRect(), margin = 12;
    return [...document.querySelectorAll('.plot text')].filter((it) => it.checkVisibility())
        .filter((it) => edges(it).left < edges(it.closest('svg')).left
            || edges(it).right > edges(it.closest('figure, .drawing')).right + margin)
        .concat([...document.querySelectorAll('.of')].filter((it) => edges(it).right > edges(it.closest('.scroll')).right))
        .map((it) => it.textContent)"""


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The page of a run with all columns and a roofline chart, one name of which is as long as a chart shows any."""
    data = json.loads((runs.CHECKOUT / "results" / "published" / "0001_quick.json").read_text())
    for row in data["benchmarks"]:
        row["extra_info"]["impl"] = row["extra_info"]["impl"].replace("einsum", "mask_after_softmax_2")
    return made(tmp_path_factory.mktemp("published"), data)


@pytest.mark.parametrize("width", [390, 800, 900, 1000, 1280])
def test_charts_can_be_read(browser, published, width):
    opened(browser, published, width)
    browser.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")
    assert browser.execute_script(SMALLEST) >= 10  # pixels
    assert browser.execute_script(BEYOND) == []


def test_ticks_do_not_overlap(browser, quick, published, tmp_path):
    decode = json.loads((runs.CHECKOUT / "results" / "published" / "0007_decode.json").read_text())
    pages = [quick, published, made(tmp_path, decode)]
    for width, page_ in itertools.product((720, 800, 1000, 1001, 1280), pages):
        opened(browser, page_, width)
        browser.find_element("id", "every").click()
        ticks = """[...document.querySelectorAll('.of .ticks')].flatMap((of) => [...of.children]
            .map((it) => it.getBoundingClientRect()).filter((it) => it.width)
            .flatMap((it, i, all) => i ? [it.left - all[i - 1].right] : []))"""
        assert min(run(browser, ticks)) > 0, width
        beside = """[...document.querySelectorAll('.of th.d')].map((it) => {
            const heading = document.createRange();
            heading.selectNodeContents(it.nextElementSibling);
            const last = it.querySelector('.ticks :last-child');
            return heading.getBoundingClientRect().left - last.getBoundingClientRect().right })"""
        assert min(run(browser, beside)) > 3, width


@pytest.mark.parametrize("width", [390, 1280])
def test_sizes_under_a_chart_do_not_overlap(browser, width, tmp_path):
    opened(
        browser, made(tmp_path, synthetic.by_length({"sdpa": 1e-3, "fused": 2e-3}, T=range(1000, 32000, 1000))), width
    )
    sizes = """[...document.querySelectorAll('.plot text[text-anchor=middle]')].map((it) => it.getBoundingClientRect())
        .flatMap((it, i, all) => i && all[i - 1].top === it.top ? [it.left - all[i - 1].right] : [])"""
    gaps = run(browser, sizes)
    assert len(gaps) >= 6 and min(gaps) > 0


@pytest.mark.parametrize("width", [720, 1280])
def test_a_long_message_hides_no_number(browser, width, tmp_path):
    data = synthetic.by_length({"sdpa": 1e-3, "fused": 2e-3})
    data["skipped"] = [{"impl": "mine", "id": row["extra_info"]["id"], "reason": "error", "detail": "x" * 300}
                       for row in data["benchmarks"][::2]]  # fmt: skip
    data["notes"] = ["n" * 300]
    opened(browser, made(tmp_path, data), width)
    assert browser.execute_script(BEYOND) == []
    assert run(browser, "document.documentElement.scrollWidth") <= width


def test_a_copied_heat_map_has_a_line_for_each_implementation(browser, quick):
    opened(browser, quick)
    run(browser, "getSelection().selectAllChildren(document.querySelector('.heat tbody'))")
    lines = run(browser, "getSelection().toString().trim().split('\\n')")
    assert len(lines) == run(browser, "document.querySelector('.heat tbody').rows.length")
    assert {line.count("\t") for line in lines} == {13}  # mean and twelve cases


def of_a_gpu(folder):
    data = json.loads((runs.CHECKOUT / "results" / "published" / "0004_length.json").read_text())
    data["machine_info"]["gpu"] = "NVIDIA H100 80GB HBM3"
    for row in data["benchmarks"]:
        row["extra_info"] |= {"device": "cuda", "device_s": row["stats"]["median"] / 2}
    return made(folder, data)


def of_a_long_name(folder):
    return made(folder, synthetic.by_length({"sdpa": 1e-3, "a_long_name_of_a_kernel_" * 3: 2e-3}))


def of_changes_between_two_implementations(folder):
    both = json.dumps([tracked.run(1), tracked.run(2, slower={"sdpa": 0.753})]).replace(
        '"sdpa"', '"sdpa against fused"'
    )
    named = [runs.read(synthetic.save(data, folder, f"000{i}_x")) for i, data in enumerate(json.loads(both))]
    return side_by_side_page.write(named, folder / "out")


@pytest.mark.parametrize(
    ("page_", "width"),
    [(of_a_gpu, 1280), (of_a_long_name, 720), (of_a_long_name, 1280), (of_changes_between_two_implementations, 800)],
)
def test_a_table_fits_into_its_card(browser, page_, width, tmp_path):
    opened(browser, page_(tmp_path), width)
    wider = "[...document.querySelectorAll('.of, .changes')].map((it) => it.scrollWidth - it.parentElement.clientWidth)"
    assert max(run(browser, wider)) <= 0


def test_without_javascript_every_case_has_its_title(browser, quick):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        opened(browser, quick)
        assert run(browser, "document.querySelectorAll('#pick, #every')[0].checkVisibility()") is False
        titles = "[...document.querySelectorAll('.case h3')].filter((it) => it.checkVisibility())"
        assert run(browser, f"{titles}.length") == 12
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


@pytest.mark.parametrize("kind", ["quick", "published", "pair", "history"])
def test_on_paper_nothing_is_cut(browser, kind, request):
    opened(browser, request.getfixturevalue(kind))
    paper = 1032  # A4 landscape, less margins of 12 mm, in CSS pixels
    size = {"width": paper, "height": 700, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert browser.execute_script(CUT.replace(" && !it.closest('.heat')", ""), paper) == []
        heights = run(browser, "[...document.querySelectorAll('.heat tbody th')].map((it) => it.offsetHeight)")
        assert max(heights, default=0) <= 30  # one line
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "screen"})


def test_on_paper_a_history_leaves_no_page_half_empty(browser, history):
    opened(browser, history)
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
    pages = len(re.findall(rb"/Type /Page\b", base64.b64decode(printed["data"])))
    assert pages <= 4  # four charts, each with a table


@pytest.fixture(scope="module")
def axe():
    """axe-core's own script; nothing where there is none."""
    if shutil.which("node") is None:
        return ""
    where = os.pathsep.join([str(runs.CHECKOUT / "node_modules"), os.environ.get("NODE_PATH", "")])
    command = ["node", "-p", "require.resolve('axe-core/axe.min.js')"]
    done = subprocess.run(command, env=os.environ | {"NODE_PATH": where}, capture_output=True, text=True)
    if done.returncode:
        return ""
    return Path(done.stdout.strip()).read_text()


@pytest.mark.parametrize(("width", "night"), [(390, False), (1280, True)])
@pytest.mark.parametrize("kind", ["quick", "pair", "history"])
def test_a_page_has_no_errors_fits_and_is_accessible(browser, axe, kind, width, night, request):
    assert opened(browser, request.getfixturevalue(kind), width, night) == []
    assert run(browser, "document.documentElement.scrollWidth") <= width
    if not axe:
        pytest.skip("axe-core is not there: `npm install --no-save --no-package-lock axe-core`")
    browser.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")
    browser.execute_script(axe)
    found = browser.execute_async_script("axe.run().then(({ violations }) => arguments[0](violations))")
    grave = [it for it in found if it["impact"] in ("serious", "critical")]
    assert [(it["id"], [node["html"][:160] for node in it["nodes"]][:4]) for it in grave] == []


@pytest.mark.parametrize("rows", [0, 1])
def test_a_run_of_one_row_and_of_none_opens(browser, rows, tmp_path):
    data = synthetic.document([synthetic.row("fused", synthetic.case(), [1e-3])][:rows])
    assert opened(browser, made(tmp_path, data)) == []
    assert run(browser, "document.querySelectorAll('.case tbody tr').length") == rows
