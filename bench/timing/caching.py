"""Detects implementations that cache results: a call on inputs seen before would then measure a lookup.

The gate changes inputs and compares outputs; a cache keyed by content passes, and its lookups are timed. Only the clock
reveals it: calls on fresh inputs repeatedly take longer.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from math import inf
from statistics import median
from time import sleep

import torch
from torch import Tensor

from ..cases.cells import Cell
from ..cases.counting import flops
from ..cases.outcome import OutOfMemory, Wrong
from ..checks.attention_problems import output_of, problem_of
from ..checks.building import eager_form
from ..checks.probes import probes
from ..checks.problem import Problem
from .cell import Built, build

SHARE = 1.5
"""Below this ratio of fresh to repeated, both count as equally fast."""

MIN_PAIRS = 3
"""Least pairs of calls, on fresh and on repeated inputs, before a call can pass because both are equally fast."""

MAX_PAIRS = 15
"""Pairs of calls after which a call that has not passed is refused."""

PAUSE = 0.01
"""Seconds before each call of these pairs. `MIN_PAIRS` without pauses come first, in which most cells pass, but none is
refused: another process may run in step with them, so that calls on fresh inputs always wait. Without pauses 40 of 3,000
checks of correct kernels failed.
"""

LONG_CALL = 0.05
"""Calls longer than this are not repeated if the checked call was no slower."""

SHOWN = 0.5
"""Share of a layer's operations that its kernel must have for a lookup to show in the layer's time."""

REPEATED = 2
"""Calls of a kernel on repeated inputs before the one on fresh inputs."""

FRESH_ERROR = 0.1
"""Relative error of rows on fresh inputs above which the output is wrong in every dtype."""


def check_kernel_caches_nothing(cell: Cell, usual: float = 0.0) -> None:
    """Raise `Wrong` if the kernel of a layer caches results, or returns wrong outputs on fresh inputs.

    The kernel is called without its layer, whose projections would conceal the time saved. If calls of the layer are long
    (`usual` seconds) and mostly the kernel's, the layer's own time shows cached results: the kernel is then called on a
    probe.
    """
    impl, case = eager_form(cell.impl), replace(cell.case.core, dropout=0.0)
    if cell.case.scope == "core" or impl.core is None:
        return
    if usual > LONG_CALL and flops(case) >= SHOWN * flops(cell.case):
        case = min((case, *probes(impl, case)[1:2]), key=lambda it: it.H * it.T * it.T_kv)
    with suppress(OutOfMemory):
        built = build(Cell(impl, case))
        built.inference = True  # as when it is timed
        with built.watched():
            usual = min(built.meter.seconds(built.call.run, 1) for _ in range(REPEATED))
            check_caching(built, usual)


def check_caching(built: Built, usual: float, first: float = inf) -> None:
    """Raise `Wrong` if a call caches results, or if its output on fresh inputs is wrong; the output of a layer is checked only
    if no core of it is. A long call passes if the checked one, whose inputs were fresh, was as fast.

    `usual`: seconds of a timed call; `first`: seconds of the checked call.
    """
    if usual > LONG_CALL and first <= SHARE * usual:
        return
    check_no_result_caching(built, usual)
    case = built.cell.case
    known = case.scope == "core" or (case.scope == "layer" and built.cell.impl.core is None and not case.does.cached)
    if known and not case.drops:
        built.perturb()
        output = built.call.run()
        fresh = replace(problem_of(case), inputs=built.call.inputs.tensors)
        _check_fresh(fresh, built.call.read(output)["output"])


def _check_fresh(problem: Problem, output: Tensor) -> None:
    """Compare the last query of every head with the reference; raises `Wrong`."""
    case, padding = problem.case, problem.padding
    tokens = case.T if padding is None or case.source == "cross" else int(padding.sum(-1).min())
    row = torch.tensor([tokens - 1], device=case.device)
    exact = output_of(problem, rows=row).detach()
    if not (output.detach()[..., row, :] - exact).norm() <= FRESH_ERROR * exact.norm():
        raise Wrong("its output on fresh inputs is not attention")


def check_no_result_caching(built: Built, usual: float) -> None:
    """Raise `Wrong` if calls on fresh inputs take longer than calls on repeated inputs (`usual` seconds)."""

    def seconds(pause: float) -> float:
        sleep(pause)
        return built.meter.seconds(built.call.run, 1)

    for pause, pairs in ((0.0, MIN_PAIRS), (PAUSE, MAX_PAIRS)):
        fresh: list[float] = []
        seen: tuple[list[float], list[float]] = [], []
        for pair in range(pairs):
            built.perturb()
            fresh.append(seconds(pause))
            if fresh[-1] <= SHARE * usual:
                return
            for repeated in seen:
                # Written again, or the processor's caches would hold more than before the call on fresh inputs.
                built.call.inputs.perturb(0)
                repeated.append(seconds(pause))
                built.refill(0)
            # On a busy machine medians are unreliable; the fastest of several calls is a lower bound.
            ratio = max(min(median(fresh) / median(it), min(fresh) / min(it)) for it in seen)
            if pair + 1 >= MIN_PAIRS and ratio <= SHARE:
                return
    raise Wrong(f"caches results: fresh inputs take {ratio:.1f} times as long as repeated ones")
