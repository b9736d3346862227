"""One cell from beginning to end: proved, timed, weighed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import cycle
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from .cells import Cell
from .clock import Samples
from .counting import flops, least_bytes, least_memory
from .gate import NEW_NUMBERS, Gate, Held, check_call, module_of, prepare, verify
from .ledger import spending
from .machine import free_bytes
from .meaning import case_hash
from .meters import Meter, Weight, meter_for
from .modes import Call, call_of, recording
from .outcome import NoRow, OutOfMemory, Wrong
from .problem import Given, given, problem_of
from .remembering import check_remembers_nothing
from .roofs import Roofs
from .sweep import Case
from .throttle import sample_watched
from .units import bytes_text


@dataclass(frozen=True)
class Built:
    """A call, not yet proved."""

    call: Call
    module: nn.Module
    numbers: Given
    prepare_s: float | None
    """Seconds spent on what an implementation makes once for a mask and a length; None where it makes nothing."""
    compile_s: float | None
    """Seconds that the first call of a compiled form took; None for an eager one."""
    compile_cache: str | None
    """`cold`, or `warm` where an earlier process had left the compiled code on disk."""


@dataclass(frozen=True)
class Ready(Built):
    """A call that passed the gate, and so may be timed."""

    held: Held
    first_s: float
    """Seconds of the call that was proved; of the first one with dropout, where numbers are dropped."""


def build(cell: Cell) -> Built:
    """The module of a cell with the tensors that it reads, compiled where it is to be; raises what it raised."""
    module = module_of(cell.impl, cell.case)
    prepare_s = prepare(module, cell.case)  # once more: the first call of a process imports what it needs
    numbers = given(problem_of(cell.case))
    call = call_of(module, cell.case, numbers)
    compile_s, compile_cache = _compile(call, cell) if cell.impl.compiled else (None, None)
    return Built(call, module, numbers, prepare_s, compile_s, compile_cache)


def ready(cell: Cell, gate: Gate) -> Ready:
    """Build the module of a cell and hold it to the reference; raises `Wrong`, or what the implementation raised.

    Raises `OutOfMemory` before anything is tried where it can't fit: on the CPU trying means being killed.
    """
    impl, case = cell.impl, cell.case
    if (needed := least_memory(impl, case)) > (free := free_bytes(case.device)):
        raise OutOfMemory(f"needs {bytes_text(needed)} at least, and {bytes_text(free)} are free")
    with spending("gate"):
        gate.prove(impl, case)
    if impl.compiled:
        torch.compiler.reset()  # graphs of other cells and of the probes would be tried first, or run in this one
    built = build(cell)
    first: list[float] = []
    with spending("gate"):
        watched = replace(built.call, run=_watched(built.call, case, first))
        held = check_call(watched, built.module, built.numbers, case)
    first_s = _first_dropping(built, cell) if case.drops else first[0]
    return Ready(**vars(built), held=held, first_s=first_s)


def _first_dropping(built: Built, cell: Cell) -> float:
    """Seconds of the first call of the form with dropout, on new numbers; where it is compiled it is another graph."""
    built.module.train()
    with recording(cell.case):
        if cell.impl.compiled:
            built.call.run()
        built.numbers.nudge()  # what remembered something of those that were proved must not seem quick from the start
        return meter_for(cell.case.device).seconds(built.call.run, 1)


def _watched(call: Call, case: Case, seconds: list[float]) -> Callable[[], Any]:
    """The same call, timed: where one takes longer than a cell has, the proof is the first sample."""

    def run() -> Any:
        answers: list[Any] = []
        with spending("first call, proved and timed"):
            seconds.append(meter_for(case.device).seconds(lambda: answers.append(call.run()), 1))
        return answers[0]

    return run


def _compile(call: Call, cell: Cell) -> tuple[float, str]:
    """Seconds of the first call, in which the graph is compiled, and whether from scratch; raises when there is no graph."""
    before, misses = _graphs(), _cache_misses()
    start = perf_counter()
    with recording(cell.case), spending("compiling"):
        call.run()
    spent = perf_counter() - start
    if _graphs() == before:
        raise NoRow("torch.compile made no graph: what would be timed is the eager form")
    return spent, "cold" if _cache_misses() > misses else "warm"


def _graphs() -> int:
    """How many graphs torch.compile has made in this process."""
    from torch._dynamo.utils import counters  # takes seconds to import, which only a compiled form needs

    return counters["stats"]["unique_graphs"]


def _cache_misses() -> int:
    """How many graphs this process found no compiled code for on disk."""
    from torch._dynamo.utils import counters

    inductor, autograd = counters["inductor"], counters["aot_autograd"]
    return inductor["fxgraph_cache_miss"] + inductor["fxgraph_cache_bypass"] + autograd["autograd_cache_bypass"]


Trace = Callable[[Cell, Ready, int], dict[str, str]]
"""Traces a call of so many operators, when all else is measured; gives the row's columns that tell of the trace."""


