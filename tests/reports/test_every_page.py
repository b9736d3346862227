"""What every page has in common: it loads nothing, its ids are unique, and text of a run file stays text."""

import re

import pytest
import synthetic_runs as synthetic
from conftest import EVIL
from outline import Outline

from reports.__main__ import main
from reports.judging.comparison import compare
from reports.pages import comparison_page, page, side_by_side_page
from reports.pages.report import report
from reports.reading import runs


def hostile(number):
    """A run with names that aren't only letters, wherever a file has text of its own."""
    rows = [
        synthetic.row(name, synthetic.case(T=T), [1e-3 * (i + number) * T, 1.1e-3 * (i + number) * T])
        for i, name in enumerate(EVIL) for T in (64, 256, 1024)
    ]  # fmt: skip
    skipped = [{"impl": EVIL[4], "id": "<i>", "reason": "wrong", "detail": "<img src=x onerror=alert(1)>"}]
    return synthetic.document(
        rows, skipped=skipped, registry=EVIL, baseline_impl=EVIL[0], command="<b>&", sweep='"><script>',
        machine_info={**synthetic.MACHINE, "torch": "<v>", "<k>": "<v>"}, state={"<a>": {"b": "</style><script>"}},
        commit_info={"id": "<k>"}, datetime=f"2026-11-0{number}T00:00:00",
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["run", "side by side", "comparison", "history"])
def test_a_page_loads_nothing_and_names_stay_names(kind, tmp_path):
    both = [
        runs.read(synthetic.save(hostile(number), tmp_path / "results", f"000{number}_<img>注")) for number in (1, 2)
    ]
    assert main(["history", "--results", str(tmp_path / "results"), "--out", str(tmp_path)]) == 0
    text = {
        "run": lambda: page.html(report(both[0])),
        "side by side": lambda: side_by_side_page.html(both),
        "comparison": lambda: comparison_page.html(compare(*both)),
        "history": lambda: (tmp_path / "history" / "index.html").read_text(),
    }[kind]()
    assert "default-src 'none'" in text  # and where something slips through, the browser refuses
    assert "http:" not in text and "https:" not in text and "@import" not in text and "url(" not in text
    outline = Outline(text)
    assert {"link", "img", "iframe", "object", "embed", "base", "k", "v", "i", "x"}.isdisjoint(outline.names)
    assert outline.names.count("script") <= 1 and "alert" not in "".join(outline.scripts.values())
    for _, attributes in outline.tags:
        assert not attributes.get("src") and not any(key.startswith("on") for key in attributes)
        assert re.match(r"#|[\w.-]+\.(csv|md|png|svg)$", attributes.get("href") or "#"), attributes
    assert all(name in outline.words for name in EVIL if "\n" not in name)
    assert len(outline.ids) == len({*outline.ids})
    targets = [a.get("href") or f"#{a.get('aria-labelledby', '')}" for _, a in outline.tags]
    assert {it[1:] for it in targets if it.startswith("#")} <= {*outline.ids, ""}


def test_the_readers_own_kernel_looks_the_same_on_every_page(tmp_path):
    data = synthetic.by_length({"sdpa": 1e-3, "mine": 2e-3})
    both = [runs.read(synthetic.save(data, tmp_path / "results", f"000{number}_x")) for number in (1, 2)]
    assert main(["history", "--results", str(tmp_path / "results"), "--out", str(tmp_path)]) == 0
    pages = page.html(report(both[0])), side_by_side_page.html(both), comparison_page.html(compare(*both))
    for text in (*pages, (tmp_path / "history" / "index.html").read_text()):
        own = re.findall(r'<svg class="dot k0 own"><use href="#m0" [^>]*></svg>([^<]+)', text)
        assert {*own} == {"mine"}


def test_commands_in_sentences_are_code(tmp_path):
    data = synthetic.document(hostile(1)["benchmarks"], complete=False)
    both = [runs.read(synthetic.save(data, tmp_path, f"000{number}_x")) for number in (1, 2)]
    assert "<code>pytest bench/ --resume x</code> finishes it." in page.html(report(both[0]))
    assert "those of <code>python -m reports compare</code>" in side_by_side_page.html(both)
