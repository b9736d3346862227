"""The sentences of a page, against the stored run's numbers."""

from __future__ import annotations

from typing import Any

import synthetic_runs as synthetic

from reports.judging import findings, frame
from reports.reading.runs import Run


def said(run: Run) -> list[str]:
    return [*filter(None, [findings.page_faults(frame.rows_of(run))])]


def test_wrong_outputs_are_warned_of(tiny: Run) -> None:
    [told] = findings.wrong(frame.rows_of(tiny), tiny.skipped)
    why = "packed ✗ did not pass the correctness check in 1 cell: error 0.3 exceeds its bound"
    assert told.startswith(why) and told.endswith(". Its numbers elsewhere are in doubt.")
    others = [row for row in frame.rows_of(tiny) if row["impl"] != "packed"]
    [told] = findings.wrong(others, tiny.skipped)
    assert told.startswith(why) and "elsewhere" not in told


def faulting(column: str = "kept_pages_s", **other: float | None) -> dict[str, Any]:
    """A run of one case with the medians of a machine where the plain formula faults."""
    medians = {"sdpa": 84e-3, "fused": 705e-3, "einsum": 720e-3}
    at = synthetic.case(T=4096)
    return synthetic.document(
        [synthetic.row(name, at, [s], page_faults=5e5, **{column: other.get(name)}) for name, s in medians.items()]
    )


def test_the_cost_of_page_faults_is_given_for_the_call_that_loses_most(as_run: Any) -> None:
    [told] = said(as_run(faulting(fused=352e-3, einsum=400e-3)))
    assert told == (
        "With glibc's own settings fused takes 705 ms at B=1 H=8 D_h=64 T=4096 fp32 causal, of which 50 % are page "
        f"faults. With {findings.KEEPING} it takes 352 ms."
    )


def test_a_run_with_kept_pages_reports_the_cost_of_page_faults(as_run: Any) -> None:
    [told] = said(as_run(faulting("fresh_pages_s", fused=1.4, sdpa=84e-3)))
    assert told.startswith(
        "With glibc's own settings fused takes 1.40 s at B=1 H=8 D_h=64 T=4096 fp32 causal, of which"
    )
    assert told.endswith(" it takes 705 ms.")


def test_calls_that_take_as_long_with_kept_pages_lose_nothing(as_run: Any) -> None:
    assert findings.page_faults(frame.rows_of(as_run(faulting(fused=690e-3, einsum=730e-3)))) == ""
