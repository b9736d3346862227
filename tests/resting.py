"""Simulated time that passes only while a check waits for background work: load on the machine has no effect."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import process_time, sleep
from typing import Any

import pytest

from bench.checks.afterwards import check_idle_afterwards
from bench.timing import cell

Work = Callable[[], Any]


class Rest:
    """Replaces `sleep` in `check_idle_afterwards`. Kernels start their background work by `behind` and `spinning`."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[float] = []
        self._spinning: list[float] = []
        self._turn = threading.Condition()

    def __call__(self, seconds: float) -> None:
        """Advance the time: work that is due is done when this returns, and spinning threads have used as much CPU time."""
        with self._turn:
            self.now += seconds
            self._turn.notify_all()
            self._turn.wait_for(lambda: all(due > self.now for due in self._due))
        until = process_time() + seconds
        while self._spinning and process_time() < until:
            sleep(1e-3)

    def behind(self, seconds: float, then: Work) -> Work:
        """Do `then` after some seconds, in a thread that sleeps until it is due."""
        due = self._begun(seconds)

        def work() -> None:
            with self._turn:
                self._turn.wait_for(lambda: self.now >= due)
            try:
                then()
            finally:
                self._done(due)

        return work

    def spinning(self, seconds: float, then: Work) -> Work:
        """Do `then` after some seconds, in a thread that works until it is due."""
        if self._spinning:
            return self.behind(seconds, then)  # one that works is enough
        due = self._begun(seconds)
        self._spinning.append(due)

        def work() -> None:
            while self.now < due:
                pass
            self._spinning.remove(due)
            try:
                then()
            finally:
                self._done(due)

        return work

    def end(self) -> None:
        """Advance the time until all work is done."""
        self(max(self._due, default=0.0))

    def _begun(self, seconds: float) -> float:
        with self._turn:
            self._due.append(self.now + seconds)
            return self._due[-1]

    def _done(self, due: float) -> None:
        with self._turn:
            self._due.remove(due)
            self._turn.notify_all()


def resting(patch: pytest.MonkeyPatch, rest: Rest) -> None:
    """Use simulated time to watch every checked cell."""
    patch.setattr(cell, "check_idle_afterwards", lambda alone: check_idle_afterwards(alone, rest))
