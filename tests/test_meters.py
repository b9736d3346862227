"""Memory to the byte on the CPU, and the CUDA meter against a simulated device."""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import impls
from bench.cases.case import Case
from bench.cases.cells import Cell
from bench.cases.outcome import Skip, Wrong
from bench.checks import dispatch
from bench.checks.attention_problems import problem_of
from bench.checks.building import module_of
from bench.checks.calls import call_of, recording
from bench.checks.checked_calls import CALLS_KEPT
from bench.checks.dispatch import kernel_in, traced
from bench.checks.inputs import inputs_of
from bench.timing.cell import build, check_built
from bench.timing.devices.cpu import FLOOR, CpuMeter
from bench.timing.malloc import SYSTEM, has_glibc, using

from .conftest import checked

S, O = 8 * 1024 * 1024 * 4, 8 * 1024 * 64 * 4  # noqa: E741  bytes of the scores and of the output: B=1 H=8 T=1024 D_h=64 fp32


def made(impl, case):
    return call_of(module_of(impl, case), case, inputs_of(problem_of(case)))


@pytest.mark.parametrize(
    ("mode", "peak"),
    [
        ("forward", 2 * S + O),
        # scores twice and their gradient; the output and v's gradient; the scale, kept as a number of 8 bytes
        ("backward", 3 * S + 2 * O + 8),
    ],
)
def test_peak_of_the_plain_formula(mode, peak):
    case = Case.of(T=1024, H=8, D_h=64, mask="none", mode=mode, scope="core")
    call = made(impls.get("fused"), case)
    with recording(case):
        assert CpuMeter().memory(call.run)[0].peak_bytes == peak


def test_peak_is_the_same_every_time_and_counts_nothing_from_before():
    x = torch.randn(1 << 16)
    before = [torch.zeros(1 << 20)]

    def call():
        before.clear()  # what is freed was there before: the peak is of what is new
        return x + x

    assert [CpuMeter().memory(call)[0].peak_bytes for _ in range(3)] == [4 << 16] * 3
    assert CpuMeter().memory(lambda: None)[0].peak_bytes == 0


@pytest.mark.parametrize("scope", ["core", "layer"])
@pytest.mark.parametrize("arrays", [True, False])
def test_memory_that_torch_did_not_allocate_is_noticed(scope, arrays):
    def kernel(q, k, v, **options):
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)
        return torch.from_numpy(o.numpy().copy()) if arrays else o

    cell = Cell(impls.make("own", kernel), Case.of(T=16, H=2, D_h=8, scope=scope))
    built, found = checked(cell)
    assert found.own_memory == (built.columns["peak_bytes"] is None) == arrays


def test_a_kernel_that_keeps_its_outputs_passes_where_memory_is_not_measured():
    """More calls are made to see that they don't share buffers."""
    kept = []

    def keeps(q, k, v, **options):
        kept.append(torch.nn.functional.scaled_dot_product_attention(q, k, v, **options))
        return kept[-1]

    built = build(Cell(impls.make("keeps", keeps), Case.of(T=16, H=2, D_h=8, scope="core")))
    check_built(built, memory=False)
    assert len(kept) == 2 + CALLS_KEPT


def test_a_slowed_call_takes_longer_by_its_share(monkeypatch):
    now = 0.0

    def clock(passing=1e-3):
        nonlocal now
        now += passing
        return now

    monkeypatch.setattr("bench.timing.devices.cpu.perf_counter", clock)
    slowed, began = CpuMeter().slowed(lambda: clock(1.0), 0.5), now
    slowed()
    assert now - began == pytest.approx(1.5, abs=0.01)


