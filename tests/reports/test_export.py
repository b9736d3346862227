"""Every export is read back by what it is made for."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from reports import CHECKOUT
from reports.__main__ import main

QUICK = CHECKOUT / "results" / "published" / "0001_quick.json"
TINY = Path(__file__).parent / "data" / "tiny.json"


def export(path: Path, *options: str) -> Path:
    assert main(["export", str(QUICK), str(TINY), "-o", str(path), *options]) == 0
    return path


@pytest.fixture(scope="module")
def saved() -> list[tuple[str, str, float]]:
    """(implementation, case, median seconds) of every row, from the files themselves."""
    found = [row for path in (QUICK, TINY) for row in json.loads(path.read_text(encoding="utf-8"))["benchmarks"]]
    return sorted((row["extra_info"]["impl"], row["extra_info"]["id"], row["stats"]["median"]) for row in found)


def test_parquet_and_csv_hold_every_row(tmp_path: Path, saved: list[tuple[str, str, float]]) -> None:
    for frame in (pd.read_parquet(export(tmp_path / "a.parquet")), pd.read_csv(export(tmp_path / "a.csv"))):
        assert sorted(zip(frame["impl"], frame["id"], frame["median"], strict=True)) == saved
        assert {"0001_quick", "tiny"} == set(frame["run"])


def test_openmetrics(tmp_path: Path, saved: list[tuple[str, str, float]]) -> None:
    text = export(tmp_path / "a.prom").read_text(encoding="utf-8")
    metrics = {it.name: it for it in text_string_to_metric_families(text)}
    samples = metrics["attention_bench_seconds"].samples
    assert sorted((it.labels["impl"], it.labels["id"], it.value) for it in samples) == saved
    assert metrics["attention_bench_peak_bytes"].unit == "bytes"


def test_records_of_pytorchs_hud(tmp_path: Path, saved: list[tuple[str, str, float]]) -> None:
    records = json.loads(export(tmp_path / "a.json", "--as", "hud").read_text(encoding="utf-8"))
    seconds = [it for it in records if it["metric"]["name"] == "seconds"]
    assert saved == sorted(
        (it["model"]["backend"], it["model"]["name"], *it["metric"]["benchmark_values"]) for it in seconds
    )


def test_a_badge(tmp_path: Path) -> None:
    badge = json.loads(export(tmp_path / "b.json", "--as", "badge").read_text(encoding="utf-8"))
    assert badge["message"].endswith("implementations proved, 1 wrong")
    assert (badge["schemaVersion"], badge["color"]) == (1, "red")


@pytest.mark.parametrize(
    ("path", "expected"),
    [("a.json", "its ending tells no form"), ("/dev/null/a.csv", "Not a directory")],
)
def test_mistakes(path: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(TINY), "-o", path]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line
