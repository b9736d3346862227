"""Defines a cell, the unit of measurement: an implementation on a case."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from impls import Impl

from .case import Case

Key = tuple[str, str]
"""(impl, case id)"""

Group = TypeVar("Group", bound=Hashable)


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


def grouped(cells: Iterable[Cell], of: Callable[[Case], Group]) -> dict[Group, list[Cell]]:
    """Group cells by a function of their case."""
    found: dict[Group, list[Cell]] = {}
    for cell in cells:
        found.setdefault(of(cell.case), []).append(cell)
    return found
