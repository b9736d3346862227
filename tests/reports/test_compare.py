"""`python -m reports compare`: verdicts on two saved runs, what must be equal to the byte, and what it refuses."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import synthetic_runs as synthetic
import tracked_runs as tracked

from reports.__main__ import main
from reports.judging.comparison import Cell, Comparison, compare
from reports.pages import compare as compare_command
from reports.pages.comparison_page import html
from reports.pages.comparison_text import sentences
from reports.reading import runs
from stats import verdict

UNTOUCHED = {("fused", "UNCHANGED"), ("einsum", "UNCHANGED")}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    return


@pytest.fixture
def compared(results: Path) -> Any:
    """Saves two documents and compares them."""

    def of(base: dict[str, Any], head: dict[str, Any], **options: Any) -> Comparison:
        paths = tracked.save(base, results, "0001_base"), tracked.save(head, results, "0002_head")
        return compare(runs.read(paths[0]), runs.read(paths[1]), **options)

    return of


@pytest.fixture
def command(results: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Saves two documents and runs the command on them: its exit code. Its sentences have a line each."""
    monkeypatch.setattr(compare_command, "WIDTH", 1000)

    def of(base: dict[str, Any], head: dict[str, Any], *options: str) -> int:
        tracked.save(base, results, "0001_base")
        tracked.save(head, results, "0002_head")
        return main(["compare", "base", "head", "--results", str(results), *options])

    return of


def words(this: Comparison) -> set[tuple[str, str]]:
    return {(cell.impl, cell.verdict.word) for cell in this.cells}


def first(this: Comparison, impl: str) -> Cell:
    return next(cell for cell in this.cells if cell.impl == impl)


def test_unchanged_code_is_unchanged(compared: Any) -> None:
    this = compared(tracked.run(1), tracked.run(2))
    assert words(this) == {*UNTOUCHED, ("sdpa", "UNCHANGED")}
    assert this.code == 0 and this.counts == {"UNCHANGED": 12} and this.notes == []


def test_a_slow_down_is_found_where_it_is_and_comes_first(compared: Any) -> None:
    this = compared(tracked.run(1), tracked.run(2, slower={"sdpa": 1.05}))
    assert words(this) == {*UNTOUCHED, ("sdpa", "REGRESSED")}
    assert [cell.impl for cell in this.cells[:4]] == ["sdpa"] * 4
    assert this.cells[0].verdict.ratio == pytest.approx(1.05, abs=0.01)
    assert this.cells[0].processes == (6, 6)
    assert this.code == 1


def test_a_speed_up_is_none_to_worry_about(compared: Any) -> None:
    this = compared(tracked.run(1), tracked.run(2, slower={"sdpa": 0.95}))
    assert words(this) == {*UNTOUCHED, ("sdpa", "IMPROVED")} and this.code == 0


def test_the_margin_is_the_users(compared: Any) -> None:
    sides = tracked.run(1), tracked.run(2, slower={"sdpa": 1.05})
    assert compared(*sides, margin=0.1).counts == {"UNCHANGED": 12}


def test_one_process_a_side_is_inconclusive_whatever_it_says(compared: Any) -> None:
    this = compared(tracked.run(1, processes=1), tracked.run(2, slower={"sdpa": 3}, processes=1))
    assert this.counts == {"INCONCLUSIVE": 12} and this.code == 2
    assert first(this, "sdpa").verdict.ratio == pytest.approx(3, rel=0.03)
    assert any("one process per cell" in note and "sweep --processes" in note for note in this.notes)


def test_a_change_beyond_anything_seen_between_processes_is_told_by_one_process(compared: Any) -> None:
    this = compared(tracked.run(1), tracked.run(2, slower={"sdpa": 1.3}, processes=1))
    assert {word for impl, word in words(this) if impl == "sdpa"} == {"REGRESSED"}
    assert {word for impl, word in words(this) if impl != "sdpa"} == {"INCONCLUSIVE"}


