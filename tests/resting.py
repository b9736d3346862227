"""Simulated time that passes only while a check waits for background work: load on the machine has no effect."""

import threading
from time import process_time, sleep

from bench.checks import afterwards


class Rest:
    """Replaces `sleep` in `check_idle_afterwards`. Kernels start their background work by `behind` and `spinning`."""

    def __init__(self):
        self.now = 0.0
        self._due: list[float] = []
        self._spinning: list[float] = []
        self._turn = threading.Condition()

    def __call__(self, seconds):
        """Advance the time: work that is due is done when this returns, and spinning threads have used as much CPU time."""
        with self._turn:
            self.now += seconds
            self._turn.notify_all()
            self._turn.wait_for(lambda: all(due > self.now for due in self._due))
        until = process_time() + seconds
        while self._spinning and process_time() < until:
            sleep(1e-3)

    def behind(self, seconds, then):
        """Do `then` after some seconds, in a thread that sleeps until it is due."""
        due = self._begun(seconds)

        def work():
            with self._turn:
                self._turn.wait_for(lambda: self.now >= due)
            try:
                then()
            finally:
                self._done(due)

        return work

    def spinning(self, seconds, then):
        """Do `then` after some seconds, in a thread that works until it is due."""
        if self._spinning:
            return self.behind(seconds, then)  # one that works is enough
        due = self._begun(seconds)
        self._spinning.append(due)

        def work():
            while self.now < due:
                pass
            self._spinning.remove(due)
            try:
                then()
            finally:
                self._done(due)

        return work

    def end(self):
        """Advance the time until all work is done."""
        self(max(self._due, default=0.0))

    def _begun(self, seconds):
        with self._turn:
            self._due.append(self.now + seconds)
            return self._due[-1]

    def _done(self, due):
        with self._turn:
            self._due.remove(due)
            self._turn.notify_all()


def resting(patch, rest):
    """Use simulated time to watch every checked cell."""
    patch.setattr(afterwards, "sleep", rest)
