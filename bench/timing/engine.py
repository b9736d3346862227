"""The schedule of timing: blocks, rounds and visits. Needs neither torch nor processes.

Numbers that are compared must be measured under the same conditions, so the members of a group are interleaved: each round
times every member once, in random order. The ratio of two members is taken round by round and visit by visit (`stats/ratios.py`);
it repeats within 1.9 % (median of two runs), and within 15.6 % where one is timed after the other (docs/measured.md).
"""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from stats.ratios import VISITS as VISITS

BLOCK = 2e-3
"""Seconds that one timed block lasts at least, so that reading the clock doesn't count."""

STRETCH = 2.5e-4
"""Seconds of a stretch, at least. On the wall clock a block is several: its fastest one is short enough to fall between what
disturbs it, and repeats better than the whole block (docs/measured.md).
"""

WARM_SHARE = 1 / 8
"""Share of a block's calls that precede it untimed, where it has several: other implementations have evicted the caches."""

REQUEST = 2e-4
"""Approximate seconds of one request to a worker."""

EVEN = 10e-3
"""Seconds of a block above which it is long: its member takes part in fewer visits."""

MIN_ROUNDS = 2
"""Rounds of a visit, at least, for members whose blocks are short."""

LONG_VISITS = 3
"""Visits in which members with long blocks take part: their first call in each is not timed."""

LONG_ROUNDS = 8
"""Rounds in which every member takes part, at least, in all processes together."""

NEED = 0.25, 1.25
"""The least and the most of the usual time that a member has in one of the later visits."""

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


def block_of(seconds: float) -> Block:
    """From the seconds of one call."""
    calls = max(1, math.ceil(STRETCH / max(seconds, 1e-9)))
    stretches = max(1, math.ceil(BLOCK / max(calls * seconds, 1e-9)))
    warm = math.ceil(calls * stretches * WARM_SHARE) if calls * stretches > 1 else 0
    return Block(calls, stretches, warm, (calls * stretches + warm) * seconds + REQUEST)


def rounds(turns: Mapping[Member, int], rng: random.Random) -> Iterator[list[Member]]:
    """The members of each round, in random order: those with rounds left."""
    for i in range(max(turns.values(), default=0)):
        left = [member for member, count in turns.items() if count > i]
        yield rng.sample(left, len(left))


@dataclass(frozen=True)
class Visits:
    """How the time of a group's members is spread over the visits of one process."""

    seconds: float
    """Of a member in all visits together, usually."""
    processes: int = 1
    """That have such visits, each."""

    @property
    def long(self) -> int:
        """Visits in which members with long blocks take part."""
        return LONG_VISITS if self.processes == 1 else LONG_VISITS // 2

    def is_long(self, visit: int) -> bool:
        """Whether members with long blocks take part in the `visit`-th visit."""
        return (visit + 1) % (VISITS // self.long) == 0

    def turns(self, blocks: Mapping[Member, Block], visit: int, need: Mapping[Member, float]) -> dict[Member, int]:
        """How many rounds each member takes part in at the `visit`-th of the visits: `need` times the usual number (default 1).

        Where a member with a long block takes part, all do, in as many rounds at least; where none does and there is no need
        at all, there are no rounds.
        """
        long = {member for member, block in blocks.items() if block.seconds > EVEN}
        fewest = math.ceil(LONG_ROUNDS / self.long / self.processes) if long and self.is_long(visit) else 0
        if not fewest and not any(need.get(member, 1.0) for member in blocks):
            return {}
        found: dict[Member, int] = {}
        for members, count, least in (
            (blocks.keys() - long, VISITS, max(MIN_ROUNDS, fewest)),
            (long if fewest else set(), self.long, fewest),
        ):
            usual = self.seconds / count * len(members) / (sum(blocks[it].seconds for it in members) or 1.0)
            found |= {it: max(least, round(usual * need.get(it, 1.0))) for it in blocks if it in members}
        return found


def need(half_widths: Mapping[Member, float], precision: float) -> dict[Member, float]:
    """Share of the usual time for each member in the later half of the visits, from its half-width after the first:
    within `NEED`, and 0 where all are known. After all visits an interval is about half as wide.
    """
    if max(half_widths.values(), default=0.0) <= precision:
        return dict.fromkeys(half_widths, 0.0)
    least, most = NEED
    return {member: min(most, max(least, width / 2 / precision)) for member, width in half_widths.items()}
