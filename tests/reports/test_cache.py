"""What is kept of many runs: the same as their files say, whatever became of the cache."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tracked_runs as tracked

from reports.__main__ import main
from reports.judging import cache
from reports.reading import runs
from reports.reading.runs import RunError


@pytest.fixture
def nights(results: Path) -> list[Path]:
    dated = ({"datetime": f"2026-11-{night + 1:02}T00:00:00"} for night in range(8))
    return [
        tracked.save({**tracked.run(night, {"sdpa": 1.0 if night < 4 else 1.3}), **date}, results, f"{night + 1:04}_night")
        for night, date in enumerate(dated)
    ]  # fmt: skip


@pytest.fixture
def page(results: Path, tmp_path: Path) -> Callable[[], tuple[bytes, bytes]]:
    """The page and its points, as the command writes them."""

    def written() -> tuple[bytes, bytes]:
        assert main(["history", "--results", str(results), "--out", str(tmp_path / "out")]) == 0
        folder = tmp_path / "out" / "history"
        return (folder / "index.html").read_bytes(), (folder / "points.csv").read_bytes()

    return written


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the run files that were read."""
    names: list[str] = []
    reading = runs.read
    monkeypatch.setattr(runs, "read", lambda path: (names.append(path.name), reading(path))[1])
    return names


def told(files: list[Path]) -> list[Any]:
    left_out: list[RunError] = []
    return [(one.run, one.cells.to_pydict()) for one in cache.read(files, left_out.append)]


def test_the_page_is_the_same_with_and_without_a_cache(nights: list[Path], page: Any, opened: list[str]) -> None:
    cold = page()
    assert len(opened) == 8 and (nights[0].parent / cache.NAME).is_file()
    assert page() == cold and len(opened) == 8
    assert b"became slower by" in cold[0]


def test_what_is_cached_is_what_the_files_say(nights: list[Path]) -> None:
    expected = [(one.run, one.cells.to_pydict()) for one in map(cache.kept, map(runs.read, nights))]
    assert told(nights) == expected and told(nights) == expected


def test_only_files_that_changed_are_read_again(nights: list[Path], opened: list[str]) -> None:
    told(nights)
    tracked.save(tracked.run(99, {"sdpa": 7.0}), nights[0].parent.parent, "0003_night")
    status = nights[5].stat()
    os.utime(nights[5], ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    opened.clear()
    again = told(nights)
    assert opened == ["0003_night.json", "0006_night.json"]
    assert again[2][1] == cache.kept(runs.read(nights[2])).cells.to_pydict()


def test_a_run_that_is_gone_is_forgotten(nights: list[Path], opened: list[str]) -> None:
    told(nights)
    nights.pop(2).unlink()
    assert [run.name for run, _ in told(nights)] == [path.stem for path in nights]
    assert "0003" not in str(list(cache._load(nights[0].parent / cache.NAME)))


@pytest.mark.parametrize("kind", ["empty", "text", "cut", "flipped", "folder", "other form"])
def test_a_damaged_cache_is_made_anew(kind: str, nights: list[Path], opened: list[str], monkeypatch: Any) -> None:
    expected = told(nights)
    path = nights[0].parent / cache.NAME
    whole = path.read_bytes()
    flipped = bytes([*whole[: len(whole) // 2], whole[len(whole) // 2] ^ 1, *whole[len(whole) // 2 + 1 :]])
    path.unlink()
    if kind == "folder":
        path.mkdir()
    else:
        path.write_bytes({"empty": b"", "text": b"{}", "cut": whole[:-9], "flipped": flipped}.get(kind, whole))
    if kind == "other form":
        monkeypatch.setattr(cache, "_FORM", ["another"])
    opened.clear()
    assert told(nights) == expected
    assert len(opened) == 8
    assert kind == "folder" or (told(nights) == expected and len(opened) == 8)


def test_where_nothing_can_be_written_nothing_is_cached(
    nights: list[Path], page: Any, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refused)
    once = page()
    assert sorted(path.name for path in nights[0].parent.iterdir()) == [path.name for path in nights]
    assert page() == once and capsys.readouterr().err == ""


def test_a_run_that_cannot_be_read_is_told_every_time(nights: list[Path]) -> None:
    nights[3].write_text("{", encoding="utf-8")
    for _ in range(2):
        left_out: list[RunError] = []
        assert len(cache.read(nights, left_out.append)) == 7
        assert "truncated" in str(left_out)


def test_the_cache_is_no_run(nights: list[Path], results: Path) -> None:
    told(nights)
    assert sorted(runs.newest_first(results)) == nights


def test_numbers_of_any_length_and_texts_in_place_of_numbers_are_kept(results: Path) -> None:
    data = tracked.run(1)
    data["benchmarks"][0]["extra_info"] |= {"B": 10**30, "T": "many", "case_hash": 7}
    path = tracked.save(data, results, "0001_odd")
    for _ in range(2):
        ((_, cells),) = told([path])
        assert json.loads(cells["axes"][0])["B"] in (10**30, 1e30) and cells["case_hash"][0] == "7"
