"""Schedules an interleaved comparison: what is timed next, and in how many replicates.

The unit is a replicate, two fresh processes; its datum is the median over rounds of log(head / base), where each
round is a short block of each variant; of long blocks the faster halves are compared. Decided cells are no longer timed, and
the remaining time goes to undecided ones; all replicates of a cell count.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from statistics import fmean, median
from time import monotonic
from typing import Any

from stats.effects import of_saved
from stats.verdict import INCONCLUSIVE, SETTLED, Verdict, of_replicates

from ..cases.cells import Key
from ..cases.outcome import OutOfMemory, Skip
from ..selection.options import clock_text
from ..timing.schedule import block_of, rounds
from ..workers.client import NamedWorkers, Request, Script, WorkerClient
from .plan import VARIANTS, Plan

ROUNDS = 20
"""Rounds of a cell in one replicate, fewer for long blocks: more replicates give more precision than longer ones
(docs/measured.md).
"""

ROUNDS_OF_ALL = 320
"""Rounds that few open cells share, so that timing a replicate takes longer than starting it."""

MIN_ROUNDS = 4
"""Least rounds of a cell, so that no single disturbance decides a datum. At T = 4096, fewer rounds save less time than the
extra replicates take (docs/measured.md).
"""

SHORT_BLOCK = 5e-3
"""Seconds of a block above which a cell has fewer rounds, so that cells take about the same time."""

LONG_BLOCK = 50e-3
"""Seconds above which a block is long: no untimed call precedes it, since reloading the caches is a small part of it, and
only the faster half of each variant's counts.
"""

Replicate = dict[str, Any]
"""Saved measurements of one replicate: `logs`, the datum of each cell and reference workload as [impl, case, log];
`blocks`, in the order of timing, by `COLUMNS`; its duration in `seconds`; and whether it is the `last` one within the time.
"""

Found = dict[Key, dict[str, dict[str, Any] | Skip]]
"""Of each cell, by variant: facts from its check (`error`, `error_bound`, `peak_bytes`, `kernel`, ...), or why there are
none.
"""

COLUMNS = ("cell", "side", "seconds")
"""Columns of a block: index into `logs`; 0 base, 1 head; seconds of a call in its fastest slice."""


class CellLost(Exception):
    """A cell can't be timed in one variant."""


