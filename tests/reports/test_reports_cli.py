"""`python -m reports`: selection of runs, output paths, and usage errors."""

import json
import os
import re
import subprocess
import sys

import pandas as pd
import pytest
import synthetic_runs as synthetic

from reports import CHECKOUT
from reports.__main__ import main
from reports.reading import runs


@pytest.fixture
def small():
    return synthetic.by_length({"fused": 2e-5, "sdpa": 1e-5}, (64,))


@pytest.fixture
def selected(results, tmp_path):
    """Names of the runs that a command with these arguments reads."""

    def of(*names):
        assert main(["export", *names, "--results", str(results), "-o", "x.csv"]) == 0
        return list(pd.read_csv("x.csv")["run"].unique())

    return of


def aged(path, seconds):
    os.utime(path, (seconds, seconds))
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "0001_bad.json: empty\n"),
        ('{\n"schema": 2,', "0001_bad.json: not JSON, or truncated, in line 2\n"),
        ('{\n"schema": NaN}', "0001_bad.json: NaN, which JSON doesn't have: write null, in line 2\n"),
        ("[1, 2]", "not a run file (no list of benchmarks in it)"),
        ('{"pairs": []}', "not a run file (a comparison, which `python -m reports compare FILE` shows)"),
        ('{"schema": 99, "benchmarks": []}', "unknown schema 99 (this suite reads 2)"),
        ("\xff\xfe\x00\x01", "not JSON"),
        (
            '{"schema": 2, "benchmarks": [{"name": "a", "stats": {}, "extra_info": {}}]}',
            "invalid value of benchmarks[0].stats.median",
        ),
        ('{"schema": 2, "benchmarks": ["a"]}', "invalid value of benchmarks[0]"),
        ('{"schema": 2, "benchmarks": [], "skipped": [{"impl": "a"}]}', "invalid value of skipped[0].id"),
        ('{"schema": 2, "benchmarks": [], "registry": ["a", null]}', "invalid value of registry[1]"),
        ('{"schema": 2, "benchmarks": [], "controls": {"drift": "1 %"}}', "invalid value of controls.drift"),
        *(
            (f'{{"schema": 2, "benchmarks": [], {part}}}', f"invalid value of {where}")
            for part, where in (
                ('"roofs": [{"device": "cpu", "bytes_per_s": 1, "footprint": [1]}]', "roofs[0].footprint"),
                ('"machine_info": {"cpu": ["x"]}', "machine_info.cpu"),
                ('"models": {"T64": [3]}', "models.T64"),
                ('"published": [{"id": "T64", "seconds": 1}]', "published[0].impl"),
            )
        ),
    ],
)
def test_a_file_that_is_no_run_is_named(text, expected, results, small, refusal):
    path = synthetic.save(small, results, "0001_bad")
    path.write_text(text, encoding="latin-1")
    for arguments in ([], [path]):
        line = refusal("--results", results, *arguments)
        assert "0001_bad.json" in line and expected in line


def test_a_file_whose_name_no_page_can_show_is_named(results, small, refusal):
    synthetic.save(small, results, "0001_\udcff")
    assert r"'0001_\udcff.json': not a file name of printable UTF-8" in refusal("--results", results)


def test_a_file_of_two_runs_is_refused(results, small, refusal):
    """One of the two times of a cell would be shown."""
    small["benchmarks"] += small["benchmarks"][:1]
    synthetic.save(small, results, "0001_merged")
    assert "extra_info.id: a second row of this cell" in refusal("--results", results)


@pytest.mark.parametrize(
    ("column", "value"), [("T", 0), ("ratio", "1.5"), ("ratio", -1), ("peak_bytes", -1), ("proved_ragged", "no")]
)
def test_a_value_of_a_column_of_another_kind_is_named(column, value, results, small, refusal):
    small["benchmarks"][0]["extra_info"][column] = value
    synthetic.save(small, results, "0001_bad")
    assert f"invalid value of benchmarks[0].extra_info.{column}" in refusal("--results", results)


def test_the_newest_run_is_taken(results, small, selected):
    aged(synthetic.save(small, results, "0002_new"), 100)
    old = aged(synthetic.save(small, results, "0001_old"), 200)  # copied later: numbers count, not the copying
    old.with_name("0003_gone.json").symlink_to("nowhere")  # is left out
    assert selected() == ["0002_new"]


def test_among_machines_the_one_that_ran_last_is_taken(results, small, selected):
    for machine, name, when in (("one", "0007_x", 100), ("two", "0001_y", 200)):
        path = results / machine / f"{name}.json"
        path.parent.mkdir()
        path.write_text(json.dumps(small))
        aged(path, when)
    assert selected() == ["0001_y"]


MACHINE = "Linux-CPython-3.11-64bit"


@pytest.mark.parametrize(
    "names",
    [["x"], ["0002"], ["2"], ["0002_x.json"], [f"{MACHINE}/0002_x"], ["0002_"], [f"results/{MACHINE}/0002_x.json"],
     ["x", "0002"]],
)  # fmt: skip
def test_a_run_can_be_named_in_several_ways(names, results, small, selected):
    for stem in ("0001_x", "0002_x", "0003_y"):
        synthetic.save(small, results, stem)
    assert selected(*names) == ["0002_x"]


