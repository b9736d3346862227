"""Timing by turns: what a block is, who takes part in which round, and what a visit is. Knows no torch and no processes.

Two numbers that are compared must have the machine's mood in common, so what is compared takes turns: in every round each
member of a group once, in an order drawn anew. The ratio of two members is the median over the rounds of the ratio of their
blocks; so it repeats within 2 %, where medians taken one after the other differ by 11 % (docs/measured.md).
"""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

BLOCK = 2e-3
"""Seconds that one timed block lasts at least, so that reading the clock doesn't count."""

STRETCH = 2.5e-4
"""Seconds of a stretch, at least. On the wall clock a block is several: its fastest one is short enough to fall between what
disturbs it, and repeats better than the whole block (docs/measured.md).
"""

WARM_SHARE = 1 / 8
"""Share of a block's calls that go before it untimed, where it has several: others used the caches meanwhile. Calls as long as
a block fill them by themselves.
"""

REQUEST = 2e-4
"""Seconds, about, that asking a worker for a block takes."""

EVEN = 10e-3
"""Seconds of a block above which a member takes part in fewer rounds: as many as take about as long together."""

MIN_ROUNDS = 2
"""Rounds of a visit, at least, for members whose blocks are short."""

LONG = 0.25
"""Seconds of a call above which `MIN_BLOCKS` are enough for each of several processes. Else it is timed in every other visit at
least: by two ratios nobody is told apart.
"""

MIN_BLOCKS = 2
"""Blocks of a member in a process, at least."""

Member = TypeVar("Member", bound=Hashable)


@dataclass(frozen=True)
class Block:
    """What is timed at one go."""

    calls: int
    """Of a stretch."""
    stretches: int
    warm: int
    """Untimed calls before it."""
    seconds: float
    """That all of it takes, about."""


def block_of(seconds: float, in_stretches: bool = True) -> Block:
    """From the seconds of one call. Where the clock waits for a device it is read once a block."""
    calls = max(1, math.ceil((STRETCH if in_stretches else BLOCK) / max(seconds, 1e-9)))
    stretches = max(1, math.ceil(BLOCK / max(calls * seconds, 1e-9))) if in_stretches else 1
    warm = math.ceil(calls * stretches * WARM_SHARE) if calls * stretches > 1 else 0
    return Block(calls, stretches, warm, (calls * stretches + warm) * seconds + REQUEST)


def rounds(turns: Mapping[Member, int], rng: random.Random) -> Iterator[list[Member]]:
    """Each round's members, in an order drawn anew: those that have a turn left."""
    for i in range(max(turns.values(), default=0)):
        left = [member for member, count in turns.items() if count > i]
        yield rng.sample(left, len(left))


@dataclass(frozen=True)
class Visits:
    """How the time of a group's members is spread over the visits of one process."""

    count: int
    seconds: float
    """Of a member in all visits together."""
    processes: int = 1
    """That have such visits, each."""

    def turns(self, blocks: Mapping[Member, Block], visit: int, need: Mapping[Member, float]) -> dict[Member, int]:
        """How many rounds each member takes part in at the `visit`-th of the visits.

        Members with short blocks share their time by `need` (1 for the usual one). Others sit out most rounds, and are
        spread evenly over the visits.
        """
        short = {member: block for member, block in blocks.items() if block.seconds <= EVEN}
        found = {member: self._of_long(block, visit) for member, block in blocks.items() if member not in short}
        if short:
            wanted = sum(need.get(member, 1.0) * block.seconds for member, block in short.items())
            usual = self.seconds / self.count * len(short) / wanted
            found |= {member: max(MIN_ROUNDS, round(usual * need.get(member, 1.0))) for member in short}
        return {member: count for member, count in found.items() if count}

    def _of_long(self, block: Block, visit: int) -> int:
        fewest = MIN_BLOCKS if block.seconds > LONG and self.processes > 1 else self.count // 2
        wanted = max(fewest, int(self.seconds / block.seconds))
        if wanted < self.count:  # powers of two, so that who has fewer meets who has more
            wanted = 1 << wanted.bit_length() - 1
        return (visit + 1) * wanted // self.count - visit * wanted // self.count


def need(half_widths: Mapping[Member, float], precision: float) -> dict[Member, float]:
    """How much time each member should have, from how well its ratio is known: between a quarter and twice the usual."""
    return {member: min(2.0, max(0.25, width / precision)) for member, width in half_widths.items()}