def test_what_the_controls_moved_is_taken_out(compared: Any) -> None:
    everything = dict.fromkeys(tracked.IMPLS, 1.02)
    faster_clock = compared(tracked.run(1), tracked.run(2, slower=everything, controls=1.02), margin=0.015)
    assert faster_clock.counts == {"UNCHANGED": 12}
    blind = compared(tracked.run(1, controls=None), tracked.run(2, slower=everything, controls=None), margin=0.015)
    assert "UNCHANGED" not in blind.counts


def test_controls_that_moved_far_make_it_a_verdict_about_the_machine(compared: Any) -> None:
    this = compared(tracked.run(1), tracked.run(2, slower={"sdpa": 1.2}, controls=1.08))
    assert this.counts == {"INCONCLUSIVE": 12} and this.code == 2
    assert "machine drift" in first(this, "sdpa").verdict.reason
    [note] = this.notes
    beyond = "changes in seconds are what goes beyond that"
    assert re.fullmatch(rf"the controls changed by \+8\.\d % from 0001_base to 0002_head: {beyond}", note)


def test_everything_moving_alike_is_the_machine_unless_controls_and_a_common_cause_say_otherwise(compared: Any) -> None:
    everything = dict.fromkeys(tracked.IMPLS, 1.06)
    assert compared(tracked.run(1), tracked.run(2, slower=everything)).counts == {"INCONCLUSIVE": 12}
    newer = {"machine_info": {**synthetic.MACHINE, "torch": "2.14.0+cpu"}}
    assert compared(tracked.run(1), tracked.run(2, slower=everything, **newer)).counts == {"REGRESSED": 12}
    alone = tracked.run(1, impls=["sdpa"]), tracked.run(2, slower=everything, impls=["sdpa"])
    assert compared(*alone).counts == {"REGRESSED": 4}
    blind = [tracked.run(seed, s, impls=["sdpa"], controls=None) for seed, s in ((1, None), (2, everything))]
    assert compared(*blind).counts == {"INCONCLUSIVE": 4}


def test_another_python_does_not_condemn_the_machine_by_its_own_loop(compared: Any) -> None:
    head = tracked.run(2)
    for look in head["controls"]["looks"]["python"]:
        look["seconds"] *= 0.7
    assert compared(tracked.run(1), head).counts == {"INCONCLUSIVE": 12}
    head["machine_info"] = {**synthetic.MACHINE, "python": "3.14.0"}
    this = compared(tracked.run(1), head)
    assert this.counts == {"UNCHANGED": 12}
    assert this.notes == ["compared across versions: python (none, then 3.14.0)"]


def test_more_memory_is_a_regression_to_the_byte_that_exceeds_the_margin(compared: Any) -> None:
    head = tracked.run(2)
    two = tracked.cells(head, "sdpa")[:2]
    two[0]["extra_info"]["peak_bytes"] = 2**21
    two[1]["extra_info"]["peak_bytes"] = 2**20 + 1
    this = compared(tracked.run(1), head)
    assert this.code == 1 and len(this.regressed) == 1
    changes = [(c.what, c.base, c.head, c.worse) for cell in this.cells for c in cell.changes]
    assert changes == [("peak_bytes", 2**20, 2**21, True), ("peak_bytes", 2**20, 2**20 + 1, False)]
    assert this.counts == {"UNCHANGED": 12}


