"""Runs one comparison: checks the cells of both variants, times them in replicates, and derives verdicts."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import monotonic, strftime
from typing import Any

from stats.effects import of_saved
from stats.verdict import BROKEN, GONE, INCONCLUSIVE, NEW, WRONG, Verdict, drifted

from ..cases.case import Case
from ..cases.cells import Key
from ..cases.outcome import Skip, Unsupported, Wrong
from ..runs.rows import finite
from ..selection.errors import UsageError
from ..workers.client import Lost, NamedWorkers, Reply, Request, Script, Setting, Variant, WorkerClient, checking
from .replicates import GPU_WORKLOADS, VARIANTS, WORKLOADS, Replicate, Replication, run_both, until_settled, verdicts_of

OF_INTERPRETERS = ("torch", "torch_build", "python", "cpu_capability")
"""Parts of the fingerprint that may differ when two interpreters are compared."""

Facts = dict[str, Any]
"""Results of a cell's check: `error`, `error_bound`, `peak_bytes`, `kernel`."""

Found = dict[Key, Facts | Skip]
Requests = dict[Key, dict[str, Any]]
"""Request that prepares each cell: the implementation's name in this variant, and the case."""

Record = dict[str, Any]

KIND = "ab"
"""Value of `kind` that distinguishes the file from a run's."""

SCHEMA = 1

UNSUPPORTED = Unsupported.reason

Tell = Callable[[str], None]


class Unjudgeable(Exception):
    """Nothing can be compared; the message explains why."""


class HeadBroken(Unjudgeable):
    """Head's process ends while it starts; base's does not."""


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
    code: tuple[str, str] = ("", "")
    """Digest of each variant's code, the user's modules included."""
    allow_gone: tuple[str, ...] = ()
    """Implementations that head may lack, entirely or in some cases."""
    before: tuple[Replicate, ...] = ()
    """Replicates of the comparison that this one continues."""
    fingerprints: Sequence[Mapping[str, Any]] = ()
    """Fingerprints of base and head in that comparison; empty if there is none."""
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

    def of_head(self, label: str) -> str:
        """Return head's own name of an implementation."""
        return (self.variants[1].impl or label).partition("=")[0]


def compare(plan: Plan, tell: Tell, keep: Callable[[Replicate], None] = lambda replicate: None) -> Record:
    """Compare two variants; calls `keep` after every replicate, so that a later plan can continue (`Plan.before`).

    Raises `Unjudgeable`, or `UsageError` if no requested implementation exists.
    """
    began = monotonic()

    def left() -> float:
        return plan.seconds - (monotonic() - began)

    with closing(_start_workers(plan, plan.variants, plan.cases)) as workers:
        try:
            known, fingerprints, workloads = _first_replies(plan, workers)
        except HeadBroken as why:
            broken = cell_of(("all", "implementations"), Verdict(BROKEN, str(why)), failed=["head"])
            return record(plan, [broken], seconds=monotonic() - began)
        cells, neither, requests, found = _available_cells(plan, known)
        tell(f"checking {len(cells)} cell{'s' * (len(cells) != 1)} of base and head")
        run_both([_checking(plan, workers, i, requests[i], found[i]) for i in (0, 1)], plan.in_parallel)
    ready = [key for key in cells if all(isinstance(of[key], dict) for of in found)]
    rng = random.Random(plan.seed + len(plan.before))
    replication = Replication(
        lambda: _start_replicate(plan, _placed(plan, rng)), requests, rng, workloads, in_parallel=plan.in_parallel
    )
    replicates = []
    if ready:
        replicates = until_settled(replication.replicate, ready, plan.margin, left, tell, plan.before, keep)
    verdicts, lines = verdicts_of(ready, replicates, plan.margin), []
    for key in cells:
        variants = found[0][key], found[1][key]
        failures = {variant: it for variant, it in zip(VARIANTS, variants, strict=True) if isinstance(it, Skip)}
        if failed_cell := replication.failures.get(key):
            failures[failed_cell.variant] = failed_cell.outcome
        verdict = _without_numbers(failures, plan.of_head(key[0]), plan.allow_gone) if failures else verdicts[key]
        failed = [variant for variant, failure in failures.items() if failure.reason != UNSUPPORTED]
        lines.append(cell_of(key, verdict, *(None if isinstance(it, Skip) else it for it in variants), failed=failed))
    return record(plan, lines, replicates, drifted(of_saved(replicates)[1]), fingerprints, monotonic() - began, neither)


