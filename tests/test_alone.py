"""Implementations with a process of their own don't affect others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import impls
from bench.cases.case import Case
from bench.cases.cells import Cell
from bench.cases.sweep import SWEEPS
from bench.checks.afterwards import settle
from bench.runs.run import Run
from bench.runs.worker import Worker
from bench.selection.options import Selection

from .conftest import Suite, run_files

OWN = """
import gc, os
from torch.nn.functional import scaled_dot_product_attention as sdpa

seen = set()

def noting(name, q, k, v, is_causal):
    if name not in seen:
        seen.add(name)
        print(name, os.getpid(), file=open("processes", "a"))
    return sdpa(q, k, v, is_causal=is_causal)

def beside(q, k, v, *, is_causal=False):
    return noting("beside", q, k, v, is_causal)

def alone(q, k, v, *, is_causal=False):
    return noting("alone", q, k, v, is_causal)

def dies(q, k, v, *, is_causal=False):
    if not gc.isenabled():  # while blocks are timed
        os._exit(3)
    return noting("dies", q, k, v, is_causal)

alone.limits = {"alone": True, "own_memory": True}
dies.limits = {"alone": True}
"""


def test_a_crash_of_an_isolated_process_spares_the_others(suite: Suite, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    names = "fused,beside=own:beside,alone=own:alone,dies=own:dies"
    assert suite("--benchmark-save=x", "--T", "16", "--H", "2", "--dtype", "float32", "--impl", names).returncode == 1
    data = json.loads(run_files(tmp_path)[0].read_text())
    rows = {row["extra_info"]["impl"]: row["extra_info"] for row in data["benchmarks"]}
    assert {name: row["peak_bytes"] is None for name, row in rows.items()} == {
        "fused": False, "beside": False, "alone": True
    }  # fmt: skip
    assert [(it["impl"], it["reason"]) for it in data["skipped"]] == [("dies", "error")]
    assert {number for row in rows.values() for number in row["sample_processes"]} == {0}
    assert set(rows["alone"]["sample_rounds"]) & set(rows["fused"]["sample_rounds"])  # interleaved
    said = [line.split() for line in (tmp_path / "processes").read_text().splitlines()]
    assert sorted(name for name, _ in said) == ["alone", "beside", "dies"] and len({number for _, number in said}) == 3


class Client:
    """A process that executes requests."""

    def __init__(self, asked: list[tuple[Client, str]]) -> None:
        self._asked = asked

    def send(self, do: str, *_: Any, **details: Any) -> None:
        self._asked.append((self, do if "warm" not in details else f"{do} after {details['warm']} calls"))

    def ask(self, do: str, **details: Any) -> dict[str, Any]:
        self.send(do, **details)
        return {}


def test_another_process_is_timed_when_the_last_has_come_to_rest_and_behind_a_whole_block(tmp_path: Path) -> None:
    cells = tuple(Cell(impls.get(name), Case.of(T=16, H=2, D_h=8)) for name in ("fused", "packed", "sdpa"))
    run = Run({}, Selection(SWEEPS["quick"], "cpu", tuple(cell.impl for cell in cells), cells), tmp_path)
    asked: list[tuple[Client, str]] = []
    worker = Worker(run, 0, lambda: Client(asked), lambda text: None, ("sdpa",))  # type: ignore[arg-type, return-value]
    shared, own = (client for client, _ in asked)
    asked.clear()
    for i in (0, 1, 2, 2, 0):
        worker.ask("time", cells[i], calls=5, slices=8, warm=5)
    usual, other = "time after 5 calls", "time after 40 calls"
    assert asked == [
        (shared, usual), (shared, usual), (shared, "settle"), (own, other), (own, usual), (own, "settle"), (shared, other),
    ]  # fmt: skip


def test_a_process_has_come_to_rest_when_its_threads_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter((0.0, 1e-3, 1e-3, 2e-3, 2e-3, 2.1e-3))  # CPU seconds before and after each sample
    clock = iter(i * 1e-3 for i in range(100))
    slept: list[float] = []
    settle(slept.append, lambda: next(readings), lambda: next(clock))
    assert len(slept) == 3
