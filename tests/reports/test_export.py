"""Every export is read back by what it is made for."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

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


@pytest.mark.parametrize(
    ("path", "expected"),
    [("a.json", "its ending should be one of .parquet, .csv"), ("/dev/null/a.csv", "/dev/null")],
)
def test_mistakes(path: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(TINY), "-o", path]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line
