"""Notebooks get frames with documented columns, and pages."""

import re
from html import escape
from pathlib import Path

import pytest
import synthetic_runs as synthetic
from conftest import TINY

import attention_bench
from reports import CHECKOUT
from reports.reading.runs import RunError

TUTORIAL = CHECKOUT / "results" / "published" / "0005_tutorial.json"


def test_every_column_of_a_frame_is_documented():
    documented = set(re.findall(r"`(\w+)`", (CHECKOUT / "docs" / "columns.md").read_text()))
    assert set(attention_bench.frame(TUTORIAL)) <= documented


def test_a_run_is_found_by_name_or_is_the_newest(results, tiny_data):
    synthetic.save(tiny_data, results, "0001_x")
    assert len(attention_bench.frame("x", results)) == len(attention_bench.frame(None, str(results))) == 8
    with pytest.raises(RunError, match="no run 'y'"):
        attention_bench.frame("y", results)


def test_an_error_names_the_command_that_is_installed(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTENTION_BENCH_COMMAND", "1")
    with pytest.raises(RunError, match="with: attention-bench run --benchmark-save=NAME"):
        attention_bench.frame(results=tmp_path)


def test_the_page_is_shown_whole():
    shown = attention_bench.show(TINY)
    assert shown.html.startswith("<!doctype html>") and repr(shown) == "Page()"
    assert shown._repr_html_().removeprefix('<iframe srcdoc="').partition('"')[0] == escape(shown.html)


def test_a_users_folder_that_shadows_the_suite_is_named(monkeypatch):
    monkeypatch.setattr(attention_bench, "_HOME", Path("/elsewhere"))
    with pytest.raises(ImportError, match=r"shadows the suite's own 'stats'; rename it"):
        _ = attention_bench.frame


def test_an_unknown_attribute_is_an_error():
    with pytest.raises(AttributeError, match="has no attribute 'fram'"):
        _ = attention_bench.fram
