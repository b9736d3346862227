"""A cell that can't fit is skipped before it is tried."""

import gc
import weakref
from dataclasses import replace

import psutil
import pytest

import bench.timing.cell
import bench.timing.devices.cpu
import impls
from bench.cases.case import Case
from bench.cases.cells import Cell
from bench.cases.counting import ITEM_BYTES, least_memory
from bench.cases.outcome import OutOfMemory
from bench.checks.attention_problems import problem_of
from bench.checks.building import module_of
from bench.checks.calls import call_of, recording
from bench.checks.inputs import inputs_of
from bench.timing.cell import check_fits
from bench.timing.devices import free_bytes
from bench.timing.devices.cpu import CpuMeter, total_bytes

from .conftest import checked


@pytest.mark.parametrize(
    "axes",
    [{}, {"dtype": "bfloat16", "mask": "none"}, {"mask": "none", "mode": "backward"},
     {"dtype": "bfloat16", "mode": "backward"}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("impl", [impl for impl in impls.registered() if impl.scores], ids=lambda impl: impl.name)
def test_declared_memory_is_allocated(impl, axes):
    """Too high an estimate would skip cells that fit."""
    case = Case.of(**{"T": 128, "H": impl.limits.heads or 4, "D_h": 16} | axes)
    if why := impl.refusal(case):
        pytest.skip(why)
    call = call_of(module_of(impl, case), case, inputs_of(problem_of(case)))
    with recording(case):
        assert CpuMeter().memory(call.run)[0].peak_bytes >= impl.scores(case) * ITEM_BYTES[case.dtype]


def test_a_cell_that_cannot_fit_is_not_tried(monkeypatch):
    tried = Cell(
        replace(impls.get("fused"), layer=lambda shape: pytest.fail("it was built")), Case.of(T=512, H=8, D_h=64)
    )
    needed = 2 * 8 * 512 * 512 * 4 + 6 * 512 * 512 * 4  # scores and probs; x, four matrices and the output
    for free, says in ((needed - 1, r"needs 22\.0 MiB at least, and 22\.0 MiB are free"), (needed, "it was built")):
        monkeypatch.setattr(bench.timing.cell, "free_bytes", lambda device, free=free: free)
        with pytest.raises((OutOfMemory, pytest.fail.Exception), match=says):
            checked(tried)


def test_problems_of_other_cases_give_way_where_memory_is_short(monkeypatch):
    """On a GPU those of the sweep `decode` take up to 22 GiB."""
    case = Case.of(T=1, T_kv=64, H=2, D_h=16, mode="decode", mask="none")
    kept = [weakref.ref(problem_of(replace(case, scope=scope))) for scope in ("core", "layer")]
    monkeypatch.setattr(bench.timing.cell, "free_bytes", lambda device: 0)
    with pytest.raises(OutOfMemory):
        check_fits(Cell(impls.get("fused"), case))
    gc.collect()
    assert [it() for it in kept] == [None, None]


def test_kernels_that_never_store_the_scores_run_at_any_length():
    case = Case.of(T=1 << 17, H=8, D_h=64)
    assert least_memory(impls.get("sdpa"), case) < 2**30 < 2**39 < least_memory(impls.get("fused"), case)
    assert least_memory(impls.get("fused+compile"), case) < 2**30  # Inductor may replace it by SDPA


@pytest.mark.parametrize("place", [".", "system.slice/job_1"])
def test_the_limit_of_a_container_or_of_a_job_around_the_process_counts(tmp_path, monkeypatch, place):
    """As in Slurm: the machine's own group has none, and the process is in a group below that of the job."""
    for name in ("CGROUP", "PROCESS"):
        monkeypatch.setattr(bench.timing.devices.cpu, name, tmp_path)
    (tmp_path / "cgroup").write_text("1:cpu:/\n0::/system.slice/job_1/task_0\n")
    assert 2**28 < free_bytes("cpu") <= psutil.virtual_memory().total
    (group := tmp_path / place).mkdir(parents=True, exist_ok=True)
    (group / "memory.max").write_text("1000\n")
    (group / "memory.current").write_text("400\n")
    assert (free_bytes("cpu"), total_bytes()) == (600, 1000)
    (group / "memory.stat").write_text("anon 200\ninactive_file 150\n")
    assert free_bytes("cpu") == 750  # cached files are given back
    (group / "memory.max").write_text("max\n")
    assert free_bytes("cpu") > 2**28
