"""Requests to a worker process: check, prepare and time cells."""

from __future__ import annotations

import gc
import resource
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from impls import Impl, get
from impls.registry import eager_name

from ..cases.case import Case
from ..cases.cells import Cell
from ..cases.outcome import OutOfMemory, Skip, classify
from ..cases.sweep import misfit
from ..checks.afterwards import keeping_arithmetic, settle
from ..checks.attention_problems import problem_of
from ..checks.calls import graphed
from ..checks.gate import Gate
from ..checks.impl_hash import sources
from ..checks.problem import keep_expected
from ..checks.settings import waiting_asleep
from ..selection.choice import impls_named, refuse_absent, unsupported
from ..selection.errors import UsageError
from ..timing.caching import check_caching, check_kernel_caches_nothing
from ..timing.cell import Built, build, check_built, probe
from ..timing.devices import free_bytes
from ..timing.devices.cuda import see_one_gpu
from ..timing.machine import fingerprint
from ..timing.malloc import MAPPED, SYSTEM, keeps_pages, release, time_other_setting, use_chosen, using
from ..timing.parts import parts_of
from ..timing.reference_workload import GPU_WORK, Workload, software, workload
from ..timing.rooflines import Rooflines
from .client import Reply
from .fresh import pin
from .tree import Tree

WARM_CALLS = 3
"""Warm-up calls before the first timed call."""

WARM_SECONDS = 0.02
"""Seconds of warm-up calls after which no more are made."""


USUAL = [
    {"T": T, "mask": mask, "dtype": dtype}
    for T, mask, dtype in product((64, 128), ("causal", "none"), ("float32", "bfloat16", "float16"))
]
"""Length, mask and dtype of problems of `check` that name none: the first with which a kernel supports them."""

BIASES = [{}, {"qkv_bias": True, "out_bias": True}, {"qkv_bias": True}, {"out_bias": True}]
"""Biases of projections in problems that name none: likewise, for layers."""

FREE = 5
"""Multiple of a cell's least memory that must be free for calls under other settings of the allocator."""

SPARE = 3
"""Multiple of a cell's least memory that stays free after a long call."""

GROWTH, SHARE = 4, 0.25
"""Multiple of a cell's least memory that the heap holds before it is timed in a comparison, and the largest share of the
free memory for it.
"""

WORKLOAD_CALLS = 50
"""Calls of a GPU workload in one block: some milliseconds of products."""


DISTURBED = {"page_faults": "ru_minflt", "voluntary": "ru_nvcsw", "involuntary": "ru_nivcsw"}
"""Keys of the reply to `time` on what disturbs calls, and the counters of `getrusage`."""

LONG, GROWTH_FAULTS = 20e-3, 256
"""Seconds of a call, and page faults per call, from which a block is timed again: a call that grows the heap takes up to
six times as long.
"""

ATTEMPTS = 6
"""Most times that such a block is timed: where cases of other sizes have divided the heap, four were needed."""


