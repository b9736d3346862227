"""Builds, checks and profiles one cell inside a worker process, and makes it ready to be timed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from operator import sub
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from impls.registry import GRAPHED
from impls.weights import left_out

from ..cases.cells import Cell
from ..cases.counting import bytes_text
from ..cases.outcome import OutOfMemory, Skip, Unsupported, Wrong, name_check
from ..checks.afterwards import check_idle_afterwards
from ..checks.attention_problems import forget, problem_of
from ..checks.building import keeping_settings, new_call, prepare
from ..checks.calls import Call, graphed, recording
from ..checks.checked_calls import check_call, check_plain, checked_call
from ..checks.decoder_problems import decoder_problem
from ..checks.dispatch import kernel_in, operators_in, traced
from ..checks.dropout import check_drops_anew, check_parts, check_same_noise, check_scatter
from ..checks.gate import Gate
from ..checks.impl_hash import impl_hash, packages
from ..checks.inputs import copies, same
from ..checks.probes import probes, ragged
from ..checks.settings import threads
from ..checks.verifying import NEW_NUMBERS, verify
from .devices import free_bytes, meter_for
from .devices.cpu import FLOOR
from .devices.device import Memory, Meter
from .malloc import release

REPEATS = 4
"""Calls on the same inputs that must agree bit for bit with deterministic algorithms, before timing begins."""

MORE_CALLS, GROWTH = 2, 1.1
"""Most further calls if the process grew by more than GROWTH times what torch allocated; they end once the growth is
within this factor of that of the call before: malloc occasionally keeps freed memory.
"""

NOT_REPEATED = "two calls on the same inputs differ, though algorithms were to be deterministic"


@dataclass
class Built:
    """A call with its input tensors; `time` runs blocks of it."""

    cell: Cell
    call: Call
    meter: Meter
    threads: int
    """Intra-op threads of its calls; cells of a process may differ."""
    columns: dict[str, Any]
    """Columns of the row: `prepare_s`, seconds spent on an implementation's preparation for a mask and a length, None if it
    prepares nothing; `compile_s`, seconds of the first call of a compiled form; `compile_graphs`, its number of graphs;
    `compile_cache`, `cold`, or `warm` if an earlier process had left compiled code on disk.
    """
    input_set: int | None = 0
    """Input set currently loaded; None after perturbation."""
    varies: bool = False
    """Whether outputs of calls on the same inputs differed in their last bits."""
    outputs: dict[int, Sequence[Tensor]] = field(default_factory=dict)
    """Latest checked output of each input set."""
    inference: bool = False
    """Whether calls without gradients use inference mode: not the first one, which may make tables that a backward of another
    case saves.
    """
    page_faults: float = 0.0
    """Per call of the block timed last: some allocators cause them in every call."""
    earlier: tuple[Sequence[Tensor], Sequence[Tensor]] | None = None
    """Output of the last checked call, on input set 0, and a copy: a call on another input set must not change it."""

    def time(self, calls: int, slices: int = 1, warm: int = 0, input_set: int = 0) -> tuple[float, float]:
        """Return the seconds of one call in a block of `slices` slices of `calls`: over the whole block, and over
        its fastest slice.

        `warm`: untimed calls before it; `input_set`: input set.

        The block's last output is then compared with a checked one; if it differs, it is checked itself, so that every
        timed result is checked. Raises `Wrong`, also if torch's settings changed, and `Skip` if a compiled form was
        compiled again.
        """
        if self.earlier and input_set == 0:
            self.time(1, input_set=1)  # in a run the comparison on fresh inputs comes first
        self.refill(input_set)
        compiled = _compiled(self.cell)
        with self.watched():
            seconds, fastest, output = self.meter.block(self.call.run, calls, slices, warm)
        self.inference = True
        if self.earlier and not same(*self.earlier):
            raise Wrong("an output changed during a later call: both share one buffer")
        self.earlier = None
        if _compiled(self.cell) != compiled:
            raise Skip("torch.compile made another graph while it was timed: compiling would be part of what is timed")
        self._compare(output, input_set)
        return seconds, fastest

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Context of a call, with its threads; raises `Wrong` if the call changes torch's settings."""
        if self.threads != torch.get_num_threads():
            torch.set_num_threads(self.threads)
        impl = self.cell.impl
        around = nullcontext if impl.compiled else getattr(impl.kernel, "around", nullcontext)
        inference = self.inference or impl.compiled
        with keeping_settings(cheap=True), recording(self.cell.case, inference), around():
            yield

    @property
    def tensors(self) -> list[Tensor]:
        """Inputs, weights and masks."""
        return [*self.call.inputs.tensors, *self.call.module.parameters(), *self.call.module.buffers()]

    def renew(self) -> None:
        """Move inputs, weights and masks elsewhere in memory, so that visits sample the effect of memory layout."""
        with torch.no_grad():
            for tensor in self.tensors:
                moved = tensor.data.clone()
                if moved.stride() == tensor.stride():  # or strides change: a recompilation
                    tensor.data = moved

    def perturb(self) -> None:
        """Fill the inputs with numbers that no call has seen."""
        self.input_set = None
        self.call.inputs.perturb()

    def refill(self, input_set: int) -> None:
        """Load an input set into the buffers, unless it is already there."""
        if input_set != self.input_set:
            self.call.inputs.refill(problem_of(self.cell.case, input_set))
            self.input_set = input_set

    def _compare(self, output: Any, input_set: int) -> None:
        case, known = self.cell.case, self.outputs.get(input_set)
        found = _tensors(output, 1 + len(self.call.inputs.tensors))  # and in a backward the gradients of its inputs
        for it in found:
            check_plain(it)
        if case.writes_cache:
            found = [*self.call.read(output).values()]
        if case.drops:
            check_drops_anew(found[0], known, case)
            self.outputs[input_set] = copies(found[:1])
            return
        if known is not None:
            if same(found, known):
                return
            if case.deterministic:
                raise Wrong(f"in a timed call: {NOT_REPEATED}")
            self.varies = True
        verify(self.call.read(output), problem_of(case, input_set), "in a timed call: ")
        self.outputs[input_set] = copies(found)


