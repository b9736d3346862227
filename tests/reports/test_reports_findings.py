"""The sentences of a page, against the stored run's numbers."""

from __future__ import annotations

from typing import Any

import synthetic_runs as synthetic

from reports.judging import findings, frame
from reports.reading.runs import Run

MIB = 2**20


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
        f"faults. With {findings.KEEPING} it takes 352 ms, and sdpa's lead is 4.2× instead of 8.4×."
    )


def test_a_run_with_kept_pages_reports_the_cost_of_page_faults(as_run: Any) -> None:
    [told] = said(as_run(faulting("fresh_pages_s", fused=1.4, sdpa=84e-3)))
    assert told.startswith(
        "With glibc's own settings fused takes 1.40 s at B=1 H=8 D_h=64 T=4096 fp32 causal, of which"
    )
    assert told.endswith(" it takes 705 ms, and sdpa's lead is 8.4× instead of 17×.")


def with_memory(run: Run, tensors: list[float], grown: list[float]) -> list[dict[str, Any]]:
    """The run's rows, of which the first have these bytes and the others none that matter."""
    known = zip([*tensors, *[100.0] * 20], [*grown, *[0.0] * 20], frame.rows_of(run), strict=False)
    return [{**row, "peak_bytes": held * MIB, "peak_rss_bytes": rss * MIB} for held, rss, row in known]


def test_memory_outside_of_tensors(tiny: Run) -> None:
    assert findings.hidden_memory(frame.rows_of(tiny)) == ""
    rows = with_memory(tiny, [10, 10], [27.5, 12])
    told = findings.hidden_memory(rows)
    assert told.startswith(f"In 1 cell a call took more memory than its tensors, most {rows[0]['impl']} at ")
    assert "the process grew by 27.5 MiB, of which tensors take 10.0 MiB." in told


def test_memory_that_malloc_keeps_is_not_mentioned(tiny: Run) -> None:
    assert findings.hidden_memory(with_memory(tiny, [10, 100, 100], [17, 150, 150])) == ""
