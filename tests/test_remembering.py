"""An answer that is looked up is no call, and what is timed is what was proved: seen by the clock."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

import impls
from bench import cell as cells
from bench.cells import Cell
from bench.gate import Gate
from bench.outcome import Wrong
from bench.problem import Given, given, problem_of
from bench.remembering import LONG, check_remembers_nothing
from bench.roofs import Roofs
from bench.sweep import Case

CASE = Case.of(T=16, H=2, D_h=8, scope="core")


class Work:
    """A call that takes a second where it computes, and a tenth where it remembers; a clock that knows."""

    clock = "fake"

    def __init__(self, numbers: Given, remembers: bool, noise: tuple[float, ...] = ()):
        self.numbers, self.remembers, self.noise = numbers, remembers, [*noise]
        self.known: set[float] = set()
        self.calls = 0
        self.spent = 0.0

    def __call__(self) -> None:
        content = float(sum(x.sum() for x in self.numbers.inputs))
        self.spent += 0.1 if self.remembers and content in self.known else 1.0
        self.known.add(content)
        self.calls += 1

    def seconds(self, call: Callable[[], Any], times: int) -> float:
        before = self.spent
        for _ in range(times):
            call()
        return self.spent - before + (self.noise.pop(0) if self.noise else 0.0)


def check(work: Work, usual: float, first: float) -> None:
    check_remembers_nothing(work, work, work.numbers, usual, first)  # type: ignore[arg-type]


def test_what_remembers_by_content_is_refused() -> None:
    work = Work(given(problem_of(CASE)), remembers=True)
    work()
    with pytest.raises(Wrong, match=r"remembers its answers: numbers it has not seen take it 10\.0 times as long"):
        check(work, 0.1, 1.0)


def test_what_computes_passes_by_one_call_and_noise_does_not_change_that() -> None:
    work = Work(given(problem_of(CASE)), remembers=False)
    check(work, 1.0, 5.0)
    assert work.calls == 1
    check(Work(work.numbers, remembers=False, noise=(9.0, 0.0) * 9), 1.0, 5.0)  # the tenth is as fast as any


def test_a_machine_slower_than_before_accuses_nobody() -> None:
    work = Work(given(problem_of(CASE)), remembers=False, noise=(9.0,) * 6)
    check(work, 1.0, 5.0)
    assert work.calls == 6


def test_noise_on_known_numbers_hides_nobody() -> None:
    work = Work(given(problem_of(CASE)), remembers=True, noise=(0.0, 9.0))
    with pytest.raises(Wrong, match="remembers its answers"):
        check(work, 0.1, 1.0)


def test_a_long_call_is_not_made_again_where_the_proof_was_as_fast() -> None:
    work = Work(given(problem_of(CASE)), remembers=True)
    check(work, 2 * LONG, 3 * LONG)
    assert work.calls == 0


def test_a_nudge_changes_every_input_and_nothing_comes_back() -> None:
    numbers = given(problem_of(CASE))
    seen: list[tuple[float, ...]] = []
    for _ in range(6):
        seen.append(tuple(float(x.double().sum()) for x in numbers.inputs))
        numbers.nudge()
    assert all(len(set(of_input)) == len(seen) for of_input in zip(*seen, strict=True))
    assert all(isinstance(x, Tensor) and x.isfinite().all() for x in numbers.inputs)


class Idle:
    """A kernel that answers as it did the last time, when it takes itself to be timed."""

    def __init__(self, timed: Callable[[], bool]):
        self.timed, self.last = timed, dict[tuple[int, ...], Tensor]()

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False, **_: Any) -> Tensor:
        if not (self.timed() and q.shape in self.last):
            self.last[q.shape] = sdpa(q, k, v, is_causal=is_causal)
        return self.last[q.shape].clone()


class Later:
    """False so many times, and when a profiler looks."""

    def __init__(self, calls: int):
        self.left = calls

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0 and not torch.autograd._profiler_enabled()  # type: ignore[attr-defined]


def row_of(kernel: Any, seconds: float) -> None:
    with torch.inference_mode():
        case = Case.of(T=64, H=2, D_h=8)
        cell = Cell(impls.make("mine", kernel), case)
        cells.measure(cell, cells.ready(cell, Gate()), seconds, 0.5, Roofs())


def calls_of_the_gate() -> int:
    count = Later(0)
    with torch.inference_mode():
        case = Case.of(T=64, H=2, D_h=8)
        cells.ready(Cell(impls.make("mine", Idle(lambda: count() and False)), case), Gate())
    return -count.left


@pytest.mark.parametrize("seconds", [0.05, 1e-9])  # short calls, and calls that outlast the cell
def test_what_computes_for_the_gate_and_the_profiler_alone_is_refused(seconds: float) -> None:
    with pytest.raises(Wrong, match="under the clock, on new numbers in the same buffers"):
        row_of(Idle(Later(calls_of_the_gate())), seconds)


def test_what_idles_where_the_clock_stops_the_collector_is_refused() -> None:
    with pytest.raises(Wrong, match="under the clock"):
        row_of(Idle(lambda: not gc.isenabled()), 0.05)


@pytest.mark.parametrize("seconds", [0.05, 1e-9])
def test_what_computes_every_time_is_measured(seconds: float) -> None:
    row_of(Idle(lambda: False), seconds)
