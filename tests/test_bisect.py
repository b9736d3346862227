"""`bisect` finds the right commit despite broken commits and wide intervals, and measures for longer where it must."""

import math
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from bench.ab import ab
from bench.ab.plan import SameCode
from bench.cases.outcome import Skip
from commands import bisect
from commands.bisect import Step, search, step_of
from reports.judging import comparison
from reports.judging.comparison import Cell, Change, Comparison
from stats.verdict import INCONCLUSIVE, NEW, REGRESSED, Verdict

COMMITS = 30
CHANGE = {("sdpa", "a"): math.log(1.05), ("sdpa", "b"): math.log(1.05)}


def found(base="base", head="head", **cells):
    """Return a comparison of sdpa's cells, each given by its ratio and the half-width of its interval."""
    made = []
    for name, (ratio, width) in cells.items():
        word = REGRESSED if math.log(ratio) > width else INCONCLUSIVE
        its = Verdict(word, "", ratio, ratio * math.exp(-width), ratio * math.exp(width))
        made.append(Cell("sdpa", name, its, 1, 1))
    return Comparison(base, head, 0.01, made, [], {}, [], {})


def test_the_first_slow_one_is_found_in_few_steps():
    asked = []

    def judge(at):
        asked.append(at)
        return Step(float(at >= culprit), 0.1)

    for culprit in range(1, COMMITS):
        assert search(COMMITS, judge) == (culprit - 1, culprit, [])
        assert len(asked) <= math.ceil(math.log2(COMMITS))
        asked.clear()


def test_commits_that_cannot_be_judged_are_skipped_and_reported():
    found = search(COMMITS, lambda at: Step(float(at >= 20), math.inf if at in {14, 15, 20} else 0.1))
    assert found == (19, 21, [20])


def test_a_share_of_nothing_has_no_sign():
    assert str(Step(-0.002, 0.001)) == "good: 0 % of the change (0 to 0)"
    assert str(Step(-0.08, 0.05)).startswith("good: −8 % of the change (−")


def test_a_step_weighs_its_cells_by_their_certainty():
    assert step_of(found(a=(1.05, 0.001), b=(1.0, 0.1)), CHANGE).share > 0.99
    assert step_of(found(c=(2.0, 0.01)), CHANGE) == bisect.UNKNOWN
    assert step_of(found(a=(1.05, 0.0)), CHANGE).word == "bad"  # all replicates agree, by a clock that counts in steps
    assert [bisect.Step(share, 0.1).word for share in (0.2, 0.6, 0.9)] == ["good", "undecided", "bad"]


def test_a_step_in_which_the_machine_drifted_is_open():
    drifted = replace(found(a=(1.05, 0.001)), unjudged="machine drift")
    assert step_of(drifted, CHANGE) == bisect.UNKNOWN


def run(typed):
    """Return the exit code of `python -m bench bisect ...`."""
    return bisect.main(typed.split())


class History:
    """Replaces `ab.measure`: commits c0 to c29 that are slow from c17 on, or interpreters. c14 is broken; c16 has c0's code."""

    def __init__(self):
        self.calls: list[tuple[str, str, float]] = []
        """Base, head and minutes of every comparison."""
        self.comparisons: dict[Path, Comparison] = {}

    def measure(self, given, results=None, once=""):
        assert once == "bisect"  # so that the same command measures nothing twice
        base, head = (given.get(name) or given[f"{name}_python"] for name in ("base", "head"))
        self.calls.append((base, head, given["budget"]))
        if head == "c14":
            raise Skip("it can't be imported")
        if (base, head) == ("c0", "c16"):
            raise SameCode(base, head)
        minutes = sum(it[2] for it in self.calls if it[:2] == (base, head)) if given["to_continue"] else given["budget"]
        cell = 1.05 if int(head[1:]) >= 17 > int(base[1:]) else 1.0, 0.024 / math.sqrt(minutes)
        self.comparisons[file := Path(f"{len(self.calls)}.json")] = found(base, head, a=cell, b=cell)
        return file


@pytest.fixture
def history(monkeypatch):
    made = History()
    monkeypatch.setattr(ab, "measure", made.measure)
    monkeypatch.setattr(comparison, "of_file", made.comparisons.get)
    monkeypatch.setattr(bisect, "commit_of", lambda revision: revision)
    monkeypatch.setattr(bisect, "subject_of", lambda commit: f"{commit} what it says")
    monkeypatch.setattr(bisect, "commits_between", lambda *_: [f"c{n}" for n in range(1, COMMITS)])
    return made


