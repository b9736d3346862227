"""`case_hash`: another question breaks the line, and nothing else does."""

from __future__ import annotations

import ast
import hashlib

from bench.cases.case import Case
from bench.cases.meaning import case_hash

from .conftest import CHECKOUT

ASKING = (
    "bench/checks/draws.py", "bench/checks/patterns.py", "bench/checks/problems.py", "bench/checks/problem.py",
    "bench/checks/calls.py", "impls/weights.py",
)  # fmt: skip
"""Where inputs and weights are drawn, and where the call is put together."""


def test_a_change_where_the_question_is_put_is_a_reminder() -> None:
    """Where cells mean something else now, change `QUESTION` in bench/cases/meaning.py; write the new digest here anyway."""
    code = "".join(ast.unparse(_bare(ast.parse((CHECKOUT / path).read_text()))) for path in ASKING)
    assert hashlib.sha256(code.encode()).hexdigest()[:12] == "31a2e6fab1d2"


def _bare(tree: ast.Module) -> ast.Module:
    """Without docstrings, and strings below constants."""
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            body[:] = [it for it in body if not (isinstance(it, ast.Expr) and isinstance(it.value, ast.Constant))]
    return tree


def test_hashes_of_earlier_runs_stay() -> None:
    """From when the hash was made of the sources."""
    assert case_hash(Case.of(T=64, H=1, D_h=64)) == "bf6ad737dea5"
    assert case_hash(Case.of(T=64, H=8, D_h=64, mode="backward", dtype="bfloat16")) == "4a089d7117ce"


def test_every_axis_is_in_it_and_one_that_is_off_is_not() -> None:
    case = Case.of(T=16, H=2, D_h=8, B=2)
    others = [Case.of(**{"T": 16, "H": 2, "D_h": 8, "B": 2} | it) for it in (
        {"T": 24}, {"H": 4}, {"B": 1}, {"D_v": 16}, {"H_kv": 1}, {"dtype": "float64"}, {"mask": "none"},
        {"mode": "backward"}, {"scope": "core"}, {"dropout": 0.1}, {"qkv_bias": True}, {"threads": 1})]  # fmt: skip
    assert len({case_hash(it) for it in (case, *others)}) == 1 + len(others)
    wider = type("Wider", (), {"columns": lambda self: case.columns() | {"window": None, "sinks": 0}})()
    assert case_hash(wider) == case_hash(case)
