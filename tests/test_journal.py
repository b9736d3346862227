"""Journals of killed processes, and runs that are resumed from them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.runs import begin, journal
from bench.runs.journal import Journal
from bench.selection.errors import UsageError
from bench.selection.options import settle_timing

from .conftest import CHECKOUT

KILLED = """
import os, signal, sys
from pathlib import Path
from bench.runs.journal import Journal

journal = Journal.start(Path(sys.argv[1]), "x", {"asked": {}})
journal.add({"visit": 1})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_its_lines_and_no_lock(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=CHECKOUT)
    assert done.returncode == -signal.SIGKILL
    path = journal.newest(tmp_path, "x")
    assert path and Journal(path).lines == [{"visit": 1}]


def test_the_newest_journal_of_a_name_is_opened_once_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "x.20990101T000000000000-1.journal").write_text('{"header"\n')  # of a bad disk
    assert journal.newest(tmp_path, "x") is None
    mine = Journal.start(tmp_path, "x", {"asked": {}})
    Journal.start(tmp_path, "x.y", {"asked": {}})
    assert journal.newest(tmp_path, "x") == mine.path
    with pytest.raises(UsageError, match="x is being measured right now"):
        Journal(mine.path)
    mine.close()
    assert Journal(mine.path).header == {"asked": {}}


def test_a_run_is_not_continued_under_other_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet, usual = {"cores": 1, "threads": 1, "torch": "2"}, {"cores": 8, "threads": 8, "torch": "2"}
    monkeypatch.setattr(begin, "fingerprint", lambda: usual)
    begin.refuse_other_conditions(usual, "x")
    with pytest.raises(UsageError, match=r"run x was started with cores 1, threads 1: .* the same --quiet-machine"):
        begin.refuse_other_conditions(quiet, "x")


def test_a_resumed_run_is_timed_as_it_was_begun() -> None:
    given = SimpleNamespace(cell_time=None, precision=0.5, cell_timeout=None, processes=None)
    config: Any = SimpleNamespace(option=given, getoption=lambda name: getattr(given, name))
    assert settle_timing(config, {"cell_time": 7.0, "precision": 0.1}) == {
        "cell_time": 7.0,  # as it was started
        "precision": 0.5,  # as requested now
        "cell_timeout": 300.0,  # the default
        "processes": 1,
    }
