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

from stats.verdict import SETTLED, Verdict, drifted, of_pairs

from ..cases.cells import Key
from ..cases.outcome import Skip
from ..timing.controls import GPU_WORK, WORK
from ..timing.engine import Block, block_of, rounds
from ..workers.client import Answer, Request, Script, WorkerClient, together
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

Logs = dict[Key, float]
"""log(head / base) of each cell and control in one pair of processes."""


def of_both(scripts: Sequence[Script], at_once: bool) -> None:
    """Run the scripts of base and head, at the same time or in turn."""
    for those in [scripts] if at_once else [[script] for script in scripts]:
        together(those)


@dataclass(frozen=True)
class Failure:
    """Why a side has no number for a cell."""

    side: str
    """`base` or `head`"""
    reason: str
    detail: str


@dataclass(frozen=True)
class Timed:
    """One timed block."""

    key: Key
    side: int
    seconds: float
    """Of one call in its fastest stretch."""
    at: float
    """Seconds since the pair began."""
    switches: float
    """Involuntary context switches a call."""
    stolen: float
    """Seconds that other virtual machines had of all cores meanwhile, in steps of 10 ms."""


@dataclass(frozen=True)
class Pair:
    """What a fresh pair of processes measured."""

    logs: Logs
    blocks: Sequence[Timed] = ()
    """In the order in which they were timed."""
    seconds: float = 0.0
    """That it took, with the start of its processes."""


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
    failures: dict[Key, Failure] = field(default_factory=dict)
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
            except _Fell as fell:
                if fell.key in self.controls:
                    raise fell.outcome from None
                self.failures[fell.key] = Failure(fell.side, fell.outcome.reason, str(fell.outcome))
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
            with _falling(i, key):
                answer = _timed(clients[i], key, blocks[key])
            timed.append(Timed(key, i, answer["fastest"], at, answer["involuntary"], _stolen() - before))
        return Pair({key: datum([it for it in timed if it.key == key]) for key in order}, timed, monotonic() - began)

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


def _timed(client: WorkerClient, key: Key, block: Block) -> Answer:
    """What a process answers to a block of a cell."""
    warm = max(1, block.warm)  # it was the other process's turn
    return client.ask("time", what=" ".join(key), calls=block.calls, stretches=block.stretches, warm=warm)


def _stolen() -> float:
    """Seconds that a virtual machine's cores were wanted and not given, since it began; 0 where nothing says so."""
    try:
        first = Path("/proc/stat").read_text().partition("\n")[0].split()
        return int(first[8]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0


def datum(blocks: Sequence[Timed]) -> float:
    """log(head / base) of a cell in a pair: the median over its rounds.

    A round's two blocks lie within milliseconds and share what the machine does to them; medians over all blocks of a side
    don't (docs/measured.md).
    """
    sides: tuple[list[float], list[float]] = ([], [])
    for block in blocks:
        sides[block.side].append(block.seconds)
    return median(math.log(head / base) for base, head in zip(*sides, strict=True))


def interleaved(turns: Mapping[Key, int], rng: random.Random) -> Iterator[tuple[Key, int]]:
    """What is timed when: in every round each cell that has a turn left by both sides (0 base, 1 head), either side first."""
    for order in rounds(turns, rng):
        for key in order:
            yield from ((key, side) for side in rng.sample((0, 1), 2))


@dataclass(frozen=True)
class Judged:
    """All pairs, and what they say."""

    pairs: list[Pair]
    verdicts: dict[Key, Verdict]
    moved: str
    """Why nothing can be said of the code, where that is machine drift; or ''."""


def until_settled(
    pair: Callable[[Collection[Key], int], Pair],
    cells: Sequence[Key],
    margin: float,
    left: Callable[[], float],
    tell: Callable[[str], None] = lambda text: None,
    before: Sequence[Pair] = (),
    whole: bool = False,
    keep: Callable[[Pair], None] = lambda pair: None,
) -> Judged:
    """Pairs after those `before`, of the cells that are not settled (or of all), while there are seconds `left()`.

    Calls `keep` with each new pair as soon as it is measured.

    Verdicts hold at every look, so that looking early and often costs no false alarms.

    `pair` measures given cells in a fresh pair, with so many rounds; it may leave out what it lost.
    """
    pairs, pace = list(before), _Pace(left)

    def open_cells() -> list[Key]:
        verdicts = _judged(cells, pairs, margin) if pairs and not whole else {}
        return [key for key in cells if key not in verdicts or verdicts[key].word not in SETTLED]

    open_, look = open_cells(), max(FIRST_LOOK, len(pairs) + 1)
    while open_ and (len(pairs) == len(before) or left() > pace.seconds):
        tell(f"timing {len(open_)} of {len(cells)} cells: pair {len(pairs) + 1}")
        pairs.append(pair(open_, _rounds(len(open_))))
        keep(pairs[-1])
        pace.step()
        if len(pairs) >= look:
            look = math.ceil(look * BETWEEN_LOOKS)
            open_ = open_cells()
    return Judged(pairs, _judged(cells, pairs, margin), drifted(controls_of(pairs)))


class _Pace:
    """About how long a pair takes: the last one."""

    def __init__(self, left: Callable[[], float]):
        self._left, self._before, self.seconds = left, left(), 0.0

    def step(self) -> None:
        now = self._left()
        self.seconds, self._before = self._before - now, now


def _rounds(open_cells: int) -> int:
    """With fewer cells each is timed more often."""
    return min(MAX_ROUNDS, max(ROUNDS, TURNS // open_cells))


def _judged(keys: Sequence[Key], pairs: Sequence[Pair], margin: float) -> dict[Key, Verdict]:
    logs = {key: [pair.logs.get(key, math.nan) for pair in pairs] for key in keys}
    cells, _ = of_pairs(logs, controls_of(pairs), margin)
    return cells


def controls_of(pairs: Sequence[Pair]) -> dict[str, list[float]]:
    """Their data, by name."""
    return {
        key[1]: [pair.logs[key] for pair in pairs]
        for key in CONTROLS + GPU_CONTROLS
        if all(key in pair.logs for pair in pairs)
    }


class _Fell(Exception):
    def __init__(self, side: str, key: Key, outcome: Skip):
        self.side, self.key, self.outcome = side, key, outcome


@contextmanager
def _falling(i: int, key: Key) -> Iterator[None]:
    try:
        yield
    except Skip as outcome:
        raise _Fell(SIDES[i], key, outcome) from None
