"""What one side of a comparison does when it is told to: proves cells, prepares them, times blocks of calls."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import torch

from impls import get

from .cell import build, proof, ready, weighed
from .cells import Cell
from .choice import Mistake, impls_named, uncallable
from .clock import uncollected
from .controls import WORK, software
from .fresh import pin
from .gate import Gate
from .machine import fingerprint
from .meters import Meter, meter_for
from .modes import recording
from .remembering import check_remembers_nothing
from .sweep import Case

WARM, ENOUGH = 3, 0.3
"""Calls before the first that counts; fewer when they took so many seconds together."""

GRAPHS = 4096
"""Graphs of one function that torch.compile may hold at the same time; by default, eight shapes later it runs eager."""


@dataclass(frozen=True)
class Timed:
    """A call that is ready to be timed."""

    run: Callable[[], Any]
    meter: Meter
    context: Callable[[], AbstractContextManager[Any]]
    slower: float = 0.0
    """A share of its own time by which it is made slower, to find out whether that is found."""


class Tasks:
    """Its methods are the requests; what they return is the answer, as JSON has it."""

    def __init__(self, folder: str, threads: int = 1, slower: dict[str, float] | None = None):
        torch.set_num_threads(threads)
        self._threads = threads
        self._folder = folder
        self._slower = slower or {}
        self._gate = Gate()
        self._timed: dict[str, Timed] = {}

    def facts(self) -> dict[str, Any]:
        """{"fingerprint": what must match for two sides to be compared, "controls": {name: version of what it is made of}}"""
        return {"fingerprint": fingerprint(), "controls": software()}

    def cells(self, names: list[str], whole_shelf: bool, cases: list[dict[str, Any]]) -> dict[str, Any]:
        """Which implementations there are here, by the names that were asked for (none: those of the sweep), and cells.

        {"cells": {name: {case id: None, or why it can't be measured}}, "unknown": {name: why it is not there}}
        """
        known: dict[str, dict[str, str | None]] = {}
        unknown = {}
        for name in names or [impl.name for impl in impls_named([], whole_shelf, self._folder)]:
            try:
                (impl,) = impls_named([name], whole_shelf, self._folder)
            except Mistake as mistake:
                unknown[name.partition("=")[0]] = str(mistake)
                continue
            of_impl = [Cell(impl, Case(**case)) for case in cases]
            known[impl.name] = {cell.case.id: impl.refusal(cell.case) or uncallable(cell) for cell in of_impl}
        return {"cells": known, "unknown": unknown}

    def prove(self, impl: str, case: dict[str, Any]) -> dict[str, Any]:
        """Hold a cell to the reference, and weigh it: {"error", "error_bound", "peak_bytes", "kernel"}."""
        cell = Cell(get(impl), Case(**case))
        proved = ready(cell, self._gate)
        meter, run = meter_for(cell.case.device), proved.call.run
        with recording(cell.case), uncollected():
            proof(meter, proved, cell.case)()
            check_remembers_nothing(meter, run, proved.numbers, meter.seconds(run, 1), proved.first_s)
        weight = weighed(cell, proved)
        return {
            "error": proved.held.error,
            "error_bound": proved.held.bound,
            "peak_bytes": weight.peak_bytes,
            "kernel": weight.kernel,
        }

    def prepare(self, what: str, impl: str, case: dict[str, Any]) -> dict[str, float]:
        """Make a cell ready to be timed as `what`, without proof: {"seconds": of one warm call}."""
        cell = Cell(get(impl), Case(**case))
        if cell.impl.compiled:
            _hold_graphs()
        built = build(cell)
        if cell.case.drops:
            built.module.train()
        timed = Timed(
            built.call.run,
            meter_for(cell.case.device),
            partial(recording, cell.case),
            self._slower.get(impl, 0.0),
        )
        return self._ready(what, timed)

    def control(self, what: str, name: str) -> dict[str, float]:
        """Make fixed work ready to be timed as `what`: {"seconds": of one warm call}."""
        return self._ready(what, Timed(WORK[name](), meter_for("cpu"), nullcontext))

    def pin(self) -> dict[str, Any]:
        """Stay on as many cores as there are threads: the same ones as the other side, since it is never both's turn."""
        pin(self._threads)
        return {}

    def time(self, what: str, calls: int, stretches: int, warm: bool) -> dict[str, float]:
        """{"seconds": of one call, on average over the fastest of so many stretches of calls}"""
        timed = self._timed[what]
        gc.collect()  # what is cyclic must not pile up; the stretch that isn't timed warms the caches again
        with timed.context():
            return {"seconds": fastest(timed, calls, stretches, warm) / calls}

    def _ready(self, what: str, timed: Timed) -> dict[str, float]:
        with timed.context():
            seconds = [timed.meter.seconds(timed.run, 1)]
            while len(seconds) < WARM and sum(seconds) < ENOUGH:
                seconds.append(timed.meter.seconds(timed.run, 1))
        self._timed[what] = timed
        gc.collect()
        gc.freeze()  # no collection has to look at it again
        gc.disable()
        return {"seconds": min(seconds)}


def _hold_graphs() -> None:
    from torch._dynamo import config  # takes seconds to import, which only a compiled form needs

    config.recompile_limit = config.accumulated_recompile_limit = GRAPHS


def fastest(timed: Timed, calls: int, stretches: int, warm: bool) -> float:
    """Seconds of the fastest of so many stretches of calls; the first finds the caches as an untimed one left them."""
    if warm:
        _stretch(timed, calls)
    return min(_stretch(timed, calls) for _ in range(stretches))


def _stretch(timed: Timed, calls: int) -> float:
    spent = timed.meter.seconds(timed.run, calls)
    return spent + _spin(spent * timed.slower) if timed.slower else spent


def _spin(seconds: float) -> float:
    """Seconds that were really spent."""
    start = perf_counter()
    while (spent := perf_counter() - start) < seconds:
        pass
    return spent
