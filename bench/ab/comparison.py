"""Runs one comparison: checks the cells of both variants, times them in replicates, and derives verdicts."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from time import strftime

from stats.effects import WORKLOAD
from stats.estimate import grouped
from stats.verdict import BROKEN, GONE, INCONCLUSIVE, NEW, WRONG, Verdict

from ..cases.cells import Key
from ..cases.outcome import Skip, Unsupported, Wrong
from ..runs.rows import finite
from ..selection.errors import UsageError
from ..terminal import warn
from ..timing.reference_workload import OF_GPU_RUNS, WORK
from ..workers.client import NamedWorkers, Reply, Request, Script, checking
from .plan import VARIANTS, Plan, Record, SameCode
from .replicates import LONG_BLOCK, Found, Replicate, Replication, tell

UNSUPPORTED = Unsupported.reason

LEFT_OUT = "a variant lacks ignored files, such as extensions built in place, and submodules"
"""What an import may miss in a variant's tree."""


def compare(plan: Plan, seconds: float, before: Sequence[Replicate], keep: Callable[[Replicate], None]) -> Record:
    """Check two variants, then compare them for about this long, with the replicates `before`; calls `keep` after each new
    one. The check doesn't count: building an extension, or compiling, would leave few replicates.

    Returns what is saved, with every replicate and its blocks: verdicts can be derived again, and it can be continued.
    Its keys keep the names of earlier files: `sides` are the variants, `pairs` the replicates. Numbers that are not
    finite are null. `neither`: cells that both variants lack, as `loop B1-...: loop supports T up to 64`.

    Raises `Skip` if nothing can be compared, or `UsageError` if no requested implementation exists.
    """
    with closing(plan.start()) as workers:
        base, head = (_first_reply(plan, workers, name) for name in VARIANTS)
        if isinstance(base, Skip):
            raise Skip(f"base ({plan.variants['base'].label}): {base}")
        replies = {"base": base, "head": base if isinstance(head, Skip) else head}
        workloads = [
            (WORKLOAD, name)
            for name, version in base["workloads"].items()
            if replies["head"]["workloads"][name] == version and name in (WORK if plan.in_parallel else OF_GPU_RUNS)
        ]
        found, neither = _available_cells(plan, replies)
        if plan.same_code:
            raise SameCode(*(it.label for it in plan.variants.values()))
        if isinstance(head, Skip):
            found = {key: {"base": {}, "head": head} for key in found}
        tell(f"checking cells of base and head: {len(found)}", seconds)
        plan.run([_checking(plan, workers, name, found) for name in VARIANTS])
    replication = Replication(plan, found, workloads, random.Random(plan.seed + len(before)))
    replicates, verdicts = replication.until_settled(seconds, before, keep)
    return dict(
        finite({
            "datetime": strftime("%Y-%m-%dT%H:%M:%S%z"),
            "sides": {name: {"label": it.label, "commit": it.commit} for name, it in plan.variants.items()},
            "same": plan.same,
            "fingerprints": {name: reply["fingerprint"] for name, reply in replies.items()},
            "margin": plan.margin,
            "threads": plan.setting.threads,
            "seed": plan.seed,
            "seconds": sum(replicate["seconds"] for replicate in replicates),
            "cells": [_cell(plan, key, facts, verdicts) for key, facts in found.items()],
            "neither": neither,
            "pairs": replicates,
        })
    )  # fmt: skip


def _cell(plan: Plan, key: Key, facts: Mapping[str, Record | Skip], verdicts: Mapping[Key, Verdict]) -> Record:
    """Return a cell's record; `failed` lists the variants that failed."""
    failures = {name: it for name in VARIANTS if isinstance(it := facts[name], Skip)}
    verdict = _without_numbers(failures, plan.name_in("head", key[0]), plan.allow_gone) if failures else verdicts[key]
    failed = [name for name, failure in failures.items() if failure.reason != UNSUPPORTED]
    return {"impl": key[0], "id": key[1], **vars(verdict), **facts, **dict.fromkeys(failures), "failed": failed}


