"""`python -m reports baseline`: changes by command only, and to a regressed run only with a reason."""

import pytest
import synthetic_runs as synthetic
import tracked_runs as tracked

from reports.reading import baseline_file, runs


@pytest.fixture
def saved(results):
    """The folder of a machine with a run, an equal one, and one with a slower sdpa."""
    for name, seed, factor in (("0001_first", 1, 1.0), ("0002_same", 2, 1.0), ("0003_slow", 3, 1.1)):
        path = synthetic.save(tracked.run(seed, slower={"sdpa": factor}), results, name)
    return path.parent


@pytest.fixture
def baseline(results, printed):
    return lambda *arguments: printed("baseline", *arguments, "--results", results)


@pytest.fixture
def refused(results, refusal):
    return lambda *arguments, **code: refusal("baseline", *arguments, "--results", results, **code)


def history(folder):
    found = baseline_file.read(folder)
    assert found is not None and found.current == found.history[-1]
    return [entry.run for entry in found.history]


def test_a_run_becomes_the_baseline_and_is_shown(saved, results, baseline):
    assert "python -m reports baseline set RUN" in baseline("show")
    baseline("set", "first")
    assert "0001_first" in (shown := baseline("show")) and saved.name in shown
    assert "already" in baseline("set", "first")
    baseline("set", "same")  # and needs no reason
    assert history(saved) == ["0001_first.json", "0002_same.json"]
    assert [path.stem for path in runs.newest_first(results)] == ["0003_slow", "0002_same", "0001_first"]


def test_an_accepted_reason_is_kept_and_shown(saved, baseline, refused):
    baseline("set", "first")
    told = refused("set", "slow", code=1)
    assert (
        "the baseline: something regressed; sdpa is 9.9 % slower" in told
        and "--accept" in told
        and history(saved) == ["0001_first.json"]
    )
    baseline("set", "slow", "--accept", "needed  for <b>correctness</b>\n「正しさ」")
    found = baseline_file.read(saved)
    assert found is not None and history(saved) == ["0001_first.json", "0003_slow.json"]
    assert [text[:41] for text in found.current.accepted] == ["something regressed; sdpa is 9.9 % slower"]
    assert "because: needed for <b>correctness</b> 「正しさ」" in baseline("show")


def test_compare_with_one_run_uses_the_baseline(saved, results, baseline, printed):
    baseline("set", "first")
    assert "0001_first → 0003_slow" in " ".join(printed("compare", "slow", "--results", results, code=1).split())
    assert history(saved) == ["0001_first.json"]  # comparing doesn't move it


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"complete": False}, "it is not complete"),
        (
            {"machine_info": {**synthetic.MACHINE, "cores": 64}},
            "it could not be judged; another machine or other settings: cores (2, then 64); to accept",
        ),
        ({"extra": {"peak_bytes": 2**22}}, "memory regressed; "),
        ({"wrong": "sdpa"}, "something is broken; sdpa is wrong in 4 of 4 cells"),
        ({"slower": dict.fromkeys(tracked.IMPLS, 2.0)}, "it could not be judged; all code"),
        ({"processes": 2}, "it could not be judged; not timed in 3 visits"),
    ],
)
def test_other_changes_that_need_a_reason(changes, told, saved, results, baseline, refused):
    baseline("set", "first")
    wrong = changes.pop("wrong", "")
    synthetic.save(tracked.without(tracked.run(4, **changes), wrong, "wrong", "off"), results, "0004_odd")
    assert told in refused("set", "odd", code=1)
    baseline("set", "odd", "--accept", "so be it")


def test_a_disturbed_run_becomes_the_baseline_with_a_note(results, baseline):
    synthetic.save(synthetic.disturbed(tracked.run(1)), results, "0001_busy")
    _, *note = baseline("set", "busy").splitlines()
    assert note[0].startswith("note: the run was disturbed: timed calls were interrupted 500")
    assert max(map(len, note)) <= 80


def test_a_baseline_whose_run_is_gone_needs_a_reason(saved, baseline, refused):
    baseline("set", "first")
    (saved / "0001_first.json").unlink()
    assert "0001_first.json, can't be read" in refused("set", "same", code=1)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"schema": 2, "history": [{"run": "a", "at": "b"}]}',
        '{"schema": 1, "history": []}',
        '{"schema": 1, "history": [3]}',
        '{"schema": 1, "history": [{"run": 1, "at": "b", "accepted": []}]}',
        '{"schema": 1, "history": [{"run": "0001_first.json", "at": "b", "accepted": "slower"}]}',
    ],
)
def test_a_broken_baseline_file_is_named(text, saved, results, refusal):
    (saved / "baseline").write_text(text)
    for arguments in (["baseline", "show"], ["baseline", "set", "same"], ["compare", "same"]):
        assert "baseline: not a baseline file" in refusal(*arguments, "--results", results)
