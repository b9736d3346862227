"""A sweep in several fresh processes, saved as one run; and runs that end at the same time, or don't fit on the disk."""

import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from time import sleep
from unittest.mock import Mock

import pytest

import impls
from bench.cases.case import Case
from bench.cases.cells import Cell
from bench.runs import saving
from reports.reading.runs import parse
from stats.estimate import grouped

from .conftest import CHECKOUT, only_run, run_of, started

SMALL = ("--T", "16,24", "--H", "2", "--dtype", "float32", "--impl", "fused,sdpa", "--cell-time", "0.01")


def test_processes_become_one_run(tmp_path):
    printed = started(tmp_path, CHECKOUT / "bench", "sweep", "--processes=2", "--save=x", "--quiet-machine", *SMALL)
    data = only_run(tmp_path)
    assert f"saved: {tmp_path}/results/" in printed and len(data["benchmarks"]) == 4 and data["complete"]
    for row in data["benchmarks"]:
        seconds, columns = row["stats"]["data"], row["extra_info"]
        of_process = grouped(zip(columns["sample_processes"], seconds, strict=True))
        assert columns["process_medians"] == [median(of_process[process]) for process in (0, 1)]
        assert row["stats"]["median"] == pytest.approx(median(seconds))
        assert (columns["ratio"] == 1) is (columns["impl"] == data["baseline_impl"]) and columns["threads"] == 1
    machine = data["machine_info"]
    assert machine["cores"] == 1 and machine["allocator"]["MALLOC_MMAP_MAX_"] == "0"


def test_runs_that_end_at_once_take_different_numbers(tmp_path, monkeypatch):
    write = Path.write_text
    monkeypatch.setattr(Path, "write_text", lambda *given, **how: (sleep(0.02), write(*given, **how))[1])
    with ThreadPoolExecutor(4) as pool:
        files = [*pool.map(lambda i: saving.save(tmp_path, "x", {"run": i}), range(4))]
    assert sorted(file.name for file in files) == [f"{i:04}_x.json" for i in range(1, 5)]
    assert [json.loads(file.read_text())["run"] for file in files] == [*range(4)]


def test_the_file_number_10000_is_not_overwritten(tmp_path):
    (tmp_path / "9999_x.json").touch()
    saved = [saving.save(tmp_path, "x", {}) for _ in range(2)]
    assert [file.name for file in saved] == ["10000_x.json", "10001_x.json"]
    assert saving.run_files(tmp_path, "x") == [tmp_path / "9999_x.json", *saved]


def test_names_that_are_no_utf_8_can_be_read_again(tmp_path):
    path = saving.save(tmp_path, "x", {"project": "b\udcffd", "other": "é"})
    assert parse(path) == {"project": "b?d", "other": "é"}


def test_a_resumed_run_keeps_its_number_unless_another_was_saved_meanwhile(tmp_path):
    def saved(name, complete, journal="a"):
        return saving.save(tmp_path, name, {"complete": complete, "journal": journal}).name

    assert [saved("x", False), saved("x", False), saved("x", True)] == ["0001_x.json", "0002_x.json", "0001_x.json"]
    assert [saved("y", False), saved("x", True, "b"), saved("y", True)] == ["0002_y.json", "0003_x.json", "0004_y.json"]
    assert sorted(file.name for file in tmp_path.glob("*.json")) == ["0001_x.json", "0003_x.json", "0004_y.json"]


def test_a_disk_that_fills_up_ends_the_run_with_one_line(tmp_path, monkeypatch):
    cell = Cell(impls.get("sdpa"), Case.of(T=16, H=2, D_h=8))
    run = run_of(cell, folder=tmp_path, name="x")
    run.plan([cell.key])
    monkeypatch.setattr(saving.os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    with pytest.raises(pytest.exit.Exception, match="journal: No space left on device"):
        run.sample_machine()
    assert (run.unsaved.errno, run.unsaved.filename) == (errno.ENOSPC, str(run.journal.path))
