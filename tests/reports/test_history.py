"""`python -m reports history`: steps found where they were injected, lines broken where the benchmark changed, a safe page."""

import json
import re
import shutil
import xml.etree.ElementTree as ET

import numpy as np
import pandas as pd
import pytest
import synthetic_runs as synthetic
import tracked_runs as tracked
from test_ab_file import document

from reports.__main__ import main
from reports.drawing.palette import Palette
from reports.judging import series
from reports.pages import history_page
from reports.pages.history_page import History
from reports.reading import runs
from stats import shares, steps

RUNS = 12
NOISE = 0.006


@pytest.fixture
def nights(results):
    """Save a run per night; `of_night` gives the changes of one."""

    def save(of_night=lambda night: {}, count=RUNS):
        for night in range(count):
            special = of_night(night)
            data = tracked.run(night, special.pop("slower", None), noise=NOISE, extra=special.pop("extra", None))
            dated = {"datetime": f"2026-11-{night + 1:02}T10:00:00+00:00", "commit_info": {"id": f"c{night:09}"}}
            synthetic.save({**data, **dated, **special}, results, f"{night + 1:04}_night")

    return save


@pytest.fixture
def written(results, tmp_path):
    """The page that the command writes."""

    def of(*options):
        assert main(["history", "--results", str(results), "--out", str(tmp_path / "out"), *options]) == 0
        return (tmp_path / "out" / "history" / "index.html").read_text()

    return of


@pytest.mark.parametrize(("impls", "least", "most"), [(4, 0.05, 0.2), (3, 0.5, 9.0)])
def test_the_smallest_step_is_one_of_what_is_searched(results, impls, least, most):
    """Ratios to the others, which vary by 3 %, or with fewer of them seconds, by 8 %."""
    names = ("fused", "linear", "packed", "sdpa")[:impls]
    for night in range(10):
        data = synthetic.timed_interleaved(night, impls=names)
        synthetic.save({**data, "datetime": f"2026-11-{night + 1:02}"}, results, f"{night + 1:04}_night")
    smallest = [one.smallest for one in cells(results)]
    assert least < np.median(smallest) < most
    shown = history_page._smallest(cells(results))
    assert shown == ("above 100 %" if np.median(smallest) > 1 else f"± {shares.percent(np.median(smallest))}")


def test_too_few_runs_are_said_to_be_so_alone(nights, results, capsys):
    for count, told in (
        (4, "at most 4, and it takes 6. "),
        (6, "changed over 6 runs. The smallest step that the median cell would show: ± "),
    ):
        nights(count=count)
        assert main(["history", "--results", str(results), "--out", str(results / "out")]) == 0
        assert told in " ".join(capsys.readouterr().out.split())


def test_the_page_of_one_run_counts_one(nights, written):
    nights(count=1)
    page = written()
    assert "1 run, 0001_night</p>" in page and "cells without a detected change" in page and " 1 runs" not in page
    assert "faster by more than 3\N{NO-BREAK SPACE}%" in page


def test_the_output_is_as_wide_as_a_terminal(nights, written, capsys):
    nights(lambda night: {"slower": {"sdpa": 1.06 if night >= 6 else 1.0}})
    written()
    *lines, _ = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and "4 slower than before" in " ".join(lines)


def ordered(results):
    return series.oldest_first(map(runs.read, runs.newest_first(results)))


def cells(results):
    return series.all_series(ordered(results))


def history(results):
    return History([one.run for one in ordered(results)], cells(results))


def chapters(results):
    return list(history_page._chapters(history(results), Palette()))


def of(impl, found):
    return [one for one in found if one.impl == impl]


def found(*logs):
    """Positions of steps in the cases of one implementation."""
    return [[step.at for step in case] for case in steps.steps(np.array(logs, float).reshape(len(logs), -1))]


def test_noise_alone_makes_hardly_a_step():
    rng = np.random.default_rng(1)
    assert sum(any(found(*rng.normal(0, 0.02, (4, RUNS)))) for _ in range(67)) <= 1


