"""Regret: what a choice among kernels loses to the best of them that was pinned."""

from __future__ import annotations

from typing import Any

import synthetic_runs as synthetic

from reports.judging import findings, frame, regret
from reports.pages import page
from reports.reading.runs import Run


def timed(impl: str, seconds: float, T: int = 64, apart: tuple[float, ...] = (1, 1, 1), **extra: Any) -> dict[str, Any]:
    pins = "sdpa" if impl.startswith("pinned") else None
    return synthetic.row(impl, synthetic.case(T=T), [seconds], apart, pins=pins, **extra)


def said(run: Run) -> list[str]:
    return findings.findings(frame.tidy(run), run.baseline_impl, frame.skipped(run))


def test_it_is_over_the_fastest_pinned_kernel_of_the_case(as_run: Any, tmp_path: Any) -> None:
    rows = [
        *(timed(name, s) for name, s in (("sdpa", 3e-3), ("pinned_a", 4e-3), ("pinned_b", 2e-3), ("other", 1e-3))),
        *(timed(name, s, T=128) for name, s in (("sdpa", 3e-3), ("pinned_a", 4e-3))),
        timed("sdpa", 9e-3, T=256),  # no pinned kernel there
    ]
    run = as_run(synthetic.document(rows))
    found = regret.regrets(frame.tidy(run))
    assert [(it.impl, it.pinned, it.row["T"]) for it in found] == [("sdpa", "pinned_b", 64), ("sdpa", "pinned_a", 128)]
    assert round(found[0].ratio.value, 6) == 1.5 and found[0].ratio.slower and found[1].ratio.faster
    assert (
        "In 1 of 2 cases a pinned kernel is shown to be faster than the one that sdpa chooses: "
        "at B=1 H=8 D_h=64 T=64 fp32 causal, sdpa takes 1.50× the time of pinned_b." in said(run)
    )
    text = page.write(run, tmp_path).read_text()
    assert "Regret: the time of the kernel that was chosen" in text and '<div class="lean">pinned_b</div>' in text


def test_a_loss_that_is_not_shown_is_none(as_run: Any) -> None:
    rows = [timed("sdpa", 3e-3, apart=(0.7, 1, 1.3)), timed("pinned_a", 2.9e-3)]
    assert any(
        text.startswith("In none of 1 case is a pinned kernel") for text in said(as_run(synthetic.document(rows)))
    )


def test_runs_without_pinned_kernels_say_nothing(turns: Run, as_run: Any) -> None:
    alone = as_run(synthetic.document([timed("pinned_a", 1e-3), timed("fused", 1e-3)]))
    assert regret.finding(frame.tidy(turns)) == "" == regret.finding(frame.tidy(alone))


def test_what_was_wrong_is_nobodys_regret(as_run: Any) -> None:
    skipped = [{"impl": "pinned_a", "id": "x", "reason": "wrong", "detail": "off"}]
    run = as_run(synthetic.document([timed("sdpa", 3e-3), timed("pinned_a", 1e-3)], skipped=skipped))
    assert regret.regrets(frame.tidy(run)) == []
