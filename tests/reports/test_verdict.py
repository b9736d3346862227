"""The judge: what it says of made-up processes whose truth is known, how often it is wrong, and when it refuses."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from stats import estimate, ratios, shares, verdict
from stats.verdict import IMPROVED, INCONCLUSIVE, REGRESSED, UNCHANGED, Verdict, judge, judge_unpaired
from tests.experiments import rules

CELLS, PAIRS, NOISE = 24, 10, 0.01
MARGIN = math.log(1.01)


def table(rng: np.random.Generator, planted: float = 0.0, where: int = 8) -> dict[int, NDArray[np.float64]]:
    """Paired log ratios of 24 cells, the first `where` of them slower by a planted share."""
    return {cell: rng.normal(math.log1p(planted) if cell < where else 0, NOISE, PAIRS) for cell in range(CELLS)}


def words(verdicts: dict[int, Verdict]) -> list[str]:
    return [verdicts[cell].word for cell in sorted(verdicts)]


def one(*logs: float, **options: float) -> Verdict:
    return judge({"cell": logs}, **options)["cell"]  # type: ignore[arg-type]


def test_unchanged_code_raises_alarms_in_a_few_percent_of_tables_at_most() -> None:
    rng = np.random.default_rng(1)
    tables = [words(judge(table(rng))) for _ in range(200)]
    assert sum(REGRESSED in t or IMPROVED in t for t in tables) <= 0.03 * len(tables)
    assert sum(t.count(UNCHANGED) for t in tables) > 0.5 * len(tables) * CELLS  # it doesn't just keep silent


def test_unchanged_code_on_a_noisy_machine_raises_few_alarms_too() -> None:
    rng = np.random.default_rng(2)  # noise far above the margin: the tests are at their level, not below it
    tables = [words(judge({c: rng.normal(0, 0.1, 4) for c in range(CELLS)})) for _ in range(200)]
    assert sum(REGRESSED in t or IMPROVED in t for t in tables) <= 0.08 * len(tables)


def test_unchanged_code_in_saved_runs_raises_few_alarms() -> None:
    rng = np.random.default_rng(21)
    alarms = 0
    for _ in range(60):
        sides = {c: (rng.normal(-5, 0.02, 3), rng.normal(-5, 0.02, 3)) for c in range(CELLS)}
        said = words(judge_unpaired(sides))
        alarms += REGRESSED in said or IMPROVED in said
    assert alarms <= 3


def test_a_slow_down_of_five_percent_is_nearly_always_found_and_nothing_else() -> None:
    rng = np.random.default_rng(3)
    found, false = 0, 0
    for _ in range(100):
        said = words(judge(table(rng, planted=0.05)))
        found += said[:8].count(REGRESSED)
        false += len([word for word in said[8:] if word in (REGRESSED, IMPROVED)])
    assert found >= 0.99 * 800
    assert false <= 0.005 * 1600


def test_a_speed_up_is_called_improved() -> None:
    said = words(judge(table(np.random.default_rng(4), planted=-0.05)))
    assert said[:8] == [IMPROVED] * 8 and REGRESSED not in said


def test_a_change_below_the_margin_is_no_regression() -> None:
    rng = np.random.default_rng(5)
    logs = rng.normal(math.log(1.02), 0.002, 10)
    assert one(*logs, margin=0.01).word == REGRESSED
    assert one(*logs, margin=0.03).word == UNCHANGED


def test_intervals_cover_the_truth_at_their_rate() -> None:
    rng = np.random.default_rng(6)
    verdicts = [v for _ in range(40) for v in judge({c: rng.normal(0.03, NOISE, 5) for c in range(CELLS)}).values()]
    covered = sum(v.low <= math.exp(0.03) <= v.high for v in verdicts) / len(verdicts)
    assert 0.93 < covered < 0.97


def test_it_agrees_with_scipys_own_tests() -> None:
    rng = np.random.default_rng(7)
    logs = rng.normal(0.03, 0.02, estimate.TRIM - 1)
    said = one(*logs)
    edges = [
        stats.ttest_1samp(logs, side * math.log1p(verdict.ALARM * verdict.MARGIN), alternative="greater").pvalue
        for side in (1, -1)
    ]
    interval = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    assert said.p == pytest.approx(sum(edges))
    assert (said.low, said.high) == pytest.approx((math.exp(interval.low), math.exp(interval.high)))


def test_a_pair_that_was_disturbed_costs_little() -> None:
    rng = np.random.default_rng(26)
    logs = rng.normal(0.02, 0.004, 20)
    calm = one(*logs)
    logs[3] = 1.5
    said = one(*logs)
    assert said.word == REGRESSED and said.high / said.low < 1.4 * calm.high / calm.low
    mean, error = stats.trim_mean(logs, 1 / estimate.TRIM), stats.mstats.trimmed_stde(logs, (1 / estimate.TRIM,) * 2)
    assert math.log(said.ratio) == pytest.approx(mean)
    assert math.log(said.high) == pytest.approx(mean + error * stats.t.ppf(0.975, 15), rel=0.01)


def test_a_change_must_exceed_the_alarm_and_none_lies_within_the_margin() -> None:
    spread = np.array([-0.0006, 0.0006, -0.0003, 0.0003])
    assert one(*(math.log(1.010) + spread)).word == REGRESSED
    assert one(*(math.log(1.007) + spread)).word == UNCHANGED  # no news, though it is surely there
    assert one(*(math.log(1.009) + 12 * spread)).word == INCONCLUSIVE
    assert one(*(math.log(1.010) + spread), alarm=0.01).word == INCONCLUSIVE


def test_several_processes_a_side_are_judged_by_welch() -> None:
    rng = np.random.default_rng(8)
    base, head = rng.normal(-5, 0.01, 6), rng.normal(-4.9, 0.03, 4)
    said = judge_unpaired({"cell": (base, head)})["cell"]
    welch = stats.ttest_ind(head, base, equal_var=False).confidence_interval(0.95)
    assert said.word == REGRESSED
    assert (said.low, said.high) == pytest.approx((math.exp(welch.low), math.exp(welch.high)))


def test_what_could_be_seen_is_seen_with_that_power() -> None:
    """`detectable` is a promise: a lone change of that size is found about four times in five."""
    rng = np.random.default_rng(9)
    promised = np.median([judge(table(rng))[0].detectable for _ in range(30)])
    found = sum(judge(table(rng, planted=float(promised), where=1))[0].word == REGRESSED for _ in range(300))
    assert 0.7 < found / 300 < 0.97


def test_many_cells_raise_the_bar_for_each() -> None:
    rng = np.random.default_rng(10)
    borderline = rng.normal(0, 0.01, 10)
    borderline += MARGIN + 0.0022 * math.sqrt(10) / 3 - borderline.mean() + 0.005
    alone = judge({0: borderline})[0]
    crowded = judge({0: borderline, **{c: rng.normal(0, 0.01, 10) for c in range(1, 200)}})[0]
    assert alone.word == REGRESSED and crowded.word == INCONCLUSIVE
    assert "among 200 cells that may be chance" in crowded.reason
    assert alone.p < crowded.p and alone.detectable < crowded.detectable


def test_an_implementation_that_changed_everywhere_need_not_outdo_all_cells_of_the_others() -> None:
    rng = np.random.default_rng(27)
    still = {("fused", cell): rng.normal(0, 0.01, 10) for cell in range(40)}
    slow = {("sdpa", cell): rng.normal(0.019, 0.01, 10) for cell in range(8)}
    of_all = {str(key): logs for key, logs in (still | slow).items()}
    found = [sum(it.word == REGRESSED for it in judge(cells).values()) for cells in (still | slow, of_all)]
    assert found[0] > found[1] + 1
    assert not any(judge(still | slow)[key].word == REGRESSED for key in still)


def test_the_replayed_rule_is_the_judges_own() -> None:
    """`tests/experiments/rules.py` takes it apart; what it prints of the whole must be true of the judge."""
    (of,) = rules.synthetic(1)
    slow = np.array([impl == "sdpa" for impl in of.impls]) * 0.02
    judged = verdict.judge_pairs(rules._cells(of, slow), {})
    assert rules.By(verdict.ALARM * verdict.MARGIN, gate=True, trim=estimate.TRIM)(of, slow) == pytest.approx(
        [it.p for it in judged.values()]
    )
    assert {it.word for it, added in zip(judged.values(), slow, strict=True) if not added} <= {UNCHANGED, INCONCLUSIVE}


def test_inconclusive_says_how_many_pairs_would_do() -> None:
    rng = np.random.default_rng(11)
    said = one(-0.01, 0.09, 0.06, 0.01, 0.05)
    assert said.word == INCONCLUSIVE and said.more_pairs
    assert "crosses the margin of 1 %" in said.reason
    decided = [judge({0: rng.normal(math.log(said.ratio), 0.04, 5 + said.more_pairs)})[0].word for _ in range(60)]
    assert decided.count(REGRESSED) > 30


def test_right_on_the_margin_no_number_of_pairs_would_do() -> None:
    spread = np.array([-0.02, 0.02, -0.01, 0.01])
    assert one(*(MARGIN + spread), alarm=0.01).more_pairs is None
    assert one(*(0.0005 * spread)).more_pairs == 0  # UNCHANGED needs none


def test_what_is_only_wide_is_told_in_words_and_ends_nothing() -> None:
    """Two pairs a cell on a busy machine: Student's quantile of one degree of freedom is in the thousands for 100 cells."""
    said = judge(dict.fromkeys(range(100), (-0.7, 0.9)))[0]
    assert said.word == INCONCLUSIVE and said.reason.startswith("not resolved: its interval crosses the margin")
    assert said.detectable == math.inf
    assert shares.bound(0.9, 1.1) == "at most 10 % slower"


