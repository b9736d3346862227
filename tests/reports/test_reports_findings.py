"""The sentences of a page, against the stored run's numbers."""

import pytest
import synthetic_runs as synthetic

from reports.judging import findings
from reports.judging.rows import rows_of
from reports.reading.fingerprint import KEEP


def said(run):
    return findings.page_faults(rows_of(run), run.machine)


def test_wrong_outputs_are_warned_of(tiny):
    [told] = findings.faults(rows_of(tiny), tiny.skipped)
    why = "packed ✗ did not pass the correctness check in 1 cell: error 0.3 exceeds its bound"
    assert told.startswith(why) and told.endswith(". Its numbers elsewhere are in doubt.")
    others = [row for row in rows_of(tiny) if row["impl"] != "packed"]
    [told] = findings.faults(others, tiny.skipped)
    assert told.startswith(why) and "elsewhere" not in told


def test_failures_are_warned_of_and_unsupported_cells_are_not():
    reasons = {"error": "E: no", "timeout": "above 300 s", "unsupported": "supports 1 head", "out_of_memory": "24 GiB"}
    skipped = [{"impl": "mine", "id": f"T{i}", "reason": it, "detail": reasons[it]} for i in range(2) for it in reasons]
    assert findings.faults([], skipped) == ["mine failed in 2 cells: E: no.", "mine timed out in 2 cells: above 300 s."]


def faulting(column="kept_pages_s", **other):
    """A run of one case with the medians of a machine where the plain formula faults."""
    medians = {"sdpa": 84e-3, "fused": 705e-3, "einsum": 720e-3}
    at = synthetic.case(T=4096)
    return synthetic.document(
        [synthetic.row(name, at, [s], page_faults=5e5, **{column: other.get(name)}) for name, s in medians.items()]
    )


@pytest.mark.parametrize(
    ("data", "takes", "share", "faster", "before"),
    [
        (faulting(fused=352e-3, einsum=400e-3), ("705 ms", "352 ms"), 50, "4.2× faster", "8.4×"),  # what loses most
        (faulting("fresh_pages_s", fused=1.4, sdpa=84e-3), ("1.40 s", "705 ms"), 50, "8.4× faster", "17×"),
        (faulting(fused=80e-3), ("705 ms", "80.0 ms"), 89, "no longer faster", "8.4×"),
        (faulting(sdpa=42e-3, fused=630e-3), ("705 ms", "630 ms"), 11, "15× faster", "8.4×"),  # also the fastest's
    ],
)
def test_the_cost_of_page_faults_is_given(data, takes, share, faster, before, as_run):
    assert said(as_run(data)) == (
        f"With glibc's own settings fused takes {takes[0]} at B=1 H=8 D_h=64 T=4096 fp32 causal, of which {share} % are "
        f"page faults. With {findings.KEEPING} it takes {takes[1]}, and sdpa is {faster} instead of {before}."
    )


def test_times_with_huge_pages_are_not_those_of_glibc_alone(as_run):
    data = faulting(fused=352e-3)
    data["machine_info"] |= {"allocator": {**KEEP, "THP_MEM_ALLOC_ENABLE": "1"}}
    assert said(as_run(data)).startswith("With glibc's own settings and THP_MEM_ALLOC_ENABLE=1 fused takes 705 ms")
    del data["machine_info"]["allocator"]  # an earlier run
    assert said(as_run(data)).startswith("With glibc's own settings fused takes 705 ms")


def test_calls_that_take_as_long_with_kept_pages_lose_nothing(as_run):
    assert said(as_run(faulting(fused=690e-3, einsum=730e-3))) == ""


def test_a_wrong_output_loses_nothing_to_page_faults(as_run):
    data = faulting(fused=352e-3)
    data["skipped"] = [{"impl": "fused", "id": data["benchmarks"][1]["group"], "reason": "wrong", "detail": "off"}]
    assert said(as_run(data)) == ""


def test_the_variation_between_processes_is_printed():
    for rows, shown in (([], "2 %"), ([{"between_processes": 0.031}], "3.1 %")):
        assert findings.between_processes(rows).endswith(f": {shown} (standard deviation; prior 2 %).")