def _without_numbers(failures: Mapping[str, Skip], name: str, allow_gone: Collection[str]) -> Verdict:
    """Return the verdict on a cell without a number in some variant; `name` is head's name of the implementation."""
    base, head = (failures[variant].reason if variant in failures else "" for variant in VARIANTS)
    word = _word(base, head, name in allow_gone)
    by_text = grouped(
        (str(why) if why.reason == UNSUPPORTED else f"{why.reason}: {why}", variant)
        for variant, why in failures.items()
    )
    reason = "; ".join(f"{' and '.join(variants)}: {text}" for text, variants in by_text.items())
    gone = word == BROKEN and head == UNSUPPORTED
    return Verdict(word, reason + (f" (if intended: --allow-gone {name})" if gone else ""))


def _word(base: str, head: str, may_go: bool) -> str:
    """Return the verdict's word, from the reason why each variant has no number; '' if it has one."""
    if head == Wrong.reason != base:
        return WRONG
    if base and head and (base == UNSUPPORTED) == (head == UNSUPPORTED):
        return INCONCLUSIVE
    if base not in ("", UNSUPPORTED):
        return WRONG
    if not head:
        return NEW
    return GONE if head == UNSUPPORTED and may_go else BROKEN


def _first_reply(plan: Plan, workers: NamedWorkers, name: str) -> Reply | Skip:
    """Return a process's reply to `cells`, which names files of a copied tree as the user does, or how it ended."""
    try:
        reply = workers[name].first
    except Skip as ended:
        return ended
    here = plan.setting.repository
    copy = plan.variants[name].tree or here
    return reply | {"unknown": {impl: why.replace(str(copy), str(here)) for impl, why in reply["unknown"].items()}}


def _available_cells(plan: Plan, replies: Mapping[str, Reply]) -> tuple[Found, list[str]]:
    """Return the cells available in some variant, in the order of the cases, with why the other one lacks them; and
    sentences on cells that both lack.

    Raises `UsageError` if no variant has the implementations, or supports any cell.
    """
    base, head = (reply["unknown"] for reply in replies.values())
    available = dict.fromkeys(name for reply in replies.values() for name in reply["cells"])
    for name in {*plan.allow_gone} - {*available, *base, *head}:
        warn(f"--allow-gone {name}: not among the compared implementations")
    label = plan.variants["head"].label
    in_none = base | head if plan.versus else {name: f"{label}: {head[name]}" for name in head if name in base}
    for why in in_none.values():
        is_incomplete = plan.variants["head"].tree and re.search("can't import|there is no file", why)
        raise UsageError(f"{why}; {LEFT_OUT}" if is_incomplete else why)
    labels = [plan.versus] if plan.versus else [*available]
    lacking: Found = {
        (label, case): {
            variant: Unsupported(why)
            for variant, reply in replies.items()
            if (why := _missing(reply, plan.name_in(variant, label), case))
        }
        for case in plan.cases
        for label in labels
    }
    found = {key: its for key, its in lacking.items() if len(its) < len(VARIANTS)}
    neither = [f"{' '.join(key)}: {its['head']}" for key, its in lacking.items() if key not in found]
    if not found:
        raise UsageError(f"nothing to compare: {neither[0]}")
    return found, neither


def _missing(reply: Reply, impl: str, case: str) -> str | None:
    """Return why a variant has no such cell, from its reply to `cells`; None if it has one."""
    cells: dict[str, str | None] = reply["cells"].get(impl, {})
    return cells.get(case, reply["unknown"].get(impl, f"there is no {impl}"))


def _checking(plan: Plan, workers: NamedWorkers, variant: str, found: Found) -> Script:
    """Check the cells that a variant supports, result caching included, and store facts or failures."""
    it = {"what": "it"}
    for key in [key for key, its in found.items() if variant not in its]:
        client = workers[variant]
        try:
            request, expected = it | plan.request(variant, key), plan.expected(variant, key)
            checked = yield from checking(client, request, plan.setting.threads != 1, set(), expected=expected)
            first = checked["seconds"]
            warm = int(first < LONG_BLOCK)  # no long call is made in vain: one on fresh inputs precedes this one
            usual = (yield Request(client, "time", it | {"calls": 1, "warm": warm}))["seconds"]
            yield Request(client, "caching", it | {"usual": usual, "first": first})
            found[key][variant] = checked["columns"]
        except Skip as outcome:
            found[key][variant] = outcome
        with suppress(Skip):  # its process may be lost
            yield Request(client, "drop", it)  # head's process may need the memory, on a GPU what is cached, too