@pytest.mark.parametrize("logs", [[0.3], [0.3, math.nan], [math.inf, 0.3]])
def test_one_pair_is_never_enough(logs: list[float]) -> None:
    said = one(*logs)
    assert said.word == INCONCLUSIVE and "one process" in said.reason
    assert said.ratio == pytest.approx(math.exp(0.3)) and math.isnan(said.low)


@pytest.mark.parametrize("logs", [[], [math.nan, math.nan]])
def test_no_pair_at_all(logs: list[float]) -> None:
    said = one(*logs)
    assert said.word == INCONCLUSIVE and math.isnan(said.ratio)


def test_identical_data_is_unchanged_and_identical_differences_are_judged() -> None:
    assert one(0.0, 0.0, 0.0).word == UNCHANGED
    assert one(0.05, 0.05, 0.05).word == REGRESSED
    assert one(0.005, 0.005).word == UNCHANGED
    same = judge_unpaired({"cell": ([-5.0, -5.0], [-5.0, -5.0])})["cell"]
    assert same.word == UNCHANGED and (same.low, same.high) == (1, 1)


def test_pairs_that_were_not_measured_are_left_out() -> None:
    logs = np.random.default_rng(12).normal(0.05, 0.01, 6)
    assert one(*logs, math.nan, math.inf) == one(*logs)


