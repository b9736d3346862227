"""Verdicts on simulated processes with known effects: error rates, and that no verdict is retracted."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from stats import effects, estimate, ratios, verdict
from stats.estimate import Estimate, per_analysis
from stats.verdict import (
    CHANGED,
    IMPROVED,
    INCONCLUSIVE,
    REGRESSED,
    SLIGHT,
    UNCHANGED,
    of_effects,
    of_replicates,
)

CASES, PAIRS, NOISE = 3, 8, 0.01
IMPLS = ("sdpa", "fused", "packed")


def table(rng, injected=0.0, pairs=PAIRS, noise=NOISE):
    """Log ratios of three implementations in `CASES` cases, sdpa slower by an injected share."""
    return {
        (impl, str(case)): rng.normal(math.log1p(injected) if impl == "sdpa" else 0, noise, pairs)
        for impl in IMPLS
        for case in range(CASES)
    }


def one(*logs):
    return of_replicates({("x", "case"): np.array(logs)}, {})[0]["x", "case"]


def known(mean, error, df=100):
    return Estimate(mean, error, df)


def of(mean, error, margin=0.01):
    return of_effects({("x", "case"): known(math.log1p(mean), error)}, margin=margin)[0]["x", "case"]


def every(said):
    return [*said[0].values(), *said[1].values()]


def test_unchanged_code_is_reported_in_a_hundredth_of_comparisons_over_all_interim_analyses():
    rng = np.random.default_rng(1)
    alarms = sum(
        any(it.word in (*CHANGED, SLIGHT) for it in every(of_replicates(table(rng, noise=0.1), {}))) for _ in range(200)
    )
    assert alarms <= 2  # 1 in 100 is guaranteed for interim analyses after every replicate up to the 200th


def test_a_slow_down_of_two_percent_is_found_in_its_implementation_and_nowhere_else():
    rng = np.random.default_rng(3)
    said = [of_replicates(table(rng, 0.02), {}) for _ in range(40)]
    assert sum(impls["sdpa"].word == REGRESSED for _, impls in said) >= 39
    assert sum(it.word in CHANGED for cells, _ in said for key, it in cells.items() if key[0] != "sdpa") <= 1


@pytest.mark.parametrize(
    ("mean", "error", "margin", "word"),
    [
        (0.02, 0.001, 0.01, REGRESSED),
        (-0.02, 0.001, 0.01, IMPROVED),
        (0.008, 0.0005, 0.01, SLIGHT),  # both facts hold
        (-0.008, 0.0005, 0.01, SLIGHT),
        (0.001, 0.001, 0.01, UNCHANGED),
        (0.009, 0.002, 0.01, REGRESSED),  # not shown to be within the margin
        (0.009, 0.004, 0.01, INCONCLUSIVE),
        (0.0, 0.02, 0.01, INCONCLUSIVE),
        (0.02, 0.001, 0.03, SLIGHT),
        (0.02, 0.001, 0.15, UNCHANGED),
        (0.0018, 0.0001, 0.0, INCONCLUSIVE),  # the minimum effect holds whatever the margin
    ],
)
def test_the_verdict_follows_from_minimum_effect_and_margin(mean, error, margin, word):
    assert of(mean, error, margin).word == word


def after_each(logs, ends=()):
    """Verdicts on cells and implementations after every replicate from the first analysis on."""
    found = effects.of_replicates(logs, ends)
    for i in range(len(next(iter(logs.values()))) - effects.FIRST_ANALYSIS + 1):
        until = [
            {key: replace(it.analyses[i], analyses=it.analyses[: i + 1]) for key, it in of.items()} for of in found
        ]
        cells, impls = of_effects(*until)
        yield cells | impls


def test_a_significant_verdict_is_never_withdrawn():
    """After any number of replicates, near the margin and far from it, no verdict changes its direction."""
    rng = np.random.default_rng(8)
    lost = 0
    for injected in (0.0, 0.005, 0.009, 0.011):
        facts = dict[object, tuple[int, bool]]()
        for said in after_each(table(rng, injected, pairs=40, noise=0.004), ends=(8, 16, 40)):
            for name, it in said.items():
                way = (1 if it.ratio > 1 else -1) * (it.word in (*CHANGED, SLIGHT))
                before = facts.get(name, (0, False))
                facts[name] = way, it.word in (SLIGHT, UNCHANGED)
                lost += (before[0] not in (0, way)) or before[1] > facts[name][1]
    assert lost == 0


@pytest.mark.parametrize("ends", [(), (10, 30)])
def test_intervals_of_all_analyses_hold_the_truth_in_95_percent_of_comparisons(ends):
    rng = np.random.default_rng(9)
    wrong = 0
    for _ in range(40):
        cells, _ = effects.of_replicates(table(rng, pairs=30), ends)
        wrong += sum(not low <= 0 <= high for low, high in (it.interval() for it in cells.values()))
    assert 0.005 < wrong / 40 / len(cells) <= 0.06


@pytest.mark.parametrize("level", [0.1, 0.05, 0.01, 0.0005])
def test_the_level_of_an_interim_analysis(level):
    """Nominal levels from 1,200,000 simulated walks, as `tests/experiments/interim.py` prints them."""
    simulated = {0.1: 0.00831, 0.05: 0.00359, 0.01: 0.000565, 0.0005: 0.0000225}
    assert per_analysis(level) == pytest.approx(simulated[level], rel=0.08)


def test_the_last_analysis_within_the_time_has_a_narrower_interval():
    """And of what a continued comparison has left, its last one gets the larger part."""
    of = Estimate(0.0, 0.01, 6)
    counts, ends = (*range(3, 8), *range(8, 15)), (7, 14)
    levels = replace(of, analyses=tuple(replace(of, count=it, last=it in ends) for it in counts)).levels(0.05)
    assert levels[:4] == [per_analysis(0.05)] * 4 and 6 * levels[3] < levels[4] < 0.05
    assert len({*levels[5:-1]}) == 1 and levels[5] < levels[3] < levels[-1] < levels[4]


def test_a_cell_that_differs_from_its_implementation_is_reported_alone():
    cells = {("sdpa", str(i)): known(0.0, 0.0008) for i in range(15)} | {("sdpa", "slow"): known(0.05, 0.001)}
    said, impls = of_effects(cells, {"sdpa": known(0.003, 0.0003)})
    assert impls["sdpa"].word == REGRESSED == said["sdpa", "slow"].word
    assert {it.word for key, it in said.items() if key[1] != "slow"} == {UNCHANGED}


def test_a_cell_agrees_with_its_implementation_about_the_margin():
    """Otherwise a report would contradict itself: as fast as before within 1 %, but slower in 8 of 16 cells."""
    cells = {("sdpa", str(i)): known(0.0085, 0.0012) for i in range(16)}
    alone, _ = of_effects(cells)
    said, impls = of_effects(cells, {"sdpa": known(0.0085, 0.0003)})
    assert {it.word for it in alone.values()} == {REGRESSED}
    assert impls["sdpa"].word == SLIGHT and {it.word for it in said.values()} == {SLIGHT}


def test_a_cell_that_changed_the_other_way_is_tested_among_all_cells():
    cells = {("x", "slow"): known(0.2, 0.001), ("x", "fast"): known(-0.035, 0.011)}
    others = {("other", str(i)): known(0.0, 0.001) for i in range(40)}
    assert of_effects(cells | others, {"x": known(0.08, 0.001)})[0]["x", "fast"].word == INCONCLUSIVE


def test_a_cell_that_is_not_shown_to_change_inherits_no_margin():
    cells = {("x", "wide"): known(0.0, 0.02), ("x", "case"): known(0.0, 0.0005)}
    assert of_effects(cells, {"x": known(0.0, 0.0003)})[0]["x", "wide"].word == INCONCLUSIVE


def test_an_implementation_with_one_cell_has_its_verdict():
    said, impls = of_effects({("x", "case"): known(0.05, 0.001)}, {"x": known(0.0, 1.0)})
    assert impls["x"] == said["x", "case"]


def test_implementations_with_unchanged_code_cost_the_changed_one_no_sensitivity():
    cells = {("x", "case"): known(0.035, 0.01)} | {(f"other {i}", "case"): known(0.0, 0.01) for i in range(30)}
    implementations = {impl: it for (impl, _), it in cells.items()}
    for changed, word in ((["x"], REGRESSED), ([], INCONCLUSIVE)):
        assert of_effects(cells, implementations, changed=changed)[1]["x"].word == word
        assert of_effects(cells, changed=changed)[0]["x", "case"].word == word


def test_a_disturbed_replicate_costs_little():
    rng = np.random.default_rng(26)
    logs = rng.normal(0.02, 0.004, 20)
    calm = one(*logs)
    logs[13] = 1.5
    said = one(*logs)
    assert said.word == REGRESSED and said.high / said.low < 1.4 * calm.high / calm.low


def test_the_minimum_detectable_effect_is_found_in_80_percent():
    """A single change of the size `detectable` is found about four times in five."""
    rng = np.random.default_rng(9)

    def cell(injected):
        return of_effects({("x", str(i)): known(rng.normal(injected * (i == 0), 0.01), 0.01) for i in range(20)})[0][
            "x", "0"
        ]

    promised = cell(0.0).detectable
    found = sum(cell(math.log1p(promised)).word == REGRESSED for _ in range(300))
    assert 0.7 < found / 300 < 0.9


def test_spreads_are_moderated_except_outliers():
    rng = np.random.default_rng(11)
    found = {i: estimate.of_replicates(rng.normal(0, 0.01, 6)) for i in range(40)} | {
        40: estimate.of_replicates(rng.normal(0, 0.2, 6))
    }
    mixed = effects.moderated(found)
    errors = [mixed[i].error for i in range(40)]
    assert np.std(errors) < np.std([found[i].error for i in range(40)]) * 0.7
    assert 0.008 < np.median(errors) * 6**0.5 < 0.012
    assert mixed[40] == found[40] and all(mixed[i].df > found[i].df for i in range(40))


def test_replicates_that_contradict_an_earlier_verdict_are_reported():
    noise = np.random.default_rng(0).normal(0, 1e-4, 60)
    agreeing = one(*(0.03 + noise))
    contradicting = one(*(np.repeat([0.03, -0.03], [15, 45]) + noise))
    assert agreeing.word == contradicting.word == REGRESSED
    assert "contradict" not in agreeing.reason
    assert contradicting.reason.endswith("later replicates contradict it")
    assert contradicting.low <= contradicting.ratio <= contradicting.high


def test_a_group_of_unchanged_cells_raises_few_false_alarms_with_noise_common_to_a_replicate():
    rng = np.random.default_rng(23)
    alarms = 0
    for _ in range(150):
        drift = {impl: rng.normal(0, 0.03, 6) for impl in IMPLS}
        logs = {key: of + drift[key[0]] for key, of in table(rng, pairs=6).items()}
        alarms += any(it.word in (*CHANGED, SLIGHT) for it in of_replicates(logs, {})[1].values())
    assert alarms <= 4


def test_an_implementation_counts_all_replicates_of_all_its_cells():
    """Decided cells are no longer timed: later replicates have undecided cells only, perhaps the only changed ones."""
    rng = np.random.default_rng(24)
    still, slow = rng.normal(0, 0.001, 12), rng.normal(0.1, 0.001, 12)
    still[4:] = math.nan
    found = of_replicates({("sdpa", "still"): still, ("sdpa", "slow"): slow}, {})[1]["sdpa"]
    assert found.ratio == pytest.approx(math.exp(0.05), abs=0.002)


def test_large_drift_of_the_reference_workload_voids_the_comparison():
    assert verdict.drifted({"loop": [0.02] * 10}) == ""  # head's code may have slowed it in its own process
    assert "'loop' changed by −5.8 %" in verdict.drifted({"product": [0.0] * 3, "loop": [-0.06, -0.05, -0.07]})
    assert verdict.drifted({"loop": [-0.04, 0.035, 0.031, 0.065, -0.01, 0.08]}) == ""  # it scatters as much


@pytest.mark.parametrize("logs", [[], [math.nan], [0.3], [math.nan, 0.3], [0.3, 0.3]])
def test_two_replicates_or_fewer_are_never_enough(logs):
    said = one(*logs)
    assert (said.word, said.reason) == (INCONCLUSIVE, "measured too rarely for an interval") and math.isnan(said.low)
    assert said.ratio == pytest.approx(math.exp(0.3) if 0.3 in logs else math.nan, nan_ok=True)


def test_identical_numbers_are_judged():
    assert [one(*[log] * 4).word for log in (0.0, 0.05, 0.005)] == [UNCHANGED, REGRESSED, SLIGHT]


def test_an_inconclusive_cell_has_bounds():
    said = of(0.002, 0.01)
    assert said.word == INCONCLUSIVE
    bounds = f"between {(1 - said.low) * 100:.1f} % faster and {(said.high - 1) * 100:.1f} % slower"
    assert said.reason == bounds
    cells, _ = verdict.of_effects({("sdpa", f"T{i}"): Estimate(0.4 * (i == 0), 0.1, 8) for i in range(100)})
    assert cells["sdpa", "T0"].word == INCONCLUSIVE and cells["sdpa", "T0"].low > 1.1
    assert of(0.0, 5.0).reason.startswith("not resolved") and of(0.0, 5000.0).detectable == math.inf


def samples(seconds, visits, rounds=None):
    """Of one process."""
    found = np.asarray(seconds, float).tolist()
    return ratios.Samples(found, rounds or range(len(found)), visits, [0] * len(found))


def timed(logs_by_process, rounds_from=0):
    """One visit a process, one block a round."""
    flat = [(math.exp(log), process) for process, logs in enumerate(logs_by_process) for log in logs]
    processes = [process for _, process in flat]
    return ratios.Samples(
        [seconds for seconds, _ in flat], list(range(rounds_from, rounds_from + len(flat))), processes, processes
    )


def test_two_that_share_no_round_are_paired_by_process():
    conditions = [[0.0], [0.5], [-0.3]]
    slow = timed([[log + 0.1] for [log] in conditions], rounds_from=100)
    ratio = ratios.ratio(slow, timed(conditions))
    assert ratio.value == pytest.approx(math.exp(0.1)) and ratio.slower
    assert not ratios.ratio(slow._replace(processes=[7, 8, 9]), timed(conditions)).known


@pytest.mark.parametrize(
    ("visits", "scatter", "doubled", "width"),
    [((2, 2), 0.1, 0.0, math.inf), ((3, 3, 3), 0.1, 0.0, math.inf), ((2, 2, 2, 2), 0.02, 0.1, 0.1)],
)
def test_few_rounds_have_an_interval_that_holds(visits, scatter, doubled, width):
    """Also where some calls take twice as long."""
    rng = np.random.default_rng(7)
    where = [visit for visit, count in enumerate(visits) for _ in range(count)]

    def noise():
        return samples(np.exp(rng.normal(0, scatter, len(where))) * (1 + (rng.random(len(where)) < doubled)), where)

    found = [ratios.ratio(noise(), noise()) for _ in range(600)]
    assert np.mean([it.low < 1 < it.high for it in found]) > 0.92
    assert np.median([abs(math.log(it.value)) for it in found]) < scatter
    assert np.median([math.log(it.high / it.low) / 2 for it in found]) <= width


def visited(times):
    """Two blocks a visit, in rounds that nothing else has."""
    visits = [visit for visit in times for _ in range(2)]
    return samples([times[visit] for visit in visits], visits)


def test_two_cases_are_paired_by_the_visits_that_lie_nearest():
    """From the third pass on the machine is half as fast: it cancels, even if a visit is missing."""
    drift = {0: 1.0, 10: 1.0, 20: 2.0, 30: 2.0}
    of = visited({visit + 3: 3 * drift[visit] for visit in drift})
    over = visited({visit + 5: drift[visit] for visit in (10, 20, 30)})
    found, inverse = ratios.ratio(of, over, one_case=False), ratios.ratio(over, of, one_case=False)
    assert found.value == pytest.approx(3)
    assert [len(logs) for logs in ratios.paired(of, over, one_case=False)] == [3]
    half = estimate.BETWEEN_PROCESSES * stats.t.ppf(0.975, estimate.PRIOR.df)
    assert math.log(found.high / found.low) / 2 == pytest.approx(half, rel=1e-3)
    assert inverse.value == pytest.approx(1 / 3) and inverse.low == pytest.approx(1 / found.high)


def test_two_cases_of_two_processes_are_paired_by_visits_where_they_share_none():
    other = visited({4: 2.0, 14: 4.0})._replace(processes=[1] * 4)
    found = ratios.ratio(visited({0: 1.0, 10: 2.0}), other, one_case=False)
    assert found.value == pytest.approx(0.5) and found.known


@pytest.mark.parametrize(("visit", "round_"), [(0.0, 0.05), (0.03, 0.05), (0.045, 0.02)])
def test_the_error_is_that_of_the_means_of_visits(visit, round_):
    """Rounds of one visit have its conditions in common; those of all visits together don't lie in order."""
    rng, visits = np.random.default_rng(2), [i // 6 for i in range(36)]
    over = samples([1.0] * 36, visits)
    means, variances = [], []
    for _ in range(200):
        logs = rng.normal(0, visit, 6).repeat(6) + rng.normal(0, round_, 36)
        [units] = ratios.paired(samples(np.exp(logs), visits), over)
        means.append(np.mean(units))
        variances.append(np.var(units, ddof=1) / 6)
    assert 0.85 < np.mean(variances) ** 0.5 / np.std(means) < 1.25


def test_a_disturbed_visit_hardly_counts():
    """Every call waited 43 ms for a core, so that its ratio was 1.2 instead of 5."""
    rng, visits = np.random.default_rng(0), [i // 5 for i in range(30)]

    def calls(seconds):
        return samples([seconds * math.exp(rng.normal(0, 0.02)) + 43e-3 * (visit == 1) for visit in visits], visits)

    found = ratios.ratio(calls(15e-3), calls(3e-3))
    assert found.value == pytest.approx(5, rel=0.05) and found.low > 4.5


def test_long_disturbed_calls_of_a_process_hardly_count():
    """In the last of five processes with two rounds each, a call took 0.80 s instead of 0.24, as in a published run."""
    processes, visits = [i // 2 for i in range(10)], [*range(10)]
    of, over = (
        ratios.Samples([seconds * math.exp(0.01 * (i % 3)) for i in range(10)], visits, visits, processes)
        for seconds in (0.24, 0.22)
    )
    found = ratios.ratio(of._replace(seconds=[*of.seconds[:8], 0.8, of.seconds[9]]), over)
    assert found.value == pytest.approx(0.24 / 0.22, rel=0.01) and found.low > 1 and found.high < 1.2


def test_intervals_of_all_pairs_hold_at_once_if_a_few_long_calls_scatter():
    """Of ten pairs with eight rounds each, some scatter little by chance."""
    rng, visits = np.random.default_rng(1), [i // 4 for i in range(8)]

    def all_hold():
        rows = {name: samples(np.exp(rng.normal(0, 0.1, 8)), visits) for name in "abcde"}
        over = ratios.compared({"case": rows})[0]["case"]
        return all(it.low <= 1 <= it.high for its in over.values() for it in its.values())

    assert np.mean([all_hold() for _ in range(500)]) > 0.92


def test_no_rank_is_shown_against_the_order_of_the_medians_that_tables_print():
    """By rounds `b` is faster, but it was timed only in the slow half of the run, so its median is larger."""
    rounds = list(range(16))
    slow, visits = [1.0 + (i >= 8) + 0.001 * (i % 3) for i in rounds], [i // 2 for i in rounds]
    a, b = samples(slow, visits), samples([it * 0.9 for it in slow[8:]], visits[8:], rounds[8:])
    over = ratios.compared({"case": {"a": a, "b": b}})[0]["case"]
    assert ratios.ratio(b, a).faster and over["b"]["a"].high == 1 == over["a"]["b"].low
    assert [rank for _, *rank in ratios.ranks("ab", over).values()] == [[1, 2], [1, 2]]


@pytest.mark.parametrize(("among", "df"), [(3, 1), (30, 8), (12, 200)])
def test_all_pairs_are_covered_at_once_by_tukeys_range(among, df):
    assert estimate.simultaneous(among, df) == pytest.approx(
        stats.studentized_range.ppf(0.95, among, df) / 2**0.5, rel=2e-3
    )
    assert estimate.simultaneous(2, df) == pytest.approx(stats.t.ppf(0.975, df))


def test_a_run_whose_processes_differ_more_has_wider_intervals_in_all_its_cells():
    def run(move):
        return estimate.between_processes([[[i + move * (-1) ** p] * 2 + [i] for p in range(4)] for i in range(5)])

    assert run(0.001).value < estimate.PRIOR.value < run(0.1).value
    assert estimate.between_processes([[[0.1, 0.2, 0.3]]]) == estimate.PRIOR


def test_more_time_narrows_the_interval_of_the_visits_alone():
    visits = [0.1, 0.12, 0.14]
    half = stats.t.ppf(0.975, 2) * np.std(visits, ddof=1) / 3**0.5
    assert estimate.half_width([visits]) == pytest.approx(half)
    assert estimate.half_width([[0.1]]) == math.inf
