"""Threads that work on when a call has returned are found by the process's own clock."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import pytest
from torch.nn.functional import scaled_dot_product_attention as sdpa

import impls
from bench.cases.case import Case
from bench.cases.cells import Cell
from bench.cases.outcome import Wrong
from bench.proof.afterwards import check_idle_afterwards
from bench.proof.gate import Gate
from bench.timing.cell import prove

from .conftest import Suite, run_files

threads: list[threading.Thread] = []


def spinning(seconds: float) -> threading.Thread:
    def spin() -> None:
        until = perf_counter() + seconds
        while perf_counter() < until:
            pass

    thread = threading.Thread(target=spin, daemon=True)
    thread.start()
    threads.append(thread)
    return thread


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """No test finds the threads of another."""
    yield
    while threads:
        threads.pop().join()


def test_a_kernel_that_leaves_threads_spinning_is_refused() -> None:
    def spins(q, k, v, *, is_causal=False):  # type: ignore[no-untyped-def]
        spinning(0.3)
        return sdpa(q, k, v, is_causal=is_causal)

    with pytest.raises(Wrong, match="leaves threads that work when its call has returned"):
        prove(Cell(impls.make("spins", spins), Case.of(T=16, H=2, D_h=8)), Gate())


def test_an_answer_that_is_finished_behind_the_call_is_refused() -> None:
    def late(q, k, v, *, is_causal=False):  # type: ignore[no-untyped-def]
        o = sdpa(q, k, v, is_causal=is_causal)
        last = o[..., -1, :].clone()
        o[..., -1, :] = last + 1e-7 * (q.shape[-2] == 16)  # not yet what it will be, and near enough
        if q.shape[-2] == 16:
            threading.Timer(0.004, lambda: o[..., -1, :].copy_(last)).start()
        return o

    with pytest.raises(Wrong, match="its answer changes after the call has returned"):
        prove(Cell(impls.make("late", late), Case.of(T=16, H=2, D_h=8, scope="core")), Gate())


def test_threads_that_are_joined_in_time_are_fine() -> None:
    def joins(q, k, v, *, is_causal=False):  # type: ignore[no-untyped-def]
        spinning(0.002).join()
        return sdpa(q, k, v, is_causal=is_causal)

    prove(Cell(impls.make("joins", joins), Case.of(T=16, H=2, D_h=8)), Gate())


def test_one_busy_look_accuses_nobody() -> None:
    busy = iter((0.0, 0.01, 0.01, 0.01))
    check_idle_afterwards(rest=lambda _: None, clock=lambda: next(busy))
    always = iter(i * 0.02 for i in range(6))
    with pytest.raises(Wrong, match=r"2\.0 cores stay busy"):
        check_idle_afterwards(rest=lambda _: None, clock=lambda: next(always))


def test_the_next_one_is_not_accused_of_what_another_left_behind(suite: Suite, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import threading\n"
        "from torch.nn.functional import scaled_dot_product_attention as sdpa\n"
        "def spin():\n"
        "    while True:\n"
        "        pass\n"
        "def spins(q, k, v, *, is_causal=False):\n"
        "    threading.Thread(target=spin, daemon=True).start()\n"
        "    return sdpa(q, k, v, is_causal=is_causal)\n"
    )
    small = ("--T", "16", "--H", "2", "--dtype", "float32", "--impl", "spins=own:spins,fused,sdpa")
    assert suite("--benchmark-save=x", *small).returncode == 1
    data = json.loads(run_files(tmp_path)[0].read_text())
    assert [(it["impl"], it["reason"]) for it in data["skipped"]] == [("spins", "wrong")]
    assert [row["extra_info"]["impl"] for row in data["benchmarks"]] == ["fused", "sdpa"]
