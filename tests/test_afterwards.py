"""Threads that continue to work after a call has returned are detected by the process's CPU clock."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.nn.functional import scaled_dot_product_attention as sdpa

import impls
from bench.cases.case import Case
from bench.cases.cells import Cell
from bench.cases.outcome import Skip, Wrong
from bench.cases.sweep import SWEEPS
from bench.checks.afterwards import check_idle_afterwards, settle
from bench.runs.pool import WorkerPool
from bench.runs.run import Run
from bench.selection.options import Selection
from bench.workers.client import Request, Script, Setting, Variant, WorkerClient, checking, run_concurrently

CASE = Case.of(T=16, H=2, D_h=8)


def test_one_busy_sample_is_no_fault() -> None:
    busy = iter((0.0, 0.01, 0.01, 0.01))
    check_idle_afterwards(rest=lambda _: None, clock=lambda: next(busy))
    always = iter(i * 0.02 for i in range(6))
    with pytest.raises(Wrong, match=r"2\.0 cores stay busy"):
        check_idle_afterwards(rest=lambda _: None, clock=lambda: next(always))


def test_a_process_is_idle_when_its_threads_use_no_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter((0.0, 1e-3, 1e-3, 2e-3, 2e-3, 2.1e-3))  # CPU seconds before and after each sample
    clock = iter(i * 1e-3 for i in range(100))
    slept: list[float] = []
    settle(slept.append, lambda: next(readings), lambda: next(clock))
    assert len(slept) == 3


SPINS = """
import os
import threading
from time import process_time, sleep

from torch.nn.functional import scaled_dot_product_attention as sdpa

from bench.checks.afterwards import check_idle_afterwards
from bench.timing import cell

def spin():
    while True:
        pass

def spins(q, k, v, *, is_causal=False):
    if q.shape[-2] == 16:
        threading.Thread(target=spin, daemon=True).start()
    return sdpa(q, k, v, is_causal=is_causal)

def rest(seconds):  # on a crowded machine its turn comes late
    until = process_time() + seconds
    while threading.active_count() > 1 and process_time() < until:
        sleep(1e-3)

cell.check_idle_afterwards = lambda: check_idle_afterwards(rest)
"""


def test_a_cell_is_not_refused_for_threads_of_an_earlier_one(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SPINS)
    chosen = impls.make("spins", sdpa), impls.get("sdpa")  # in the worker's process the first is that of own.py
    cells = tuple(Cell(impl, CASE) for impl in chosen)
    run = Run({"impl": ["spins=own:spins,sdpa"]}, Selection(SWEEPS["quick"], "cpu", chosen, cells), tmp_path)
    setting = Setting(str(tmp_path), None, quiet=False)
    pool = WorkerPool(run, 0, lambda: WorkerClient(Variant("run"), setting), lambda text: None)
    with closing(pool):
        pool.wait_until_ready()
        for cell in cells:
            try:
                run_concurrently([checking(pool.client(cell), "x", cell.impl.name, CASE.columns(), True)])
            except Skip as outcome:
                pool.skip(cell, outcome)
    assert [(it["impl"], it["reason"]) for it in run.skips] == [("spins", "wrong")]


def worker_of(asked: Callable[[], object]) -> tuple[WorkerClient, Callable[[bytes], int]]:
    """A client whose worker calls `asked` at a request, and what writes the worker's lines."""
    read, write = os.pipe()
    client: Any = WorkerClient.__new__(WorkerClient)
    client._unread, client._timeout = b"", 5.0
    client._process = SimpleNamespace(
        stdin=SimpleNamespace(write=lambda line: asked()), stdout=os.fdopen(read, "rb", 0), kill=lambda: None
    )
    return client, partial(os.write, write)


@pytest.mark.parametrize("beside", [b"", b'{"spent": {}}\n'])
def test_another_worker_computes_once_the_calls_of_a_check_are_made(beside: bytes) -> None:
    """The first worker replies when the second one is asked, or together with its blank line."""
    log: list[str] = []

    def second_asked() -> None:
        log.append("second asked")
        says_second(b'{"spent": {}}\n')
        if not beside:
            says(b'{"spent": {}}\n')

    first, says = worker_of(lambda: says(b"\n" + beside))
    second, says_second = worker_of(second_asked)

    def script(name: str, client: WorkerClient) -> Script:
        yield Request(client, "check", {}, threaded=True)
        log.append(f"{name} done")

    run_concurrently([script("first", first), script("second", second)])
    assert log == (
        ["first done", "second asked", "second done"] if beside else ["second asked", "first done", "second done"]
    )
