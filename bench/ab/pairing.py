"""Two sides, interleaved: what is timed next, in how many pairs of fresh processes, and what follows from it.

The unit is a pair of fresh processes; its datum is the median over rounds of log(head / base), each round a short block of
either side. Cells that are settled leave, and the time goes to those that are open; all pairs of a cell count.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

from stats.verdict import SETTLED, Verdict, of_pairs

from ..cases.cells import Key
from ..cases.outcome import Skip
from ..timing.controls import GPU_WORK, WORK
from ..timing.engine import block_of, rounds
from ..workers.client import Request, Script, WorkerClient, together
from ..workers.team import Team

ROUNDS = 20
"""Timed blocks of a cell and side in one pair, at least: more pairs tell more than longer ones (docs/measured.md)."""

TURNS = 320
"""... of all cells together, so that timing a pair takes longer than starting it."""

MIN_ROUNDS = 3
"""... however long it takes: one that is disturbed must not be the datum."""

MAX_ROUNDS = 160
"""At most, when few cells are left."""

EVEN = 5e-3
"""Seconds of a block above which a cell has fewer rounds: as many as take about as long together."""

FIRST_LOOK = 4
"""Pairs before the first look at them."""

BETWEEN_LOOKS = 1.4
"""How many times as many before each further one."""

SIDES = ("base", "head")

CONTROLS: tuple[Key, ...] = tuple(("control", name) for name in WORK)
GPU_CONTROLS: tuple[Key, ...] = tuple(("control", name) for name in GPU_WORK)

CONTROL_KEYS = CONTROLS + GPU_CONTROLS

Pair = dict[str, Any]
"""What a fresh pair of processes measured, as it is saved: `logs`, the datum of each cell and control as [impl, case, log];
`blocks`, in the order in which they were timed, by `COLUMNS`; `seconds` that it took."""

COLUMNS = ("cell", "side", "seconds", "at", "switches", "stolen")
"""Of a block: which entry of `logs`; 0 base, 1 head; seconds of a call in its fastest slice; seconds since the pair began;
involuntary context switches a call; seconds that other virtual machines had of all cores meanwhile, in steps of 10 ms."""


def of_both(scripts: Sequence[Script], at_once: bool) -> None:
    """Run the scripts of base and head, at the same time or in turn."""
    for those in [scripts] if at_once else [[script] for script in scripts]:
        together(those)


@dataclass
class Pairing:
    """The pairs measured so far."""

    start: Callable[[], Team]
    """Starts a fresh process for each of `SIDES`."""
    requests: Sequence[Mapping[Key, dict[str, Any]]]
    """By side, what to ask for so that a cell is prepared: the implementation's name there, and the case."""
    rng: random.Random
    controls: Sequence[Key] = CONTROLS
    """Those that are the same work on both sides."""
    failures: dict[Key, Fell] = field(default_factory=dict)
    """Cells that were lost while they were timed."""
    together: bool = True
    """Whether both sides are made ready at the same time: each on a core of its own, but never on one GPU."""

    def pair(self, cells: Collection[Key], most: int) -> Pair:
        """One datum of each cell and control from a fresh pair; without a cell that is lost, and then from another pair."""
        while True:
            order = [key for key in (*cells, *self.controls) if key not in self.failures]
            self.rng.shuffle(order)
            team = self.start()
            try:
                return self._measured(team, order, most)
            except Fell as fell:
                if fell.key in self.controls:
                    raise fell.outcome from None
                self.failures[fell.key] = fell
            finally:
                team.close()

    def _measured(self, team: Team, order: list[Key], most: int) -> Pair:
        began, clients = monotonic(), [team.clients[name] for name in SIDES]
        took: tuple[dict[Key, float], ...] = {}, {}
        of_both([self._preparing(client, i, order, took[i]) for i, client in enumerate(clients)], self.together)
        blocks = {key: block_of(math.sqrt(took[0][key] * took[1][key])) for key in order}
        turns = {key: max(MIN_ROUNDS, min(most, round(most * EVEN / block.seconds))) for key, block in blocks.items()}
        timed = []
        for key, i in interleaved(turns, self.rng):
            before, at = _stolen(), monotonic() - began
            block, what = blocks[key], " ".join(key)
            warm = max(1, block.warm)  # it was the other process's turn
            with _falling(i, key):
                answer = clients[i].ask("time", what=what, calls=block.calls, stretches=block.stretches, warm=warm)
            seconds, switches = float(f"{answer['fastest']:.6g}"), round(answer["involuntary"], 4)
            timed.append((order.index(key), i, seconds, round(at, 4), switches, round(_stolen() - before, 2)))
        return {
            "seconds": monotonic() - began,
            "logs": [[*key, datum([it[1:3] for it in timed if it[0] == n])] for n, key in enumerate(order)],
            "blocks": {name: list(column) for name, column in zip(COLUMNS, zip(*timed, strict=True), strict=True)},
        }

    def _preparing(self, client: WorkerClient, i: int, order: Sequence[Key], took: dict[Key, float]) -> Script:
        """Finds out the seconds of one call of each cell: both sides at the same time, each on a core of its own, then on one.

        On both in the same order, so that memory is laid out alike.
        """
        for key in order:
            what, cell = {"what": " ".join(key)}, self.requests[i].get(key)
            do, details = ("prepare", cell) if cell else ("control", {"name": key[1]})
            with _falling(i, key):
                answer = yield Request(client, do, what | details)
                took[key] = float(answer["seconds"])
        yield Request(client, "pin", {})


