"""The worker processes that check and time the cells of a run: what is ready in them, and their visits of a case."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ..cases.cells import Cell, Key
from ..cases.models import changed_files
from ..cases.outcome import Skip
from ..selection.choice import listed
from ..selection.errors import UsageError
from ..timing.schedule import MIN_VISIT_ROUNDS, Block, block_of, rounds
from ..workers.client import Lost, NamedWorkers, Reply, Request, Script, WorkerClient
from .rows import Results, Sample
from .run import Run

SHORT = 10e-3
"""Seconds of a call up to which its tensors are moved every other visit; those of a longer one are moved once."""

COLD = 20e-3
"""Seconds of a block up to which the first block of a visit follows an untimed call, since other cases have evicted the
caches. Above, such a call takes as long as others (median ratio 0.98 from 20 to 40 ms, docs/measured.md); workers time it
again if it grew the heap.
"""

COMPARING = 0.0075
"""Share of a cell's time used in a visit for untimed calls whose outputs are compared."""

OVERRUN = 10
"""Multiple of a visit's planned time after which it ends: with more busy threads than cores, a call may take a hundred times
its shortest time.
"""

SHARED = ""
"""Name of the shared process."""


@dataclass
class Ready:
    """What is known of a cell that is ready to be timed in a process."""

    seconds: float
    """Seconds of one call, the shortest so far: beside a busy worker calls take longer."""
    done: set[str] = field(default_factory=set)
    """Requests that it has replied to."""


