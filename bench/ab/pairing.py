"""Two sides, interleaved: what is timed next, in how many pairs of fresh processes, and what follows from it.

The unit is a pair of fresh processes; its datum is the median over rounds of log(head / base), each round a short block of
either side. First few pairs screen all cells. Those not shown unchanged are then judged by fresh pairs alone, which know
nothing of the luck that made them suspects.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Protocol, TypeVar

from reports.judging.verdict import IMPROVED, INCONCLUSIVE, REGRESSED, UNCHANGED, Verdict, centred, judge, machine_moved

from ..cases.cells import Key
from ..cases.outcome import NoRow
from ..timing.controls import WORK
from ..timing.engine import Block, block_of, rounds

ROUNDS = 40
"""Timed blocks of a cell in one pair."""

MAX_ROUNDS = 160
"""At most, when few cells are left and starting processes costs more than timing."""

EVEN = 5e-3
"""Seconds of a block above which a cell has fewer rounds: as many as take about as long together."""

LEAST = 3
"""Pairs that screen all cells, and pairs that a change is judged by at least."""

FIRST_LOOK, LOOKS = 6, 1.5
"""Pairs of the second stage before the first look at them, and how many times as many before each further one."""

EARLY = 0.001
"""A look before the last one settles a change only at this level, so that looking often costs nothing (Haybittle and Peto)."""

SIDES = ("base", "head")

CONTROLS: tuple[Key, ...] = tuple(("control", name) for name in WORK)

Logs = dict[Key, float]
"""log(head / base) of each cell and control in one pair of processes."""


class Process(Protocol):
    """A fresh process of one side."""

    def prepare(self, key: Key) -> float:
        """Seconds of one warm call."""

    def pin(self) -> None:
        """Stay from now on on the core that is for timing."""

    def time(self, key: Key, block: Block) -> float:
        """Seconds of one call in the fastest stretch of a block."""

    def kill(self) -> None:
        """End it now: who waits for an answer gets `Lost`."""

    def close(self) -> None:
        """End it, and let go of what it held."""


class Killable(Protocol):
    def kill(self) -> None: ...


T = TypeVar("T")


def at_once(act: Callable[[int], T], processes: Sequence[Killable]) -> list[T]:
    """What `act` gives for base (0) and head (1), both at the same time; Ctrl-C needn't wait for either."""
    with ThreadPoolExecutor(2) as both:
        acting = [both.submit(act, i) for i in (0, 1)]
        try:
            return [it.result() for it in acting]
        except BaseException:
            for process in processes:
                process.kill()
            raise


Start = Callable[[], tuple[Process, Process]]
"""Starts a fresh pair: base, head."""


@dataclass(frozen=True)
class Failure:
    """Why a side has no number for a cell."""

    side: str
    """`base` or `head`"""
    reason: str
    detail: str


@dataclass
class Pairing:
    """The pairs measured so far."""

    start: Start
    rng: random.Random
    controls: Sequence[Key] = CONTROLS
    """Those that are the same work on both sides."""
    failures: dict[Key, Failure] = field(default_factory=dict)
    """Cells that were lost while they were timed."""

    def pair(self, cells: Collection[Key], most: int) -> Logs:
        """One datum of each cell and control from a fresh pair; without a cell that is lost, and then from another pair."""
        while True:
            order = [key for key in (*cells, *self.controls) if key not in self.failures]
            self.rng.shuffle(order)
            sides = self.start()
            try:
                return self._measured(sides, order, most)
            except _Fell as fell:
                if fell.key in self.controls:
                    raise fell.outcome from None
                self.failures[fell.key] = Failure(fell.side, fell.outcome.reason, str(fell.outcome))
            finally:
                for side in sides:
                    side.close()

    def _measured(self, sides: tuple[Process, Process], order: list[Key], most: int) -> Logs:
        took = at_once(partial(_prepared, sides, order), sides)
        blocks = {key: block_of(math.sqrt(took[0][key] * took[1][key])) for key in order}
        turns = {key: max(1, min(most, round(most * EVEN / block.seconds))) for key, block in blocks.items()}
        seen: dict[Key, tuple[list[float], list[float]]] = {key: ([], []) for key in order}
        for key, i in interleaved(turns, self.rng):
            seen[key][i].append(_of(i, key, partial(sides[i].time, key, blocks[key])))
        return {key: _datum(base, head) for key, (base, head) in seen.items()}