def test_another_kernel_is_told_though_time_stood_still(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    base = tracked.run(1)
    for row in tracked.cells(base, "sdpa"):
        row["extra_info"]["kernel"] = "flash"
    assert command(base, tracked.run(2)) == 0
    out = capsys.readouterr().out
    assert "kernel flash → math" in out and "4 cells with another kernel" in out


def test_another_error_is_told(compared: Any) -> None:
    this = compared(tracked.run(1), tracked.run(2, extra={"error": 5e-7}))
    assert {change.what for cell in this.cells for change in cell.changes} == {"error"} and this.code == 0


@pytest.mark.parametrize("side", ["base", "head"])
def test_a_wrong_answer_is_never_a_speed_up(side: str, compared: Any) -> None:
    sides = {"base": tracked.run(1), "head": tracked.run(2, slower={"sdpa": 0.5})}
    tracked.without(sides[side], "sdpa", "wrong", "row 3 off by 0.5")
    this = compared(sides["base"], sides["head"])
    assert words(this) == {*UNTOUCHED, ("sdpa", "WRONG")}
    assert first(this, "sdpa").verdict.reason == f"wrong answer in {side}: row 3 off by 0.5"
    assert this.code == (1 if side == "head" else 0)


def test_cells_of_one_side_only_are_new_or_gone(compared: Any) -> None:
    fewer, all_three = tracked.run(1, impls=["fused", "einsum"]), tracked.run(2)
    assert ("sdpa", "NEW") in words(compared(fewer, all_three)) and compared(fewer, all_three).code == 0
    assert ("sdpa", "GONE") in words(compared(all_three, fewer)) and compared(all_three, fewer).code == 0
    failed = tracked.without(tracked.run(2), "sdpa", "error", "RuntimeError: no")
    this = compared(tracked.run(1), failed)
    assert first(this, "sdpa").verdict.reason == "error in head: RuntimeError: no" and this.code == 1


def test_a_benchmark_with_another_meaning_is_not_compared(compared: Any) -> None:
    this = compared(tracked.run(1, extra={"case_hash": "a"}), tracked.run(2, extra={"case_hash": "b"}))
    assert this.counts == {"INCONCLUSIVE": 12} and "the benchmark itself was changed" in this.cells[0].verdict.reason


def test_nothing_in_common_cannot_be_judged(compared: Any) -> None:
    this = compared(tracked.run(1, impls=["sdpa"]), tracked.run(2, impls=["fused"]))
    assert this.counts == {"GONE": 4, "NEW": 4} and this.code == 2
    assert compared(synthetic.document([]), synthetic.document([])).code == 2


def test_another_machine_is_refused_in_one_line(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    machine = {**synthetic.MACHINE, "threads": 4, "torch": "2.14.0"}
    assert command(tracked.run(1), tracked.run(2, machine_info=machine)) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert "threads (2, then 4)" in captured.err and "--force" in captured.err and "torch" not in captured.err


def test_force_shows_numbers_without_verdicts(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    machine = {**synthetic.MACHINE, "threads": 4}
    assert command(tracked.run(1), tracked.run(2, slower={"sdpa": 2}, machine_info=machine), "--force") == 2
    out = capsys.readouterr().out
    assert "+100" in out and "REGRESSED" not in out and "12 INCONCLUSIVE" in out


def test_json_holds_everything_and_is_json(command: Any, tmp_path: Path) -> None:
    head = tracked.without(tracked.run(2, slower={"sdpa": 1.05}), "fused", "unsupported", "no")
    command(tracked.run(1), head, "--json", str(tmp_path / "x.json"))
    data = json.loads((tmp_path / "x.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert data["counts"] == {"REGRESSED": 4, "GONE": 4, "UNCHANGED": 4} and data["exit_code"] == 1
    cell = data["cells"][0]
    assert cell["word"] == "REGRESSED" and 1.03 < cell["low"] < cell["ratio"] < cell["high"] < 1.07
    assert next(cell for cell in data["cells"] if cell["word"] == "GONE")["ratio"] is None


def test_markdown_is_short_and_says_how_to_do_it_again(command: Any, tmp_path: Path) -> None:
    head = tracked.run(2, slower={"sdpa": 1.05}, command="pytest bench/ --benchmark-save=head")
    command(tracked.run(1), head, "--markdown", str(tmp_path / "x.md"))
    text = (tmp_path / "x.md").read_text(encoding="utf-8")
    assert "4 REGRESSED, 8 UNCHANGED" in text
    shown, _, folded = text.partition("<details><summary>8 UNCHANGED</summary>\n\n| verdict")
    assert shown.count("| REGRESSED") == 4 and "| UNCHANGED" not in shown and folded.count("| UNCHANGED") == 8
    assert "AMD EPYC" in text and "pytest bench/ --benchmark-save=head" in text
    assert "    python -m reports compare 0001_base 0002_head\n" in text


def test_hostile_names_neither_steer_the_terminal_nor_break_the_table(
    command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = [tracked.run(1), tracked.run(2, slower={"sdpa": 1.05})]
    for side in sides:
        for row in tracked.cells(side, "sdpa"):
            row["extra_info"]["impl"] = "[bold]<b>|x\x1b[31m注意\n"
    command(*sides, "--markdown", str(tmp_path / "x.md"))
    out = capsys.readouterr().out
    assert "[bold]<b>|x" in out and "注意" in out and "\x1b" not in out
    (line, *_) = (line for line in (tmp_path / "x.md").read_text(encoding="utf-8").splitlines() if "注意 |" in line)
    assert "&lt;b&gt;" in line and "<b>" not in line and "\x1b" not in line
    assert line.replace("\\|", "").count("|") == 9


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "HEAD"),
        (["base", "head", "more"], "more"),
        (["base", "heat"], "did you mean"),
        (["base", "nothing"], "known: 0002_head, 0001_base"),
        (["base", "head", "--margin", "-1"], "no share like 0.01"),
        (["base", "head", "--margin", "1%"], "no share like 0.01"),
        (["base", "head", "--nonsense"], "--nonsense"),
        (["head"], "no baseline; set one with: python -m reports baseline set RUN"),
        (["*", "head"], "means 2 runs: 0001_base, 0002_head"),
        (["base", "head", "--json", "0001/x.json"], "0001/x.json"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_3(
    arguments: list[str], told: str, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tracked.save(tracked.run(1), results, "0001_base")
    tracked.save(tracked.run(2), results, "0002_head")
    try:
        code = main(["compare", *arguments, "--results", str(results)])
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    captured = capsys.readouterr()
    assert code == 3 and captured.out == "" and captured.err.count("\n") == 1 and told in captured.err


def test_controls_of_another_shape_are_no_controls(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tracked.save({**tracked.run(1), "controls": {"looks": {"product": [3]}}}, results, "0001_base")
    assert main(["compare", "base", "base", "--results", str(results)]) == 0
    assert "0001_base has no control workload" in " ".join(capsys.readouterr().out.split())


def test_process_medians_that_are_no_times_are_left_out(compared: Any) -> None:
    head = tracked.run(2)
    for row in head["benchmarks"]:
        row["extra_info"]["process_medians"] += [None, 0, math.nan, "x"]
    this = compared(tracked.run(1), head)
    assert this.cells[0].processes == (6, 6) and this.counts == {"UNCHANGED": 12}


def test_a_sentence_says_how_far_the_slower_cells_reach(compared: Any) -> None:
    head = tracked.run(2, slower={"sdpa": 1.25})
    slowest = next(row for row in head["benchmarks"] if row["extra_info"]["impl"] == "sdpa")
    slowest["extra_info"]["process_medians"] = [2 * s for s in slowest["extra_info"]["process_medians"]]
    assert [*sentences(compared(tracked.run(1), head))] == ["sdpa is slower in 4 of 4 cells (25 to 150 %)"]


def test_the_page_says_which_one_first_and_draws_whole_points(compared: Any) -> None:
    text = html(compared(tracked.run(1), tracked.run(2, slower={"sdpa": 9.0})))
    assert re.search(r"<h1>Something regressed: sdpa is slower in 4 of 4 cells", text)
    assert all(4 <= float(at) <= 196 for at in re.findall(r'<circle cx="([\d.]+)"', text))
    assert len(re.findall('class="why"', text)) == len(re.findall('class="word bad"', text)) == 4


def test_a_run_beside_itself_is_told_of_once(results: Path) -> None:
    run = runs.read(tracked.save(tracked.run(1, complete=False, controls=None), results, "0001_base"))
    assert compare(run, run).notes == [
        "base and head are the same run",
        "0001_base is not complete",
        "0001_base has no control workload: machine drift can't be seen",
    ]


def test_what_to_know_before_believing_it(compared: Any) -> None:
    base = tracked.run(1, complete=False, state={"environment": {"OMP_PROC_BIND": "true"}})
    head = tracked.run(2, state={"environment": {}})
    head["controls"]["drift"] = 0.09
    assert compared(base, head).notes == [
        "the environment differs: OMP_PROC_BIND (true, then none)",
        "0001_base is not complete",
        "machine drift: the control workload's time varied by up to 9 % while 0002_head was made",
    ]


QUIET = synthetic.Noise(process=0.003, visit=0.002, block=0.005, run=0.001)
"""Of a machine that changes from day to day by 6 %, and beside that is quiet."""


def by_turns(seed: int, slower: dict[str, float] | None = None, **options: Any) -> dict[str, Any]:
    return synthetic.timed_by_turns(seed, slower, **{"noise": QUIET, **options})


def hashed(data: dict[str, Any], hash_: str | None) -> dict[str, Any]:
    """The run, as if everything that its implementations share were another version."""
    for row in data["benchmarks"]:
        row["extra_info"]["impl_hash"] = hash_ and f"{row['extra_info']['impl']} {hash_}"
    return data


def uncontrolled(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "controls": {}}


def test_what_the_machine_did_that_day_cancels_in_ratios(compared: Any) -> None:
    days = [uncontrolled(by_turns(seed, noise=replace(QUIET, day=0.3))) for seed in (1, 3)]
    this = compared(*days, margin=0.05)
    assert this.counts == {"UNCHANGED": 18} and this.code == 0
    assert all(abs(cell.absolute.ratio - 1) > 0.1 for cell in this.cells)
    assert {cell.absolute.word for cell in this.cells} == {"INCONCLUSIVE"}
    assert all(abs(cell.ratio.ratio - 1) < 0.02 for cell in this.cells)


def test_the_margin_is_what_two_runs_can_tell(compared: Any) -> None:
    loud, quiet = (
        compared(*(by_turns(seed, noise=noise) for seed in (1, 2))) for noise in (replace(QUIET, process=0.03), QUIET)
    )
    assert (loud.margin, quiet.margin) == (0.05, 0.05) and not loud.regressed and quiet.code == 0
    assert quiet.counts == {"UNCHANGED": 18}
    assert verdict.margin_between_runs([({i: [x] for i, x in enumerate((0.0, 1e-4, 2e-4))},) * 2]) == 0.05
    assert verdict.margin_between_runs([]) == 0.01


def test_a_slow_down_is_found_in_the_ratio_and_blames_no_other(compared: Any) -> None:
    this = compared(by_turns(1), by_turns(2, {"sdpa": 1.10}))
    assert {(cell.impl, cell.ratio.word) for cell in this.cells if cell.regressed} == {("sdpa", "REGRESSED")}
    assert len(this.regressed) == 3 and this.code == 1
    assert first(this, "sdpa").verdict.ratio == pytest.approx(1.10, abs=0.01)


def test_what_changed_is_no_denominator(compared: Any) -> None:
    """Four of six are slower: over all others, the two that are not would look faster."""
    slower = dict.fromkeys(("linear", "packed", "einsum", "wrapper"), 1.2)
    this = compared(by_turns(1), by_turns(2, slower))
    assert {cell.impl for cell in this.regressed} == set(slower)
    assert first(this, "fused").ratio.ratio == pytest.approx(1, abs=0.02)


def test_without_an_unchanged_denominator_seconds_are_judged_alone_and_that_is_said(compared: Any) -> None:
    this = compared(hashed(by_turns(1), "a"), hashed(by_turns(2), "b"))
    assert not any(cell.ratio for cell in this.cells)
    [note] = [note for note in this.notes if "denominator" in note or "is divided by" in note]
    assert note.endswith("the times themselves are compared: 18 of 18 cells here")
    alone = compared(by_turns(1, impls=["sdpa"]), by_turns(2, impls=["sdpa"]))
    assert not any(cell.ratio for cell in alone.cells)
    unhashed = compared(hashed(by_turns(1), None), hashed(by_turns(2), None))
    assert not any(cell.ratio for cell in unhashed.cells)


def test_a_baseline_implementation_that_is_missing_leaves_the_others_as_denominator(compared: Any) -> None:
    sides = by_turns(1), tracked.without(by_turns(2, {"sdpa": 1.1}), "fused", "out_of_memory", "too big")
    this = compared(*sides)
    assert {cell.impl for cell in this.regressed} == {"sdpa"} and first(this, "sdpa").ratio.word == "REGRESSED"
    assert any(note.endswith("are compared: 0 of 15 cells here") for note in this.notes)


def test_what_all_share_can_not_cancel_and_is_found_in_seconds(compared: Any) -> None:
    slower = dict.fromkeys(("fused", "linear", "packed", "einsum", "sdpa", "wrapper"), 2.0)
    this = compared(by_turns(1), by_turns(2, slower))
    assert this.counts == {"REGRESSED": 18} and this.code == 1


def test_seconds_beside_an_unchanged_ratio_are_told_apart(compared: Any) -> None:
    """A slow-down of all to twice their time that no hash explains, beside controls that stood still, in too few cells."""
    sides = [by_turns(seed, dict.fromkeys(("fused", "sdpa"), f), T=(64,), impls=["fused", "sdpa"])
             for seed, f in ((1, 1.0), (2, 2.0))]  # fmt: skip
    this = compared(*(hashed(side, "same") for side in sides), margin=0.05)
    assert {cell.ratio.word for cell in this.cells} == {"UNCHANGED"} and this.code == 1
    assert this.cells[0].verdict.reason == "slower by more than 5 % in seconds; no change of its ratio is shown"


def test_both_changes_are_shown_side_by_side(command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = by_turns(2, {"sdpa": 1.1})
    assert command(by_turns(1), head, "--json", str(tmp_path / "x.json"), "--markdown", str(tmp_path / "x.md")) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "; seconds +" in out and "a time is divided by the median time" in out
    cell = json.loads((tmp_path / "x.json").read_text())["cells"][0]
    assert cell["of_ratio"]["ratio"] == pytest.approx(1.1, abs=0.01) and cell["of_seconds"]["ratio"] != cell["ratio"]
    line = next(line for line in (tmp_path / "x.md").read_text(encoding="utf-8").splitlines() if " sdpa |" in line)
    ratio, seconds = (text.strip() for text in line.split("|")[6:8])
    assert ratio.startswith("+") and " to " in ratio and " to " in seconds and ratio != seconds


def test_one_process_with_several_visits_is_judged_with_a_term_between_processes(compared: Any) -> None:
    this = compared(by_turns(1, processes=1, visits=6), by_turns(2, {"sdpa": 1.3}, processes=1, visits=6))
    assert {cell.impl for cell in this.regressed} == {"sdpa"}
    assert not [note for note in this.notes if "one process per cell" in note]


def test_an_old_run_beside_a_new_one_is_compared_in_seconds(compared: Any) -> None:
    old = synthetic.as_old(by_turns(1, T=(64,)))
    this = compared(old, by_turns(2, T=(64,)))
    assert not any(cell.ratio for cell in this.cells) and this.counts == {"INCONCLUSIVE": 6} and this.code == 2


def test_seconds_that_differ_as_days_do_are_no_regression(compared: Any) -> None:
    calm = replace(QUIET, round=0.001)
    sides = [by_turns(seed, dict.fromkeys(("fused", "sdpa"), f), T=(64,), impls=["fused", "sdpa"], noise=calm)
             for seed, f in ((1, 1.0), (2, 1.08))]  # fmt: skip
    this = compared(*(hashed(side, "same") for side in sides), margin=0.05)
    assert this.counts == {"UNCHANGED": 2} and {cell.absolute.word for cell in this.cells} == {"INCONCLUSIVE"}