def drifting(rng, count):
    """Logarithms that resemble the one before by 0.6."""
    logs = [rng.normal(0, 0.02)]
    while len(logs) < count:
        logs.append(0.6 * logs[-1] + 0.8 * rng.normal(0, 0.02))
    return logs


def test_drifting_alone_makes_few_steps():
    rng = np.random.default_rng(1)
    assert sum(any(found(drifting(rng, 120))) for _ in range(40)) <= 0.4 * steps.FALSE_STEPS


@pytest.mark.parametrize(("runs", "noises"), steps.DETECTED.items())
def test_the_smallest_steps_are_found_in_four_of_five_series(runs, noises):
    every = np.random.default_rng(3).normal(0, 0.02, (60, runs))
    every[:, -steps.MIN_RUNS :] += 0.02 * noises
    assert 40 <= sum(any(found(logs)) for logs in every) <= 55


def test_a_step_shared_by_all_cases_is_found_where_no_single_one_shows_it():
    rng = np.random.default_rng(2)
    shared = alone = 0
    for _ in range(6):
        logs = rng.normal(0, 0.02, (12, RUNS))
        logs[:, 6:] += 0.06
        shared += sum(6 in at for at in found(*logs))
        alone += sum(found(case) == [[6]] for case in logs)
    assert shared > 60 > 15 > alone


def test_a_common_step_excludes_cases_that_keep_their_level():
    logs = np.random.default_rng(3).normal(0, 0.01, (5, 30))
    logs[:4, 15:] += 0.1
    logs[0, 3:8] = logs[3, :15] = np.nan  # and one measured only after it
    assert found(*logs) == [[15]] * 3 + [[], []]


def test_one_odd_run_is_no_step():
    logs = np.random.default_rng(11).normal(0, 0.01, 40)
    logs[1] += 0.5
    assert found(logs) == [[]]


def test_a_step_below_the_smallest_is_not_reported():
    assert found([0.0] * 150 + [0.005] * 150) == [[]]
    assert found([0.0] * 6 + [0.05] * 6) == [[6]]


def test_a_slow_down_that_recovered_is_marked_and_one_that_did_not_is_not(nights, results):
    nights(lambda n: {"slower": {"sdpa": 1.08 if 4 <= n < 8 else 1.0, "fused": 1.08 if n >= 4 else 1.0}})
    found = cells(results)
    for one in of("sdpa", found):
        assert [(step.at, step.recovered) for step in one.steps] == [(4, 8), (8, None)]
    assert [step.recovered for one in of("fused", found) for step in one.steps] == [None] * 4
    shown = {chapter.impl: chapter for chapter in chapters(results)}
    assert not shown["sdpa"].open and "in 0005_night, and recovered in 0009_night" in shown["sdpa"].status
    assert "faster" not in shown["sdpa"].status
    assert shown["fused"].open and shown["fused"].status.startswith("Became slower by")


@pytest.mark.parametrize(("slower", "by"), [(1.3, "30 %"), (40, "a factor of 40")])
def test_the_headline_is_the_last_regression_though_another_one_improved_since(nights, results, slower, by):
    faster = {0: 1.0, 1: 2.0, 2: 1.6}  # sdpa, from the fourth night and the ninth on
    nights(lambda n: {"slower": {"sdpa": faster[(n > 2) + (n > 8)], "fused": slower if n > 5 else 1.0}})
    assert history_page.headline(history(results)).startswith(f"fused became slower by {by} in 0007_night")


def test_the_headline_counts_the_cells_of_an_improvement(nights, results):
    nights(lambda n: {"slower": {"sdpa": 0.5 if n > 5 else 1.0}})
    said = history_page.headline(history(results))
    assert re.fullmatch(r"sdpa became faster by 50 % in 0007_night, in 4 of 4 cells\.", said)


def test_tables_of_two_implementations_in_one_case_have_different_names(nights, written):
    nights(lambda n: {"slower": dict.fromkeys(("sdpa", "fused"), 0.5 if n > 5 else 1.0)})
    names = re.findall(r'role="region" aria-label="([^"]*)"', written())
    assert len(names) > 8 and len({*names}) == len(names)


