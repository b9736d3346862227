"""Journals of runs: found by name, and locked."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.runs import journal
from bench.runs.journal import Journal
from bench.selection.errors import UsageError


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
