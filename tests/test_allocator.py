"""`--allocator`: the workers' environment, what a run records of it, and calls timed under the other setting."""

import os
import resource
from dataclasses import replace
from itertools import count
from unittest import mock

import numpy as np
import pytest
import torch

import impls
from bench.cases.case import Case
from bench.cases.cells import Cell
from bench.cases.counting import least_memory
from bench.selection import allocator
from bench.selection.allocator import KEEP, choose
from bench.selection.errors import UsageError
from bench.timing import malloc
from bench.timing.devices import cpu
from bench.timing.devices.cpu import CpuMeter
from reports.reading import fingerprint

from .conftest import only_run

GLIBC = pytest.mark.skipif(not malloc.has_glibc(), reason="only glibc maps large blocks anew")
LARGE = ("--scope", "core", "--T", "1024", "--H", "8", "--D_h", "8", "--dtype", "float32", "--precision", "0.5")

SEEN = """
import os

def attention(q, k, v, **_):
    raise ValueError(f"MALLOC_MMAP_MAX_ is {os.environ.get('MALLOC_MMAP_MAX_')}")
"""


@pytest.fixture
def environ(monkeypatch):
    """Return an environment without settings of an allocator; changes end with the test."""
    plain = {name: value for name, value in os.environ.items() if name not in malloc.allocator_settings()}
    monkeypatch.setattr(os, "environ", plain)
    return plain


@GLIBC
def test_workers_have_the_allocator_that_the_run_writes_down(suite, tmp_path):
    """Calls that may fault pages are also timed with the other setting."""
    (tmp_path / "seen.py").write_text(SEEN)
    suite("--impl", "mine=seen:attention,fused,sdpa", "--benchmark-save=x", *LARGE, fine=(1,))  # `mine` raises
    data = only_run(tmp_path)
    assert "MALLOC_MMAP_MAX_ is 0" in data["skipped"][0]["detail"]
    assert data["machine_info"]["allocator"] == dict(sorted(KEEP.items()))
    rows = {row["extra_info"]["impl"]: row["extra_info"] for row in data["benchmarks"]}
    assert rows["fused"]["fresh_pages_s"] > 0 and rows["fused"]["kept_pages_s"] is rows["sdpa"]["fresh_pages_s"] is None


def test_a_library_is_preloaded_before_others(environ, monkeypatch):
    environ["LD_PRELOAD"] = "libiomp5.so"
    monkeypatch.setattr(allocator, "find_library", {"tcmalloc": "libtcmalloc.so.4"}.get)
    monkeypatch.setattr("sys.platform", "linux")
    choose("tcmalloc")
    assert environ["LD_PRELOAD"] == "libtcmalloc.so.4 libiomp5.so"
    assert CpuMeter().resident(lambda: 1) == (None, 1)
    assert malloc.time_other_setting(lambda: pytest.fail("is called")) == {}
    environ.pop("LD_PRELOAD")
    with pytest.raises(UsageError, match=r"no libjemalloc\.so is found here"):
        choose("jemalloc")


def test_the_environment_is_not_overruled(environ):
    environ["MALLOC_MMAP_MAX_"] = "0"
    with pytest.raises(UsageError, match=r"chooses already \(MALLOC_MMAP_MAX_=0\)"):
        choose("system")
    choose(None, begun={"MALLOC_MMAP_MAX_": "1"})
    environ.pop("MALLOC_MMAP_MAX_")
    with pytest.raises(UsageError, match="the run was started with another one"):
        choose("system", begun=KEEP)
    choose("system", begun=malloc.HUGE_PAGES)  # refused for the variable, by name
    environ["MALLOC_MMAP_MAX_"] = "0"
    choose(None)
    assert environ["MALLOC_MMAP_MAX_"] == "0" and "MALLOC_TRIM_THRESHOLD_" not in environ
    assert malloc.time_other_setting(lambda: pytest.fail("is called")) == {}


def test_reports_know_the_settings_of_keep():
    assert fingerprint.KEEP == KEEP


@GLIBC
def test_settings_that_keep_no_pages_leave_the_choice_of_an_allocator(environ):
    environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1"
    choose("keep")
    assert malloc.keeps_pages()
    environ["GLIBC_TUNABLES"] += ":glibc.malloc.trim_threshold=1"
    with pytest.raises(UsageError, match=r"chooses already \(GLIBC_TUNABLES="):
        choose("keep")