def test_neither_a_lost_speedup_nor_a_smaller_one_is_a_recovery():
    for ratios, recovered in (((0.8, 1.25), None), ((1.5, 0.9, 0.75), 2)):
        first, *_ = steps.with_recoveries([steps.Step(at, ratio) for at, ratio in enumerate(ratios)])
        assert first.recovered == recovered


def test_a_changed_benchmark_breaks_the_line(nights, results):
    nights(lambda n: {"slower": {"sdpa": 1.5 if n >= 6 else 1.0}, "extra": {"case_hash": "new" if n >= 6 else "old"}})
    for one in of("sdpa", cells(results)):
        assert one.pieces == [[*range(6)], [*range(6, 12)]] and not one.steps
    chapter = chapters(results)[0]
    [noted] = [line for line in chapter.table.rows if "the benchmark itself was changed" in line[-1]]
    assert noted[0] == "0007_night" and noted[-2] == "–"
    assert chapter.status.endswith("The benchmark itself was changed in 0007_night.")


def test_runs_are_ordered_by_when_they_were_made(results):
    for name, when in (("0001_c", "2026-11-20T12:00:00"), ("0002_b", "2026-11-20T09:30:00"), ("0003_a", "")):
        synthetic.save(tracked.run(1, datetime=when), results, name)
    assert [one.run.name for one in ordered(results)] == ["0003_a", "0002_b", "0001_c"]


def test_runs_of_a_copied_folder_count_once(nights, results):
    nights(count=3)
    [folder] = [path for path in results.iterdir() if path.is_dir()]
    shutil.copytree(folder, results / "copy")
    assert len(runs.newest_first(results)) == 6 and len(ordered(results)) == 3


def test_runs_of_other_machines_are_left_out_unless_forced(nights, written, capsys):
    def night(n):
        set_ = {"OMP_PROC_BIND": "true"} if n == 2 else {}
        machine = {**synthetic.MACHINE, "cores": 64 if n < 2 else 2, "torch": str(n)}
        return {"machine_info": machine, "state": {"environment": set_} if n != 5 else {}}

    nights(night)
    page = written()
    assert "9 runs" in page and "0002_night" not in page and "0003_night" not in page
    said = "3 runs of other machines or environments left out; --force includes them; the latest differs in "
    assert f"{said}OMP_PROC_BIND (true, then none)" in capsys.readouterr().err
    assert "12 runs, 0001_night to" in written("--force")


def test_what_is_wrong_in_the_newest_run_is_named(nights, written, capsys):
    wrong = {"skipped": [{"impl": "sdpa", "id": "any", "reason": "wrong", "detail": "error 0.1"}]}
    nights(lambda night: wrong if night in (3, RUNS - 1) else {})
    assert "✗ wrong in 0012_night: sdpa" in (text := written())
    assert "✗ wrong in 0012_night: sdpa" in capsys.readouterr().out
    assert re.findall(r'class="bad"><span title="(.*?)">✗', text) == [
        f"sdpa, {it}_night: wrong" for it in ("0004", "0012")
    ]
    assert "sdpa ✗</th>" in text
    nights(lambda night: {}, count=RUNS + 1)
    assert "✗ wrong" not in written()


