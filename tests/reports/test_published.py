"""Published times beside those of a run."""

import synthetic_runs as synthetic

from reports.pages import more, page
from reports.pages.report import report

FIGURE = {"id": synthetic.case_id(synthetic.case(T=100, mask="none")), "seconds": 4e-3, "kernel": "CPU:Flash", "impl": "sdpa",
          "machine": "unnamed", "differs": "threads not said", "source": "them/theirs#1"}  # fmt: skip


def test_a_published_time_is_shown_beside_the_measured_one_and_its_source_once(as_run):
    figures = [FIGURE, FIGURE | {"kernel": "another", "source": "others/x"}, FIGURE | {"kernel": "a third"}]
    figures.append(FIGURE | {"id": "T65", "source": "of no case here"})
    run = as_run(synthetic.by_length({"fused": 2e-5, "sdpa": 1e-5}, (100,), mask="none", top={"published": figures}))
    rows = more.published(report(run)).rows
    assert rows[0][2:5] == ("4.00 ms", "sdpa", "1.00 ms")
    assert [row[-1] for row in rows] == ["1", "2", "1"]
    for text in (page.html(this := report(run)), page.summary(this)):
        assert "Published times beside ours" in text and "threads not said" in text
        assert text.count("them/theirs#1") == text.count("others/x") == 1 and "of no case here" not in text