def measure(
    cell: Cell, proved: Ready, seconds: float, precision: float, roofs: Roofs, trace: Trace | None = None
) -> tuple[Samples, dict[str, Any]]:
    """Time a proved call for at most about `seconds`, and weigh it: samples, and the row's columns."""
    case, impl, meter, run = cell.case, cell.impl, meter_for(cell.case.device), proved.call.run
    before = _graphs() if impl.compiled else 0
    with spending("clock"):
        samples, gpu = sample_watched(meter, run, seconds, precision, proved.first_s, proof(meter, proved, case))
    if impl.compiled and _graphs() != before:
        raise NoRow("torch.compile made another graph while the clock ran: compiling would be part of what is timed")
    with spending("clock"):
        more = meter.more(run, median(samples.data), graph=case.mode != "backward")
    with spending("gate"):
        check_remembers_nothing(meter, run, proved.numbers, median(samples.data), proved.first_s)
    weight = weighed(cell, proved)
    rows = problem_of(case).output.rows
    columns = {"impl": impl.name, "id": case.id, "case_hash": case_hash(case)} | case.columns()
    columns |= {
        "threads": torch.get_num_threads(),
        "error": proved.held.error,
        "error_bound": proved.held.bound,
        "rows_compared": case.T if rows is None else len(rows),
        "peak_bytes": weight.peak_bytes,
        "flops": flops(case),
        "bytes": least_bytes(case),
        "kernel": weight.kernel,
        "roof": roofs.share(case, meter, median(samples.data)),
        "clock": meter.clock,
        "calls": samples.calls,
        "prepare_s": proved.prepare_s,
        "compile_s": proved.compile_s,
        "compile_cache": proved.compile_cache,
    }
    columns |= more | gpu
    return samples, columns | (trace(cell, proved, weight.operators) if trace else {})


def proof(meter: Meter, proved: Ready, case: Case) -> Callable[[], float]:
    """Times one call on other numbers in the same buffers, and holds its answer to the reference; raises `Wrong`.

    What computes for the gate and the profiler alone, and not for the clock, is found out by the clock. An answer after
    dropout can't be held to anything.
    """
    problems = cycle([problem_of(case, draw=1), problem_of(case)])

    def timed() -> float:
        answers: list[Any] = []
        problem = next(problems)
        proved.numbers.refill(problem)
        seconds = meter.seconds(lambda: answers.append(proved.call.run()), 1)
        if not case.drops:
            with spending("gate"):
                verify(proved.call.read(answers.pop()), problem, "under the clock, " + NEW_NUMBERS)
        return seconds

    return timed


def weighed(cell: Cell, proved: Ready) -> Weight:
    """Weigh a proved call, on other numbers in the same buffers; raises `Wrong`.

    Its answer is held to the reference once more: what was timed was not an answer remembered. Where numbers were dropped,
    one more call without dropout is.
    """
    case, impl, run = cell.case, cell.impl, proved.call.run
    unseen = problem_of(case, draw=1)
    proved.numbers.refill(unseen)
    with recording(case):
        with spending("memory"):
            weight, answer = weigh(meter_for(case.device), run)
        if case.drops:
            proved.module.eval()
            answer = run()
    verify(proved.call.read(answer), unseen, "after the clock, " + NEW_NUMBERS)
    if impl.dispatches and weight.kernel != impl.dispatches:
        raise Wrong(f"claims to be {impl.dispatches}, but what was timed is {weight.kernel}")
    return weight


def weigh(meter: Meter, call: Any) -> tuple[Weight, Any]:
    """What a call was seen to do, and its answer."""
    answers: list[Tensor] = []

    def kept() -> Tensor:
        answers.append(call())
        return answers[-1]

    return meter.weigh(kept), answers[-1]