def test_an_untested_cell_takes_no_share_of_the_others_chances() -> None:
    logs = np.random.default_rng(13).normal(0.05, 0.01, 6)
    assert judge({0: logs, 1: [0.3], 2: []})[0] == judge({0: logs})[0]


def test_single_processes_are_always_inconclusive_when_nothing_is_known_of_processes() -> None:
    said = judge_unpaired({"a": ([-5.0], [-4.0]), "b": ([-5.0], [-5.0])})
    assert {v.word for v in said.values()} == {INCONCLUSIVE}


def test_a_single_process_is_judged_by_how_far_others_lay_apart() -> None:
    quiet = {c: ([-5.0, -5.001], [-5.0, -5.001]) for c in range(30)}
    apart = {"restless": ([-5.0, -4.9], [-5.0, -4.9])}
    lone = {"far": ([-5.0], [-4.5]), "near": ([-5.0], [-4.91])}
    said = judge_unpaired({**quiet, **apart, **lone})
    assert said["far"].word == REGRESSED
    assert said["near"].p < 0.05  # by the spread alone it would count
    assert said["near"].word == INCONCLUSIVE and "were seen 10.5 % apart" in said["near"].reason
    assert judge_unpaired({**quiet, **lone})["near"].word == REGRESSED


def test_a_single_process_never_shows_that_nothing_changed() -> None:
    quiet = {c: ([-5.0, -5.0001], [-5.0, -5.0001]) for c in range(6)}
    said = judge_unpaired({**quiet, "lone": ([-5.0], [-5.0])})
    assert said[0].word == UNCHANGED and said["lone"].word == INCONCLUSIVE


