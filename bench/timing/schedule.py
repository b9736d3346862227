"""Timing schedule: blocks, rounds and visits. Independent of torch and of processes.

Compared numbers must be measured under the same conditions, so the members of a group, such as the cells of a case, are
interleaved: each round times every member once, in random order. The ratio of two members is taken round by round
(`stats/ratios.py`). From run to run it differs by 1.6 % (median of all ratios); without interleaving, by 15.6 %
(docs/measured.md).
"""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import TypeVar

from stats.ratios import VISITS as VISITS

BLOCK = 2e-3
"""Least seconds of one timed block, so that reading the clock is negligible."""

SLICE = 2.5e-4
"""Least seconds of a slice. On the wall clock a block of short calls has several: the fastest one is short enough to avoid
disturbances, and repeats better than the whole block (docs/measured.md).
"""

WARM_SHARE = 1 / 8
"""Share of a block's calls run untimed before it, if it has several: other implementations have evicted the caches."""

REQUEST = 2e-4
"""Approximate seconds of one request to a worker."""

LONG_MEMBER = 50e-3
"""Seconds of a block above which it counts as long: its member takes part in fewer visits."""

MIN_VISIT_ROUNDS = 2
"""Least rounds of a visit for members with short blocks."""

LONG_VISITS = 2
"""Visits of a process in which members with long blocks take part: the scatter of a single one is unknown."""

COMMON_ROUNDS, COMMON_SECONDS = 8, 120.0
"""Rounds, over all processes, in which every member takes part if some have long blocks; one in each of the `LONG_VISITS`
of every process if these are more. Fewer rounds, and visits, if they would take more than these seconds.
"""

NEED = 0.25, 1.25
"""Least and largest time of a member in a visit of the second half, as a multiple of its time in the first half."""

Member = TypeVar("Member", bound=Hashable)


@dataclass(frozen=True)
class Block:
    """A unit of timing: one or more slices; of several calls, after untimed ones."""

    calls: int
    """Calls per slice."""
    slices: int
    warm: int
    """Untimed calls before the block."""
    seconds: float
    """Approximate seconds of the whole block."""


def block_of(seconds: float) -> Block:
    """Return the block for a call of this many seconds."""
    seconds = max(seconds, 1e-9)
    calls = math.ceil(SLICE / seconds)
    slices = math.ceil(BLOCK / (calls * seconds))
    warm = math.ceil(calls * slices * WARM_SHARE) if calls * slices > 1 else 0
    return Block(calls, slices, warm, (calls * slices + warm) * seconds + REQUEST)


def rounds(counts: Mapping[Member, int], rng: random.Random) -> Iterator[list[Member]]:
    """Yield the members of each round that have rounds left, in random order."""
    for i in range(max(counts.values(), default=0)):
        left = [member for member, count in counts.items() if count > i]
        yield rng.sample(left, len(left))


def counts(
    blocks: Mapping[Member, Block], visit: int, need: Mapping[Member, float], seconds: float, processes: int
) -> dict[Member, int]:
    """Return the number of rounds of each member in the `visit`-th visit of a process: `need` times the usual number
    (default 1).

    `seconds`: usual seconds of a member in all visits of a process; `processes`: number of processes that make them.
    If a member with a long block takes part, all members do, in at least as many rounds; if none does and no need is
    left, there are no rounds.
    """
    long = [member for member, block in blocks.items() if block.seconds > LONG_MEMBER]
    within = COMMON_SECONDS / sum(block.seconds for block in blocks.values())
    common_of_run = min(within, max(COMMON_ROUNDS, LONG_VISITS * processes))
    common_of_process = max(math.ceil(LONG_VISITS / processes), round(common_of_run / processes))
    long_visits = min(LONG_VISITS, common_of_process)
    takes_part = long and (visit + 1) % (VISITS // long_visits) == 0
    common = math.ceil(common_of_process / long_visits) if takes_part else 0
    if not common and not any(need.get(member, 1.0) for member in blocks):
        return {}
    found: dict[Member, int] = {}
    for members, visits, least in (
        ([it for it in blocks if it not in long], VISITS, max(MIN_VISIT_ROUNDS, common)),
        (long if takes_part else [], long_visits, common),
    ):
        if members:
            usual = seconds / visits / fmean(blocks[it].seconds for it in members)
            found |= {it: max(least, round(usual * need.get(it, 1.0))) for it in members}
    return found


def need(half_widths: Mapping[Member, float], precision: float) -> dict[Member, float]:
    """Return the multiple of the usual time for each member in the second half of the visits, within `NEED`; 0 for all
    members if no half-width is above `precision`.

    `half_widths`: of each member's ratio after the first half. With twice the visits, and more degrees of freedom, it is
    about half as wide.
    """
    if max(half_widths.values(), default=0.0) <= precision:
        return dict.fromkeys(half_widths, 0.0)
    least, most = NEED
    return {member: min(most, max(least, width / 2 / precision)) for member, width in half_widths.items()}
