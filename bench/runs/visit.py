"""A visit: the implementations of a case, timed interleaved in one process."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from time import sleep
from typing import Any

from ..cases.accounting import count
from ..cases.cells import Cell, Key
from ..cases.outcome import Skip
from ..timing.engine import Block, Visits, block_of, rounds
from ..timing.malloc import MAPPED
from ..workers.client import Reply
from .pool import WorkerPool
from .rows import Sample, Timed
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
    """Times the cells of one case in one visit, and collects their samples until they are journalled."""

    run: Run
    pool: WorkerPool
    case: str
    index: int
    """Index of the visit within its process and case."""
    rng: random.Random
    tested: set[Key] = field(default_factory=set)
    """Cells tested for cached results by visits that are not journalled yet."""
    found: dict[str, Timed] = field(default_factory=dict)
    """Samples by implementation."""
    _number: int = 0
    """Number of the visit in the run; a new one once its process was replaced."""
    _cold: set[Key] = field(default_factory=set)
    """Cells whose next block follows other work in this process, and therefore begins with an untimed call."""
    _cooled: bool = False

    def time(self, cells: Sequence[Cell], visits: Visits, needs: Mapping[Key, float]) -> None:
        """Time cells interleaved. Failing cells are skipped; the others continue, in a fresh process if necessary."""
        if not visits.counts(self._blocks(cells), self.index, needs):
            return
        self.pool.prepare(cells)
        members = {cell.key: cell for cell in cells if self._ready(cell)}
        self._number = self.run.next_number("visit")
        for cell in members.values():
            self._attempt(cell, cells, self._renew)
        blocks = self._blocks(cells)
        self._cold = {key for key, it in blocks.items() if key not in self.pool.grown or it.seconds <= COLD}
        for order in rounds(visits.counts(blocks, self.index, needs), self.rng):
            round_number = self.run.next_number(self.case)
            for key in order:
                if reply := self._attempt(members[key], cells, partial(self._block, block=blocks[key])):
                    self._keep(key, reply, round_number, blocks[key])

    def check_caching(self, cells: Sequence[Cell]) -> None:
        """Skip cells found to cache results, after their first timing; time large ones with other settings of malloc."""
        for cell in cells:
            found = self.found.get(cell.impl.name, Timed())
            is_first = cell.key not in self.tested and not self.run.samples(cell.key)
            if found.samples and is_first and self._ready(cell):
                self.tested.add(cell.key)
                checked, usual = self.run.checked[cell.key], median(it.seconds for it in found.samples)
                try:
                    self.pool.ask("caching", cell, usual=usual, first=checked["seconds"])
                    if cell.case.device == "cpu" and (checked["columns"].get("peak_bytes") or 0) >= MAPPED:
                        alone = cell.case.threads != 1 and cell.impl.limits.max_pairs is None  # while it was checked
                        pages = self.pool.ask("other_pages", cell, checked=alone * checked["seconds"])
                        found.columns |= pages
                        if pages.get("fresh_pages_s", checked["seconds"]) != checked["seconds"]:
                            self.pool.grown.clear()
                except Skip as outcome:
                    self.pool.skip(cell, outcome)
                    self.pool.prepare(cells)

    def write(self) -> None:
        self.run.add_visit(self.pool.process, self.index, self.case, self.found)

    def _ready(self, cell: Cell) -> bool:
        return cell.key in self.pool.seconds and cell.key not in self.run.skipped

    def _blocks(self, cells: Sequence[Cell]) -> dict[Key, Block]:
        """Return blocks sized by the call time of each cell, from timing or else from its check."""
        return {
            key: block_of(self.pool.seconds.get(key, self.run.checked[key]["seconds"]))
            for key in (cell.key for cell in cells)
            if key not in self.run.skipped
        }

    def _attempt(self, cell: Cell, cells: Sequence[Cell], act: Callable[[Cell], Reply]) -> Reply | None:
        """Return the result of `act`; None if the cell fails, now or earlier."""
        if not self._ready(cell):
            return None
        process = self.pool.number
        try:
            return act(cell)
        except Skip as outcome:
            self.pool.skip(cell, outcome)
        if self.pool.number != process:
            self._number, self._cold = self.run.next_number("visit"), {it.key for it in cells}
            self.pool.prepare(cells)
        return None

    def _renew(self, cell: Cell) -> Reply:
        """Move a cell's tensors every other visit, and compare outputs on fresh inputs; long calls once per process."""
        is_short = self.pool.seconds[cell.key] <= SHORT
        if self.index % 2 if is_short else cell.key in self.pool.renewed:
            return {}
        self.pool.renewed.add(cell.key)
        reply = self.pool.ask("renew", cell, seconds=COMPARING * self.run.timing["cell_time"])
        self.pool.grown.add(cell.key)
        self._found(cell.key).compared = reply["compared"]
        self._keep_shortest(cell.key, reply["seconds"])
        return reply

    def _keep_shortest(self, key: Key, seconds: float) -> None:
        """Keep the shortest time of a call, since times measured beside a busy worker are longer."""
        if key in self.pool.seconds:
            self.pool.seconds[key] = min(self.pool.seconds[key], seconds)

    def _block(self, cell: Cell, block: Block) -> Reply:
        """Return the reply to `time`; in a visit, the first block of a GPU that is held back is timed again."""
        warm = block.warm or int(cell.key in self._cold)
        self._cold.discard(cell.key)
        self.pool.grown.add(cell.key)
        reply = self.pool.ask("time", cell, calls=block.calls, slices=block.slices, warm=warm)
        count("timed calls", reply["seconds"] * (block.calls * block.slices + warm))
        if reply.get("held_back") and not self._cooled:
            self._cooled = True
            sleep(COOLING)
            return self._block(cell, block)
        return reply

    def _keep(self, key: Key, reply: Reply, number: int, block: Block) -> None:
        self._keep_shortest(key, reply["fastest"])
        where = number, self._number, self.pool.number
        measured = {name: reply[name] for name in reply.keys() & {*Sample._fields} - {"seconds"}}
        found, calls = self._found(key), block.calls * block.slices
        found.samples.append(Sample(reply["seconds"], *where, at=self.run.elapsed(), calls=calls, **measured))
        if "sm_mhz" in reply:
            found.columns |= _sensors(reply, self.run.timed.get(key, found).columns | found.columns)
        if reply.get("varies"):
            found.columns["repeats"] = False

    def _found(self, key: Key) -> Timed:
        return self.found.setdefault(key[0], Timed())


def _sensors(reply: Reply, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return columns on the GPU's state: its latest reading, and all throttling reasons."""
    earlier = before.get("throttled")
    throttled = ", ".join(dict.fromkeys([*(earlier.split(", ") if earlier else ()), *reply["throttled"]]))
    return {name: reply[name] for name in ("sm_mhz", "power_w", "temperature_c")} | {"throttled": throttled or None}