def test_moving_controls_speak_of_the_machine() -> None:
    cells = table(np.random.default_rng(15), planted=0.05)
    assert words(judge(cells, controls={"loop": [0.01] * 10}))[:8] == [REGRESSED] * 8
    said = judge(cells, controls={"product": [0.0] * 10, "loop": [-0.06, -0.05, -0.07]})
    assert set(words(said)) == {INCONCLUSIVE}
    assert "machine drift" in said[0].reason and "'loop'" in said[0].reason and "−5.8 %" in said[0].reason


def apart(cells: dict[int, NDArray[np.float64]]) -> dict[int, tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """The same as two runs, one after the other."""
    return {cell: (np.zeros(len(logs)), logs) for cell, logs in cells.items()}


def test_most_cells_changing_alike_are_machine_drift_between_runs_and_the_code_between_sides_that_took_turns() -> None:
    cells = table(np.random.default_rng(16), planted=0.05, where=20)
    said = judge_unpaired(apart(cells))
    assert set(words(said)) == {INCONCLUSIVE} and "cells changed alike, by about +5" in said[0].reason
    assert words(judge(cells, controls={"loop": [0.0] * PAIRS}))[:20] == [REGRESSED] * 20


def test_most_cells_moving_by_very_different_amounts_do_not() -> None:
    rng = np.random.default_rng(17)
    cells = {c: rng.normal(0.03 * 2**c, 0.005, 10) for c in range(6)}
    assert set(words(judge_unpaired(apart(cells)))) == {REGRESSED}


def test_a_few_cells_are_no_crowd() -> None:
    rng = np.random.default_rng(18)
    assert set(words(judge_unpaired(apart({c: rng.normal(0.05, 0.005, 10) for c in range(3)})))) == {REGRESSED}


def test_centring_takes_out_what_the_controls_saw_pair_by_pair() -> None:
    rng = np.random.default_rng(19)
    mood = rng.normal(0, 0.1, 10)
    cell = mood + rng.normal(0.03, 0.003, 10)
    assert one(*cell).word == INCONCLUSIVE
    assert one(*verdict.centred(cell, {"a": mood, "b": mood})).word == REGRESSED
    with pytest.raises(ValueError, match="'a' has 9 pairs, the cell 10"):
        verdict.centred(cell, {"a": mood[:9]})


def test_a_group_is_judged_on_its_mean_pair_by_pair() -> None:
    rng = np.random.default_rng(22)
    cells = [rng.normal(0.018, 0.03, 10) for _ in range(16)]
    assert words(judge(dict(enumerate(cells)))).count(REGRESSED) <= 2
    (said,) = verdict.judge_groups({"sdpa": cells}, {}).values()
    assert said.word == REGRESSED and said == one(*np.mean(cells, axis=0))


def test_a_group_of_unchanged_cells_raises_few_alarms_also_where_they_share_the_noise_of_a_pair() -> None:
    rng = np.random.default_rng(23)
    alarms = 0
    for _ in range(300):
        shared = rng.normal(0, 0.03, (4, 1, 6))
        groups = {i: list(shared[i] + rng.normal(0, 0.01, (16, 6))) for i in range(4)}
        alarms += any(it.word in (REGRESSED, IMPROVED) for it in verdict.judge_groups(groups, {}).values())
    assert alarms <= 9


def test_pairs_that_lack_a_cell_do_not_count_for_its_group() -> None:
    """The cells that were timed in them may be the only ones that changed."""
    rng = np.random.default_rng(24)
    still, slow = rng.normal(0, 0.001, 12), rng.normal(0.1, 0.001, 12)
    still[4:] = math.nan
    (said,) = verdict.judge_groups({"sdpa": [still, slow]}, {}).values()
    assert said.ratio == pytest.approx(math.exp(0.05), abs=0.002)


def test_a_group_is_centred_on_controls_that_changed_and_only_on_those() -> None:
    rng = np.random.default_rng(25)
    cells = [rng.normal(0.02, 0.0005, 8) for _ in range(3)]
    (said,) = verdict.judge_groups({"sdpa": cells}, controls={"loop": rng.normal(0.02, 0.0005, 8)}).values()
    assert said.word == UNCHANGED
    (said,) = verdict.judge_groups({"sdpa": cells}, controls={"loop": rng.normal(0.0, 0.02, 8)}).values()
    assert said.word == REGRESSED and said.high / said.low < 1.002


def test_what_is_inconclusive_says_what_is_possible() -> None:
    said = one(-0.01, 0.01, -0.012, 0.03)
    assert said.word == INCONCLUSIVE
    assert said.reason.startswith(f"at most {(said.high - 1) * 100:.2g} % slower: ")
    assert shares.bound(1.002, 1.019) == "0.2 % to 1.9 % slower"
    assert shares.bound(0.9, 0.995) == "0.5 % to 10 % faster"
    assert shares.bound(0.5, 2.5) == "at most 150 % slower"


def test_a_shift_is_subtracted_and_its_error_paid_for() -> None:
    rng = np.random.default_rng(20)
    sides = {"cell": (rng.normal(-5, 0.01, 5), rng.normal(-4.95, 0.01, 5))}
    plain, shifted = judge_unpaired(sides)["cell"], judge_unpaired(sides, shift=0.05, shift_error=0.05)["cell"]
    assert math.log(shifted.ratio) == pytest.approx(math.log(plain.ratio) - 0.05)
    assert shifted.high / shifted.low > plain.high / plain.low


@pytest.mark.parametrize("margin", [-0.1, math.nan, math.inf])
def test_a_margin_is_a_share(margin: float) -> None:
    with pytest.raises(ValueError, match="the margin is a share"):
        judge({}, margin=margin)


def test_nothing_to_judge() -> None:
    assert judge({}) == {} and judge_unpaired({}) == {}


def test_the_judge_travels_light() -> None:
    """The live comparison imports it where no pandas and no matplotlib may be."""
    check = (
        "import sys, stats.ratios, stats.verdict; "
        "sys.exit(bool({'pandas', 'matplotlib', 'torch'} & sys.modules.keys()))"
    )
    home = Path(__file__).resolve().parents[2]
    assert subprocess.run([sys.executable, "-c", check], cwd=home, check=False).returncode == 0


def timed(logs_by_process: list[list[float]], rounds_from: int = 0) -> ratios.Samples:
    """One visit a process, one block a round."""
    flat = [(math.exp(log), process) for process, logs in enumerate(logs_by_process) for log in logs]
    processes = [process for _, process in flat]
    return ratios.Samples(
        [seconds for seconds, _ in flat], list(range(rounds_from, rounds_from + len(flat))), processes, processes
    )


def test_two_that_share_no_round_are_paired_by_process() -> None:
    moods = [[0.0], [0.5], [-0.3]]
    slow = timed([[log + 0.1] for [log] in moods], rounds_from=100)
    ratio = ratios.ratio(slow, timed(moods))
    assert ratio.value == pytest.approx(math.exp(0.1)) and ratio.slower and ratio.processes == 3
    apart = ratios.Samples(slow.seconds, slow.rounds, slow.visits, [7, 8, 9])
    assert not ratios.ratio(apart, timed(moods)).known


def visited(times: dict[int, float], process: int = 0) -> ratios.Samples:
    """Two blocks a visit, in rounds that nothing else has."""
    rounds = range(len(times) * 2)
    visits = [visit for visit in times for _ in range(2)]
    return ratios.Samples([times[visit] for visit in visits], rounds, visits, [process] * len(visits))


def test_two_cases_are_paired_by_the_visits_that_lie_nearest() -> None:
    """The machine is half as fast from the third pass on: it divides out, and where a visit was left out, too."""
    mood = {0: 1.0, 10: 1.0, 20: 2.0, 30: 2.0}
    of = visited({visit + 3: 3 * mood[visit] for visit in mood})
    over = visited({visit + 5: mood[visit] for visit in (10, 20, 30)})
    found, inverse = ratios.ratio_by_visit(of, over), ratios.ratio_by_visit(over, of)
    assert (found.value, found.visits, found.processes) == (pytest.approx(3), 3, 1)
    half = estimate.BETWEEN_PROCESSES * stats.t.ppf(0.975, estimate.PRIOR.df)
    assert math.log(found.high / found.low) / 2 == pytest.approx(half, rel=1e-3)
    assert inverse.value == pytest.approx(1 / 3) and inverse.low == pytest.approx(1 / found.high)


def test_two_cases_of_two_processes_are_paired_by_visits_where_they_share_none() -> None:
    found = ratios.ratio_by_visit(visited({0: 1.0, 10: 2.0}), visited({4: 2.0, 14: 4.0}, process=1))
    assert found.value == pytest.approx(0.5) and found.known


def test_rounds_that_only_one_took_part_in_say_nothing_of_a_ratio() -> None:
    of = timed([[0.1, 9.0], [0.1, 9.0], [0.1, 9.0]])
    over = ratios.Samples([1.0, 1.0, 1.0], [0, 2, 4], [0, 1, 2], [0, 1, 2])
    assert ratios.ratio(of, over).value == pytest.approx(math.exp(0.1))


def test_ranks_that_are_possible_overlap_where_no_difference_is_shown() -> None:
    rows = {"a": [[0.0], [0.0], [0.0]], "b": [[0.3], [-0.3], [0.01]], "c": [[5.0], [5.3], [4.7]]}
    pairs = ratios.compared({"case": {name: timed(logs) for name, logs in rows.items()}})["case"]
    assert ratios.ranks("abc", pairs) == {"a": (1, 2), "b": (1, 2), "c": (3, 3)}
    assert [ratios.rank_text(*it) for it in ((1, 2), (3, 3))] == ["1–2", "3"]


def test_no_rank_is_shown_against_the_order_of_the_medians_that_tables_print() -> None:
    """Paired by rounds `b` is faster; it took part in the slow half of the run alone, so its median is larger."""
    rounds = list(range(16))
    slow = [1.0 + (i >= 8) + 0.001 * (i % 3) for i in rounds]
    a = ratios.Samples(slow, rounds, [i // 2 for i in rounds], [0] * 16)
    b = ratios.Samples([it * 0.7 for it in slow[8:]], rounds[8:], [i // 2 for i in rounds[8:]], [0] * 8)
    assert ratios.ratio(b, a).faster
    b = ratios.Samples([it * 0.9 for it in slow[8:]], rounds[8:], [i // 2 for i in rounds[8:]], [0] * 8)
    pairs = ratios.compared({"case": {"a": a, "b": b}})["case"]
    assert ratios.ratio(b, a).faster and pairs["b", "a"].high == 1 == pairs["a", "b"].low
    assert ratios.ranks("ab", pairs) == {"a": (1, 2), "b": (1, 2)}


def test_one_more_process_with_the_same_scatter_narrows_every_interval() -> None:
    visits = [0.1 + 0.004 * it for it in (-1, 1, -1, 1, 0, 0, 1, -1)]
    moves = (0.01, -0.01, 0.01, -0.01, 0.01)
    widths = []
    for K in range(1, 6):
        cases = {
            "case": {"a": timed([[0.0] * 8] * K), "b": timed([[it + move for it in visits] for move in moves[:K]])}
        }
        found = ratios.compared(cases)["case"]["b", "a"]
        widths.append(found.high / found.low)
    assert widths == sorted(widths, reverse=True)


@pytest.mark.parametrize(("among", "df"), [(3, 1), (11, 4), (11, 8), (30, 8), (12, 200)])
def test_all_pairs_are_covered_at_once_by_tukeys_range(among: int, df: int) -> None:
    assert estimate.simultaneous(among, df) == pytest.approx(
        stats.studentized_range.ppf(0.95, among, df) / 2**0.5, rel=2e-3
    )
    assert estimate.simultaneous(2, df) == pytest.approx(stats.t.ppf(0.975, df))


def test_a_run_whose_processes_differ_more_has_wider_intervals_in_all_its_cells() -> None:
    def run(move: float) -> estimate.Variance:
        return estimate.between_processes([{p: [i + move * (-1) ** p] * 2 + [i] for p in range(4)} for i in range(5)])

    assert run(0.001).value < estimate.PRIOR.value < run(0.1).value
    assert estimate.between_processes([{0: [0.1, 0.2, 0.3]}]) == estimate.PRIOR
