"""Defines a cell, the unit of measurement: an implementation on a case."""

from __future__ import annotations

from dataclasses import dataclass

from impls import Impl

from .case import Case

Key = tuple[str, str]
"""(impl, case id)"""


@dataclass(frozen=True)
class Cell:
    """One implementation on one case: ends in one row, or in one reason for having none."""

    impl: Impl
    case: Case

    @property
    def key(self) -> Key:
        return self.impl.name, self.case.id

    @property
    def threaded(self) -> bool:
        """Whether a call may use several threads: a Python loop doesn't."""
        return self.case.threads != 1 and not self.impl.limits.loops
