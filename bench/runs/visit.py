"""A visit: the implementations of a case, timed interleaved in one process."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..cases.cells import Cell, Key
from ..timing.engine import Block, Visits, block_of, rounds
from ..timing.malloc import MAPPED
from ..workers.client import Reply
from .pool import WorkerPool
from .rows import Found, Sample
from .run import Run

SHORT = 10e-3
"""Seconds of a call up to which its tensors are moved every other visit."""

COLD = 20e-3
"""Seconds of a block up to which a visit's first one follows an untimed call, since other cases have evicted the
caches. Above, such a call takes as long as others (median ratio 0.98 from 20 ms on, docs/measured.md); workers time it
again if it grew the heap.
"""

COMPARING = 0.0075
"""Share of a cell's time used in a visit for untimed calls whose outputs are compared."""


@dataclass
class Visit:
    """Times cells of one case, interleaved in one visit; they fit in memory together."""

    run: Run
    pool: WorkerPool
    cells: Sequence[Cell]
    index: int
    """Index of the visit within its process and case."""
    rng: random.Random
    found: defaultdict[str, Found]
    """Results of this visit, by implementation."""

    def time(self, visits: Visits, needs: Mapping[Key, float]) -> None:
        """Time the cells. Failing ones are skipped; the others continue, in a fresh process if necessary."""
        if not visits.counts(self._blocks(), self.index, needs):
            return
        self.pool.visit = self.run.next_number("visit")
        for cell in self.cells:
            self._renew(cell)
        blocks = self._blocks()
        for order in rounds(visits.counts(blocks, self.index, needs), self.rng):
            number = self.run.next_number(self.cells[0].case.id)
            for key in order:
                self._time_block(self.run.cells[key], blocks[key], number)
        for cell in self.cells:
            self._check_caching(cell)

    def _blocks(self) -> dict[Key, Block]:
        """Return blocks sized by the call time of each cell, from timing or else from its check."""
        left = [cell.key for cell in self.cells if cell.key not in self.run.skipped]
        return {key: block_of(self.pool.ready.get(key, self.run.found[key]).seconds) for key in left}

    def _renew(self, cell: Cell) -> None:
        """Prepare a cell; then, and for short calls every other visit, move its tensors and compare outputs on fresh inputs."""
        ready = self.pool.prepared(cell)
        if ready is None or (ready.renewed and (self.index % 2 or ready.seconds > SHORT)):
            return
        ready.renewed = True
        reply = self.pool.attempt("renew", cell, seconds=COMPARING * self.run.timing["cell_time"])
        if reply is not None:
            self.found[cell.impl.name].compared = reply["compared"]

    def _time_block(self, cell: Cell, block: Block, number: int) -> None:
        """Time a block in round `number`."""
        found, calls = self.found[cell.impl.name], block.calls * block.slices
        is_first = not found.samples or found.samples[-1].visit != self.pool.visit
        warm = block.warm or int(is_first and block.seconds <= COLD)
        reply = self.pool.attempt("time", cell, calls=block.calls, slices=block.slices, warm=warm)
        if reply is None:
            return
        disturbed = (reply[it] for it in ("page_faults", "voluntary", "involuntary"))
        where = number, self.pool.visit, self.pool.number
        found.samples.append(Sample(reply["seconds"], *where, reply["fastest"], self.run.elapsed(), calls, *disturbed))
        if "sm_mhz" in reply:
            found.columns |= _sensors(reply, self.run.found[cell.key].columns | found.columns)
        if reply.get("varies"):
            found.columns["repeats"] = False

    def _check_caching(self, cell: Cell) -> None:
        """Skip a cell found to cache results, after its first timing; time a large one with other settings of malloc."""
        found, checked, ready = self.found[cell.impl.name], self.run.found[cell.key], self.pool.prepared(cell)
        if not found.samples or checked.samples or ready is None or ready.tested:
            return
        ready.tested = True
        if self.pool.attempt("caching", cell, usual=found.usual, first=checked.seconds) is None:
            return
        if cell.case.device == "cpu" and (checked.columns.get("peak_bytes") or 0) >= MAPPED:
            alone = cell.threaded  # while it was checked
            found.columns |= self.pool.attempt("other_pages", cell, checked=alone * checked.seconds) or {}


def _sensors(reply: Reply, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return columns on the GPU's state: its latest reading, and all throttling reasons."""
    earlier = before.get("throttled")
    throttled = ", ".join(dict.fromkeys([*(earlier.split(", ") if earlier else ()), *reply["throttled"]]))
    return {name: reply[name] for name in ("sm_mhz", "power_w", "temperature_c")} | {"throttled": throttled or None}
