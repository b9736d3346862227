"""Several runs on one page: matched by cell, distinguished by name, and judged only where possible."""

import copy
import json
import re

import pytest
import synthetic_runs as synthetic
import tracked_runs as tracked

from reports.pages import export, side_by_side_page
from reports.reading import runs


def times(data, factor):
    """The same run with all its times multiplied."""
    return synthetic.slowed(copy.deepcopy(data), {}, factor)


def on_cuda(data):
    """The same run as another machine with a GPU would have saved it."""
    data = copy.deepcopy(data)
    data["machine_info"] = {**data["machine_info"], "gpu": "NVIDIA H200", "threads": 16}
    for cell in [row["extra_info"] for row in data["benchmarks"]] + data["skipped"]:
        cell["id"] = cell["id"].replace("-cpu", "-cuda")
    for row in data["benchmarks"]:
        row["extra_info"].update(device="cuda", threads=16)
    return data


def read(chosen):
    """The page, with plain spaces."""
    return side_by_side_page.html(chosen).replace("\N{NO-BREAK SPACE}", " ")


def saved(folder, **named):
    """The runs, each with code of its own."""
    for name, data in named.items():
        named[name] = copy.deepcopy(data)
        for row in named[name]["benchmarks"]:
            row["extra_info"].setdefault("impl_hash", name)
    return [runs.read(synthetic.save(data, folder, name)) for name, data in named.items()]


@pytest.fixture
def sweep():
    return synthetic.by_length({"fused": 2e-5, "sdpa": 1e-5, "loop": 1e-4}, (64, 1024))


def test_the_headline_of_two_runs_says_how_they_compare(sweep, tmp_path):
    three = saved(tmp_path, a=sweep, b=times(sweep, 1.5), c=sweep)
    slower, as_before = (
        f"seconds {by} % in the median of {len(sweep['benchmarks'])} cells, not judged" for by in ("+50.0", "0.0")
    )
    for these, said in (
        (three[:2], (f"a → b: {slower}",)),
        (three, (f"a → b: {slower}", f"; → c: {as_before}</h1>")),
        ([*three, *three], (f"a #1 → b #2: {slower}", f"; → c #3: {as_before}; → a #4: Nothing regressed", "; …</h1>")),
    ):
        assert all(part in read(these) for part in said)


@pytest.mark.parametrize("commit", ["unversioned", "unknown"])
def test_every_run_has_a_column_and_missing_values_are_marked(sweep, tmp_path, commit):
    sweep["machine_info"] = {**sweep["machine_info"], "driver": None}
    outside = times(sweep, 1.5) | {"commit_info": {"id": commit, "dirty": False}}
    page = read(saved(tmp_path, a=sweep, b=outside))
    numbers = page.partition('aria-label="All numbers"')[2].partition("</table>")[0]
    assert numbers.count("<tr>") == 1 + len(sweep["benchmarks"]) and "–" not in numbers
    assert re.search(r"<th scope=\"row\">commit</th><td[^>]*>0123abc</td><td[^>]*>–</td>", page)
    assert "<dt>cpu</dt>" in page and "<dt>driver</dt>" not in page


def test_a_cell_that_one_run_alone_has_not_timed_shows_why(sweep, tmp_path):
    failed = copy.deepcopy(sweep)
    cell = failed["benchmarks"].pop()["extra_info"]
    failed["skipped"].append({"impl": cell["impl"], "id": cell["id"], "reason": "out_of_memory", "detail": ""})
    numbers = read(saved(tmp_path, a=sweep, b=failed)).partition('aria-label="All numbers"')[2].partition("</table>")[0]
    assert numbers.count(">out of memory</td>") == 1 and "–" not in numbers


def test_another_device_is_matched_and_never_judged(sweep, tmp_path):
    page = read(saved(tmp_path, here=sweep, there=on_cuda(times(sweep, 0.1))))
    assert "Measured on different machines: no verdicts." in page and "REGRESSED" not in page
    assert (
        f"seconds −90.0 % in the median of {len(sweep['benchmarks'])} cells, not judged" in page and "GONE" not in page
    )
    assert re.search(r"<th scope=\"row\">gpu</th><td[^>]*>–</td><td[^>]*>NVIDIA H200</td>", page)
    assert '<th scope="row">cpu</th>' not in page  # the same in both


def test_runs_of_one_machine_get_the_verdicts_of_compare(tmp_path):
    before, after = saved(tmp_path, a=tracked.run(1), b=tracked.run(2, slower={"fused": 1.5}))
    page = read([before, after])
    verdicts = re.findall(r'<tr class="(\w+)"><th scope="row">.*?</svg>(.*?)</th>.*?<b>(\w*)</b>', page, re.DOTALL)
    assert verdicts[:4] == [("worse", "fused", "REGRESSED")] * 4  # regressions first
    assert (
        "REGRESSED" not in {word for _, _, word in verdicts[4:]} and "<h1>a → b: Something regressed: fused is " in page
    )


def test_a_note_on_some_comparisons_names_their_runs(tmp_path):
    other = {**synthetic.MACHINE, "python": "3.14.0"}
    page = read(saved(tmp_path, a=tracked.run(1), b=tracked.run(2), c=tracked.run(3, machine_info=other)))
    assert "<p>→ c: compared across versions: python" in page and "<p>Changes are relative to 3" in page


def test_runs_of_one_name_are_distinguished_by_their_folder(sweep, tmp_path):
    for deeper in ("machine", ""):
        paths = [tmp_path / folder / deeper / "0001_x.json" for folder in ("one", "two")]
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(sweep))
        both = [runs.read(path) for path in paths]
        assert export.labels_of(both) == ["0001_x (one)", "0001_x (two)"]
    assert export.labels_of(both[:1]) == ["0001_x"]
    assert list(export.rows(both)["run"].unique()) == ["0001_x (one)", "0001_x (two)"]


def test_a_disturbed_run_is_named_once(tmp_path):
    data = {"0001_a": tracked.run(1), "0002_b": synthetic.disturbed(tracked.run(2)), "0003_c": tracked.run(3)}
    assert "<p>0002_b: the run was disturbed" in read(saved(tmp_path, **data))


def test_comparisons_and_advice_call_times_on_a_gpu_unverified(tmp_path, printed):
    base, head = (run.path for run in saved(tmp_path, a=on_cuda(tracked.run(1)), b=on_cuda(tracked.run(2))))
    for asked in (["compare", base, head], ["advise", "--run", base]):
        assert printed(*asked).lower().count("times on cuda are unverified on a gpu") == 1
