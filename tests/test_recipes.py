"""The recipes of docs/architecture.md, each followed in a copy of the checkout, in as many files as it says."""

import re
import shutil
import tomllib
from itertools import product
from pathlib import Path

import pytest

from bench.cases import case
from bench.runs.remaining import seconds_of_call
from bench.timing.devices import DEVICES, default_device, free_bytes
from bench.timing.devices.cpu import CpuMeter
from bench.timing.devices.device import Device
from bench.timing.machine import fingerprint
from stats import axes

from .conftest import CHECKOUT, only_run, started
from .test_readme import block

AXIS = """    stride: int | None = axis("keys from one that a query sees to the next", label="stride", default=None)
"""
SECTION = """

def _spread(measured: Sequence[Row]) -> Table:
    rows = [(row["impl"], f"{row['spread']:.3f}") for row in measured]
    return Table("Spread of each cell", ("implementation", "spread"), rows)
"""
MODE = """    "twice": Mode(),  # o = layer(x), under another name
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """Return a copy with another implementation, axis and mode, each added as its recipe says."""
    copy = tmp_path_factory.mktemp("checkout")
    for package in ("impls", "bench", "stats", "reports", "commands"):
        shutil.copytree(CHECKOUT / package, copy / package)
    shutil.copy(CHECKOUT / "pyproject.toml", copy)
    (copy / "impls" / "additive.py").write_text(block("stays"))
    insert(copy / "impls" / "__init__.py", "    sdpa,\n", "    additive,\n")
    insert(copy / "bench" / "cases" / "modes.py", "MODES = {\n", MODE)
    insert(copy / "stats" / "axes.py", r"    out_bias: bool = axis\(.*\)\n", AXIS)
    more = copy / "reports" / "pages" / "more.py"
    insert(more, r"    found = \[\n", "        _spread(rows),\n")
    more.write_text(more.read_text() + SECTION)
    options = "--impl additive,fused --T 32 --H 2 --dtype float32 --mode forward,twice --stride 4,8 --precision 0.5"
    started(copy, "-m", "pytest", "bench", "--benchmark-save=x", *options.split())
    return copy


def insert(path, behind, line):
    """Insert a line after the matching one."""
    text = path.read_text()
    (found,) = re.finditer(behind, text)
    path.write_text(text[: found.end()] + line + text[found.end() :])


def test_an_implementation_is_one_file_of_a_few_lines_and_one_name(checkout):
    data = only_run(checkout)
    assert {row["extra_info"]["impl"] for row in data["benchmarks"]} == {"additive", "fused"}
    assert "additive" in data["registry"]  # and part of every sweep, as is all that does not say otherwise


def test_an_axis_and_a_mode_are_a_line_each(checkout):
    rows = [row["extra_info"] for row in only_run(checkout)["benchmarks"]]
    assert {(row["stride"], row["mode"]) for row in rows} == {*product((4, 8), ("forward", "twice"))}
    assert all(f"stride={row['stride']}" in row["id"] for row in rows)


@pytest.fixture(scope="module")
def page(checkout):
    return Path(started(checkout, "-m", "reports").splitlines()[-2])


def test_a_section_of_the_page_is_one_function(page):
    assert "<summary>Spread of each cell</summary>" in page.read_text()


def test_reports_know_the_axis(checkout, page):
    html = page.read_text()
    assert "fp32 causal stride=4 forward" in html  # in tables
    assert '<option value="stride">' in html and "Along stride" in html  # to be chosen, and as what lines run along
    assert "stride=8" in started(checkout, "-m", "reports", "advise", "--stride", "8", "--mode", "twice")
    assert "stride" in (page.parent / "rows.csv").read_text().splitlines()[0].split(",")


def test_a_device_is_one_object(monkeypatch):
    assert tuple(DEVICES) == axes.DEVICES
    known = {"npu": "NPU 9"}
    npu = Device(lambda: True, lambda: known, lambda: 7 << 30, CpuMeter)
    monkeypatch.setitem(DEVICES, "npu", npu)
    assert fingerprint().items() >= known.items()
    assert (free_bytes("npu"), default_device()) == (7 << 30, "npu")
    takes = {name: seconds_of_call(case.Case.of(T=4096, H=8, D_h=64, device=name)) for name in DEVICES}
    assert takes["npu"] == takes["cuda"] < takes["cpu"]


def test_the_diagram_of_packages_is_the_import_contract():
    text = (CHECKOUT / "docs" / "architecture.md").read_text()
    tools = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]
    layers = {it["containers"][0]: it["layers"] for it in tools["importlinter"]["contracts"] if "containers" in it}
    assert layers.keys() == {"bench", "reports"}
    for package, names in layers.items():
        assert f"{package + ':':<9} {' -> '.join(names)}\n" in text
        side_by_side = {name for layer in names for name in layer.split(" | ")}
        assert {path.parent.name for path in (CHECKOUT / package).glob("*/__init__.py")} == side_by_side