def test_the_culprit_is_compared_with_the_commit_before(history, capsys):
    assert run("c0 c29 --impl sdpa") == 0
    *_, end = capsys.readouterr().out.partition("the first that is slow: c17 what it says\nagainst c16 what it says:\n")
    assert "(c16 → c17)" in end
    assert history.calls[0] == ("c0", "c29", 2.0) and history.calls[-1] == ("c16", "c17", 1.0)


def test_interpreters_are_points_too(history, capsys):
    assert run("--pythons c0,c5,c29 --impl sdpa,fused --T 64") == 0
    assert "the first that is slow: c29\n" in capsys.readouterr().out
    assert [call[:2] for call in history.calls] == [("c0", "c29"), ("c0", "c5"), ("c5", "c29")]


def test_an_undecided_step_is_measured_for_longer(history):
    assert run("c0 c29 --impl sdpa --budget 0.2") == 0
    assert [budget for _, head, budget in history.calls if head == "c15"] == [0.2, 0.4]


def test_ends_that_were_measured_too_briefly_need_a_larger_budget(history, capsys):
    assert run("c0 c29 --impl sdpa --budget 0.1") == 2
    assert "at the bad end; --budget 0.2 measures for longer\n" in capsys.readouterr().out
    assert history.calls == [("c0", "c29", 0.2)]


def test_what_regressed_in_the_mean_alone_is_searched_in_all_its_cells(monkeypatch, history, capsys):
    def of_file(file):
        this = history.comparisons[file]
        return replace(this, implementations={"sdpa": Verdict(REGRESSED, "", 1.05, 1.01, 1.09)})

    monkeypatch.setattr(comparison, "of_file", of_file)
    assert run("c0 c29 --impl sdpa --budget 0.1") != 2
    assert "the first that is slow: c17" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ({"broken": True}, "`git bisect run python -m bench check ...`"),
        (
            {"changes": (Change("peak memory", 1, 2, worse=True),)},
            "`git bisect run python -m bench ab --base GOOD ...`",
        ),
        ({"verdict": Verdict(NEW, "")}, "no cell has a time at both\n"),  # a larger budget would not help
    ],
)
def test_what_else_is_wrong_at_the_bad_end_is_told(monkeypatch, history, capsys, what, says):
    this = found("c0", "c29", a=(1.0, 0.01))
    worse = replace(this, cells=[replace(cell, **what) for cell in this.cells])
    monkeypatch.setattr(comparison, "of_file", lambda file: worse)
    assert run("c0 c29") == 2
    assert f"at the bad end; {says}" in capsys.readouterr().out


@pytest.mark.parametrize("changed", [{"kernel": "2"}, {"margin": "0.02"}, {"torch": "b"}, {"python": "3.12"}], ids=str)
def test_what_was_measured_counts_until_something_of_it_changes(monkeypatch, tmp_path, changed):
    now = {"kernel": "1", "margin": "0.01", "torch": "a", "python": "3.11"}
    compare = mock.Mock(side_effect=lambda *_: {"seconds": 1.0})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ab, "compare", compare)
    monkeypatch.setattr(comparison, "of_file", lambda file: found(a=(1.0, 0.01)))
    monkeypatch.setattr("bench.ab.plan.fingerprint", lambda: {"torch": now["torch"], "allocator": {}})
    monkeypatch.setattr("bench.ab.plan.interpreter", lambda path: (path, now["python"]))
    for count in (1, 2):
        Path("mine.py").write_text(now["kernel"])
        for _ in range(2):
            assert run(f"--pythons p,q --T 16 --impl mine=mine:f --margin {now['margin']}") == 2
        assert compare.call_count == count
        now |= changed


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("HEAD", "give either two revisions, GOOD, which is fast, and BAD"),
        ("HEAD no-such", "unknown revision 'no-such'"),
        ("--pythons one", "or --pythons A,B,C, the good one first"),
        ("HEAD HEAD --pythons a,b", "give either two revisions"),
    ],
)
def test_usage_errors(typed, says, capsys):
    assert run(typed) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bench: error: ") and says in line