@dataclass
class WorkerPool:
    """One process that implementations share, if some do, and one for each isolated one."""

    run: Run
    process: int
    """Index among the run's `--processes`, each of which is one pool."""
    start: Callable[[], WorkerClient]
    rng: random.Random
    process_number: int = field(init=False)
    """Number in `sample_processes`, unique among the run's shared processes. An isolated implementation has the number
    of the shared process with which it is interleaved.
    """
    visit_number: int = 0
    """Number in `sample_visits`; a new one once the shared process was replaced."""
    _last: WorkerClient | None = None
    """Client of the latest request."""

    def __post_init__(self) -> None:
        left = (self.run.cells[key].impl for key in self.run.planned - self.run.skipped.keys())
        self._names = {impl.name: impl.name if impl.limits.alone else SHARED for impl in left}
        self.process_number = self.run.next_number("process")
        self._workers = NamedWorkers(sorted({*self._names.values()}), self._begin)

    def wait_until_ready(self) -> None:
        """Wait until all processes have imported the implementations; raises `UsageError` if one can't."""
        for name in self._workers:
            self._process(name)

    def client(self, cell: Cell) -> WorkerClient:
        """Return the process of a cell, a new one if it is lost; raises `UsageError` if it can't start, use the device or
        import an implementation.
        """
        return self._process(self._names[cell.impl.name])

    def _process(self, name: str) -> WorkerClient:
        try:
            client = self._workers[name]
        except Skip as error:
            raise UsageError(f"a worker process can't begin: {error}") from None
        for why in client.first["unknown"].values():
            raise UsageError(why)
        return client

    def ask(self, do: str, cell: Cell, **details: Any) -> Reply:
        """Prepare a cell, unless it is ready, and send a request on it; raises `Skip` if either fails."""
        client, last = self.client(cell), self._last
        if cell.key not in client.ready:
            client.ready[cell.key] = Ready(client.ask("prepare", **request(cell))["seconds"])
        if last and last is not client and not last.lost:
            with suppress(Lost):
                last.ask("settle")
            if do == "time":  # caches hold other data: an untimed block comes first
                details["warm"] = details["calls"] * details["slices"]
        self._last, ready = client, client.ready[cell.key]
        reply = client.ask(do, what=" ".join(cell.key), **details)
        ready.done.add(do)
        ready.seconds = min(ready.seconds, reply.get("fastest", math.inf))
        return reply

    def attempt(self, do: str, cell: Cell, **details: Any) -> Reply | None:
        """Send a request as `ask` does; if it fails, skip the cell. Returns None for a skipped cell."""
        if cell.key not in self.run.skipped:
            with self.run.skipping(cell):
                return self.ask(do, cell, **details)
        return None

    def preparing(self, cells: Sequence[Cell]) -> Script:
        """Prepare cells, as a script that runs in parallel with those of other pools; those that fail are skipped."""
        for cell in cells:
            if cell.key not in self.run.skipped and cell.key not in (client := self.client(cell)).ready:
                with self.run.skipping(cell):
                    reply = yield Request(client, "prepare", request(cell))
                    client.ready[cell.key] = Ready(reply["seconds"])

    def time(self, cells: Sequence[Cell], index: int, needs: Mapping[Key, float], found: Mapping[str, Results]) -> None:
        """Make the visit with this index in the process: time cells of one case, interleaved, and add to their results in
        `found`, by implementation. Failing cells are skipped; the others continue, in a fresh process if necessary.
        """
        if self.run.counts(self._blocks(cells), index, needs):
            self.visit_number = self.run.next_number("visit")
            for cell in cells:
                self._renew(cell, index, found[cell.impl.name])
            blocks = self._blocks(cells)
            counts = self.run.counts(blocks, index, needs)
            until = self.run.elapsed() + OVERRUN * sum(count * blocks[key].seconds for key, count in counts.items())
            for made, order in enumerate(rounds(counts, self.rng)):
                if made >= MIN_VISIT_ROUNDS and self.run.elapsed() > until:
                    break
                round_number, blocks = self.run.next_number(cells[0].case.id), self._blocks(cells)
                for key in order:
                    self._time_block(self.run.cells[key], blocks[key], round_number, found[key[0]])
            for cell in cells:
                self._check_caching(cell, found[cell.impl.name])

    def _blocks(self, cells: Sequence[Cell]) -> dict[Key, Block]:
        """Return blocks sized by the call time of each cell, from timing or else from its check."""
        return {it.key: block_of((self._ready(it) or self.run.found[it.key]).seconds) for it in cells}

    def _renew(self, cell: Cell, index: int, found: Results) -> None:
        """Move the tensors of a cell that was just prepared, and of short calls every other visit, and compare outputs on
        fresh inputs.
        """
        ready = self._ready(cell)
        if ready and "renew" in ready.done and (index % 2 or ready.seconds > SHORT):
            return
        if reply := self.attempt("renew", cell, seconds=COMPARING * self.run.timing["cell_time"]):
            found.compared += reply["compared"]

    def _time_block(self, cell: Cell, block: Block, round_number: int, found: Results) -> None:
        """Time a block."""
        is_first = not found.samples or found.samples[-1].visit != self.visit_number
        warm = block.warm or int(is_first and block.seconds <= COLD)
        if reply := self.attempt("time", cell, calls=block.calls, slices=block.slices, warm=warm):
            columns, at, calls = reply.pop("columns"), self.run.elapsed(), block.calls * block.slices
            sample = Sample(
                **reply, round=round_number, visit=self.visit_number, process=self.process_number, at=at, calls=calls
            )
            found.add(Results(columns=columns, samples=[sample]))

    def _check_caching(self, cell: Cell, found: Results) -> None:
        """Skip a cell found to cache results, after its first timing."""
        checked, ready = self.run.found[cell.key], self._ready(cell)
        if found.samples and not checked.samples and not (ready and "caching" in ready.done):
            self.attempt("caching", cell, usual=found.usual, first=checked.seconds)

    def _ready(self, cell: Cell) -> Ready | None:
        """Return what is known of a cell that is ready to be timed; None if it isn't."""
        return None if cell.key in self.run.skipped else self.client(cell).ready.get(cell.key)

    def drop(self, cells: Sequence[Cell]) -> None:
        """Release the tensors of cells."""
        for cell in cells:
            if (client := self.client(cell)).ready.pop(cell.key, None):
                with suppress(Skip):
                    client.ask("drop", what=" ".join(cell.key))

    def close(self) -> None:
        self._workers.close()

    def _begin(self, name: str) -> WorkerClient:
        """Start the process of that name; raises `UsageError` if what it would import or read has changed since the run
        began.
        """
        if changed := [*["code"] * (self.run.sources != self.run.selection.sources), *changed_files()]:
            raise UsageError(f"{changed[0]} has changed since the run began: restore it and --resume the run")
        if name == SHARED and self._last:  # the process that has timed cells is replaced
            self.process_number, self.visit_number = map(self.run.next_number, ("process", "visit"))
        given = listed(self.run.asked.get("impl", []))
        names = [it for it in given if self._names.get(it.partition("=")[0]) == name]
        return self.start().send("cells", names=names, device=self.run.selection.device)


def request(cell: Cell) -> dict[str, Any]:
    """Return the details of a request that builds a cell."""
    return {"what": " ".join(cell.key), "impl": cell.impl.name, "case": cell.case.columns()}