class Tasks:
    """Handlers of requests, one method each; return values are the replies, as JSON, and None is an empty one. `what` is the
    caller's name of a call that stays ready between requests.
    """

    def __init__(self, folder: str, threads: int | None = None, tree: Tree | None = None):
        if threads:
            torch.set_num_threads(threads)
        torch.set_float32_matmul_precision("highest")  # containers may set TF32 (TORCH_ALLOW_TF32_CUBLAS_OVERRIDE)
        see_one_gpu()
        use_chosen()
        self._threads = torch.get_num_threads()
        self._folder = folder
        self._tree = tree
        """Tree of a compared variant; None if its code is that of the working tree."""
        self._gate = Gate()
        self._rooflines = Rooflines()
        self._kernels: set[tuple[str, Case]] = set()
        """Layers' kernels shown to cache nothing, at one length; at every length the layer itself gets fresh inputs."""
        self._ready: dict[str, Any] = {}
        """What can be timed, by name: each a `Built`, or a `Workload`."""

    def cells(self, names: list[str], device: str, whole_registry: bool = False, cases: Sequence[Reply] = ()) -> Reply:
        """Return the available implementations among the requested names (none: those of the sweep), with their cells.

        {"cells": {name: {case id: None, or why it can't be measured}}, "unknown": {name: why it is missing},
        "unusable": why the device can't be used, or None,
        "fingerprint": what two variants must share, "workloads": {name: version}}
        """
        known: dict[str, dict[str, str | None]] = {}
        unknown = {}
        for name in names or [impl.name for impl in impls_named([], whole_registry, self._folder)]:
            try:
                (impl,) = impls_named([name], whole_registry, self._folder)
                sources(impl.owner, impl.files)  # `impl_hash` is that of the imported code, also if it is edited later
                if self._tree:
                    self._tree.check_place(name)
                of_impl = [Cell(impl, Case(**case)) for case in cases]
                known[impl.name] = {cell.case.id: unsupported(cell) for cell in of_impl}
            except UsageError as error:
                unknown[name.partition("=")[0]] = str(error)
        return {
            "cells": known,
            "unknown": unknown,
            "unusable": _why_unusable(device),
            "fingerprint": fingerprint(),
            "workloads": software(),
        }

    def cases(self, names: list[str], axes: list[Reply], around: list[Reply]) -> Reply:
        """Return the cases that `check` runs for each implementation: with scope `core` where that is supported, else `layer`.
        Axes that a problem doesn't name are the first of `USUAL` with which it is supported.

        `axes`: those of each case. `around`: axes outside a kernel, for layers without a core alone.

        {"cases": {impl: [{"case", "id", "unsupported": why, or None}, ...]}}, or {"unusable": why the device can't be used or
        an implementation is missing}
        """

        def described(impl: Impl) -> Iterator[Reply]:
            biases = BIASES[: 1 if impl.core else None]
            for it in [*axes, *(() if impl.core else around)]:
                usual = (of_layer | own for of_layer in biases for own in USUAL)
                cases = [Case.of(**own | it, scope=scope) for own in usual for scope in ("core", "layer")]
                whys = [unsupported(Cell(impl, case)) or misfit(case) for case in cases]
                first = next((i for i, why in enumerate(whys) if not why), 1)  # else the layer, which has fewer limits
                yield {"case": cases[first].columns(), "id": cases[first].id, "unsupported": whys[first]}

        try:
            refuse_absent(axes[0]["device"])
            impls = impls_named(names, whole_registry=False, folder=self._folder)
            return {"cases": {it.name: [*described(it)] for it in impls}, "unusable": _why_unusable(axes[0]["device"])}
        except UsageError as error:
            return {"unusable": str(error)}

    def probe(self, what: str, impl: str, case: Reply, passed: Sequence[str] = ()) -> Reply:
        """Check an implementation on probes, except what has `passed` in another process, and build the module of a cell:

        {"passed": checks that need not be repeated elsewhere}
        """
        cell = self._cell(impl, case)
        self._gate.passed.update(passed)
        self._ready.pop(what, None)  # one rejected while it was timed, which would take the memory of this one
        with using(SYSTEM), waiting_asleep(), keeping_arithmetic():
            self._ready[what] = probe(cell, self._gate)
        return {"passed": [it for it in self._gate.passed if it.startswith(eager_name(impl))]}

    def check(self, what: str, keep: bool = True, memory: bool = True, expected: str = "") -> Reply:
        """Check a built cell against the reference, and measure its call; returns the resulting columns of the row:

        {"columns": {"error", "error_bound", "peak_bytes", "kernel", ...}, "seconds": of the first call on fresh inputs}.
        Without `keep` one more call is made as it would be timed, and the cell is released. Without `memory` its
        columns are None. `expected`: as in `prepare`.
        """
        built: Built = self._ready.pop(what)  # a rejected cell holds no memory
        torch.set_num_threads(built.threads)
        with using(SYSTEM), waiting_asleep(), keeping_arithmetic():
            checked = check_built(built, memory)
        if self._tree:
            self._tree.refuse_others()  # which a call may have imported
        if expected:
            keep_expected(problem_of(built.cell.case), Path(expected))
        if keep:
            self._keep(what, built)
        else:
            built.time(1, input_set=1)
        if checked.memory.peak_bytes >= MAPPED:
            release()
        return {"columns": built.columns, "seconds": checked.first_s}

    def prepare(self, what: str, impl: str, case: Reply, expected: str = "", slower: float = 0.0) -> Reply:
        """Prepare a cell for timing as `what`, without checking it: {"seconds": of one warm call}. `expected`: file that
        keeps the case's expected outputs for other processes. `slower`: share by which calls are slowed down.
        """
        built = build(self._cell(impl, case))
        if built.cell.case.drops:
            built.call.module.train()
        elif expected:
            keep_expected(problem_of(built.cell.case), Path(expected))
        if slower:
            with built.watched():
                built.call = replace(built.call, run=built.meter.slowed(built.call.run, slower))
        return self._warmed(what, built)

    def grow(self, impl: str, case: Reply) -> None:
        """Grow the heap beyond what a cell needs, so that no timed call faults pages, and memory layouts differ less."""
        cell = self._cell(impl, case)
        size = min(GROWTH * cell.least_memory, SHARE * free_bytes("cpu"))
        if cell.case.device == "cpu" and size >= MAPPED:
            torch.empty(int(size), dtype=torch.uint8).fill_(0)

    def workload(self, what: str, name: str) -> Reply:
        """Prepare the reference workload for timing as `what`: {"seconds": of one warm call}."""
        return self._warmed(what, workload(name))

    def gpu_workloads(self) -> Reply:
        """Return the seconds of each workload on the GPU, over a block of calls."""
        return {name: workload(name).time(WORKLOAD_CALLS, warm=WARM_CALLS)[0] for name in GPU_WORK}

    def pin(self) -> None:
        """Pin this process to as many cores as threads; both variants share them, since they never run at the same
        time.
        """
        pin(self._threads)

    def renew(self, what: str, seconds: float) -> Reply:
        """Move a prepared cell's tensors in memory, and compare outputs on fresh inputs for `seconds`:

        {"compared": number of calls, at least one, "fastest": seconds of the fastest}
        """
        built: Built = self._ready[what]
        built.renew()
        gc.collect()  # free reference cycles
        until, taken = perf_counter() + seconds, list[float]()
        while not taken or perf_counter() < until:
            taken.append(built.time(1, input_set=1)[0])
        return {"compared": len(taken), "fastest": min(taken)}

    def time(self, what: str, calls: int, slices: int = 1, warm: int = 0) -> Reply:
        """Time a block (`Built.time`). One of long calls that grew the heap, with at least twice the page faults of the block
        before, is timed again, up to `ATTEMPTS` times in all:

        {"seconds": of one call, "fastest": of one call in the fastest slice, "page_faults", "voluntary", "involuntary":
        minor faults and context switches per call, untimed calls included, "columns": of the row: "repeats" if outputs so
        far differed in their last bits; on a GPU its sensors' reading}
        """
        ready, made = self._ready[what], calls * slices + warm
        for _ in range(ATTEMPTS):
            before = resource.getrusage(resource.RUSAGE_SELF)
            seconds, fastest = ready.time(calls, slices, warm)
            after = resource.getrusage(resource.RUSAGE_SELF)
            disturbed = {
                name: (getattr(after, counter) - getattr(before, counter)) / made for name, counter in DISTURBED.items()
            }
            if (
                seconds < LONG
                or disturbed["page_faults"] < max(GROWTH_FAULTS, 2 * ready.page_faults)
                or not keeps_pages()
            ):
                break
        ready.page_faults = disturbed["page_faults"]
        if seconds >= LONG and isinstance(ready, Built):
            self._give_way(ready.cell)
        columns: Reply = {"repeats": False} if ready.varies else {}
        if reading := ready.meter.sensors():
            columns |= {name: getattr(reading, name) for name in ("sm_mhz", "power_w", "temperature_c")}
            columns["throttled"] = reading.throttled or None
        return {"seconds": seconds, "fastest": fastest, **disturbed, "columns": columns}

    def _give_way(self, cell: Cell) -> None:
        """Return the memory that malloc keeps if little is free: large blocks that don't fit into its gaps grow the heap."""
        if cell.case.device == "cpu" and free_bytes("cpu") < SPARE * cell.least_memory:
            release()

    def caching(self, what: str, usual: float, first: float) -> None:
        """Raise `Wrong` if a prepared cell caches results; `usual` and `first` as in `check_caching`."""
        built: Built = self._ready[what]
        with built.watched():
            check_caching(built, usual, first)
        kernel = eager_name(built.cell.impl.name), replace(built.cell.case.core, B=1, T=1, T_kv=1)
        if kernel not in self._kernels:
            check_kernel_caches_nothing(built.cell, usual)
            self._kernels.add(kernel)

    def other_pages(self, what: str, checked: float = 0.0) -> Reply:
        """Return the seconds of a call under the other setting of malloc (`malloc.time_other_setting`); {} if memory may
        be too small.
        """
        built: Built = self._ready[what]
        fits = FREE * built.cell.least_memory < free_bytes(built.cell.case.device)
        return time_other_setting(lambda: built.time(1)[0], checked) if fits else {}

    def more(self, what: str, hot_s: float) -> Reply:
        """Return columns of extra calls (`Meter.more`): {"cold_s", ...}; of a block or a model also
        its parts (`parts_of`); on a GPU also "roof", its share of the roofline, and "rooflines", all that were measured
        (`Rooflines.table`).
        """
        built: Built = self._ready[what]
        case = built.cell.case
        with built.watched():
            graph = not (case.does.gradients or case.drops or graphed(built.call.module, case))
            found: Reply = built.meter.more(built.call.run, hot_s, graph, built.tensors)
            if case.in_model:
                found |= parts_of(built)
        if case.device != "cpu":
            found |= {"roof": self._rooflines.share(case, hot_s), "rooflines": self._rooflines.table()}
        return found

    def trace(self, what: str, folder: str, path: str) -> Reply:
        """Write the profiler's gzipped Chrome trace of one call, with shapes and allocations, to `path` below `folder`:
        {"trace": path}. Raises `Skip` if it can't be written.
        """
        built: Built = self._ready[what]
        on_host = [ProfilerActivity.CPU] if built.cell.case.device == "cpu" else None  # else of all devices
        file = Path(folder, path)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with built.watched(), profile(activities=on_host, record_shapes=True, profile_memory=True) as profiler:
                kept = built.call.run()  # the output counts as the call's memory: keep it until the trace ends
            del kept
            profiler.export_chrome_trace(str(file))
        except OSError as error:
            raise Skip(f"{file}: {error.strerror or error}") from None
        return {"trace": path}

    def settle(self) -> None:
        """Return once the threads of this process sleep, before another process is timed."""
        settle()

    def drop(self, what: str) -> None:
        """Release a prepared cell, and the memory cached for it."""
        self._ready.pop(what, None)
        release()
        torch.cuda.empty_cache()  # no effect if this process hasn't used a GPU

    def _cell(self, impl: str, case: Reply) -> Cell:
        """Return a cell, whose threads are set."""
        cell = Cell(get(impl), Case(**case))
        torch.set_num_threads(cell.case.threads or self._threads)
        return cell

    def _warmed(self, what: str, ready: Built | Workload) -> Reply:
        """Keep a call ready to be timed as `what`: {"seconds": of one warm call}."""
        self._keep(what, ready)
        seconds = list[float]()
        while len(seconds) < WARM_CALLS and sum(seconds) < WARM_SECONDS:
            seconds.append(ready.time(1)[0])
        return {"seconds": min(seconds)}

    def _keep(self, what: str, ready: Built | Workload) -> None:
        self._ready[what] = ready
        gc.collect()
        gc.freeze()  # excludes these objects from later collections
        gc.disable()


def _why_unusable(device: str) -> str | None:
    """Return why this process can't use the device, as a GPU that was lost; None if it can, or if the memory is full."""
    try:
        free_bytes(device)
    except Exception as error:
        if not isinstance(why := classify(error), OutOfMemory):  # other processes hold it now
            return f"--device {device} can't be used: {why}"
    return None
