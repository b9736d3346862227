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
from bench.runs.pool import WorkerPool
from bench.runs.run import Run
from bench.selection.options import Selection
from bench.workers.client import Lost

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
    if not gc.isenabled() and q.shape[-2] == 16:  # while blocks are timed
        os._exit(3)
    return noting("dies", q, k, v, is_causal)

alone.limits = {"alone": True, "own_memory": True}
dies.limits = {"alone": True}
"""


def test_a_crash_of_an_isolated_process_spares_the_others(suite: Suite, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    names = "fused,beside=own:beside,alone=own:alone,dies=own:dies"
    small = ("--T", "16,32", "--H", "2", "--dtype", "float32", "--impl", names)
    assert suite("--benchmark-save=x", *small).returncode == 1
    data = json.loads(run_files(tmp_path)[0].read_text())
    rows = {(b["extra_info"]["impl"], b["extra_info"]["T"]): b["extra_info"] for b in data["benchmarks"]}
    assert set(rows) == {(name, T) for name in ("fused", "beside", "alone") for T in (16, 32)} | {("dies", 32)}
    assert [(it["impl"], it["reason"]) for it in data["skipped"]] == [("dies", "error")]
    assert {number for row in rows.values() for number in row["sample_processes"]} == {0}
    assert {name for (name, _), row in rows.items() if row["peak_bytes"] is None} == {"alone"}
    assert set(rows["alone", 16]["sample_rounds"]) & set(rows["fused", 16]["sample_rounds"])  # interleaved
    said = [line.split() for line in (tmp_path / "processes").read_text().splitlines()]
    processes = {name: {number for other, number in said if other == name} for name in ("beside", "alone", "dies")}
    assert {name: len(found) for name, found in processes.items()} == {"beside": 1, "alone": 1, "dies": 2}
    assert len(set.union(*processes.values())) == 4


class Client:
    """A process that executes requests."""

    def __init__(self, asked: list[tuple[Client, str]]) -> None:
        self._asked = asked

    def send(self, do: str, *_: Any, **details: Any) -> None:
        self._asked.append((self, do if "warm" not in details else f"{do} after {details['warm']} calls"))

    def ask(self, do: str, **details: Any) -> dict[str, Any]:
        self.send(do, **details)
        return {}

    def receive(self) -> dict[str, Any]:
        return {"unknown": {}}

    def close(self) -> None:
        pass


def pool_of(
    tmp_path: Path, alone: tuple[str, ...] = ()
) -> tuple[WorkerPool, tuple[Cell, ...], list[tuple[Client, str]]]:
    """Return a pool of three implementations, their cells, and the requests to its processes."""
    cells = tuple(Cell(impls.get(name), Case.of(T=16, H=2, D_h=8)) for name in ("fused", "packed", "sdpa"))
    run = Run({}, Selection(SWEEPS["quick"], "cpu", tuple(cell.impl for cell in cells), cells), tmp_path)
    asked: list[tuple[Client, str]] = []
    return WorkerPool(run, 0, lambda: Client(asked), lambda text: None, alone), cells, asked  # type: ignore[arg-type, return-value]


def test_cells_that_were_ready_are_prepared_again_where_another_one_ends_their_process(tmp_path: Path) -> None:
    pool, cells, _ = pool_of(tmp_path)
    script = pool.preparing(cells)
    assert next(script).details["impl"] == "fused"
    assert script.send({"seconds": 1.0}).details["impl"] == "packed"
    assert script.throw(Lost("ended its process (SIGSEGV)")).details["impl"] == "fused"
    assert script.send({"seconds": 2.0}).details["impl"] == "sdpa"
    with pytest.raises(StopIteration):
        script.send({"seconds": 3.0})
    assert pool.seconds == {cells[0].key: 2.0, cells[2].key: 3.0}
    assert list(pool.run.skipped) == [cells[1].key]


def test_a_new_process_times_no_cell_whose_code_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a user who edits a kernel during a run."""
    pool, cells, _ = pool_of(tmp_path)
    pool.run.planned = {cell.key for cell in cells}
    monkeypatch.setitem(pool.run.code, cells[1].impl.owner, ("of another state",))
    pool.skip(cells[0], Lost("ended its process (SIGSEGV)"))
    assert pool.run.skipped.keys() == {cells[0].key, cells[1].key}
    assert "its code has changed since the run began" in pool.run.skipped[cells[1].key]["detail"]


def test_a_process_is_timed_once_the_previous_one_is_idle_and_after_a_whole_untimed_block(tmp_path: Path) -> None:
    pool, cells, asked = pool_of(tmp_path, alone=("sdpa",))
    shared, own = (client for client, _ in asked)
    asked.clear()
    for i in (0, 1, 2, 2, 0):
        pool.ask("time", cells[i], calls=5, slices=8, warm=5)
    usual, other = "time after 5 calls", "time after 40 calls"
    assert asked == [
        (shared, usual), (shared, usual), (shared, "settle"), (own, other), (own, usual), (own, "settle"), (shared, other),
    ]  # fmt: skip


def test_a_process_is_idle_when_its_threads_use_no_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter((0.0, 1e-3, 1e-3, 2e-3, 2e-3, 2.1e-3))  # CPU seconds before and after each sample
    clock = iter(i * 1e-3 for i in range(100))
    slept: list[float] = []
    settle(slept.append, lambda: next(readings), lambda: next(clock))
    assert len(slept) == 3
