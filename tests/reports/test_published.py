"""Published times beside those of a run."""

import synthetic_runs as synthetic

from reports.pages import more, page
from reports.pages.report import report

CASE = synthetic.case(T=64, H=8, mask="none")
FIGURE = {"id": synthetic.case_id(CASE), "seconds": 4e-3, "kernel": "CPU:Flash", "impl": "sdpa", "machine": "unnamed",
          "differs": "threads not said", "source": "them/theirs#1"}  # fmt: skip


def test_a_published_time_is_shown_beside_the_measured_one_and_its_source_once(as_run):
    figures = [FIGURE, FIGURE | {"kernel": "another", "source": "others/x"}, FIGURE | {"kernel": "a third"}]
    figures.append(FIGURE | {"id": "B1-T65-H8-D_h64-float32-cpu", "source": "of no case here"})
    rows = [synthetic.row("fused", CASE, [2e-3]), synthetic.row("sdpa", CASE, [1e-3])]
    run = as_run(synthetic.document(rows, published=figures))
    rows = more.published(report(run)).rows
    assert rows[0][2:5] == ("4.00 ms", "sdpa", "1.00 ms")
    assert [row[-1] for row in rows] == ["1", "2", "1"]
    for text in (page.html(this := report(run)), page.summary(this)):
        assert "Published times beside ours" in text and "threads not said" in text
        assert text.count("them/theirs#1") == text.count("others/x") == 1 and "of no case here" not in text
