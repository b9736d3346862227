"""Bisection: the right commit, whatever is broken or noisy on the way, and nothing measured twice."""

from __future__ import annotations

import math
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench.ab import ab, bisect
from bench.ab.bisect import Step, search, step_of, together

COMMITS = 30
CHANGE = {("sdpa", "a"): math.log(1.05), ("sdpa", "b"): math.log(1.05)}


def found(ratio: float, width: float = 0.01, word: str = "REGRESSED") -> dict[str, Any]:
    """What `ab --json` tells of two cells that both have this ratio."""
    ends = {"low": ratio * math.exp(-width), "high": ratio * math.exp(width)}
    cells = [{"impl": "sdpa", "id": name, "word": word, "ratio": ratio, "changes": [{"text": "kernel flash → math"}], **ends}
             for name in "ab"]  # fmt: skip
    return {"cells": cells, "sentences": [f"sdpa is {ratio - 1:.1%} slower"]}


@pytest.mark.parametrize("culprit", range(1, COMMITS))
def test_the_first_slow_one_is_found_in_few_looks(culprit: int) -> None:
    looks: list[int] = []

    def look(at: int) -> Step:
        looks.append(at)
        return Step(float(at >= culprit), 0.1)

    assert search(COMMITS, look) == (culprit - 1, culprit, [])
    assert len(looks) <= math.ceil(math.log2(COMMITS))


def test_what_cannot_be_judged_is_left_out_and_reported_where_it_matters() -> None:
    broken = {14, 15, 20}
    looked = lambda at: bisect.UNKNOWN if at in broken else Step(float(at >= 20), 0.1)  # noqa: E731
    assert search(COMMITS, looked) == (19, 21, [20])
    looked = lambda at: bisect.UNKNOWN if at in broken else Step(float(at >= 3), 0.1)  # noqa: E731
    assert search(COMMITS, looked) == (2, 3, [])


def test_a_step_weighs_its_cells_by_their_certainty() -> None:
    assert step_of(found(1.05), CHANGE).share == pytest.approx(1.0)
    assert step_of(found(1.0), CHANGE).share == pytest.approx(0.0)
    sure, unsure = found(1.05, 0.001), found(1.0, 0.1)
    mixed = {"cells": [sure["cells"][0], unsure["cells"][1]]}
    assert step_of(mixed, CHANGE).share > 0.99
    assert (
        step_of({"cells": [{"impl": "other", "id": "a", "ratio": 2.0, "low": 1.9, "high": 2.1}]}, CHANGE).word == "open"
    )
    assert step_of(None, CHANGE) == bisect.UNKNOWN
    assert together(Step(0.0, 1.0), Step(1.0, 1.0)) == Step(0.5, pytest.approx(0.5**0.5))


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, str, float]]:
    """Commits c0 to c29, slow from c17 on, c14 broken; each comparison is noisy, as much as a minute leaves it."""
    calls: list[tuple[str, str, float]] = []
    noise = random.Random(0)

    def compare(base: str, head: str, minutes: float) -> dict[str, Any] | None:
        calls.append((base, head, minutes))
        if head == "c14":
            return None
        slow = int(head[1:]) >= 17 > int(base[1:])
        width = 0.02 / minutes**0.5
        return found((1.05 if slow else 1.0) * math.exp(noise.gauss(0, width / 2 / 2**0.5)), width)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bisect, "commit_of", str)
    monkeypatch.setattr(bisect, "subject_of", lambda commit: f"{commit} what it says")
    monkeypatch.setattr(bisect, "commits_between", lambda good, bad: [f"c{n}" for n in range(1, COMMITS)])
    monkeypatch.setattr(bisect, "_by_ab", lambda kind, others: compare)
    return calls


def test_the_culprit_is_reported_with_what_changed_and_nothing_is_measured_twice(
    history: list[tuple[str, str, float]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert bisect.main(["c0", "c29", "--impl", "sdpa"]) == 0
    text = capsys.readouterr().out
    assert "the first that is slow: c17 what it says" in text
    assert "sdpa a: kernel flash → math" in text
    assert history[0] == ("c0", "c29", 2.0)
    assert history[-1] == ("c16", "c17", 1.0)
    steps = len(history)
    assert bisect.main(["c0", "c29", "--impl", "sdpa"]) == 0
    assert history[steps:] == [("c16", "c17", 1.0)]  # all else is known


def test_values_of_options_are_no_revisions(
    history: list[tuple[str, str, float]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert bisect.main(["--pythons", "c0,c5,c29", "--impl", "sdpa,fused", "--T", "64"]) == 0
    assert "the first that is slow: c29\n" in capsys.readouterr().out


def test_ends_that_do_not_differ_are_no_mistake(
    history: list[tuple[str, str, float]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bisect, "_by_ab", lambda kind, others: lambda *_: found(1.0, word="UNCHANGED"))
    assert bisect.main(["c0", "c29"]) == 2
    assert "nothing is shown to be slower" in capsys.readouterr().out


def test_after_ctrl_c_the_same_command_goes_on(
    history: list[tuple[str, str, float]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = bisect._by_ab("commits", [])

    def interrupted(base: str, head: str, minutes: float) -> dict[str, Any] | None:
        if len(history) == 3:
            raise KeyboardInterrupt
        return whole(base, head, minutes)

    monkeypatch.setattr(bisect, "_by_ab", lambda kind, others: interrupted)
    assert bisect.main(["c0", "c29"]) == 2
    assert capsys.readouterr().err == "bench: error: interrupted; the same command goes on\n"
    first = list(history)
    monkeypatch.setattr(bisect, "_by_ab", lambda kind, others: whole)
    assert bisect.main(["c0", "c29"]) == 0
    assert not {call[:2] for call in first} & {call[:2] for call in history[3:]}


def test_steps_that_cannot_be_kept_are_a_mistake_before_anything_is_measured(
    history: list[tuple[str, str, float]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bisect.main(["c0", "c29"]) == 0
    (steps,) = tmp_path.glob("results/*/ab/bisect-*.steps")
    steps.write_text('{"ends": ')
    known = len(history)
    capsys.readouterr()
    assert bisect.main(["c0", "c29"]) == 3
    assert "is damaged: remove it" in capsys.readouterr().err
    steps.unlink()
    steps.mkdir()
    assert bisect.main(["c0", "c29"]) == 3
    assert "steps can't be kept in" in capsys.readouterr().err
    assert len(history) == known


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["HEAD"], "give two revisions before all options: GOOD, which is fast, and BAD"),
        (["HEAD", "HEAD"], "is no ancestor of"),
        (["HEAD", "no-such"], "unknown revision 'no-such'"),
        (["--pythons", "one"], "two at least"),
        (["HEAD", "HEAD", "--pythons", "a,b"], "either GOOD BAD, or --pythons"),
    ],
)
def test_mistakes(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bisect.main(arguments) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bench: error: ") and says in line


@pytest.mark.parametrize(
    "command", [(ab.main, "--base", "HEAD", "--impl", "mine=mine:mine"), (bisect.main, "HEAD~1", "HEAD")]
)
def test_revisions_of_the_suite_never_stand_for_those_of_another_repository(
    command: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.chdir(tmp_path)
    main, *arguments = command
    assert main(arguments) == 3
    assert f"{tmp_path} is another repository" in capsys.readouterr().err
