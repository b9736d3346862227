"""The plan of a comparison: what is compared, and the processes that it needs."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from ..cases.case import Case
from ..cases.cells import Key
from ..workers.client import NamedWorkers, Script, Setting, Variant, WorkerClient, run_concurrently

T = TypeVar("T")

Record = dict[str, Any]

VARIANTS = ("base", "head")


class Unjudgeable(Exception):
    """Nothing can be compared; the message explains why."""


@dataclass(frozen=True)
class Plan:
    """What is compared, and for how long."""

    variants: tuple[Variant, Variant]
    """base, head"""
    cases: tuple[Case, ...]
    names: tuple[str, ...]
    """Names given by `--impl`; empty for those of the sweep. Unused if each variant has its own implementation."""
    whole_registry: bool
    setting: Setting
    margin: float
    """Equivalence margin, within which an unchanged cell must lie."""
    seconds: float
    """Total seconds to use."""
    seed: int
    same: Record = field(default_factory=dict)
    """What must be equal for replicates to count together: cases, code, machine and procedure."""
    words: tuple[str, ...] = ()
    """Words of the options that name the user's files, where the variants have no copy of these."""
    allow_gone: tuple[str, ...] = ()
    """Implementations that head may lack, entirely or in some cases."""
    twins: Mapping[Path, Path] = field(default_factory=dict)
    """For the code folder of each variant, another folder with the same code, beside the other variant's copy."""

    @property
    def versus(self) -> str:
        """Label of cells that compare two differently named implementations; '' if both variants run the same names."""
        base, head = ((variant.impl or "").partition("=")[0] for variant in self.variants)
        return f"{head} against {base}" if base else ""

    @property
    def in_parallel(self) -> bool:
        """Whether both variants are prepared at once; not on a GPU, where one would be tuned beside the other."""
        return all(case.device == "cpu" for case in self.cases)

    @cached_property
    def _columns(self) -> dict[str, Record]:
        return {case.id: case.columns() for case in self.cases}

    def name_in(self, i: int, label: str) -> str:
        """Return the name of an implementation in a variant (0 base, 1 head)."""
        return (self.variants[i].impl or label).partition("=")[0]

    def request(self, i: int, key: Key) -> Record:
        """Return the request that prepares a cell in a variant."""
        return {"impl": self.name_in(i, key[0]), "case": self._columns[key[1]]}

    def start(self, variants: Sequence[Variant], cases: Collection[Case] = ()) -> NamedWorkers:
        """Start a process for each variant, which imports the implementations and checks support for these cases."""
        by_name = dict(by_variant(variants))
        of_all = {"whole_registry": self.whole_registry, "cases": [case.columns() for case in cases]}
        return NamedWorkers(
            lambda name: WorkerClient(by_name[name], self.setting),
            {name: of_all | {"names": [it.impl] if it.impl else self.names} for name, it in by_name.items()},
        )

    def run(self, scripts: Sequence[Script]) -> None:
        """Run the scripts of base and head, in parallel or one after the other."""
        for those in [scripts] if self.in_parallel else [[script] for script in scripts]:
            run_concurrently(those)

    def placed(self, rng: random.Random) -> list[Variant]:
        """Choose for both variants their own folders or their twins at random: effects of the path become noise."""
        twins = self.twins if rng.random() < 0.5 else {}
        return [
            replace(it, impls=twins.get(it.impls, it.impls), tree=it.tree and twins.get(it.tree, it.tree))
            for it in self.variants
        ]


def by_variant(values: Iterable[T]) -> Iterator[tuple[str, T]]:
    """Pair the values of base and head with these words."""
    return zip(VARIANTS, values, strict=True)
