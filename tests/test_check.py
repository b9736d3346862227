"""`python -m bench check`: results for right and wrong kernels, without timing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench.runs import check

from .conftest import CHECKOUT

MINE = """\
import os
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa
def right(q, k, v, **options): return sdpa(q, k, v, **options)
def no_mask(q, k, v, *, is_causal=False, attn_mask=None, **options): return sdpa(q, k, v, **options)
def exits(q, k, v, **options): return os._exit(3) if q.dtype == torch.bfloat16 else sdpa(q, k, v, **options)
"""

# right in the calls of a check, which record no gradients otherwise, and wrong in a timed one
MINE += """
def off_in_inference(q, k, v, **options):
    return sdpa(q, k, v, **options) * (1 + torch.is_inference_mode_enabled())
"""

EVERY_PROBLEM = [check.words(axes) for axes in (*check.PROBLEMS, *check.AROUND)]

PROBLEMS = ({}, {"dtype": "bfloat16"}, {"mask": "none"}, {"softcap": 20})


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")  # which `main` would leave behind
    monkeypatch.setattr(check, "PROBLEMS", PROBLEMS)
    monkeypatch.setattr(check, "AROUND", ())


@pytest.mark.parametrize(
    ("name", "code", "outcomes"),
    [
        ("mine:right", 0, ["passed", "passed", "passed", "unsupported"]),
        ("mine.py:no_mask", 1, ["wrong", "wrong", "passed", "unsupported"]),
        ("it=mine:exits", 1, ["passed", "error", "passed", "unsupported"]),
        ("mine:off_in_inference", 1, ["wrong", "wrong", "wrong", "unsupported"]),
        ("fused,mine:right", 0, ["passed"] * 7 + ["unsupported"]),
    ],
)
def test_every_problem_has_a_line(
    name: str, code: int, outcomes: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert check.main([name]) == code
    *lines, summary = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == outcomes
    assert summary.startswith(
        f"{outcomes.count('passed')} passed, {outcomes.count('wrong') + outcomes.count('error')} failed, "
    )


def test_programs_get_a_list_of_objects(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["mine:no_mask", "--json"]) == 1
    first, *_, last = json.loads(capsys.readouterr().out)
    assert (first["impl"], first["outcome"], first["problem"]) == ("no_mask", "wrong", "mode=forward")
    assert "error" in first["detail"] and first["case"] == "B1-T64-H2-D_h64-float32-cpu-scope=core"
    assert last["detail"] == "no_mask has no softcap"


def test_a_missing_kernel_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["mine:wrong"]) == 3
    assert "module mine has no attribute 'wrong'" in capsys.readouterr().err
    assert check.main(["sdpaa"]) == 3
    assert "did you mean sdpa" in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert check.main(["sdpa", "--device", "cuda"]) == 3
        assert "--device cuda: torch finds none here" in capsys.readouterr().err


def test_a_module_that_ends_the_process_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ends.py").write_text("import os; os._exit(4)")
    assert check.main(["ends:mine"]) == 3
    assert "ended its process (exit code 4)" in capsys.readouterr().err


def test_only_its_worker_imports_torch() -> None:
    imported = "import sys, bench.runs.check; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", imported], cwd=CHECKOUT).returncode == 0


def test_the_published_table_has_every_problem() -> None:
    table = (CHECKOUT / "docs" / "conformance.md").read_text(encoding="utf-8").splitlines()
    rows = [line.split(" | ")[0].removeprefix("| ") for line in table if line.startswith("| mode=")]
    assert sorted(rows) == sorted(EVERY_PROBLEM)