def _prepared(sides: tuple[Process, Process], order: Sequence[Key], i: int) -> dict[Key, float]:
    """Seconds of one call of each cell of a side: both sides at the same time, each on a core of its own, then on one.

    On both in the same order, so that memory is laid out alike.
    """
    took = {key: _of(i, key, partial(sides[i].prepare, key)) for key in order}
    sides[i].pin()
    return took


def _datum(base: Sequence[float], head: Sequence[float]) -> float:
    """log(head / base) of a pair: the median over its rounds.

    A round's two blocks lie within milliseconds and share what the machine does to them; medians over all blocks of a side
    don't (docs/measured.md).
    """
    return median(math.log(b / a) for a, b in zip(base, head, strict=True))


def interleaved(turns: Mapping[Key, int], rng: random.Random) -> Iterator[tuple[Key, int]]:
    """What is timed when: in every round each cell that has a turn left by both sides (0 base, 1 head), either side first."""
    for order in rounds(turns, rng):
        for key in order:
            yield from ((key, side) for side in rng.sample((0, 1), 2))


@dataclass(frozen=True)
class Stages:
    """The pairs of both stages, and what they say."""

    screened: list[Logs]
    confirmed: list[Logs]
    verdicts: dict[Key, Verdict]
    decided: dict[Key, list[Logs]]
    """The pairs that each verdict was drawn from."""
    moved: str
    """Why nothing can be said of the code, where it is the machine that moved; or ''."""

    def logs(self, key: Key) -> list[float]:
        """The data that its verdict was drawn from, not centred."""
        return [pair[key] for pair in self.decided[key] if key in pair]


def two_stages(
    pair: Callable[[Collection[Key], int], Logs],
    cells: Sequence[Key],
    margin: float,
    together: bool,
    left: Callable[[], float],
    tell: Callable[[str], None] = lambda text: None,
) -> Stages:
    """Screen all cells, then confirm those not shown unchanged, while there are seconds `left()`.

    `pair` measures given cells in a fresh pair, with so many rounds; it may leave out what it lost. `together`: see `judge`.
    """
    screened: list[Logs] = []
    pace = _Pace(left)
    while len(screened) < LEAST and (not screened or left() > pace.seconds):
        tell(f"screening {len(cells)} cells: pair {len(screened) + 1} of {LEAST}")
        screened.append(pair(cells, ROUNDS))
        pace.step()
    first = _judged(cells, screened, margin)
    open_ = [key for key in cells if not _settled(first[key], margin, UNCHANGED)]
    confirmed: list[Logs] = []
    look, remaining = FIRST_LOOK, list(open_)
    while remaining and left() > pace.seconds:
        tell(f"confirming {len(remaining)} of {len(cells)} cells: pair {len(confirmed) + 1}")
        confirmed.append(pair(remaining, _rounds(len(cells), len(remaining))))
        pace.step()
        if len(confirmed) >= look:
            look = math.ceil(look * LOOKS)
            so_far, _ = _confirmed(open_, screened, confirmed, margin)
            remaining = [key for key in remaining if not _settled(so_far[key], margin, *CHANGED, UNCHANGED)]
    return _concluded(cells, open_, screened, confirmed, margin, together)


CHANGED = (REGRESSED, IMPROVED)


class _Pace:
    """About how long a pair takes: the last one."""

    def __init__(self, left: Callable[[], float]):
        self._left, self._before, self.seconds = left, left(), 0.0

    def step(self) -> None:
        now = self._left()
        self.seconds, self._before = self._before - now, now


