"""`bisect` finds the right commit despite broken commits and noise, and measures nothing twice."""

from __future__ import annotations

import argparse
import json
import math
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bench.ab import ab
from bench.ab.plan import Plan, Record, SameCode, conditions, digest_of_own
from bench.cases.outcome import Skip
from bench.workers.client import Setting, Variant
from commands import bisect
from commands.bisect import Step, search, step_of
from reports.judging.comparison import Cell, Comparison
from stats.verdict import Verdict

COMMITS = 30
CHANGE = {("sdpa", "a"): math.log(1.05), ("sdpa", "b"): math.log(1.05)}


def found(**cells: tuple[float, float]) -> Comparison:
    """Return a comparison of sdpa's cells, each given by its ratio and the half-width of its interval."""
    made = [
        Cell("sdpa", name, Verdict("x", "", ratio, ratio * math.exp(-width), ratio * math.exp(width)), 1, 1, (4, 4))
        for name, (ratio, width) in cells.items()
    ]
    return Comparison("base", "head", 0.01, made, [], {}, [])


def test_the_first_slow_one_is_found_in_few_steps() -> None:
    asked: list[int] = []

    def judge(at: int) -> Step:
        asked.append(at)
        return Step(float(at >= culprit), 0.1)

    for culprit in range(1, COMMITS):
        assert search(COMMITS, judge) == (culprit - 1, culprit, [])
        assert len(asked) <= math.ceil(math.log2(COMMITS))
        asked.clear()


@pytest.mark.parametrize(("culprit", "found"), [(20, (19, 21, [20])), (3, (2, 3, []))])
def test_commits_that_cannot_be_judged_are_skipped_and_reported(
    culprit: int, found: tuple[int, int, list[int]]
) -> None:
    broken = {14, 15, 20}
    assert search(COMMITS, lambda at: bisect.UNKNOWN if at in broken else Step(float(at >= culprit), 0.1)) == found


def test_a_step_weighs_its_cells_by_their_certainty() -> None:
    assert step_of(found(a=(1.05, 0.01), b=(1.05, 0.01)), CHANGE).share == pytest.approx(1.0)
    assert step_of(found(a=(1.0, 0.01)), CHANGE).share == pytest.approx(0.0)
    assert step_of(found(a=(1.05, 0.001), b=(1.0, 0.1)), CHANGE).share > 0.99
    assert step_of(found(c=(2.0, 0.01)), CHANGE) == bisect.UNKNOWN


@pytest.fixture(autouse=True)
def no_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the handlers of signals, which commands replace."""
    monkeypatch.setattr("signal.signal", lambda *_: None)


Calls = list[tuple[str, str, float]]
"""Base, head and minutes of every comparison that was measured."""


@dataclass
class History:
    """Commits c0 to c29, slow from c17 on, c14 broken, or interpreters; each comparison is noisy, with ten replicates a
    minute.
    """

    calls: Calls = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of interpreters."""
    interrupted: bool = False
    noise: random.Random = field(default_factory=lambda: random.Random(0))

    def measured(self, *arguments: str) -> Calls:
        """Bisect; returns the comparisons that were measured for it, less those with the broken commit."""
        known = len(self.calls)
        bisect.main(arguments)
        return [call for call in self.calls[known:] if call[1] != "c14"]

    def plan_of(self, options: argparse.Namespace, folder: Path) -> Plan:
        base, head = (Variant(it) for it in (options.base or options.base_python, options.head or options.head_python))
        if base.label == head.label:
            raise SameCode(base.label, head.label)
        code = [self.versions.get(it.label, "") for it in (base, head)]
        given = digest_of_own(filter(None, (options.cases, *(() if in_tree() else options.impl))))
        same = {"code": code, "files": given} | json.loads(json.dumps(conditions()))
        variants = {"base": base, "head": head}
        return Plan(variants, {}, (), False, Setting("."), 0.01, 60 * options.budget, 1, same)

    def compare(self, plan: Plan, before: Any, keep: Any) -> Record:
        base, head = (it.label for it in plan.variants.values())
        if self.interrupted and len(self.calls) == 3:
            raise KeyboardInterrupt
        self.calls.append((base, head, plan.seconds / 60))
        if head == "c14":
            raise Skip("it can't be imported")
        slow = int(head[1:]) >= 17 > int(base[1:])
        blocks = {"cell": [0, 0], "side": [0, 1], "seconds": [1e-3, 1e-3]}
        pairs = [
            *before,
            *(
                {"logs": [["sdpa", name, self.noise.gauss(0.05 * slow, 0.004)] for name in "ab"], "seconds": 1.0,
                 "blocks": blocks}
                for _ in range(round(plan.seconds / 6))
            ),
        ]  # fmt: skip
        facts = {variant: {"kernel": "math" if slow and variant == "head" else "flash"} for variant in ("base", "head")}
        to_judge = {"impl": "sdpa", "failed": [], "word": "", "reason": "", "ratio": 1.0} | facts
        cells = [{"id": name} | to_judge for name in "ab"]
        return {"sides": {"base": {"label": base}, "head": {"label": head}}, "cells": cells, "pairs": pairs,
                "margin": 0.01, "threads": 1, "seed": 1, "seconds": 1.0, "neither": [], "same": plan.same,
                "fingerprints": {"base": {}, "head": {}}}  # fmt: skip


