"""Steps relative to the other implementations of a case: drift of the machine is no step, and conceals none."""

import numpy as np
import pytest

from reports.judging.series import Point, of_points

RUNS = 12
SOME = range(3)


def measured(seed, others=3, runs=RUNS, day=0.3, own=0.005):
    """Logarithms of seconds, a row per implementation; the first row's cell is tested."""
    rng = np.random.default_rng(seed)
    return rng.normal(0, day, runs) + rng.normal(0, own, (1 + others, runs))


def cell(logs, codes=None, ratios=None):
    """The first row's. `codes` are the `impl_hash` of the rows that don't keep theirs; what is NaN was not measured. `ratios`
    are logarithms too."""
    points = {}
    for row, each in enumerate(np.exp(logs).tolist()):
        code = (codes or {}).get(row, [row] * len(each))
        ratio = [
            None if r != r else r
            for r in np.exp(np.full(len(each), np.nan) if ratios is None else ratios[row]).tolist()
        ]
        points[str(row), ""] = {run: Point(s, s, s, "", code[run], ratio[run]) for run, s in enumerate(each) if s == s}
    return next(of_points(points, {}))


def places(series):
    """Of steps: in which run, and whether slower."""
    return [(step.at, step.slower) for step in series.steps]


def relative(series):
    """Where steps are that were found relative to the others; seconds may show one where days happen to."""
    return [step.at for step in series.steps if step.relative]


def another_changes(logs, at):
    logs[1, at:] += np.log(1.4)


def all_are_odd(logs, at):
    logs[:, at] += np.log(3)


@pytest.mark.parametrize(("happens", "at"), [(another_changes, 4), (another_changes, 6), (all_are_odd, 7)])
def test_steps_of_other_implementations_neither_cause_nor_hide_one(happens, at):
    for seed in SOME:
        logs = measured(seed)
        happens(logs, at)
        assert not relative(cell(logs))
        logs[0, 6:] += np.log(1.2)
        assert places(cell(logs)) == [(6, True)]


def test_interleaved_ratios_show_steps_that_are_lost_in_noisy_medians():
    """Two runs have no ratios, another one lacks some."""
    for seed in SOME:
        logs = measured(seed, runs=16)
        logs[0, 8:] += np.log(1.1)
        noisy = logs + np.random.default_rng(seed).normal(0, 0.1, logs.shape)
        ratios = logs - logs[1]
        noisy[:, [3, 10]] = logs[:, [3, 10]]
        ratios[:, 3] = np.nan
        ratios[2, 10] = np.nan
        assert relative(cell(noisy, ratios=ratios)) == [8] and not relative(cell(noisy))


def test_others_whose_code_changed_at_once_do_not_estimate_drift():
    for seed in SOME:
        logs = measured(seed, others=5)
        logs[1:4, 6:] -= np.log(1.3)
        codes = {row: [run >= 6 for run in range(RUNS)] for row in (1, 2, 3)}
        assert relative(cell(logs)) == [6]  # as if it had become slower
        assert not relative(cell(logs, codes))


def test_a_change_of_all_implementations_is_attributed_to_the_machine():
    logs = measured(0, runs=30, day=0.01)
    logs[:, 20:] -= np.log(1.3)
    assert not cell(logs).steps
    logs[0, 10:] += np.log(1.2)
    assert places(found := cell(logs)) == [(10, True)]
    assert found.steps[0].relative and found.open_step == found.steps[0]


def test_a_change_of_all_code_shows_in_seconds():
    logs = measured(0, day=0.01)
    logs[:, 6:] += np.log(1.2)
    (step,) = cell(logs, {row: [run >= 6 for run in range(RUNS)] for row in range(4)}).steps
    assert step.at == 6 and not step.relative and step.ratio == pytest.approx(1.2, abs=0.03)


def test_runs_without_the_cell_are_left_out():
    for seed in SOME:
        logs = measured(seed, runs=20)
        logs[0, 9:] += np.log(1.2)
        logs[1, 4] = logs[2, 12] = logs[0, 2] = logs[0, 10] = np.nan
        assert places(cell(logs)) == [(9, True)]


@pytest.mark.filterwarnings("error")
def test_a_run_with_few_others_does_not_estimate_drift():
    logs = measured(0, runs=20)
    logs[1:3, 8:14] = np.nan
    logs[3, 8:14] += np.log(1.4)
    assert not relative(cell(logs))
    interleaved = measured(0, runs=20)
    interleaved[1:][np.arange(3)[:, None] != np.arange(20) % 3] = np.nan
    assert not cell(interleaved).steps