@GLIBC
def test_pages_are_kept_unless_that_could_exhaust_the_memory(environ, tmp_path, monkeypatch):
    large, small = ([Cell(impls.get("fused"), Case.of(T=T, H=64, D_h=64))] for T in (1 << 18, 256))
    choose(None, large)
    assert not malloc.chosen()
    (tmp_path / "memory.max").write_text(f"{least_memory(small[0].impl, small[0].case)}\n")
    with monkeypatch.context() as patch:
        patch.setattr(cpu, "CGROUP", tmp_path)  # of a container with less memory than the machine
        choose(None, small)
    assert not malloc.chosen()
    on_gpu = [Cell(cell.impl, replace(cell.case, device="cuda")) for cell in large]
    choose(None, [*small, *on_gpu])
    assert malloc.chosen() == KEEP
    for value, recorded in (("0", {}), ("1", malloc.HUGE_PAGES)):
        environ["THP_MEM_ALLOC_ENABLE"] = value
        assert malloc.keeps_pages() and malloc.allocator_settings() == KEEP | recorded


@GLIBC
def test_the_call_of_the_check_counts_with_the_settings_that_it_had(environ):
    environ.update(KEEP)
    assert malloc.time_other_setting(lambda: pytest.fail("is called"), checked=0.5) == {"fresh_pages_s": 0.5}
    seconds = iter((0.3, 0.4))
    assert malloc.time_other_setting(lambda: next(seconds), checked=0.1) == {"fresh_pages_s": 0.1}
    assert malloc.time_other_setting(lambda: 2.0) == {"fresh_pages_s": 2.0}


def faults_of(write):
    """Return the page faults of a call."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    write()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@GLIBC
def test_pages_are_kept_for_as_long_as_they_should_be(environ):
    def call():
        return faults_of(lambda: np.full(48 << 20, 1, np.uint8))

    malloc.use_chosen()
    if call() < 5000:
        pytest.skip("huge pages are in use")
    assert malloc.time_other_setting(call)["kept_pages_s"] < 100 < 5000 < call()


@pytest.mark.parametrize(
    ("seconds", "kept", "faulting", "found", "calls"),
    [(0.5, True, 2, [0] * 3, 5), (0.5, True, 4, [0] * 3, 7), (0.5, False, 1, [90_000, 0, 0], 3),
     (1e-3, True, 1, [90_000, 0, 0], 3), (0.5, True, 9, [90_000] * 3, 8)],
)  # fmt: skip
def test_a_long_call_that_grew_the_heap_is_timed_again(
    tasks,
    monkeypatch,
    seconds,
    kept,
    faulting,
    found,
    calls,
):
    """One that always faults on pages is timed again in its first block alone."""
    readings = (90_000 * min((i + 1) // 2, faulting) for i in count())  # before and after each call
    monkeypatch.setattr("resource.getrusage", lambda _: mock.Mock(ru_minflt=next(readings), ru_nvcsw=0, ru_nivcsw=0))
    monkeypatch.setattr("bench.workers.tasks.keeps_pages", lambda: kept)
    tasks._ready["x"] = ready = mock.Mock(
        page_faults=0.0, **{"time.return_value": (seconds, seconds), "meter.sensors.return_value": None}
    )
    assert [tasks.time("x", 1)["page_faults"] for _ in range(3)] == found
    assert ready.time.call_count == calls


@pytest.mark.parametrize(("spare", "returned"), [(4, False), (2, True)])
def test_a_long_call_returns_kept_memory_where_little_is_left(tasks, monkeypatch, spare, returned):
    case, released = Case.of(T=16, H=2, D_h=8), []
    free = spare * least_memory(impls.get("fused"), case)
    for name, it in (("LONG", 0.0), ("free_bytes", lambda device: free), ("release", lambda: released.append(1))):
        monkeypatch.setattr(f"bench.workers.tasks.{name}", it)
    tasks.prepare("x", "fused", case.columns())
    tasks.time("x", 1)
    assert bool(released) == returned


@GLIBC
def test_fresh_pages_are_those_of_blocks_mapped_anew_though_the_heap_has_free_ones(environ):
    def call():
        return faults_of(lambda: torch.empty(48 << 20, dtype=torch.uint8).fill_(1))

    environ.update(KEEP)
    malloc.use_chosen()
    for _ in range(8):
        call()
    assert malloc.time_other_setting(call)["fresh_pages_s"] > 10_000  # of 12288
