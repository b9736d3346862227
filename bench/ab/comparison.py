"""Runs one comparison: checks the cells of both variants, times them in replicates, and derives verdicts."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from time import monotonic, strftime

from stats.effects import WORKLOAD
from stats.verdict import BROKEN, GONE, INCONCLUSIVE, NEW, WRONG, Verdict

from ..cases.axes import nearest
from ..cases.cells import Key
from ..cases.outcome import Skip, Unsupported, Wrong
from ..runs.rows import finite
from ..selection.errors import UsageError
from ..timing.reference_workload import WORK
from ..workers.client import Lost, NamedWorkers, Reply, Request, Script, checking
from .plan import VARIANTS, Plan, Record
from .replicates import LONG_BLOCK, Found, Replicate, Replication, tell

OF_INTERPRETERS = ("torch", "torch_build", "python", "cpu_capability")
"""Parts of the fingerprint that may differ when two interpreters are compared."""

UNSUPPORTED = Unsupported.reason


def compare(plan: Plan, before: Sequence[Replicate], keep: Callable[[Replicate], None]) -> Record:
    """Compare two variants, with the replicates `before`; calls `keep` after each new one.

    Returns what is saved, with every replicate and its blocks: verdicts can be derived again, and it can be continued.
    Its keys keep the names of earlier files: `sides` are the variants, `pairs` the replicates. Numbers that are not
    finite are null. `neither`: cells that both variants lack, as `loop B1-...: loop supports T up to 64`.

    Raises `Skip` if nothing can be compared, or `UsageError` if no requested implementation exists.
    """
    began = monotonic()

    def left() -> float:
        return plan.seconds - (monotonic() - began)

    with closing(plan.start(plan.cases.values())) as workers:
        first, second = (_first_reply(workers, name) for name in VARIANTS)
        if isinstance(first, Skip):
            raise Skip(f"base ({plan.variants[0].label}): {first}")
        base, head = first, first if isinstance(second, Skip) else second
        _refuse_other_conditions(plan, base["fingerprint"], head["fingerprint"])
        same = [name for name, version in base["workloads"].items() if head["workloads"][name] == version]
        workloads = [(WORKLOAD, name) for name in same if name in WORK or not plan.in_parallel]
        cells, neither, found = _available_cells(plan, (base, head))
        if isinstance(second, Skip):
            found = {key: {} for key in cells}, dict.fromkeys(cells, second)
        tell(f"checking cells of base and head: {len(cells)}", left())
        plan.run([_checking(plan, workers, i, cells, found[i]) for i in (0, 1)])
    replication = Replication(plan, found, workloads, random.Random(plan.seed + len(before)))
    replicates, verdicts = replication.until_settled(replication.timeable(cells), left, before, keep)
    return dict(
        finite({
            "datetime": strftime("%Y-%m-%dT%H:%M:%S%z"),
            "sides": {
                name: {"label": it.label, "commit": it.commit} for name, it in zip(VARIANTS, plan.variants, strict=True)
            },
            "same": plan.same,
            "fingerprints": {"base": base["fingerprint"], "head": head["fingerprint"]},
            "margin": plan.margin,
            "threads": plan.setting.threads,
            "seed": plan.seed,
            "seconds": monotonic() - began,
            "cells": [_cell(plan, key, {"base": found[0][key], "head": found[1][key]}, verdicts) for key in cells],
            "neither": neither,
            "pairs": replicates,
        })
    )  # fmt: skip


def _cell(plan: Plan, key: Key, facts: Mapping[str, Record | Skip], verdicts: Mapping[Key, Verdict]) -> Record:
    """Return a cell's record; `failed` lists the variants that failed."""
    failures = {name: it for name, it in facts.items() if isinstance(it, Skip)}
    verdict = _without_numbers(failures, plan.name_in(1, key[0]), plan.allow_gone) if failures else verdicts[key]
    known = {name: None if name in failures else it for name, it in facts.items()}
    failed = [name for name, failure in failures.items() if failure.reason != UNSUPPORTED]
    return {"impl": key[0], "id": key[1]} | vars(verdict) | known | {"failed": failed}


