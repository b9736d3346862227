"""The README's code, table and messages work as printed."""

import json
import re

import pytest

import impls
from bench.cases.outcome import Wrong
from bench.cases.sweep import SWEEPS
from bench.checks.gate import Gate
from bench.runs import check
from bench.runs.progress import skips
from commands import summary
from stats.arguments import wrapped

from .conftest import CHECKOUT, run_files
from .test_run import cells
from .wrong_kernels import KERNELS

README, OWN_KERNELS, RESULTS = (
    (CHECKOUT / name).read_text() for name in ("README.md", "docs/kernels.md", "docs/results.md")
)


def block(name):
    """Return the code after `<!-- test: name -->` in one of the documents."""
    found = re.search(rf"<!-- test: {name} -->\n```python\n(.*?)```", README + OWN_KERNELS, re.DOTALL)
    assert found, name
    return found[1]


SHOWN = ("sdpa", "sdpa+compile", "wrapper", "fused")


def test_the_table_is_that_of_the_newest_published_run():
    (*_, newest) = sorted((CHECKOUT / "results" / "published").glob("*_quick.json"))
    data = json.loads(newest.read_text())
    case = "B1-T1024-H8-D_h64-float32-cpu"
    rows = [row for row in data["benchmarks"] if row["group"] == case and row["params"]["impl"] in SHOWN]
    table, headline = summary.of_run({**data, "benchmarks": rows, "skipped": []}, every=False)
    assert table in README, table
    assert headline in " ".join(README.split()), headline


def test_the_recommendation_is_that_of_the_run_in_the_figure():
    headline = " ".join(line.removeprefix("> ") for line in README.splitlines() if line.startswith("> "))
    assert headline and headline in " ".join(RESULTS.partition("## length\n")[2].partition("\n## ")[0].split())


def test_the_kernel_that_is_wrong_has_the_sentence_that_is_shown(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    case = next(iter(SWEEPS["smoke"].cases("cpu")))
    with pytest.raises(Wrong) as wrong:
        Gate().check(impls.make("mine", KERNELS["no_mask"].kernel), case)
    entry = {"impl": "mine", "id": case.id, "reason": Wrong.reason, "detail": str(wrong.value)}
    assert wrapped(*skips([entry])) in README


def test_a_kernel_of_ones_own(in_process, suite, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(block("own"))
    lone = {"mode": "decode", **check.CHUNK}
    monkeypatch.setattr(check, "PROBLEMS", ({}, {"dropout": 0.1}, check.PADDED, check.GROUPS, lone, *check.RULES))
    monkeypatch.chdir(tmp_path)
    assert check.main(["mine:mine"]) == 0
    (options,) = re.findall(r"attention-bench run (--impl mine.*)", README)
    suite(*options.replace("256,1024", "32").split(), "--H", "2", "--dtype", "float32", "--benchmark-save=mine")
    (file,) = run_files(tmp_path)
    assert [impl for impl, _ in cells(file)] == ["mine", "mine+compile", "sdpa"]


STAND_IN = """
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

def flash_attn_func(q, k, v, dropout_p, softmax_scale, causal):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    T, T_kv = q.shape[-2], k.shape[-2]
    mask = torch.ones(T, T_kv, dtype=torch.bool).tril(T_kv - T) if causal else None
    return sdpa(q, k, v, mask, dropout_p=dropout_p, scale=softmax_scale, enable_gqa=True).transpose(1, 2)
"""


def test_a_kernel_of_another_layout(in_process, suite, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(block("layout"))
    options = ("--impl", "flash=mine:flash", "--T", "32", "--H", "2", "--benchmark-save=x")
    suite(*options)
    (tmp_path / "flash_attn.py").write_text(STAND_IN)
    suite(*options)
    absent, there = run_files(tmp_path)
    assert "flash needs the package flash_attn" in absent.read_text()
    assert [case for _, case in cells(there)] == ["B1-T32-H2-D_h64-bfloat16-cpu"]
    few = {"dtype": "bfloat16", "H": 4, "H_kv": 2}
    monkeypatch.setattr(check, "PROBLEMS", (few, few | {"source": "cross", "T_kv": 100}))
    monkeypatch.chdir(tmp_path)
    assert check.main(["mine:flash"]) == 0


OF_A_MODEL = """
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

class CausalSelfAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.c_attn, self.c_proj = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (it.unflatten(-1, (self.heads, -1)).transpose(1, 2) for it in self.c_attn(x).chunk(3, -1))
        return self.c_proj(sdpa(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))


"""


def test_a_layer_of_a_model_is_adapted(in_process, tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(OF_A_MODEL + block("adapted"))
    monkeypatch.setattr(check, "PROBLEMS", ({}, {"mode": "backward"}, {"mask": "none"}))
    monkeypatch.setattr(check, "AROUND", ({"qkv_bias": True}, {"d_model": 96}))
    monkeypatch.chdir(tmp_path)
    assert check.main(["mine:Adapted"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("2 passed, 0 failed, 3 unsupported")
