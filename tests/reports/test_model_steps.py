"""Attention's share of a model's step, and a kernel's effect on the step: predicted from the core alone, and measured."""

from dataclasses import replace

import pytest
from synthetic_runs import case, document, row

from reports.judging.model_steps import model_steps
from reports.judging.rows import rows_of
from reports.pages import more
from reports.pages.report import report
from reports.pages.tables import plain

FUSED, SDPA = 2e-3, 1e-3
"""Seconds of the core alone."""


def found(as_run, change, inside=SDPA):
    this = report(measured(as_run, change, inside))
    return list(model_steps(this.rows, this.run.baseline_impl)), more.of_steps(this)


def measured(as_run, change, inside=SDPA):
    """A block of 10 ms of which the core is 2 ms, with `fused`; with `sdpa` it takes `change` times as long."""
    core, block = case(scope="core"), case(scope="block", model="qwen3-0.6b", d_model=1024)
    rows = [row("fused", core, [FUSED] * 8, cold_s=1.5 * FUSED), row("sdpa", core, [SDPA] * 8, cold_s=1.5 * SDPA)]
    for impl, seconds, of_core in (("fused", 1e-2, FUSED), ("sdpa", 1e-2 * change, inside)):
        parts = {"core": of_core, "mlp": 5e-3, "projections": 2e-3, "block": 5e-4, "around": 5e-4}
        shares = [of_core / seconds * wobble for wobble in (0.99, 1.0, 1.01)]
        inside_block = {"parts_s": parts, "core_shares": shares, "blocks": 1, "windows": [None], "depth": 28}
        rows.append(row(impl, block, [seconds] * 8, **inside_block))
    return as_run(document(rows))


def test_the_headline_has_the_speed_up_of_steps_not_of_cores(as_run):
    """The core takes half the time, the step nine tenths."""
    text = report(measured(as_run, 0.9)).headline
    assert text.startswith("Use sdpa: fastest in both cases, steps 1.11× faster than fused (1.11 to 1.11)")


@pytest.mark.parametrize(("windows", "predicted"), [([None], 1.0), ([7], 0.9), ([7, None], 0.95), ([7, 5], None)])
def test_a_step_is_predicted_from_the_cores_of_its_own_windows(windows, predicted, as_run):
    """Of a core with a window `sdpa` takes half the time of `fused`, of one without it as long."""
    rows = []
    for window, sdpa in ((None, FUSED), (7, SDPA)):
        core = case(scope="core", window=window)
        rows += [row(impl, core, [s] * 8) for impl, s in (("fused", FUSED), ("sdpa", sdpa))]
    block, blocks = case(scope="block", model="gemma", d_model=1024), len(windows)
    parts = {"core": FUSED * blocks, "around": 8e-3 * blocks}
    known = {"parts_s": parts, "core_shares": [0.2] * 3, "blocks": blocks, "windows": windows, "depth": 28}
    rows += [row(impl, block, [1e-2] * 8, **known) for impl in ("fused", "sdpa")]
    _, step = model_steps(rows_of(as_run(document(rows))), "fused")
    assert step.predicted.value == pytest.approx(predicted or float("nan"), nan_ok=True)
    assert step.inside == pytest.approx(FUSED)


def test_a_whole_model_has_its_own_depth(as_run):
    (fused, _), _ = found(as_run, 0.9)
    assert fused.whole == pytest.approx(1e-2 + 27 * 9.5e-3)
    assert fused.whole_share == pytest.approx(28 * FUSED / fused.whole)
    recorded_beside_other_work = {part: 4 * seconds for part, seconds in fused.parts.items()}
    assert fused._replace(parts=recorded_beside_other_work).whole == pytest.approx(fused.whole)


def test_the_tables_have_a_row_for_each_step(as_run):
    _, tables = found(as_run, 0.9)
    assert [[row[:2] for row in table.rows] for table in tables] == 3 * [[("fused", ""), ("sdpa", "")]]
    assert [row[4:] for row in tables[0].rows] == [
        ("baseline", "baseline"), ("0.900× (0.898 to 0.902)", "0.900× (0.900 to 0.900)"),
    ]  # fmt: skip
    assert tables[1].rows[0][6:8] == ("–", "–")  # a block has neither embedding nor head
    hot, cold, inside = tables[2].rows[0][2:]
    assert (hot, cold, inside) == ("2.00 ms", "3.00 ms", "2.00 ms")
    assert "differs from its hot time by a factor of 1.00, from its cold time by 1.50" in tables[2].note
    assert tables[2].note.endswith("cold is nearer in 0 of 2.")


def test_the_tables_fit_into_80_columns(as_run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    title, steps = "qwen3-0.6b B=1 H=16 D_h=128 T=1024 fp32 causal block", found(as_run, 0.9)[1][0]
    lines = plain(replace(steps, rows=[(impl, title, *others) for impl, _, *others in steps.rows])).splitlines()
    assert max(map(len, lines)) <= 80 and lines.count(title) == 2  # a block of columns each