@dataclass
class Replication:
    """Measures the replicates of one comparison."""

    plan: Plan
    found: Found
    """Results of the checks; the failure of a cell that can't be timed is added."""
    workloads: Sequence[Key]
    """Reference workloads that are the same in both variants."""
    rng: random.Random
    too_large: dict[Key, Verdict] = field(default_factory=dict)
    """Verdicts on cells for which memory is too small in both variants at once."""

    def timeable(self, cells: Iterable[Key]) -> list[Key]:
        """Return the cells that have not failed in any variant, and fit into memory in both at once."""
        return [
            key
            for key in cells
            if key not in self.too_large and not any(isinstance(it, Skip) for it in self.found[key].values())
        ]

    def until_settled(
        self, seconds: float, before: Sequence[Replicate], keep: Callable[[Replicate], None]
    ) -> tuple[list[Replicate], dict[Key, Verdict]]:
        """Measure replicates of the undecided cells for about this long, or until all are decided; returns `before` and the
        new ones, and the verdicts.

        The first three replicates start in any case, another one if one as long as the shortest would fit into the time left,
        since one may have built an extension. `keep` is called with each new replicate as soon as it is measured.

        Verdicts are valid at every interim analysis, so that analysing after every replicate does not raise the error rate.
        """
        cells, replicates, last = self.timeable(self.found), list(before), False
        end = monotonic() + seconds
        while True:
            logs, workloads, ends = of_saved(replicates)
            of_cells = {key: logs.get(key, [math.nan] * len(replicates)) for key in cells}
            verdicts, _ = of_replicates(of_cells, workloads, ends, self.plan.margin)
            open_ = [key for key in self.timeable(cells) if verdicts[key].word not in SETTLED]
            if not open_ or last:
                return replicates, verdicts | self.too_large
            began = monotonic()
            tell(f"timing {len(open_)} of {len(cells)} cells: replicate {len(replicates) + 1}", end - began)
            measured = self.replicate(open_, max(ROUNDS, ROUNDS_OF_ALL // len(open_)))
            now = monotonic()
            last = len(replicates) > 1 and end - now <= min(now - began, *(it["seconds"] for it in replicates))
            replicates.append(measured | {"seconds": now - began, "last": last})
            keep(replicates[-1])

    def replicate(self, cells: Sequence[Key], most: int) -> Replicate:
        """Measure a datum of each cell and reference workload in a fresh replicate; if a cell is lost, repeat without it."""
        while True:
            order = [*self.timeable(cells), *self.workloads]
            self.rng.shuffle(order)
            exchanged = self.rng.random() < 0.5  # so that effects of the folders' paths average out
            first = self.rng.sample(VARIANTS, 2)  # and those of the order in which they get memory
            with suppress(CellLost), closing(self.plan.start(exchanged, first)) as workers:
                return self._measure(workers, order, most)

    def _measure(self, workers: NamedWorkers, order: list[Key], most: int) -> Replicate:
        took = {key: list[float]() for key in order}
        self.plan.run([self._preparing(workers[name], name, took) for name in VARIANTS])
        blocks = {key: block_of(math.sqrt(math.prod(seconds))) for key, seconds in took.items()}
        counts = {
            key: _rounds(block.seconds, ROUNDS if key in self.workloads else most) for key, block in blocks.items()
        }
        timed: list[tuple[int, int, float]] = []
        for key in chain.from_iterable(rounds(counts, self.rng)):
            block, what = blocks[key], " ".join(key)
            warm = block.warm or int(block.seconds <= LONG_BLOCK)  # the other process ran in between
            for name in self.rng.sample(VARIANTS, 2):
                with self._losing(name, key):
                    reply = workers[name].ask("time", what=what, calls=block.calls, slices=block.slices, warm=warm)
                timed.append((order.index(key), VARIANTS.index(name), float(f"{reply['fastest']:.6g}")))
        return {
            "logs": [
                [*key, datum([it[1:] for it in timed if it[0] == n], blocks[key].seconds > LONG_BLOCK)]
                for n, key in enumerate(order)
            ],
            "blocks": dict(zip(COLUMNS, zip(*timed, strict=True), strict=True)),
        }

    def _preparing(self, client: WorkerClient, variant: str, took: Mapping[Key, list[float]]) -> Script:
        """Grow the heap, prepare each cell, and add the seconds of one call to `took`; on a CPU both variants do so in
        parallel, each on its own core. Then pin the processes to one core.

        The order of cells is equal in both, so that their memory layout is similar.
        """
        slower = self.plan.variants[variant].slower
        cells = {key: self.plan.request(variant, key) for key in took if key not in self.workloads}
        for key, cell in cells.items():
            with self._losing(variant, key):
                yield Request(client, "grow", cell)
        for key in took:
            do, details = "workload", {"name": key[1]}
            if key in cells:
                slowed = slower.get(cells[key]["impl"], 0.0)
                do, details = "prepare", cells[key] | {"expected": self.plan.expected(variant, key), "slower": slowed}
            with self._losing(variant, key):
                reply = yield Request(client, do, {"what": " ".join(key)} | details)
                took[key].append(reply["seconds"])
        yield Request(client, "pin", {})

    @contextmanager
    def _losing(self, variant: str, key: Key) -> Iterator[None]:
        """If a cell fails in a variant, store why and raise `CellLost`; for a reference workload, raise the `Skip`. Memory that
        is too small for both at the same time is no fault of either, and the facts of their checks are kept.
        """
        try:
            yield
        except Skip as outcome:
            if key in self.workloads:
                raise
            if outcome.reason == OutOfMemory.reason:  # each fits alone, as its check has shown
                self.too_large[key] = Verdict(
                    INCONCLUSIVE, f"{variant}: out of memory beside the other variant: {outcome}"
                )
            else:
                self.found[key][variant] = outcome
            raise CellLost from None


def tell(text: str, left: float) -> None:
    """Print a line of progress with the seconds left of the budget."""
    print(f"[{clock_text(left)} left] {text}", file=sys.stderr, flush=True)


def datum(blocks: Sequence[tuple[int, float]], long: bool) -> float:
    """Return log(head / base) of a cell in a replicate: the median over its rounds. `blocks`: variant and seconds.

    A round's two blocks follow one another and share the machine conditions; medians over all blocks of a variant
    don't (docs/measured.md). Blocks above `LONG_BLOCK` don't share conditions, and are few: means of the faster half are
    compared, since disturbances last for several blocks.
    """
    base, head = ([math.log(seconds) for variant, seconds in blocks if variant == i] for i in (0, 1))
    if long:
        return _of_faster_half(head) - _of_faster_half(base)
    return median(after - before for before, after in zip(base, head, strict=True))


def _of_faster_half(logs: Sequence[float]) -> float:
    return fmean(sorted(logs)[: math.ceil(len(logs) / 2)])


def _rounds(seconds: float, most: int) -> int:
    """Return the rounds of a cell whose block takes this long."""
    return max(MIN_ROUNDS, min(most, round(most * SHORT_BLOCK / seconds)))
