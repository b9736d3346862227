"""Faults found while timing: kernels that are wrong now and then, cache results, or finish them later."""

import gc
import re
import threading
from functools import cache
from time import thread_time
from unittest import mock

import pytest
import torch

import impls
from bench.cases.case import Case
from bench.cases.cells import Cell
from bench.cases.outcome import Wrong
from bench.timing import cell
from bench.timing.caching import check_caching, check_kernel_caches_nothing
from impls.registry import Limits

from . import wrong_kernels
from .conftest import checked
from .resting import resting

BLOCKS, COMPARED = 10, 300
"""Blocks that are timed; calls that are compared beside them, of which one in 200 may be wrong."""


@pytest.fixture(autouse=True)
def crowded(monkeypatch):
    """Others that compute at the same time change nothing: a call's seconds are those that it computed itself, on one core, and
    what is finished later has its time where it is watched for.
    """
    monkeypatch.setattr("bench.timing.devices.cpu.perf_counter", thread_time)
    resting(monkeypatch, wrong_kernels.rest)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    wrong_kernels.rest.end()


def case_of(**axes):
    return Case.of(**{"T": 64, "H": 2, "D_h": 64} | axes)


def measured(kernel, compared=0, **axes):
    """Treat a cell as a run does: check, compare, time, and test for cached results."""
    case = case_of(**axes)
    built, found = checked(Cell(impls.make("mine", kernel), case))
    built.time(1, input_set=1)
    for _ in range(compared):
        built.time(calls=1, input_set=1)
    usual = min(built.time(calls=5)[0] for _ in range(BLOCKS))  # the machine may be slow for all of a second
    with built.watched():
        check_caching(built, usual, found.first_s)
    check_kernel_caches_nothing(built.cell)


@pytest.mark.parametrize("name", [*wrong_kernels.WHEN_TIMED, *wrong_kernels.NOW_AND_THEN])
def test_faults_that_the_gate_cannot_see_are_found_while_timed(name):
    compared = COMPARED * (name in wrong_kernels.NOW_AND_THEN)
    wrong = (wrong_kernels.WHEN_TIMED | wrong_kernels.NOW_AND_THEN)[name]
    gc.collect()
    with pytest.raises(Wrong, match=re.escape(wrong.says)):
        measured(wrong.kernel, compared, **wrong.case)


def test_the_same_without_their_faults_are_measured():
    def joins(q, k, v, **options):
        thread = threading.Thread(target=sum, args=(range(100_000),))
        thread.start()
        thread.join()
        return wrong_kernels.sdpa(q, k, v, **options)

    measured(wrong_kernels.sdpa, COMPARED)
    measured(wrong_kernels.sdpa, COMPARED, mode="backward", scope="core")
    measured(joins, T=16)


def test_threads_of_a_kernel_in_a_process_of_its_own_may_spin_for_a_while():
    """As long as those of the wrong kernel that works on."""

    def kernel(q, k, v, **options):
        if q.shape[-2] == 64:
            threading.Thread(target=wrong_kernels.rest.spinning(0.1, lambda: None)).start()
        return wrong_kernels.sdpa(q, k, v, **options)

    checked(Cell(impls.make("mine", kernel, limits=Limits(alone=True)), case_of(scope="core")))


@pytest.mark.parametrize(
    "axes",
    [
        {"mode": "backward"},
        {"mask": "causal+padding", "B": 3},
        {"mask": "padding", "source": "cross", "T_kv": 40, "B": 2},
        {"mode": "decode", "T": 1, "T_kv": 64, "mask": "none", "latent": 64, "rope": 16},
        {"window": 8, "sinks": True, "softcap": 20, "H": 4, "H_kv": 2},
        {"autocast": "bfloat16", "mode": "backward"},
        {"dropout": 0.1, "mode": "backward"},
    ],
    ids=str,
)
def test_a_kernel_that_computes_every_time_caches_nothing(axes):
    for name in ("fused", "fused+compile") if axes == {"mode": "backward"} else ("fused",):
        check_kernel_caches_nothing(Cell(impls.get(name), case_of(**axes)))


def test_a_long_kernel_that_its_layer_shows_is_called_on_a_probe():
    lengths = []

    def kernel(q, k, v, **options):
        lengths.append(q.shape[-2])
        return wrong_kernels.sdpa(q, k, v, **options)

    impl = impls.make("mine", kernel)
    for usual, d_model, T in (
        (0.0, 128, 1024),
        (1.0, 128, 513),
        (1.0, 2048, 1024),
    ):  # the last one's projections take longer
        check_kernel_caches_nothing(Cell(impl, case_of(T=1024, d_model=d_model)), usual)
        assert {*lengths} == {T}
        lengths.clear()


def test_a_rejected_cell_holds_no_memory(tasks, monkeypatch):
    """Rejected by its check, or while it was timed, when the next one is checked."""
    kernel, case = mock.Mock(wraps=wrong_kernels.sdpa), Case.of(T=16, H=1, D_h=8).columns()
    impls.register("refuses")(lambda q, k, v, **options: kernel(q, k, v, **options))
    tasks.probe("it", "refuses", case)
    kernel.side_effect = ValueError("no")
    with pytest.raises(ValueError, match="no"):
        tasks.check("it")
    assert not tasks._ready
    tasks.prepare("it", "sdpa", case)
    monkeypatch.setattr("bench.workers.tasks.probe", lambda cell, gate: pytest.fail("held") if tasks._ready else None)
    tasks.probe("it", "sdpa", case)


def test_cells_of_different_threads_are_timed_with_their_own(tasks):
    usual, seen = torch.get_num_threads() + 1, []

    def kernel(q, k, v, **options):
        seen.append(torch.get_num_threads())
        return wrong_kernels.sdpa(q, k, v, **options)

    for threads in (usual, usual + 1):
        torch.set_num_threads(threads)
        tasks._ready[str(threads)] = cell.build(Cell(impls.make("mine", kernel), Case.of(T=16, H=1, D_h=8)))
    for threads in (usual, usual + 1, usual):
        seen.clear()
        tasks.time(str(threads), calls=1)
        assert {*seen} == {threads}


def test_a_mask_made_in_a_forward_call_serves_a_backward(tasks):
    mask = cache(wrong_kernels.triangle)

    def kernel(q, k, v, *, is_causal):
        scores = wrong_kernels.scaled(q, k)
        return torch.where(mask(*scores.shape[-2:]), scores, -torch.inf).softmax(-1) @ v

    impls.add(impls.make("keeps_its_mask", kernel))
    for mode in ("forward", "backward"):
        tasks.prepare(mode, "keeps_its_mask", case_of(mode=mode).columns())
