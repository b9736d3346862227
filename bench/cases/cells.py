"""Defines a cell, the unit of measurement: an implementation on a case."""

from __future__ import annotations

from dataclasses import dataclass

from impls import Impl

from .case import Case
from .counting import flops, least_memory

Key = tuple[str, str]
"""(impl, case id)"""

LONG_FLOPS = 1e10
"""Floating-point operations of a long call, which takes some 0.1 s on a CPU."""


@dataclass(frozen=True)
class Cell:
    """One implementation on one case: ends in one row, or in one reason for having none."""

    impl: Impl
    case: Case

    @property
    def key(self) -> Key:
        return self.impl.name, self.case.id

    @property
    def least_memory(self) -> int:
        """Least memory in bytes (`counting.least_memory`)."""
        return least_memory(self.impl, self.case)

    @property
    def checked_alone(self) -> bool:
        """Whether no other cell is checked at the same time: a long call of several threads, whose seconds are used later. A
        Python loop has one thread.
        """
        return self.case.threads != 1 and not self.impl.limits.loops and flops(self.case) > LONG_FLOPS