def test_several_runs_get_one_page_and_bad_ones_a_warning(results, small, capsys):
    for stem in ("0001_x", "0002_y", "0003_z", "0004_other"):
        synthetic.save(small, results, stem)
    synthetic.save(small, results, "0002_y").write_text("oh")
    assert main(["--results", str(results), "x", "[yz]"]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{results.parent}/reports/out/0001_x+0003_z/index.html\n"
    assert "0002_y.json" in captured.err and captured.err.count("\n") == 1


def test_an_empty_results_folder_is_replaced_by_the_checkouts(results):
    assert runs.default_results() == CHECKOUT / "results"


@pytest.mark.parametrize("where", ["published/big", "published"])
def test_published_baselines_are_no_newest_run_but_can_be_named(where, results, small, selected, refusal):
    path = results / where / "0001_big.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(small))
    refusal("--results", results)
    assert selected("big") == ["0001_big"]


def test_the_command_needs_no_torch_and_prints_no_traceback(results, small, tmp_path):
    """Once in a subprocess in which torch, impls and bench can't be imported."""
    synthetic.save(small, results, "0001_x")
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('torch', 'impls', 'bench'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{CHECKOUT}"}
    command = [sys.executable, "-W", "error", "-m", "reports", "report", "--results", str(results)]
    good = subprocess.run([*command, "--out", "here"], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert (good.returncode, good.stderr) == (0, "")
    page = tmp_path / "here" / "0001_x" / "index.html"
    *_, path, answer = good.stdout.splitlines()
    assert path == os.path.join("here", "0001_x", "index.html") and page.is_file()
    assert answer.startswith("Use sdpa: fastest in the one case, 2.0× faster than fused (2.0 to 2.0)")
    assert max(map(len, good.stdout.splitlines()[:-2])) <= 80


def test_a_figure_is_written_by_its_ending(results, tmp_path, printed, refusal):
    path = synthetic.save(synthetic.by_length({"sdpa": 1e-5}), results, "0001_x")
    assert "its ending should be one of .png, .svg, .pdf" in refusal("figure", "latency", "-o", "x.eps", "--run", path)
    for kind in ("png", "svg", "pdf"):
        assert printed("figure", "latency", "--run", path, "-o", f"x.{kind}").strip() == f"x.{kind}"
    assert "it needs correct times of fused" in refusal("figure", "speedup", "-o", "x.svg", "--run", path)
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    pdf = (tmp_path / "x.pdf").read_bytes()
    assert pdf.startswith(b"%PDF") and b"CreationDate" not in pdf and b"/Type3" not in pdf


def test_a_page_with_another_baseline(results, small, tmp_path, printed, refusal):
    synthetic.save(small, results, "0001_x")
    asked = ["--results", results, "--out", tmp_path / "out"]
    assert "faster than fused" in printed(*asked)
    assert "faster than" not in printed(*asked, "--baseline", "sdpa")
    rows = pd.read_csv(tmp_path / "out" / "0001_x" / "rows.csv")
    assert {*rows["baseline"]} == {"sdpa"} and {*rows["ratio"][rows["impl"] == "sdpa"]} == {1}
    assert "--baseline flash: 0001_x has times of fused, sdpa" in refusal(*asked, "--baseline", "flash")


def test_cases_that_differ_in_no_known_axis_have_a_column_each(results, printed, tmp_path):
    cases = [synthetic.case(stride=stride) for stride in (4, 8)]
    rows = [
        synthetic.row(impl, case, [seconds]) for case in cases for impl, seconds in (("sdpa", 1e-3), ("fused", 2e-3))
    ]
    synthetic.save(synthetic.document(rows), results, "0001_x")
    said = printed("--results", results, "--out", tmp_path / "out")
    assert re.search(r"^implementation +mean +slowdown +slowdown$", said, re.MULTILINE)


def test_sentences_are_as_wide_as_a_terminal(results, printed):
    failed = {"impl": "mine", "id": "x", "reason": "wrong", "detail": "error 1.9e+00 in row b=0, h=7, t=34; " * 4}
    path = synthetic.save(synthetic.by_length({"sdpa": 1e-3}, top={"skipped": [failed]}), results, "0001_x")
    assert max(len(line) for line in printed(path).splitlines() if not line.startswith("/")) <= 80


def test_a_run_that_is_not_complete_says_so_above_its_headline_and_beside_advice(results, small, printed, capsys):
    for complete in (True, False):
        path = synthetic.save({**small, "complete": complete}, results, f"0001_{complete}")
        main(["advise", "--run", str(path)])
        assert (f"warning: 0001_{complete} is not complete" in capsys.readouterr().err) is not complete
        said = printed(path)
        assert (f"bench/ --resume {complete}` finishes it." in said) is not complete, said
