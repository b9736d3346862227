"""An answer that is looked up is no call: seen by a clock that reads what was computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from bench.outcome import Wrong
from bench.problem import Given, given, problem_of
from bench.remembering import LONG, check_remembers_nothing
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
    check(Work(work.numbers, remembers=False, noise=(9.0, 0.0) * 4), 1.0, 5.0)  # the fifth is as fast as any


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