def _without_numbers(failures: Mapping[str, Skip], name: str, allow_gone: Collection[str]) -> Verdict:
    """Return the verdict on a cell without a number in some variant; `name` is head's name of the implementation."""
    base, head = (failures[variant].reason if variant in failures else "" for variant in VARIANTS)
    word = _word(base, head, name in allow_gone)
    by_text: dict[str, list[str]] = {}
    for variant, why in failures.items():
        by_text.setdefault(str(why) if why.reason == UNSUPPORTED else f"{why.reason}: {why}", []).append(variant)
    reason = "; ".join(f"{' and '.join(variants)}: {text}" for text, variants in by_text.items())
    gone = word == BROKEN and head == UNSUPPORTED
    return Verdict(word, reason + f" (if intended: --allow-gone {name})" * gone)


def _word(base: str, head: str, may_go: bool) -> str:
    """Return the verdict's word, from the reason why each variant has no number; '' if it has one."""
    if Wrong.reason in (base, head):
        return WRONG
    if base and head and (base == UNSUPPORTED) == (head == UNSUPPORTED):
        return INCONCLUSIVE
    if base not in ("", UNSUPPORTED):
        return WRONG
    if not head:
        return NEW
    return GONE if head == UNSUPPORTED and may_go else BROKEN


def _first_reply(workers: NamedWorkers, name: str) -> Reply | Skip:
    """Return a process's reply to `cells`, or how it ended."""
    try:
        return workers.first_reply(name)
    except Skip as ended:
        return ended


def _refuse_other_conditions(plan: Plan, base: Record, head: Record) -> None:
    """Raise `Skip` if fingerprints differ in more than what is compared."""
    free = OF_INTERPRETERS if plan.variants[0].python != plan.variants[1].python else ()
    differ = [f"{name}: {it} and {head[name]}" for name, it in base.items() if it != head[name] and name not in free]
    if differ:
        raise Skip(f"base and head run under different conditions: {'; '.join(differ)}")


def _available_cells(plan: Plan, replies: Sequence[Reply]) -> tuple[list[Key], list[str], tuple[Found, Found]]:
    """Return the cells available in some variant, in the order of the cases, and sentences on the others; by variant, the
    reasons for unsupported cells.

    Raises `UsageError` if neither variant supports any cell, and for `--allow-gone` of what neither has.
    """
    base, head = (reply["unknown"] for reply in replies)
    for why in ({**base, **head} if plan.versus else {name: head[name] for name in head if name in base}).values():
        raise UsageError(why)
    labels = [plan.versus] if plan.versus else [*dict.fromkeys(name for reply in replies for name in reply["cells"])]
    in_head = [plan.name_in(1, label) for label in labels]
    for name in plan.allow_gone:
        if name not in in_head:
            raise UsageError(f"--allow-gone {name}: nothing of that name is compared{nearest(name, in_head)}")
    cells, neither = [], []
    found: tuple[Found, Found] = ({}, {})
    for key in ((label, case) for case in plan.cases for label in labels):
        for i, reply in enumerate(replies):
            name = plan.name_in(i, key[0])
            missing = reply["unknown"].get(name, f"there is no {name}")
            if why := reply["cells"].get(name, {}).get(key[1], missing):
                found[i][key] = Unsupported(why)
        if key in found[0] and key in found[1]:
            neither.append(f"{' '.join(key)}: {why}")
        else:
            cells.append(key)
    if not cells:
        raise UsageError(f"nothing to compare: {[*neither, 'no implementation in base or head'][0]}")
    return cells, neither, found


def _checking(plan: Plan, workers: NamedWorkers, i: int, cells: Sequence[Key], found: Found) -> Script:
    """Check the cells that a variant supports, result caching included, and store facts or failures; a lost process is
    replaced.
    """
    it = {"what": "it"}
    for key in (key for key in cells if key not in found):
        client = workers.clients[VARIANTS[i]]
        try:
            checked = yield from checking(client, "it", **plan.request(i, key), threaded=plan.setting.threads != 1)
            first = checked["seconds"]
            warm = int(first < LONG_BLOCK)  # no long call is made in vain: one on fresh inputs precedes this one
            usual = (yield Request(client, "time", it | {"calls": 1, "warm": warm}))["seconds"]
            yield Request(client, "caching", it | {"usual": usual, "first": first})
            yield Request(client, "drop", it | {"outputs": True})  # nothing is built again in this process
            found[key] = checked["columns"]
        except Skip as outcome:
            found[key] = outcome
            if isinstance(outcome, Lost):
                workers.replace(VARIANTS[i])
