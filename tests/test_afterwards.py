"""Threads that continue to work after a call has returned are detected by the process's CPU clock."""

import os
import sys
from contextlib import nullcontext
from functools import partialmethod
from multiprocessing import Pipe
from statistics import median
from threading import Event
from time import monotonic, perf_counter, process_time, sleep
from types import SimpleNamespace

import pytest
import torch

import impls
from bench.cases.case import Case
from bench.cases.cells import Cell
from bench.cases.outcome import Wrong
from bench.checks import afterwards
from bench.checks.afterwards import INTERVAL, LONGEST, check_idle_afterwards, settle
from bench.checks.settings import threads, waiting_asleep
from bench.workers import worker
from bench.workers.client import Request, WorkerClient, run_concurrently


def clocks(monkeypatch, rest, cpu, wall=perf_counter):
    """Replace what `afterwards` sleeps by, and the clocks that it reads."""
    for name, it in (("sleep", rest), ("process_time", cpu), ("perf_counter", wall)):
        monkeypatch.setattr(afterwards, name, it)


def test_one_busy_sample_is_no_fault(monkeypatch):
    clocks(monkeypatch, lambda _: None, iter((0.0, 0.01, 0.01, 0.01)).__next__)
    check_idle_afterwards(alone=False)
    clocks(monkeypatch, lambda _: None, iter(i * 0.02 for i in range(6)).__next__)
    with pytest.raises(Wrong, match=r"2\.0 cores stay busy") as busy_on:
        check_idle_afterwards(alone=False)
    assert worker._failure(busy_on.value)["unusable"]  # a cell that is timed next would wait for these threads


@pytest.mark.parametrize(("alone", "seconds", "passes"), [(False, 0.12, False), (True, 0.12, True), (True, 0.3, False)])
def test_threads_may_spin_for_longer_in_a_process_of_their_own(alone, seconds, passes, monkeypatch):
    now = 0.0

    def rest(pause):
        nonlocal now
        now += pause

    clocks(monkeypatch, rest, lambda: min(now, seconds))
    refused = pytest.raises(Wrong, match=r"stay busy$" if alone else "'alone': True")
    with nullcontext() if passes else refused:
        check_idle_afterwards(alone)


def test_a_process_is_idle_when_its_threads_use_no_cpu_time(monkeypatch):
    readings = iter((0.0, 1e-3, 1e-3, 2e-3, 2e-3, 2.1e-3))  # CPU seconds before and after each sample
    slept = []
    clocks(monkeypatch, slept.append, readings.__next__, iter(i * 1e-3 for i in range(100)).__next__)
    settle()
    assert len(slept) == 3
    now = 0.0

    def rest(pause):
        nonlocal now
        now += pause
        assert now < 2 * LONGEST

    clocks(monkeypatch, rest, lambda: now, lambda: now)
    settle()
    assert now == pytest.approx(LONGEST, abs=INTERVAL)  # then no longer waited for


def worker_of(name, log):
    """A client whose worker logs a request, and replies at once."""

    def asked(request):
        log.append(f"{name} asked")
        theirs.send_bytes(b"{}")

    ours, theirs = Pipe()
    client = WorkerClient.__new__(WorkerClient)
    client.first, client._timeout, client._stderr = {"begun": True}, 5.0, ours
    client._pipe = SimpleNamespace(send_bytes=asked, recv_bytes=ours.recv_bytes, fileno=ours.fileno)
    return client


@pytest.mark.parametrize(
    ("impl", "axes", "alone"),
    [("sdpa", {}, True), ("sdpa", {"T": 512}, False), ("sdpa", {"threads": 1}, False), ("loop", {}, False)],
)
def test_long_calls_of_several_threads_are_checked_alone(impl, axes, alone):
    assert Cell(impls.get(impl), Case.of(**{"T": 2048, "H": 16, "D_h": 64} | axes)).checked_alone == alone


@pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) == 1, reason="needs GNU OpenMP, and two cores"
)
def test_waiting_threads_sleep_where_they_are_told_to():
    numbers = torch.ones(1 << 20)

    def waiting() -> float:
        """Return the CPU seconds of this process while threads wait."""
        numbers.fill_(1)
        before = process_time()
        sleep(3e-3)
        return process_time() - before

    with threads(2):
        with waiting_asleep():
            asleep = median(waiting() for _ in range(20))
        assert asleep < 0.2 * max(waiting() for _ in range(20))


def test_a_check_does_not_wait_for_a_thread_that_has_failed(monkeypatch):
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    monkeypatch.setattr(Event, "wait", partialmethod(Event.wait, 10))
    monkeypatch.setattr(torch, "zeros", None)
    before = monotonic()
    with waiting_asleep():
        assert monotonic() - before < 5


@pytest.mark.parametrize(
    ("alone", "order"),
    [
        (False, ["first asked", "second asked", "first done", "second done"]),
        (True, ["first asked", "first done", "second asked", "second done"]),
    ],
)
def test_requests_run_side_by_side_or_alone(alone, order):
    log = []

    def script(name):
        yield Request(worker_of(name, log), "check", {}, alone)
        log.append(f"{name} done")

    run_concurrently([script("first"), script("second")])
    assert log == order
