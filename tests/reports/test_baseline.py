"""`python -m reports baseline`: changes by command only, and to a regressed run only with a reason."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import synthetic_runs as synthetic
import tracked_runs as tracked

from reports.__main__ import main
from reports.reading import baseline_file, runs


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    return


@pytest.fixture
def saved(results: Path) -> Path:
    """The folder of a machine with a run, an equal one, one with a slower sdpa, and one with a slower one still."""
    for name, seed, factor in (("0001_first", 1, 1.0), ("0002_same", 2, 1.0), ("0003_slow", 3, 1.1)):
        path = tracked.save(tracked.run(seed, slower={"sdpa": factor}), results, name)
    return path.parent


@pytest.fixture
def baseline(results: Path) -> Any:
    return lambda *arguments: main(["baseline", *arguments, "--results", str(results)])


def current(folder: Path) -> str:
    found = baseline_file.read(folder)
    assert found is not None
    return found.current.run


def test_a_run_becomes_the_baseline_and_shows(saved: Path, baseline: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert baseline("set", "first") == 0
    assert current(saved) == "0001_first.json"
    assert baseline("show") == 0
    out = capsys.readouterr().out
    assert "0001_first" in out and saved.name in out


def test_no_baseline_yet_says_how_to_set_one(saved: Path, baseline: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert baseline("show") == 0
    assert "python -m reports baseline set RUN" in capsys.readouterr().out


def test_a_regressed_run_needs_a_reason(saved: Path, baseline: Any, capsys: pytest.CaptureFixture[str]) -> None:
    baseline("set", "first")
    capsys.readouterr()
    assert baseline("set", "slow") == 1
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert "sdpa is slower by 10%" in captured.err and "--accept" in captured.err
    assert current(saved) == "0001_first.json"


def test_an_accepted_reason_is_kept_and_shown(saved: Path, baseline: Any, capsys: pytest.CaptureFixture[str]) -> None:
    baseline("set", "first")
    assert baseline("set", "slow", "--accept", "needed  for <b>correctness</b>\n「正しさ」") == 0
    found = baseline_file.read(saved)
    assert found is not None
    assert [entry.run for entry in found.history] == ["0001_first.json", "0003_slow.json"]
    assert found.current.reason == "needed for <b>correctness</b> 「正しさ」"
    assert found.current.accepted == ("sdpa is slower by 10%",)
    baseline("show")
    assert "because: needed for <b>correctness</b> 「正しさ」" in capsys.readouterr().out


def test_an_unregressed_run_needs_none(saved: Path, baseline: Any) -> None:
    baseline("set", "first")
    assert baseline("set", "same") == 0
    assert current(saved) == "0002_same.json"


def test_setting_it_again_adds_no_history(saved: Path, baseline: Any, capsys: pytest.CaptureFixture[str]) -> None:
    baseline("set", "first")
    assert baseline("set", "first") == 0
    assert "already" in capsys.readouterr().out
    assert len(json.loads((saved / "baseline").read_text())["history"]) == 1


def test_an_older_file_is_read_and_no_json_is_left_that_is_no_run(saved: Path, baseline: Any) -> None:
    """`pytest-benchmark list` reads every *.json as a run."""
    baseline("set", "first")
    (saved / "baseline").rename(saved / "baseline.json")
    assert baseline("set", "same") == 0
    assert len(json.loads((saved / "baseline").read_text())["history"]) == 2
    assert all(file.name.startswith("000") for file in saved.glob("*.json"))


def test_compare_with_one_run_takes_the_baseline(
    saved: Path, results: Path, baseline: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline("set", "first")
    assert main(["compare", "slow", "--results", str(results)]) == 1
    assert "0001_first → 0003_slow" in " ".join(capsys.readouterr().out.split())
    assert current(saved) == "0001_first.json"  # comparing doesn't move it


def test_run_finders_do_not_take_it_for_a_run(saved: Path, results: Path, baseline: Any) -> None:
    baseline("set", "first")
    assert [path.stem for path in runs.newest_first(results)] == ["0003_slow", "0002_same", "0001_first"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"complete": False}, "it is not complete"),
        ({"machine_info": {**synthetic.MACHINE, "cores": 64}}, "0001_first is of another machine: cores (2, then 64)"),
    ],
)
def test_other_changes_that_need_a_reason(
    changes: dict[str, Any], told: str, saved: Path, results: Path, baseline: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline("set", "first")
    tracked.save(tracked.run(4, **changes), results, "0004_odd")
    assert baseline("set", "odd") == 1
    assert told in capsys.readouterr().err
    assert baseline("set", "odd", "--accept", "so be it") == 0


def test_a_run_whose_code_has_all_changed_needs_a_reason_too(
    results: Path, baseline: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    tracked.save(tracked.run(1), results, "0001_first")
    tracked.save(tracked.run(2, slower=dict.fromkeys(tracked.IMPLS, 2.0)), results, "0002_all")
    baseline("set", "first")
    assert baseline("set", "all") == 1 and "nothing could be judged" in capsys.readouterr().err


def test_a_baseline_whose_run_is_gone_needs_a_reason(
    saved: Path, baseline: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline("set", "first")
    (saved / "0001_first.json").unlink()
    assert baseline("set", "same") == 1
    assert "0001_first.json, can't be read" in capsys.readouterr().err


def test_more_memory_and_wrong_answers_need_a_reason_too(
    saved: Path, results: Path, baseline: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline("set", "first")
    tracked.save(tracked.run(4, extra={"peak_bytes": 2**22}), results, "0004_fat")
    tracked.save(tracked.without(tracked.run(5), "sdpa", "wrong", "off"), results, "0005_wrong")
    assert baseline("set", "fat") == 1 and "needs more memory at" in capsys.readouterr().err
    assert baseline("set", "wrong") == 1 and "sdpa is broken at" in capsys.readouterr().err


def test_a_run_that_could_not_be_judged_needs_a_reason_too(
    saved: Path, results: Path, baseline: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline("set", "first")
    tracked.save(tracked.run(4, processes=1), results, "0004_moved")
    assert baseline("set", "moved") == 1
    assert "nothing could be judged against 0001_first, so a slow-down may have been missed" in capsys.readouterr().err
    assert baseline("set", "moved", "--accept", "another way of timing") == 0


def test_published_runs_are_no_baseline(results: Path, baseline: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (results / "published").mkdir()
    (results / "published" / "0001_x.json").write_text(json.dumps(tracked.run(1)))
    assert baseline("set", "x") == 3
    assert "a baseline is a saved run" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 1}', '{"schema": 2, "history": [{"run": "a", "at": "b"}]}',
                                  '{"schema": 1, "history": []}', '{"schema": 1, "history": [3]}'])  # fmt: skip
def test_a_broken_baseline_file_is_named(
    text: str, saved: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (saved / "baseline.json").write_text(text)
    for arguments in (["baseline", "show"], ["baseline", "set", "same"], ["compare", "same"]):
        assert main([*arguments, "--results", str(results)]) == 3
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and "baseline.json: not a baseline file" in err


@pytest.mark.parametrize("arguments", [[], ["set"], ["move", "x"], ["set", "first", "--accept", " "], ["set", "nope"]])
def test_usage_errors_are_one_line_and_exit_code_3(
    arguments: list[str], saved: Path, baseline: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = baseline(*arguments)
    except SystemExit as stopped:
        code = stopped.code
    assert code == 3 and capsys.readouterr().err.count("\n") == 1