def _tensors(output: Any, most: int | None = None) -> list[Tensor]:
    """Return the tensors that a call returned, of a tuple those among the first `most` entries; of another type none."""
    if isinstance(output, Tensor):
        return [output]
    return [x for x in output[:most] if x is not None] if isinstance(output, tuple) else []


def check_fits(cell: Cell) -> None:
    """Raise `OutOfMemory` if a cell can't fit; trying it on the CPU would get the process killed."""
    needed, device = cell.least_memory, cell.case.device
    if needed > free_bytes(device):
        forget()
        decoder_problem.cache_clear()  # gradients of other cases' reference models
        release()
    if needed > (free := free_bytes(device)):
        raise OutOfMemory(f"needs {bytes_text(needed)} at least, and {bytes_text(free)} are free")


def build(cell: Cell) -> Built:
    """Build a cell's module with its input tensors, compiled if requested, for the threads set now; raises the
    implementation's exception.
    """
    check_fits(cell)
    call = new_call(cell.impl, cell.case)
    columns = dict.fromkeys(("compile_s", "compile_graphs", "compile_cache"))
    columns["prepare_s"] = prepare(call.module, cell.case)
    built = Built(cell, call, meter_for(cell.case.device), torch.get_num_threads(), columns)
    if cell.impl.compiled:
        built.perturb()  # the checked call on input set 0 is the first one on it
        built.columns |= _compile(built.call, cell)
    return built