def cell_of(
    key: Key, verdict: Verdict, base: Facts | None = None, head: Facts | None = None, *, failed: Sequence[str] = ()
) -> Record:
    """Build a cell's record; facts are None for a variant without it, `failed` lists variants that failed."""
    return {"impl": key[0], "id": key[1]} | asdict(verdict) | {"base": base, "head": head, "failed": [*failed]}


def record(
    plan: Plan,
    cells: Sequence[Record],
    replicates: Sequence[Replicate] = (),
    moved: str = "",
    fingerprints: Sequence[Mapping[str, Any]] = ({}, {}),
    seconds: float = 0.0,
    neither: Sequence[str] = (),
) -> Record:
    """Build the saved comparison, with every replicate and its blocks: verdicts can be derived again, and it can be
    continued.

    Its keys keep the names of earlier files: `sides` are the variants, `pairs` the replicates. Numbers that are not
    finite are null. `moved`: why no verdict on the code is possible; or ''. `neither`: cells that both variants lack,
    as `loop B1-...: loop stops at T = 64`.
    """
    variants = [
        {"label": it.label, "impl": it.impl, "python": it.python, "commit": it.commit, "code": code}
        for it, code in zip(plan.variants, plan.code, strict=True)
    ]
    whole: Record = {
        "kind": KIND,
        "schema": SCHEMA,
        "datetime": strftime("%Y-%m-%dT%H:%M:%S%z"),
        "sides": dict(zip(VARIANTS, variants, strict=True)),
        "rivals": plan.versus,
        "fingerprints": dict(zip(VARIANTS, fingerprints, strict=True)),
        "margin": plan.margin,
        "threads": plan.setting.threads,
        "seed": plan.seed,
        "seconds": seconds,
        "moved": moved,
        "cells": cells,
        "neither": neither,
        "pairs": replicates,
    }
    return dict(finite(whole))


def _without_numbers(failures: Mapping[str, Skip], name: str, allow_gone: Collection[str]) -> Verdict:
    """Return the verdict on a cell without a number in some variant; `name` is head's name of the implementation."""
    word = _word({variant: failure.reason for variant, failure in failures.items()}, name in allow_gone)
    gone = word == BROKEN and failures["head"].reason == UNSUPPORTED
    by_sentence: dict[str, list[str]] = {}
    for variant, why in failures.items():
        by_sentence.setdefault(_sentence(variant, why, len(failures) == 1), []).append(variant)
    reason = "; ".join(" and ".join(variants) + sentence for sentence, variants in by_sentence.items())
    return Verdict(word, reason + f" (--allow-gone {name} where that is meant)" * gone)


def _word(reasons: Mapping[str, str], may_go: bool) -> str:
    """Return the verdict's word, from the reason of each variant without a number."""
    base, head = (reasons.get(variant, UNSUPPORTED) for variant in VARIANTS)
    if base != UNSUPPORTED or head == Wrong.reason:
        fail_alike = head != UNSUPPORTED and Wrong.reason not in (base, head)
        return INCONCLUSIVE if fail_alike else WRONG
    if head != UNSUPPORTED:
        return BROKEN
    if "head" not in reasons:
        return NEW
    if "base" in reasons:
        return INCONCLUSIVE
    return GONE if may_go else BROKEN


def _sentence(variant: str, why: Skip, alone: bool) -> str:
    """Return the part of a sentence that follows the variant's name."""
    if why.reason == UNSUPPORTED:
        return f": {why}"
    if why.reason == Wrong.reason and alone:
        return f"{' now' * (variant == 'head')} fails the correctness check: {why}"
    return f": {why.reason}: {why}"


def _start_workers(plan: Plan, variants: Sequence[Variant], cases: Collection[Case] = ()) -> NamedWorkers:
    """Start a process for each variant, which imports the implementations and checks support for these cases."""
    by_name = dict(zip(VARIANTS, variants, strict=True))
    of_all = {"whole_registry": plan.whole_registry, "cases": [case.columns() for case in cases]}
    names = {name: [variant.impl] if variant.impl else list(plan.names) for name, variant in by_name.items()}
    return NamedWorkers(
        lambda name: WorkerClient(by_name[name], plan.setting),
        {name: of_all | {"names": names[name]} for name in VARIANTS},
    )


