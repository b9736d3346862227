"""The worker processes that check and time the cells of a run, and what is ready in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ..cases.cells import Cell, Key
from ..cases.models import changed_files
from ..cases.outcome import Skip
from ..selection.choice import listed
from ..selection.errors import UsageError
from ..workers.client import Lost, NamedWorkers, Reply, Request, Script, WorkerClient, run_concurrently
from .run import Run

SHARED = ""
"""Name of the shared process."""


@dataclass
class Ready:
    """What is known of a cell that is ready to be timed in a process."""

    seconds: float
    """Seconds of one call, the shortest so far: beside a busy worker calls take longer."""
    renewed: bool = False
    """Whether its tensors were moved elsewhere in memory."""
    tested: bool = False
    """Whether it was tested for cached results."""


@dataclass
class WorkerPool:
    """One process that implementations share, and one more for each isolated implementation; a lost one is replaced."""

    run: Run
    process: int
    """Index among the run's `--processes`, each of which is one pool."""
    start: Callable[[], WorkerClient]
    number: int = field(init=False)
    """Number in `sample_processes`, unique among the run's shared processes. An isolated implementation has the number
    of the shared process with which it is interleaved.
    """
    visit: int = 0
    """Number in `sample_visits`; a new one once the shared process was replaced."""
    ready: dict[Key, Ready] = field(default_factory=dict)
    _last: WorkerClient | None = None
    """Client of the latest request."""

    def __post_init__(self) -> None:
        left = (self.run.cells[key].impl for key in self.run.planned - self.run.skipped.keys())
        self._alone = {impl.name for impl in left if impl.limits.alone}
        self._workers = NamedWorkers((SHARED, *self._alone), self._begin)
        self.number = self.run.next_number("process")

    def wait_until_ready(self) -> None:
        """Wait until all processes have imported the implementations; raises `UsageError` if one can't."""
        for name in self._workers.clients:
            _await_imports(self._workers.first_reply, name)

    def client(self, cell: Cell) -> WorkerClient:
        """Return the process of a cell."""
        return self._workers.clients[self._name(cell.impl.name)]

    def ask(self, do: str, cell: Cell, **details: Any) -> Reply:
        """Send a request to a cell's process; raises `Skip` if it fails."""
        client = self.client(cell)
        if self._last is not None and self._last is not client:
            with suppress(Lost):  # the next request raises it
                self._last.ask("settle")
            if do == "time":  # caches hold other data: add an untimed block
                details["warm"] = details["calls"] * details["slices"]
        self._last = client
        return client.ask(do, what=" ".join(cell.key), **details)

    def attempt(self, do: str, cell: Cell, **details: Any) -> Reply | None:
        """Send a request as `ask` does, after the cell was prepared; if that or the request fails, skip the cell and return
        None.
        """
        if (ready := self.prepared(cell)) is None:
            return None
        try:
            reply = self.ask(do, cell, **details)
        except Skip as outcome:
            self.skip(cell, outcome)
            return None
        call: float = reply.get("fastest") or reply.get("seconds") or math.inf
        ready.seconds = min(ready.seconds, call)
        return reply

    def prepared(self, cell: Cell) -> Ready | None:
        """Prepare a cell for timing, unless it is ready; returns None if it is skipped."""
        run_concurrently([self.preparing([cell])])
        return None if cell.key in self.run.skipped else self.ready[cell.key]

    def preparing(self, cells: Sequence[Cell]) -> Script:
        """Prepare cells, as a script that runs in parallel with those of other pools; those that fail are skipped."""
        for cell in cells:
            if cell.key not in self.ready and cell.key not in self.run.skipped:
                try:
                    reply = yield Request(self.client(cell), "prepare", request(cell))
                except Skip as outcome:
                    self.skip(cell, outcome)
                else:
                    self.ready[cell.key] = Ready(reply["seconds"])

    def skip(self, cell: Cell, outcome: Skip) -> None:
        """Record why a cell has no row; replace the process if the cell ended it."""
        self.run.add_skipped(cell, outcome)
        self.replace_lost(cell, outcome)

    def replace_lost(self, cell: Cell, outcome: Skip) -> None:
        """Replace a cell's process if that is lost."""
        if not isinstance(outcome, Lost):
            return
        name = self._name(cell.impl.name)
        self._last = None
        self.ready = {key: it for key, it in self.ready.items() if self._name(key[0]) != name}
        if name == SHARED:
            self.number, self.visit = self.run.next_number("process"), self.run.next_number("visit")
        _await_imports(self._workers.replace, name)

    def drop(self, cells: Sequence[Cell]) -> None:
        """Release the tensors of cells."""
        for cell in cells:
            if self.ready.pop(cell.key, None):
                self.ask("drop", cell)

    def close(self) -> None:
        self._workers.close()

    def _begin(self, name: str) -> WorkerClient:
        """Start the process of that name; raises `UsageError` if what it would import or read has changed since the run
        began.
        """
        if changed := [*["code"] * (self.run.sources != self.run.selection.sources), *changed_files()]:
            raise UsageError(f"{changed[0]} has changed since the run began: restore it and --resume the run")
        given = listed(self.run.asked.get("impl", []))
        return self.start().begin("cells", names=[it for it in given if self._name(it.partition("=")[0]) == name])

    def _name(self, impl: str) -> str:
        return impl if impl in self._alone else SHARED


def request(cell: Cell) -> dict[str, Any]:
    """Return the details of a request that builds a cell."""
    return {"what": " ".join(cell.key), "impl": cell.impl.name, "case": cell.case.columns()}


def _await_imports(first_reply: Callable[[str], Reply], name: str) -> None:
    """Wait until a process has imported the implementations; raises `UsageError` if it can't."""
    try:
        unknown = first_reply(name)["unknown"]
    except Skip as error:
        raise UsageError(f"a worker process can't begin: {error}") from None
    if unknown:
        raise UsageError(next(iter(unknown.values())))