def probe(cell: Cell, gate: Gate) -> Built:
    """Check an implementation on probes, build a cell's module; raises `Wrong`, or the implementation's exception.

    Uses at most half of the threads, beside another worker, except for one probe. Computes the expected outputs for
    `check`, too.
    """
    check_fits(cell)
    with threads(1):  # another worker checks at the same time on the other core
        probed = gate.check(cell.impl, cell.case)
    if cell.case.device == "cpu" and torch.get_num_threads() > 1:
        gate.check_threads(cell.impl, cell.case)
    name_check(f"building, {cell.case.id}")
    with threads(max(1, torch.get_num_threads() // 2)):
        for input_set in (0, 1):
            problem_of(cell.case, input_set).expected  # noqa: B018  computed here: no other worker waits for it
    built = build(cell)
    built.columns["proved_ragged"] = ragged(probed)
    return built


def check_built(built: Built, memory: bool = True) -> MeasuredCalls:
    """Check the module to be timed against the reference in two calls, and fill in its columns; raises `Wrong`, or the
    call's exception.

    The first one is traced for memory and operators. The second one, on other inputs, measures time and the growth of
    the process; the next call, which may be timed, must leave its output unchanged (`Built.earlier`). With dropout,
    further calls in training are measured instead. Without `memory`, neither memory nor growth is measured, and
    operators are traced only where the name pins a kernel.
    """
    cell, case = built.cell, built.cell.case
    if built.columns["compile_graphs"] == 0:
        raise Skip("torch.compile made no graph: what would be timed is the eager form")
    measured = MeasuredCalls(built, memory)
    ways = iter((measured.size, measured.time))  # of the call on input set 1, and of that on 0
    watched = built.call if case.drops else replace(built.call, run=lambda: next(ways)())
    built.refill(1)
    errors = check_call(watched, (1, 0))
    built.input_set = 0
    if case.drops:
        measured.in_training()
    built.inference = True
    measured.repeat()
    if cell.impl.dispatches and measured.kernel != cell.impl.dispatches:
        raise Wrong(f"registered as {cell.impl.dispatches}, but dispatched {measured.kernel}")
    if case.deterministic:
        check_repeats(built)
    known = measured.counted and not (cell.impl.limits.own_memory or measured.own_memory)
    built.columns |= {
        **asdict(errors),
        **{name: size if known else None for name, size in asdict(measured.memory).items()},
        "peak_rss_bytes": measured.peak_rss_bytes,
        "rows_compared": problem_of(case).output.reference.shape[-2],
        "kernel": measured.kernel,
        "operators": measured.operators,
        "threads": built.threads,
        "clock": built.meter.clock,
        "impl_hash": impl_hash(cell.impl, measured.kernel),
        "packages": packages(cell.impl, case.in_model),
        "left_out": None if cell.impl.core else ", ".join(left_out(built.call.module)) or None,
    }
    return measured


@dataclass
class MeasuredCalls:
    """The calls that a cell's check makes, each measured in one way, and what was measured."""

    built: Built
    sized: bool
    """Whether memory is measured."""
    memory: Memory = field(default_factory=Memory)
    own_memory: bool = False
    """Whether the core returned memory that torch did not allocate, such as a NumPy array's: its peak is unknown."""
    peak_rss_bytes: int | None = None
    """Growth of the process's high-water mark over another call, private memory included; None if unavailable."""
    kernel: str = "other"
    operators: int | None = None
    """Number of operators per call, nested ones included; None for Python loops."""
    first_s: float = 0.0
    """Seconds of the first call on fresh inputs; with dropout, in training."""

    @property
    def counted(self) -> bool:
        """Whether what `memory` holds is the memory of a call."""
        return self.sized and self.built.meter.counts_memory(graphed(self.built.call.module, self.built.cell.case))

    def size(self) -> Any:
        """Return the output of a call that is traced; of a Python loop only for memory, since a trace of its operators takes
        seconds.
        """
        cell, run = self.built.cell, self.built.call.run
        loops = cell.impl.limits.loops
        if self.sized:
            with self._seeing_memory():
                self.memory, trace, output = self.built.meter.memory(run, operators=not loops)
        elif cell.impl.dispatches:
            trace, output = traced(run, memory=False)
        else:
            return run()
        if loops:
            self.kernel = _kernel_in_short_call(cell)
        else:
            self.kernel, self.operators = kernel_in(trace), operators_in(trace)
        return output

    @contextmanager
    def _seeing_memory(self) -> Iterator[None]:
        """Find whether torch allocated the output of an eager module's core: it can resize what it allocated."""

        def see(module: nn.Module, given: object, output: Any) -> None:
            self.own_memory |= not all(x.untyped_storage().resizable() for x in _tensors(output) if type(x) is Tensor)

        module, cell = self.built.call.module, self.built.cell
        core = getattr(module, "core", module)
        if cell.case.device != "cpu" or cell.impl.compiled or not isinstance(core, nn.Module):
            yield
            return
        with core.register_forward_hook(see):
            yield

    def time(self) -> Any:
        """Return the output of a timed call; raises if its work continues after it returns."""
        output = self._resident()
        found = _tensors(output)
        with threads(1):  # another worker may make a call
            kept = copies(found)
            check_idle_afterwards(self.built.cell.impl.limits.alone)
            if not same(found, kept):
                raise Wrong("its output changes after the call has returned")
        if not graphed(self.built.call.module, self.built.cell.case):
            self.built.earlier = [x.detach() for x in found], kept
        return output

    def in_training(self) -> None:
        """Make both calls in training; then check one without dropout again."""
        built, module, case = self.built, self.built.call.module, self.built.cell.case
        module.train()
        with recording(case):
            outputs = built.call.read(self.size())  # where a graph is captured: its replays have no operators
            check_scatter(outputs["output"], problem_of(case), case)
            check_parts(outputs["output"], case)
            check_same_noise(outputs, problem_of(case))
            built.perturb()  # a cache of results on the checked inputs must not appear fast initially
            self.time()
            built.refill(1)
            module.eval()
            output = built.call.run()
            module.train()
        verify(built.call.read(output), problem_of(case, input_set=1), NEW_NUMBERS)

    def repeat(self) -> None:
        """Make more calls if a result is inconclusive."""
        with keeping_settings(), checked_call(self.built.call):
            # The first call allocated, or computed, what the module keeps; the trace of a replayed graph has no operators.
            if self.counted and (kept := self.memory.kept_bytes):
                self.size()
                self.memory = Memory(self.memory.peak_bytes + kept, kept)
            for _ in range(MORE_CALLS):
                if (rss := self.peak_rss_bytes) is not None and rss > GROWTH * self.memory.peak_bytes + FLOOR:
                    self._resident()
                    self.peak_rss_bytes = min(rss, rss if self.peak_rss_bytes is None else self.peak_rss_bytes)
                    if GROWTH * self.peak_rss_bytes >= rss:
                        break

    def _resident(self) -> Any:
        def run() -> Any:
            seconds, output = self.built.meter.timed(self.built.call.run, 1)
            self.first_s = self.first_s or seconds
            return output

        if not self.sized:
            return run()
        self.peak_rss_bytes, output = self.built.meter.resident(run)
        return output


def _kernel_in_short_call(cell: Cell) -> str:
    """Return the kernel that runs in the shortest of the probes and the case."""
    short = min((cell.case, *probes(cell.impl, cell.case)), key=lambda it: it.pairs)
    with keeping_settings():
        return kernel_in(traced(new_call(cell.impl, short).run, memory=False)[0])


def check_repeats(built: Built) -> None:
    """Check that calls on the same inputs, with the timed threads, agree bitwise and drop the same; raises `Wrong`."""
    found: list[dict[str, Tensor]] = []
    for _ in range(REPEATS):
        with torch.random.fork_rng(), built.watched():
            found.append(built.call.read(built.call.run()))
    for name, first in found[0].items():
        if not all(torch.equal(first, outputs[name]) for outputs in found):
            raise Wrong(f"{name}: {NOT_REPEATED}")


def _compile(call: Call, cell: Cell) -> dict[str, Any]:
    """Return columns on the first call, which compiles; raises `Unsupported` for a form without the CUDA graphs of its name."""
    before, start = _compiled(cell), perf_counter()
    call.module.train(cell.case.drops)  # the graph that is timed
    with recording(cell.case):
        call.run()
    call.module.eval()
    seconds = perf_counter() - start
    graphs, misses, skips = map(sub, _compiled(cell), before)
    if skips and cell.impl.name.endswith(GRAPHED):
        raise Unsupported("torch replays no CUDA graph here, as where a call writes to a cache: it would be +compile")
    return {"compile_s": seconds, "compile_graphs": graphs, "compile_cache": "cold" if misses else "warm"}


def _compiled(cell: Cell) -> tuple[int, int, int]:
    """Return how many graphs torch.compile has made in this process, for how many of them there was no code on disk, and how
    many can't be CUDA graphs; zeros for an eager cell, which needs none.
    """
    if not cell.impl.compiled:
        return 0, 0, 0
    from torch._dynamo.utils import counters

    inductor, autograd = counters["inductor"], counters["aot_autograd"]
    misses = inductor["fxgraph_cache_miss"] + inductor["fxgraph_cache_bypass"] + autograd["autograd_cache_bypass"]
    return counters["stats"]["unique_graphs"], misses, inductor["cudagraph_skips"]
