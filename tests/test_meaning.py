"""`case_hash`: another question breaks the line, and nothing else does."""

from __future__ import annotations

import ast
import copy
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import meaning
from bench.meaning import ASKED, case_hash, source_hash
from bench.merge import merged
from bench.sweep import Case
from reports.__main__ import main as reports

from .conftest import CHECKOUT, Suite, run_files

SMALL = ("--T", "16,24", "--H", "2", "--dtype", "float32", "--impl", "fused,sdpa")

Edit = Callable[[str, str, str], str]


@pytest.fixture
def edited(tmp_path: Path) -> Edit:
    """The hash of a checkout in which a pattern is replaced in one file."""

    def of(path: str, pattern: str, replacement: str) -> str:
        folder = tmp_path / "edited"
        shutil.rmtree(folder, ignore_errors=True)
        for name in ASKED:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(CHECKOUT / name, folder / name)
        before = (folder / path).read_text()
        after = re.sub(pattern, replacement, before, count=1)
        assert after != before, pattern
        (folder / path).write_text(after)
        return source_hash(folder)

    yield of  # type: ignore[misc]
    source_hash.cache_clear()


@pytest.mark.parametrize(
    ("path", "pattern", "replacement"),
    [
        ("bench/problem.py", r"dtype=torch.float32\)", "dtype=torch.float64)"),  # how numbers are drawn
        ("bench/problem.py", r"case.T_kv // 2", "case.T_kv // 3"),  # how long padding is
        ("bench/problem.py", r"x.detach\(\).clone\(\)", "x.detach()"),  # what a call reads
        ("bench/problem.py", r"OFFSET = 100.0", "OFFSET = 90.0"),
        ("bench/modes.py", r"allow_unused=True", "allow_unused=False"),  # what backward calls
        ("bench/modes.py", r"module\(x, cache=tuple\(cache\)\)", "module(x, cache=list(cache))"),
        ("bench/gate.py", r"\.eval\(\)", ""),
        ("bench/test_attention.py", r"with torch.inference_mode\(\)", "with torch.no_grad()"),
        ("impls/weights.py", r"d_model\*\*0.5", "d_model"),  # how large weights are
    ],
)
def test_another_question_has_another_hash(edited: Edit, path: str, pattern: str, replacement: str) -> None:
    assert edited(path, pattern, replacement) != source_hash()


@pytest.mark.parametrize(
    ("path", "pattern", "replacement"),
    [
        ("bench/problem.py", r"\n\n\ndef problem_of", "\n\n\n# a comment\n\ndef problem_of"),
        ("bench/problem.py", r'"""The question that belongs to a case', '"""What belongs to a case'),
        ("bench/problem.py", r"FACTOR = 2.0", "FACTOR = 3.0"),  # how wrong an answer may be
        ("bench/problem.py", r"inputs = copies\(problem.inputs\)", "inputs = (\n        copies(problem.inputs)\n    )"),
        ("bench/gate.py", r"LONG = 512", "LONG = 256"),
        ("impls/weights.py", r"def load\(", "def loaded("),
    ],
)
def test_the_same_question_keeps_its_hash(edited: Edit, path: str, pattern: str, replacement: str) -> None:
    assert edited(path, pattern, replacement) == source_hash()


def test_every_axis_is_in_it_and_one_that_is_off_is_not() -> None:
    case = Case.of(T=16, H=2, D_h=8, B=2)
    others = [Case.of(**{"T": 16, "H": 2, "D_h": 8, "B": 2} | it) for it in (
        {"T": 24}, {"H": 4}, {"B": 1}, {"D_v": 16}, {"H_kv": 1}, {"dtype": "float64"}, {"mask": "none"},
        {"mode": "backward"}, {"scope": "core"}, {"dropout": 0.1}, {"qkv_bias": True}, {"threads": 1})]  # fmt: skip
    assert len({case_hash(it) for it in (case, *others)}) == 1 + len(others)
    wider = type("Wider", (), {"columns": lambda self: case.columns() | {"window": None, "sinks": 0}})()
    assert case_hash(wider) == case_hash(case)


def test_a_field_that_only_another_python_has_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = meaning.definitions("def f(x):\n    return x\n", ("f",))
    monkeypatch.setattr(ast.FunctionDef, "_fields", (*ast.FunctionDef._fields, "of_3_99"))
    monkeypatch.setattr(ast.FunctionDef, "of_3_99", [], raising=False)
    assert "of_3_99" in {name for name, _ in ast.iter_fields(ast.parse("def f(): pass").body[0])}
    assert meaning.definitions("def f(x):\n    return x\n", ("f",)) == before


def test_rows_of_a_run_have_it_and_reports_break_where_it_changes(
    suite: Suite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        assert suite(*SMALL, f"--benchmark-save={name}").returncode == 0
    first, second = (json.loads(path.read_text()) for path in run_files(tmp_path))
    hashes = {(row["extra_info"]["T"], row["extra_info"]["case_hash"]) for row in first["benchmarks"]}
    assert len(hashes) == 2  # of two cases, whatever the implementation
    assert {(row["extra_info"]["T"], row["extra_info"]["case_hash"]) for row in second["benchmarks"]} == hashes
    for row in second["benchmarks"]:
        row["extra_info"]["case_hash"] = "another"
    run_files(tmp_path)[1].write_text(json.dumps(second))
    results = ("--results", str(tmp_path / "results"))
    reports(["compare", "0001", "0002", *results])
    assert capsys.readouterr().out.count("the benchmark itself was changed") == 4
    assert reports(["history", *results, "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "history" / "index.html").read_text()
    assert page.count('bad">the benchmark itself') + page.count('notes">the benchmark itself') == 4


def test_processes_that_asked_different_questions_are_not_merged(suite: Suite, tmp_path: Path) -> None:
    assert suite(*SMALL, "--benchmark-save=a").returncode == 0
    (file,) = run_files(tmp_path)
    run = json.loads(file.read_text())
    (row, *_) = merged([run, run], "")["benchmarks"]
    assert row["extra_info"]["case_hash"] == run["benchmarks"][0]["extra_info"]["case_hash"]
    other = copy.deepcopy(run)
    other["benchmarks"][0]["extra_info"]["case_hash"] = "another"
    with pytest.raises(ValueError, match="the benchmark itself was changed between its processes"):
        merged([run, other], "")