MIB = 1 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="only there the high-water mark can be set back")
def test_the_resident_set_includes_memory_allocated_outside_torch():
    def call():
        o, _elsewhere = torch.ones(MIB // 4), np.ones(48 * MIB, np.uint8)
        return o

    for _ in range(2):  # the second time too, though it has been freed
        assert CpuMeter().memory(call)[0].peak_bytes == MIB
        assert CpuMeter().resident(call)[0] == pytest.approx(49 * MIB, abs=FLOOR)
    assert CpuMeter().resident(lambda: torch.ones(MIB // 4))[0] == 0  # below the floor


@pytest.mark.skipif(not has_glibc(), reason="only glibc's free memory can be returned")
def test_free_memory_that_malloc_keeps_does_not_hide_what_a_call_needs():
    """Blocks of 24 MiB lie in the heap: glibc returns larger ones at once."""

    def call():
        return torch.ones(24 * MIB // 4)

    with using(SYSTEM):
        for _ in range(3):
            assert CpuMeter().resident(call)[0] == pytest.approx(24 * MIB, abs=FLOOR)


@pytest.mark.skipif(sys.platform != "linux", reason="only there the high-water mark can be set back")
def test_memory_that_one_call_alone_keeps_is_not_growth_of_every_call():
    calls, kept = [], []

    def keeps(q, k, v, **options):
        calls.append(len(calls))
        if len(calls) == 2:  # the first that is measured
            kept.append(np.ones(8 * MIB, np.uint8))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)

    built = build(Cell(impls.make("keeps", keeps), Case.of(T=16, H=2, D_h=8, scope="core")))
    check_built(built)
    assert kept and built.columns["peak_rss_bytes"] == 0


def test_memory_that_the_first_call_keeps_is_part_of_the_peak():
    kept = {}

    def keeps(q, k, v, *, is_causal=False):
        if q.shape[-2] == 512:
            kept[512] = kept[512] if kept else torch.zeros(3 * MIB // 4)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    case = Case.of(T=512, H=2, D_h=8, scope="core")
    profiles = [checked(Cell(impl, case))[1].memory for impl in (impls.make("keeps", keeps), impls.get("sdpa"))]
    assert [profile.kept_bytes for profile in profiles] == [3 * MIB, 0]
    assert profiles[0].peak_bytes == profiles[1].peak_bytes + 3 * MIB


@pytest.mark.parametrize(
    ("name", "mask", "kernel"),
    [
        ("sdpa_math", "causal", "math"),
        ("sdpa", "causal", "flash"),
        ("fused", "causal", "gemm"),
        ("loop", "causal", "dot"),
        ("fused+compile", "causal", "inductor"),
        ("fused+compile", "none", "flash"),  # without a mask Inductor recognises the formula and replaces it by SDPA
    ],
)
def test_the_kernel_that_ran(name, mask, kernel):
    case = Case.of(T=64, H=2, D_h=16, mask=mask)
    torch.compiler.reset()
    call = made(impls.get(name), case)
    with torch.inference_mode():
        call.run()
        assert kernel_in(traced(call.run)[0]) == kernel


@pytest.mark.parametrize("export", [lambda *_: None, lambda _, path: Path(path).write_text('{"traceEvents": [')])
def test_a_trace_that_does_not_fit_on_the_disk_is_an_error_that_names_the_folder(monkeypatch, export):
    monkeypatch.setattr(dispatch.profile, "export_chrome_trace", export)
    with pytest.raises(Skip, match=tempfile.gettempdir()):
        traced(lambda: None)


def test_a_loop_has_the_kernel_of_a_short_call_and_no_count_of_operators():
    columns = checked(Cell(impls.get("loop"), Case.of(T=64, H=2, D_h=16)))[0].columns
    assert (columns["kernel"], columns["operators"]) == ("dot", None)


def test_a_pinned_kernel_must_be_the_one_that_ran():
    """Unpinned SDPA, under a name that promises math."""
    case = Case.of(T=64, H=2, D_h=16)
    liar = replace(impls.get("sdpa"), name="liar", dispatches="math")
    with pytest.raises(Wrong, match="registered as math, but dispatched flash"):
        checked(Cell(liar, case))