def _first_replies(plan: Plan, workers: NamedWorkers) -> tuple[list[Reply], list[Reply], list[Key]]:
    """Return both processes' replies to `cells`, their fingerprints, and the reference workloads that are equal in both;
    raises `Unjudgeable`, or `HeadBroken`, if a process ends, and if conditions differ.
    """
    known, facts = [], []
    for name, variant in zip(VARIANTS, plan.variants, strict=True):
        try:
            known.append(workers.first_reply(name))
            facts.append(workers.clients[name].ask("facts"))
        except Skip as error:
            raise (HeadBroken if name == "head" else Unjudgeable)(f"{name} ({variant.label}): {error}") from None
    base, head = fingerprints = [it["fingerprint"] for it in facts]
    if plan.fingerprints and fingerprints != plan.fingerprints:
        raise UsageError("the machine or its software is not what it was: compare anew, without --continue")
    free = OF_INTERPRETERS if plan.variants[0].python != plan.variants[1].python else ()
    differ = [name for name in base if base[name] != head[name] and name not in free]
    if differ:
        differences = "; ".join(f"{name}: {base[name]} and {head[name]}" for name in differ)
        raise Unjudgeable(f"base and head run under different conditions: {differences}")
    workloads = WORKLOADS if plan.in_parallel else WORKLOADS + GPU_WORKLOADS
    versions = [it["controls"] for it in facts]
    return known, fingerprints, [key for key in workloads if versions[0][key[1]] == versions[1][key[1]]]


def _available_cells(
    plan: Plan, replies: Sequence[Reply]
) -> tuple[list[Key], list[str], tuple[Requests, Requests], tuple[Found, Found]]:
    """Return the cells available in some variant, in the order of the cases, and sentences on the others; by variant,
    the requests and the reasons for unsupported cells.

    Raises `UsageError` if neither variant supports any cell.
    """
    base, head = (reply["unknown"] for reply in replies)
    for why in ({**base, **head} if plan.versus else {name: head[name] for name in head if name in base}).values():
        raise UsageError(why)
    names = [{plan.versus or name: name for name in reply["cells"]} for reply in replies]
    cells, neither = [], []
    requests: tuple[Requests, Requests] = ({}, {})
    found: tuple[Found, Found] = ({}, {})
    for case in plan.cases:
        for label in dict.fromkeys([*names[0], *names[1]]):
            key = label, case.id
            for i, reply in enumerate(replies):
                own = names[i].get(label)
                why = reply["cells"][own][case.id] if own else reply["unknown"].get(label, f"there is no {label}")
                if why:
                    found[i][key] = Unsupported(why)
                else:
                    requests[i][key] = {"impl": own, "case": case.columns()}
            if key in found[0] and key in found[1]:
                neither.append(f"{label} {case.id}: {why}")
            else:
                cells.append(key)
    if not cells:
        raise UsageError(f"nothing to compare: {[*neither, 'no implementation in base or head'][0]}")
    return cells, neither, requests, found


def _checking(plan: Plan, workers: NamedWorkers, i: int, requests: Requests, found: Found) -> Script:
    """Check each cell of a variant and store its facts or its failure; a lost process is replaced."""
    for key, request in requests.items():
        try:
            found[key] = yield from _check_cell(workers.clients[VARIANTS[i]], request, plan.setting.threads != 1)
        except Skip as outcome:
            found[key] = outcome
            if isinstance(outcome, Lost):
                workers.replace(VARIANTS[i])


def _check_cell(client: WorkerClient, request: Mapping[str, Any], threaded: bool) -> Generator[Request, Reply, Facts]:
    """Return the facts from a cell's check; raises the reason for its rejection, including result caching."""
    it = {"what": "it"}
    checked = yield from checking(client, "it", **request, threaded=threaded)
    yield Request(client, "time", it | {"calls": 1, "input_set": 1})  # on fresh inputs
    usual = (yield Request(client, "time", it | {"calls": 1, "warm": 1}))["seconds"]
    yield Request(client, "caching", it | {"usual": usual, "first": checked["seconds"]})
    yield Request(client, "drop", it | {"outputs": True})  # nothing is built again in this process
    facts: Facts = checked["columns"]
    return facts


def _placed(plan: Plan, rng: random.Random) -> tuple[Variant, Variant]:
    """Choose for both variants their own folders or their twins at random: effects of the path become noise."""
    twins = plan.twins if rng.random() < 0.5 else {}
    base, head = (
        replace(it, impls=twins.get(it.impls, it.impls), tree=it.tree and twins.get(it.tree, it.tree))
        for it in plan.variants
    )
    return base, head


def _start_replicate(plan: Plan, variants: Sequence[Variant]) -> NamedWorkers:
    """Start the processes of a replicate, ready to prepare cells."""
    workers = _start_workers(plan, variants)
    try:
        for name in VARIANTS:
            workers.first_reply(name)
    except BaseException:
        workers.close()
        raise
    return workers
