"""The worker processes of a run: fresh ones take the place of those that are lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..cases.cells import Cell, Key
from ..cases.outcome import NoRow
from ..selection.mistake import Mistake
from ..workers.client import STARTING, Answer, Lost, Script, WorkerClient, together
from .run import Run

Tell = Callable[[str], None]


@dataclass
class Worker:
    """A process that proves and times cells of a run."""

    run: Run
    slot: int
    """Which of the run's processes it is to be."""
    start: Callable[[], WorkerClient]
    tell: Tell
    client: WorkerClient = field(init=False)
    number: int = field(init=False)
    """As `sample_processes` has it: no two processes of a run share one."""
    seconds: dict[Key, float] = field(init=False)
    """Of one call of each cell that is ready to be timed."""

    def __post_init__(self) -> None:
        self._begin()

    def hello(self) -> None:
        """Wait until it has imported the implementations; raises `Mistake` where it can't."""
        try:
            unknown = self.client.receive()["unknown"]
        except NoRow as error:
            raise Mistake(f"a worker process can't begin: {error}") from None
        if unknown:
            raise Mistake(next(iter(unknown.values())))

    def ask(self, do: str, cell: Cell, **details: Any) -> Answer:
        """Raises `NoRow` where it fails."""
        return self.client.ask(do, what=" ".join(cell.key), **details)

    def prepare(self, cells: Sequence[Cell]) -> None:
        """Make cells ready to be timed; those that fail are skipped."""
        together([self.preparing(cells)])

    def preparing(self, cells: Sequence[Cell]) -> Script:
        """The same beside other workers."""
        for cell in cells:
            if cell.key in self.seconds or cell.key in self.run.skipped:
                continue
            details = {"what": " ".join(cell.key), "impl": cell.impl.name, "case": cell.case.columns()}
            try:
                answer = yield self.client, "prepare", details
            except NoRow as outcome:
                self.skip(cell, outcome)
            else:
                self.seconds[cell.key] = answer["seconds"]

    def skip(self, cell: Cell, outcome: NoRow) -> None:
        """Write down why a cell has no row; a process that it ended is replaced by one that is ready for nothing yet."""
        known = {(it["impl"], it["detail"]) for it in self.run.skipped.values()}
        self.run.add_skipped(cell, outcome)
        why = "" if (cell.impl.name, str(outcome)) in known else f": {outcome}"
        self.tell(f"{self.run.progress} {cell.case.id}  {cell.impl.name:<20} {outcome.reason}{why}")
        if isinstance(outcome, Lost):
            self.close()
            self._begin()
            self.hello()

    def drop(self, cells: Sequence[Cell]) -> None:
        """Let go of what cells hold."""
        for cell in cells:
            if self.seconds.pop(cell.key, None) is not None:
                self.ask("drop", cell)

    def close(self) -> None:
        self.client.close()

    def _begin(self) -> None:
        asked = self.run.asked.get("impl", [])
        names = [name.strip() for text in asked for name in text.split(",") if name.strip()]
        self.client, self.number, self.seconds = self.start(), self.run.new_process(), {}
        self.client.send(
            "cells", STARTING, names=names, whole_registry=self.run.selection.sweep.whole_registry, cases=[]
        )


class Crew:
    """Workers that live as long as a block of code."""

    def __init__(self, workers: list[Worker]):
        self._workers = workers

    def __enter__(self) -> list[Worker]:
        try:
            for worker in self._workers:
                worker.hello()
        except BaseException:
            self.__exit__()
            raise
        return self._workers

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.close()