def in_tree() -> bool:
    """Whether revisions have the user's modules."""
    return Path(".git").exists()


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> History:
    made = History()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ab, "plan_of", made.plan_of)
    monkeypatch.setattr(ab, "compare", made.compare)
    monkeypatch.setattr(bisect, "commit_of", lambda revision, root: revision)
    monkeypatch.setattr(bisect, "subject_of", lambda commit, root: f"{commit} what it says")
    monkeypatch.setattr(bisect, "commits_between", lambda *_: [f"c{n}" for n in range(1, COMMITS)])
    return made


def test_the_culprit_is_reported_with_what_changed(history: History, capsys: pytest.CaptureFixture[str]) -> None:
    assert bisect.main(["c0", "c29", "--impl", "sdpa"]) == 0
    text = capsys.readouterr().out
    assert "the first that is slow: c17 what it says" in text
    assert (
        "against c16 what it says:\nsdpa is 5." in text
        and "REGRESSED    sdpa a\n" in text
        and "kernel flash → math" in text
    )
    assert history.calls[0] == ("c0", "c29", 2.0) and history.calls[-1] == ("c16", "c17", 1.0)


def test_interpreters_are_points_too(history: History, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--pythons", "c0,c5,c29", "--impl", "sdpa,fused", "--T", "64")
    assert history.measured(*arguments)
    assert "the first that is slow: c29\n" in capsys.readouterr().out
    assert not history.measured(*arguments)
    history.versions["c5"] = "another torch"
    again = history.measured(*arguments)
    assert again and all("c5" in call for call in again)


def test_what_was_measured_counts_until_something_of_it_changes(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, cases = (("c0", "c29", *more) for more in (("--impl", "mine=mine:f"), ("--cases", "cases.json")))
    for word in ("2", "3"):
        Path("mine.py").write_text(word)
        Path("cases.json").write_text(word)
        for arguments in (mine, cases, (*mine, "--margin", f"0.0{word}")):
            assert history.measured(*arguments) and not history.measured(*arguments)
    monkeypatch.setattr("bench.ab.plan.fingerprint", lambda: {"torch": "another"})
    assert history.measured(*cases)
    Path(".git").mkdir()  # each commit has its own module
    assert history.measured(*mine)
    Path("mine.py").write_text("4")
    assert not history.measured(*mine)


def test_a_step_that_is_open_is_measured_on(history: History) -> None:
    """As after two replicates, which give no interval."""
    assert bisect.main(["c0", "c29", "--impl", "sdpa", "--budget", "0.2"]) == 0
    spent = [budget for _, head, budget in history.calls if head == "c15"]
    assert spent == [pytest.approx(0.2), pytest.approx(0.4)]


def test_ends_that_were_measured_too_briefly_are_measured_for_longer(
    history: History, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bisect.main(["c0", "c29", "--impl", "sdpa", "--budget", "0.1"]) == 2
    assert "at the bad end; --budget 0.2 measures for longer\n" in capsys.readouterr().out
    bisect.main(["c0", "c29", "--impl", "sdpa", "--budget", "0.2"])
    assert [budget for *ends, budget in history.calls if ends == ["c0", "c29"]] == [
        pytest.approx(0.2),
        pytest.approx(0.4),
    ]


def test_after_ctrl_c_the_same_command_goes_on(history: History, capsys: pytest.CaptureFixture[str]) -> None:
    history.interrupted = True
    assert bisect.main(["c0", "c29"]) == 2
    assert capsys.readouterr().err.endswith("bench: interrupted; the same command continues\n")
    first, history.interrupted = {call[:2] for call in history.calls}, False
    assert not first & {call[:2] for call in history.measured("c0", "c29")}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["HEAD"], "give either two revisions, GOOD, which is fast, and BAD"),
        (["HEAD", "no-such"], "unknown revision 'no-such'"),
        (["HEAD", "HEAD"], "GOOD and BAD are both "),
        (["--pythons", "one"], "or --pythons A,B,C, the good one first"),
        (["HEAD", "HEAD", "--pythons", "a,b"], "give either two revisions"),
    ],
)
def test_usage_errors(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bisect.main(arguments) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bench: error: ") and says in line