def test_a_step_is_confirmed_by_an_interleaved_comparison(nights, written, results, monkeypatch, capsys):
    own = {"asked": {"impl": ["fused,sdpa=mine:kernel"]}}
    nights(lambda night: {"slower": {"sdpa": 1.06 if night >= 6 else 1.0}} | own)
    asked = []

    def confirm(step, where):
        asked.append(step)
        noisy = [0.05, 0.0502, 0.0498, 0.05] if len(asked) > 1 else [0.05, -0.05, 0.05]
        logs = {("sdpa", synthetic.case_id(tracked.CASES[0])): noisy}
        sides = {side: {"label": side, "commit": step[side]} for side in ("base", "head")}
        data = document(logs, sides=sides, threads=2)
        folder = next(results.glob("*/0001_night.json")).parent / "ab"
        folder.mkdir(exist_ok=True)
        (folder / f"{len(asked):04}_x.json").write_text(json.dumps(data))
        return ""

    monkeypatch.setattr("commands.history.confirm", confirm)
    assert "Interleaved" not in written()
    assert "Interleaved: inconclusive" in written("--confirm")
    assert "not recovered. Interleaved: 1 inconclusive. " in " ".join(capsys.readouterr().out.split())
    page = written("--confirm")  # again, since that was inconclusive
    assert "not recovered. Interleaved: 1 confirmed. " in " ".join(capsys.readouterr().out.split())
    said = page.replace("\N{NO-BREAK SPACE}", " ").count("Interleaved: confirmed (5.1 % to 5.2 % slower)")
    assert said == 2  # for those who see, and read aloud
    step, same = asked
    expected = {"base": "c000000005", "head": "c000000006", "threads": 2, "impl": ["sdpa=mine:kernel"]}
    assert step == same == step | expected
    assert {(case["T"], case["dtype"]) for case in step["cases"]} == {(it["T"], it["dtype"]) for it in tracked.CASES}
    assert "Interleaved: confirmed" in written()


def test_a_long_history_names_the_newest_runs_and_draws_all(results, written, tmp_path):
    for night in range(60):
        data = tracked.run(night, {"sdpa": 1.2 if night >= 10 else 1.0}, noise=NOISE)
        when = f"2026-{1 + night // 28:02}-{1 + night % 28:02}T00:00:00"
        synthetic.save(
            {**data, "benchmarks": data["benchmarks"][:3], "datetime": when}, results, f"{night + 1:04}_night"
        )
    (chapter,) = chapters(results)
    titles = [title.text for title in ET.fromstring(str(chapter.drawing)).iter("title")]
    marked = [f"{n:04}_night" for n in (11, *range(21, 61))]
    assert [told.split(",")[0] for told in titles] == [f"run {name}" for name in marked]
    assert [line[0] for line in chapter.table.rows] == marked[::-1]
    page = written()
    assert "The newest 40 points" in page and "2 cells without a detected change" in page
    points = pd.read_csv(tmp_path / "out" / "history" / "points.csv")
    assert len(points) == 60 * 3 and {*points["baseline"]} == {"fused"}
    main(["export", "60", "--results", str(results), "-o", str(tmp_path / "x.csv")])
    rows, last = pd.read_csv(tmp_path / "x.csv"), points[points["run"] == "0060_night"]
    columns = points.columns.drop(["python", "ratio"])  # these files have no ratio
    same = (it.sort_values("impl", ignore_index=True)[columns] for it in (rows, last))
    pd.testing.assert_frame_equal(*same)


def test_the_map_leaves_out_what_the_newest_runs_did_not_measure(results):
    for night in range(history_page.MOST_RUNS + 2):
        data = tracked.run(night, impls=("sdpa", "fused") if night > 1 else ("sdpa", "einsum"))
        synthetic.save({**data, "datetime": f"2026-11-{night + 1:02}T00:00:00"}, results, f"{night + 1:04}_night")
    assert [impl for impl, *_ in history_page._map(history(results)).rows] == ["fused", "sdpa"]


def test_a_median_lies_within_its_spread(nights, written, results):
    """Also as printed."""
    nights(lambda n: {"slower": {"fused": 1.1 if n >= 6 else 1.0}})
    for row in chapters(results)[0].table.rows:
        middle, (low, high) = row[4].split()[0], row[5].replace(" to", "").split()[::2]
        assert float(low) < float(middle) < float(high)


def test_baselines_and_their_reasons_are_marked(nights, written, results):
    nights(lambda n: {"slower": {"sdpa": 1.1 if n >= 6 else 1.0}})
    main(["baseline", "set", "0001", "--results", str(results)])
    main(["baseline", "set", "0008", "--accept", "traded <b>time</b> for memory", "--results", str(results)])
    page = written()
    assert "baseline, accepted: traded &lt;b&gt;time&lt;/b&gt; for memory" in page and "<b>time</b>" not in page
