"""A visit: the implementations of a case, timed interleaved in one process."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import sleep
from typing import Any

from ..cases.accounting import count
from ..cases.cells import Cell, Key
from ..timing.engine import Block, Visits, block_of, rounds
from ..timing.malloc import MAPPED
from ..workers.client import Reply
from .pool import WorkerPool
from .rows import Found, Sample
from .run import Run

SHORT = 10e-3
"""Seconds of a call up to which its tensors are moved every other visit."""

COLD = 10e-3
"""Seconds of a block up to which a visit's first one follows an untimed call, since other cases have evicted the
caches. Above, such a call takes as long as others (median ratio 0.98 from 20 ms on, docs/measured.md), except the first
one, which grows the heap.
"""

COOLING = 3.0
"""Seconds per visit for which a throttled GPU may cool down."""


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
    _number: int = 0
    """Number of the visit in the run; a new one once its process was replaced."""
    _cold: set[Key] = field(default_factory=set)
    """Cells whose next block follows other work in this process, and therefore begins with an untimed call."""
    _cooled: bool = False

    def time(self, visits: Visits, needs: Mapping[Key, float]) -> None:
        """Time the cells. Failing ones are skipped; the others continue, in a fresh process if necessary."""
        if not visits.counts(self._blocks(), self.index, needs):
            return
        self.pool.prepare(self.cells)
        self._number = self.run.next_number("visit")
        for cell in self.cells:
            self._renew(cell)
        blocks = self._blocks()
        self._cold = {key for key, it in blocks.items() if key not in self.pool.grown or it.seconds <= COLD}
        for order in rounds(visits.counts(blocks, self.index, needs), self.rng):
            number = self.run.next_number(self.cells[0].case.id)
            for key in order:
                self._time_block(self.run.cells[key], blocks[key], number)
        for cell in self.cells:
            self._check_caching(cell)

    def _blocks(self) -> dict[Key, Block]:
        """Return blocks sized by the call time of each cell, from timing or else from its check."""
        return {
            key: block_of(self.pool.seconds.get(key, self.run.found[key].seconds))
            for key in (cell.key for cell in self.cells)
            if key not in self.run.skipped
        }

    def _ask(self, do: str, cell: Cell, **details: Any) -> Reply | None:
        """Return the reply to a request; None if the cell fails, now or earlier."""
        if cell.key in self.run.skipped:
            return None
        process = self.pool.number
        reply = self.pool.attempt(do, cell, **details)
        if self.pool.number != process:
            self._number, self._cold = self.run.next_number("visit"), {it.key for it in self.cells}
            self.pool.prepare(self.cells)
        return reply

    def _renew(self, cell: Cell) -> None:
        """Move a cell's tensors every other visit, and compare outputs on fresh inputs; long calls once per process."""
        is_short = self.pool.seconds.get(cell.key, 0.0) <= SHORT
        if self.index % 2 if is_short else cell.key in self.pool.renewed:
            return
        self.pool.renewed.add(cell.key)
        reply = self._ask("renew", cell, seconds=COMPARING * self.run.timing["cell_time"])
        if reply is not None:
            self.pool.grown.add(cell.key)
            self.found[cell.impl.name].compared = reply["compared"]
            self._keep_shortest(cell, reply["seconds"])

    def _time_block(self, cell: Cell, block: Block, number: int) -> None:
        """Time a block in round `number`. The first block of a visit on a throttled GPU is timed again after a pause."""
        warm, calls = block.warm or int(cell.key in self._cold), block.calls * block.slices
        self._cold.discard(cell.key)
        self.pool.grown.add(cell.key)
        reply = self._ask("time", cell, calls=block.calls, slices=block.slices, warm=warm)
        if reply is None:
            return
        count("timed calls", reply["seconds"] * (calls + warm))
        if reply.get("held_back") and not self._cooled:
            self._cooled = True
            sleep(COOLING)
            return self._time_block(cell, block, number)
        self._keep_shortest(cell, reply["fastest"])
        found, where = self.found[cell.impl.name], (number, self._number, self.pool.number)
        disturbed = (reply[it] for it in ("page_faults", "voluntary", "involuntary"))
        sample = Sample(reply["seconds"], *where, reply["fastest"], self.run.elapsed(), calls, *disturbed)
        found.samples.append(sample)
        if "sm_mhz" in reply:
            found.columns |= _sensors(reply, self.run.found[cell.key].columns | found.columns)
        if reply.get("varies"):
            found.columns["repeats"] = False

    def _check_caching(self, cell: Cell) -> None:
        """Skip a cell found to cache results, after its first timing; time a large one with other settings of malloc."""
        found, checked = self.found[cell.impl.name], self.run.found[cell.key]
        if not found.samples or checked.samples or cell.key in self.pool.tested:
            return
        self.pool.tested.add(cell.key)
        if self._ask("caching", cell, usual=found.usual, first=checked.seconds) is None:
            return
        if cell.case.device == "cpu" and (checked.columns.get("peak_bytes") or 0) >= MAPPED:
            alone = cell.threaded  # while it was checked
            pages = self._ask("other_pages", cell, checked=alone * checked.seconds) or {}
            found.columns |= pages
            if pages.get("fresh_pages_s", checked.seconds) != checked.seconds:
                self.pool.grown.clear()

    def _keep_shortest(self, cell: Cell, seconds: float) -> None:
        """Keep the shortest time of a call, since times measured beside a busy worker are longer."""
        self.pool.seconds[cell.key] = min(self.pool.seconds[cell.key], seconds)


def _sensors(reply: Reply, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return columns on the GPU's state: its latest reading, and all throttling reasons."""
    earlier = before.get("throttled")
    throttled = ", ".join(dict.fromkeys([*(earlier.split(", ") if earlier else ()), *reply["throttled"]]))
    return {name: reply[name] for name in ("sm_mhz", "power_w", "temperature_c")} | {"throttled": throttled or None}
