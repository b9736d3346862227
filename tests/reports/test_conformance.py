"""What is right where, by what `check --json` prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reports.__main__ import main


def found(torch: str, impl: str, problem: str, outcome: str, detail: str | None = None) -> dict[str, str | None]:
    return {"torch": torch, "impl": impl, "problem": problem, "outcome": outcome, "detail": detail}


def test_versions_stand_beside_each_other_where_they_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = [
        found("2.11", "a", "x", "passed"),
        found("2.11", "a", "y", "wrong", "off"),
        found("2.11", "b", "y", "error", "no"),
    ]
    new = [found("2.13", "a", "x", "passed"), found("2.13", "a", "y", "passed"), found("2.13", "b", "y", "error", "no")]
    files = [tmp_path / "old.json", tmp_path / "new.json"]
    for file, of_file in zip(files, (old, [*new, found("2.13", "b", "x", "unsupported")]), strict=True):
        file.write_text(json.dumps(of_file))
    assert main(["conformance", *map(str, files)]) == 0
    *introduction, empty = (lines := capsys.readouterr().out.splitlines())[:3]
    assert max(map(len, introduction)) <= 100 and not empty
    assert lines[3:] == [
        "| test problem | a | b |",
        "| --- | :-: | :-: |",
        "| x | ✓ | -· |",
        "| y | ✗✓ | ✗ |",
        "",
        "- `a`, y, torch 2.11: wrong: off",
        "- `b`, y, torch 2.11, 2.13: error: no",
    ]


def test_another_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_text('{"benchmarks": []}')
    assert main(["conformance", str(tmp_path / "x.json")]) == 3
    assert "no output of `python -m bench check --json`" in capsys.readouterr().err