def _rounds(all_cells: int, open_cells: int) -> int:
    """With fewer cells each is timed more often, at most so that a pair takes as long as before."""
    return min(MAX_ROUNDS, max(ROUNDS, ROUNDS * all_cells // max(1, open_cells)))


def _settled(verdict: Verdict, margin: float, *words: str) -> bool:
    """Whether an early look is enough: stricter than the last, since there may be several."""
    if verdict.word not in words:
        return False
    if verdict.word == UNCHANGED:
        return verdict.low > 1 / (1 + margin) and verdict.high < 1 + margin
    return verdict.p <= EARLY


def _judged(keys: Sequence[Key], pairs: Sequence[Logs], margin: float) -> dict[Key, Verdict]:
    """Verdicts from one stage's pairs, each cell centred on the controls of the pairs in which it was measured, if need be."""
    return judge({key: _centred(key, pairs) for key in keys}, margin, _controls(pairs), together=False)


def _centred(key: Key, pairs: Sequence[Logs]) -> list[float]:
    """A cell's data, less what the controls moved, pair by pair, where they did.

    Sides that take turns every few milliseconds see the same machine: mostly nothing moved, and to subtract the controls
    would add nothing but their own spread.
    """
    with_it = [pair for pair in pairs if key in pair]
    controls = _controls(with_it)
    moved = any(verdict.word in CHANGED for verdict in judge(controls, margin=0.0).values())
    return [float(x) for x in centred([pair[key] for pair in with_it], controls if moved else {})]


def _controls(pairs: Sequence[Logs]) -> dict[str, list[float]]:
    """Their data, by name."""
    return {key[1]: [pair[key] for pair in pairs] for key in CONTROLS if all(key in pair for pair in pairs)}


def _confirmed(
    keys: Sequence[Key], screened: list[Logs], confirmed: list[Logs], margin: float
) -> tuple[dict[Key, Verdict], dict[Key, list[Logs]]]:
    """Verdicts of the second stage, and the pairs that they were drawn from.

    A change is judged by fresh pairs alone. That there is none may be shown by all pairs together: the first ones were
    no luck that speaks for it, since they hadn't shown it.
    """
    pooled = [*screened, *confirmed]
    verdicts, by_all = _judged(keys, confirmed, margin), _judged(keys, pooled, margin)
    decided = dict.fromkeys(keys, confirmed)
    for key in keys:
        if verdicts[key].word == INCONCLUSIVE and _settled(by_all[key], margin, UNCHANGED):
            verdicts[key], decided[key] = by_all[key], pooled
    return verdicts, decided


def _concluded(
    cells: Sequence[Key],
    open_: Sequence[Key],
    screened: list[Logs],
    confirmed: list[Logs],
    margin: float,
    together: bool,
) -> Stages:
    first = _judged(cells, screened, margin)
    again = [key for key in open_ if sum(key in pair for pair in confirmed) >= LEAST]
    verdicts = first | {key: _unconfirmed(first[key]) for key in open_}
    decided = dict.fromkeys(cells, screened)
    second, by = _confirmed(again, screened, confirmed, margin)
    verdicts, decided = verdicts | second, decided | by
    deciding = {key: _centred(key, decided[key]) for key in cells}
    moved = machine_moved(deciding, margin, _controls(confirmed or screened), together)
    if moved:
        verdicts = {
            key: replace(verdict, word=INCONCLUSIVE, reason="machine drift", more_pairs=None)
            for key, verdict in verdicts.items()
        }
    return Stages(screened, confirmed, verdicts, decided, moved)


def _unconfirmed(verdict: Verdict) -> Verdict:
    if verdict.word not in CHANGED:
        return verdict
    return replace(
        verdict, word=INCONCLUSIVE, reason=f"{verdict.reason}? the time was over before fresh pairs could tell"
    )


class _Fell(Exception):
    def __init__(self, side: str, key: Key, outcome: NoRow):
        self.side, self.key, self.outcome = side, key, outcome


def _of(i: int, key: Key, act: Callable[[], float]) -> float:
    try:
        return act()
    except NoRow as outcome:
        raise _Fell(SIDES[i], key, outcome) from None
