"""One cell from beginning to end: proved, timed, weighed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from .clock import Samples, sample
from .counting import flops, least_bytes
from .gate import NEW_NUMBERS, Gate, build_layer, check_layer, refill, verify
from .meters import Meter, meter_for
from .options import Cell
from .outcome import NoRow
from .problem import Errors, layer_inputs, layer_problem


@dataclass(frozen=True)
class Proved:
    """A layer that passed the gate, and so may be timed."""

    layer: nn.Module
    errors: Errors
    compile_s: float | None
    """Seconds that the first call of a compiled form took; None for an eager one."""


def prove(cell: Cell, gate: Gate) -> Proved:
    """Build the layer of a cell and hold it to the reference; raises `Wrong`, or what the implementation raised."""
    with torch.inference_mode():
        gate.prove(cell.impl, cell.case)
    if cell.impl.compiled:
        torch.compiler.reset()  # graphs of other cells and of the probes would be tried first, or run in this one
    layer = build_layer(cell.impl, cell.case)
    with torch.inference_mode():
        compile_s = _compile(layer, cell) if cell.impl.compiled else None
        return Proved(layer, check_layer(layer, cell.case), compile_s)


def _compile(layer: nn.Module, cell: Cell) -> float:
    """Seconds of the first call, in which the graph is compiled; raises when there is none."""
    args, options = layer_inputs(cell.case)
    before = _graphs()
    start = perf_counter()
    layer(*args, **options)
    spent = perf_counter() - start
    if _graphs() == before:
        raise NoRow("torch.compile made no graph: what would be timed is the eager form")
    return spent


def _graphs() -> int:
    """How many graphs torch.compile has made in this process."""
    from torch._dynamo.utils import counters  # takes seconds to import, which only a compiled form needs

    return counters["stats"]["unique_graphs"]


def measure(
    cell: Cell, proved: Proved, call: Callable[[], Tensor], inputs: Sequence[Tensor], seconds: float
) -> tuple[Samples, dict[str, Any]]:
    """Time `call`, which reads `inputs`, for about `seconds`, and weigh it: samples, and the row's columns.

    The call that is weighed finds other numbers in the same buffers, and its answer is held to the reference once more:
    what was timed was not an answer remembered.
    """
    case, meter = cell.case, meter_for(cell.case.device)
    before = _graphs() if cell.impl.compiled else 0
    samples = sample(meter, call, seconds)
    if cell.impl.compiled and _graphs() != before:
        raise NoRow("torch.compile made another graph while the clock ran: compiling would be part of what is timed")
    unseen = layer_problem(case, draw=1)
    refill(inputs, unseen)
    peak_bytes, answer = weigh(meter, call)
    verify(answer, unseen, "after the clock, " + NEW_NUMBERS)
    problem = layer_problem(case)
    columns = {"impl": cell.impl.name, "id": case.id} | case.columns()
    columns |= {
        "threads": torch.get_num_threads(),
        "error": proved.errors.overall,
        "error_bound": problem.allowed.overall,
        "rows_compared": case.T if problem.rows is None else len(problem.rows),
        "peak_bytes": peak_bytes,
        "flops": flops(case),
        "bytes": least_bytes(case),
        "clock": meter.clock,
        "calls": samples.calls,
        "compile_s": proved.compile_s,
    }
    return samples, columns


def weigh(meter: Meter, call: Callable[[], Tensor]) -> tuple[int, Tensor]:
    """Peak memory of a call, and its answer."""
    answers: list[Tensor] = []

    def kept() -> Tensor:
        answers.append(call())
        return answers[-1]

    return meter.peak_bytes(kept), answers[-1]