def _stolen() -> float:
    """Seconds that a virtual machine's cores were wanted and not given, since it began; 0 where nothing says so."""
    try:
        first = Path("/proc/stat").read_text().partition("\n")[0].split()
        return int(first[8]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0


def datum(blocks: Sequence[tuple[int, float]]) -> float:
    """log(head / base) of a cell in a pair: the median over its rounds. `blocks`: side and seconds.

    A round's two blocks lie within milliseconds and share what the machine does to them; medians over all blocks of a side
    don't (docs/measured.md).
    """
    base, head = ([seconds for side, seconds in blocks if side == i] for i in (0, 1))
    return median(math.log(slow / fast) for fast, slow in zip(base, head, strict=True))


def interleaved(turns: Mapping[Key, int], rng: random.Random) -> Iterator[tuple[Key, int]]:
    """What is timed when: in every round each cell that has a turn left by both sides (0 base, 1 head), either side first."""
    for order in rounds(turns, rng):
        for key in order:
            yield from ((key, side) for side in rng.sample((0, 1), 2))


def until_settled(
    pair: Callable[[Collection[Key], int], Pair],
    cells: Sequence[Key],
    margin: float,
    left: Callable[[], float],
    tell: Callable[[str], None] = lambda text: None,
    before: Sequence[Pair] = (),
    whole: bool = False,
    keep: Callable[[Pair], None] = lambda pair: None,
) -> list[Pair]:
    """Pairs after those `before`, of the cells that are not settled (or of all), while there are seconds `left()`; gives all.

    Calls `keep` with each new pair as soon as it is measured.

    Verdicts hold at every look, so that looking early and often costs no false alarms.

    `pair` measures given cells in a fresh pair, with so many rounds; it may leave out what it lost.
    """
    pairs = list(before)

    def open_cells() -> list[Key]:
        verdicts = judged(cells, pairs, margin) if pairs and not whole else {}
        return [key for key in cells if key not in verdicts or verdicts[key].word not in SETTLED]

    open_, look, last = open_cells(), max(FIRST_LOOK, len(pairs) + 1), 0.0
    while open_ and (len(pairs) == len(before) or left() > last):
        tell(f"timing {len(open_)} of {len(cells)} cells: pair {len(pairs) + 1}")
        last = left()
        pairs.append(pair(open_, min(MAX_ROUNDS, max(ROUNDS, TURNS // len(open_)))))
        keep(pairs[-1])
        last -= left()
        if len(pairs) >= look:
            look = math.ceil(look * BETWEEN_LOOKS)
            open_ = open_cells()
    return pairs


def judged(cells: Sequence[Key], pairs: Sequence[Pair], margin: float) -> dict[Key, Verdict]:
    """What all pairs say."""
    logs = _logs(pairs)
    return of_pairs({key: logs.get(key, [math.nan] * len(pairs)) for key in cells}, controls_of(pairs), margin)[0]


def controls_of(pairs: Sequence[Pair]) -> dict[str, list[float]]:
    """Their data, by name."""
    logs = _logs(pairs)
    return {key[1]: logs[key] for key in CONTROL_KEYS if key in logs and not any(map(math.isnan, logs[key]))}


def _logs(pairs: Sequence[Pair]) -> dict[Key, list[float]]:
    """log(head / base) of every pair, NaN where a cell was not in it."""
    by_key = [{(impl, case): log for impl, case, log in pair["logs"]} for pair in pairs]
    return {key: [of.get(key, math.nan) for of in by_key] for key in dict.fromkeys(key for of in by_key for key in of)}


class Fell(Exception):
    """A cell that one side can't be timed in."""

    def __init__(self, side: str, key: Key, outcome: Skip):
        self.side, self.key, self.outcome = side, key, outcome


@contextmanager
def _falling(i: int, key: Key) -> Iterator[None]:
    try:
        yield
    except Skip as outcome:
        raise Fell(SIDES[i], key, outcome) from None
