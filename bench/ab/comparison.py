"""One comparison from beginning to end: cells of both sides are checked, timed in pairs of processes, and judged."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any

from stats.verdict import BROKEN, GONE, INCONCLUSIVE, NEW, WRONG, Verdict

from ..cases.case import Case
from ..cases.cells import Key
from ..cases.outcome import Skip, Unsupported, Wrong
from ..selection.errors import UsageError
from ..workers.client import Answer, Lost, Request, Script, Setting, Side, WorkerClient, checking
from ..workers.team import Team
from .pairing import CONTROLS, GPU_CONTROLS, SIDES, Failure, Judged, Pair, Pairing, of_both, until_settled

OF_INTERPRETERS = ("torch", "torch_build", "python", "cpu_capability")
"""What of the fingerprint may differ when two interpreters are compared."""

Facts = dict[str, Any]
"""Of a checked cell: `error`, `error_bound`, `peak_bytes`, `kernel`."""

UNSUPPORTED = Unsupported.reason

Tell = Callable[[str], None]


class Unjudgeable(Exception):
    """Nothing can be compared; the message says why."""


class HeadBroken(Unjudgeable):
    """Head's process ends while it starts; base's does not."""


@dataclass(frozen=True)
class Plan:
    """What is compared, and for how long."""

    sides: tuple[Side, Side]
    """base, head"""
    cases: tuple[Case, ...]
    names: tuple[str, ...]
    """As `--impl` has them; none for those of the sweep. Where a side has one implementation of its own, not used."""
    whole_registry: bool
    setting: Setting
    margin: float
    """What an unchanged cell must lie within."""
    seconds: float
    """To spend, all in all."""
    seed: int
    allow_gone: tuple[str, ...] = ()
    """Implementations that head is meant to have no more, or not for every case."""
    whole: bool = False
    """Whether all of the time is spent, though all cells are settled."""
    before: tuple[Pair, ...] = ()
    """Pairs of the comparison that this one continues."""
    twins: Mapping[Path, Path] = field(default_factory=dict)
    """By the folder of a side's code, another one with the same code, beside the other side's other one."""

    @property
    def rivals(self) -> str:
        """What the cells of two implementations of different names are called; '' where both sides run the same names."""
        base, head = ((side.impl or "").partition("=")[0] for side in self.sides)
        return f"{head} against {base}" if base else ""

    @property
    def together(self) -> bool:
        """Whether both sides are made ready at the same time: on a GPU one would be tuned beside the other's work."""
        return all(case.device == "cpu" for case in self.cases)

    def of_head(self, label: str) -> str:
        """What head itself calls an implementation."""
        return (self.sides[1].impl or label).partition("=")[0]


@dataclass(frozen=True)
class Line:
    """What is said of one cell."""

    impl: str
    case_id: str
    verdict: Verdict
    facts: tuple[Facts | None, Facts | None] = (None, None)
    """base, head; None for a side without it."""
    failed: tuple[str, ...] = ()
    """The sides that failed."""


@dataclass(frozen=True)
class Comparison:
    """What was measured of two sides, and the verdicts."""

    plan: Plan
    lines: tuple[Line, ...]
    pairs: Sequence[Pair]
    moved: str
    """Why nothing can be said of the code; or ''."""
    fingerprints: tuple[Mapping[str, Any], Mapping[str, Any]]
    seconds: float
    neither: tuple[str, ...] = ()
    """Cells that neither side can do: `loop B1-...: loop stops at T = 64`."""


def compare(plan: Plan, tell: Tell, keep: Callable[[Pair], None] = lambda pair: None) -> Comparison:
    """Compare two sides; calls `keep` after every pair, so that a later plan can go on from it (`Plan.before`).

    Raises `Unjudgeable`, or `UsageError` where nothing of what was asked for exists.
    """
    began = monotonic()

    def left() -> float:
        return plan.seconds - (monotonic() - began)

    with closing(_team(plan, plan.sides, plan.cases)) as team:
        try:
            known, conditions = _begun(plan, team)
        except HeadBroken as why:
            return _all_broken(plan, str(why), monotonic() - began)
        fingerprints, controls = _conditions(plan, conditions)
        present = _present(plan, known)
        tell(f"checking {len(present.cells)} cell{'s' * (len(present.cells) != 1)} on both sides")
        checks: tuple[dict[Key, Facts | Failure], ...] = {}, {}
        of_both([_checking(plan, team, i, present.requests[i], checks[i]) for i in (0, 1)], plan.together)
    ready = [key for key in present.cells if all(isinstance(check.get(key), dict) for check in checks)]
    rng = random.Random(plan.seed + len(plan.before))
    pairing = Pairing(lambda: _fresh(plan, _placed(plan, rng)), present.requests, rng, controls, together=plan.together)
    found = Judged([], {}, "")
    if ready:
        found = until_settled(pairing.pair, ready, plan.margin, left, tell, plan.before, plan.whole, keep)
    lines = []
    for key in present.cells:
        facts, failures = _split(key, present, checks, pairing.failures.get(key))
        failed = tuple(side for side, failure in failures.items() if failure.reason != UNSUPPORTED)
        without = _without_numbers(failures, plan.of_head(key[0]), plan.allow_gone) if failures else None
        lines.append(Line(*key, without or found.verdicts[key], facts, failed))
    return Comparison(plan, tuple(lines), found.pairs, found.moved, fingerprints, monotonic() - began, present.neither)


def _all_broken(plan: Plan, why: str, seconds: float) -> Comparison:
    """Where head's code can't even be imported."""
    line = Line("all", "implementations", Verdict(BROKEN, why), failed=("head",))
    return Comparison(plan, (line,), (), "", ({}, {}), seconds)


def _split(
    key: Key, present: _Present, checks: Sequence[Mapping[Key, Facts | Failure]], lost: Failure | None
) -> tuple[tuple[Facts | None, Facts | None], dict[str, Failure]]:
    """Facts of both sides, and why a side has no number, by side."""
    facts: list[Facts | None] = []
    failures = {lost.side: lost} if lost else {}
    for side, check, why in zip(SIDES, checks, present.why, strict=True):
        found = check.get(key) or Failure(side, UNSUPPORTED, why[key])
        facts.append(None if isinstance(found, Failure) else found)
        if isinstance(found, Failure):
            failures[side] = found
    base, head = facts
    return (base, head), failures


def _without_numbers(failures: Mapping[str, Failure], name: str, allow_gone: Collection[str]) -> Verdict:
    """What is said of a cell that a side has no number for; `name` is what head calls the implementation."""
    word = _word({side: failure.reason for side, failure in failures.items()}, name in allow_gone)
    hint = f" (--allow-gone {name} where that is meant)" if word == BROKEN and not _raised(failures) else ""
    said: dict[str, list[str]] = {}
    for it in failures.values():
        said.setdefault(_sentence(it, len(failures) == 1), []).append(it.side)
    return Verdict(word, "; ".join(" and ".join(sides) + why for why, sides in said.items()) + hint)


def _word(reasons: Mapping[str, str], may_go: bool) -> str:
    """From the reason of each side that has no number."""
    base, head = (reasons.get(side, UNSUPPORTED) for side in SIDES)
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


def _raised(failures: Mapping[str, Failure]) -> bool:
    return any(failure.reason != UNSUPPORTED for failure in failures.values())


def _sentence(failure: Failure, alone: bool) -> str:
    """What follows the side's name."""
    if failure.reason == UNSUPPORTED:
        return f": {failure.detail}"
    if failure.reason == Wrong.reason and alone:
        return f"{' now' * (failure.side == 'head')} fails the correctness check: {failure.detail}"
    return f": {failure.reason}: {failure.detail}"


@dataclass(frozen=True)
class _Present:
    """Which cells there are on which side, and what to send for them."""

    cells: tuple[Key, ...]
    """On either side, in the order of the cases."""
    requests: tuple[dict[Key, dict[str, Any]], dict[Key, dict[str, Any]]]
    why: tuple[dict[Key, str], dict[Key, str]]
    """Why a side can't do a cell."""
    neither: tuple[str, ...]


def _team(plan: Plan, sides: Sequence[Side], cases: Collection[Case] = ()) -> Team:
    """A process for each side, which imports the implementations that were asked for and is asked about these cases."""
    by_name = dict(zip(SIDES, sides, strict=True))
    of_all = {"whole_registry": plan.whole_registry, "cases": [case.columns() for case in cases]}
    names = {name: [side.impl] if side.impl else list(plan.names) for name, side in by_name.items()}
    return Team(
        lambda name: WorkerClient(by_name[name], plan.setting),
        {name: of_all | {"names": names[name]} for name in SIDES},
    )


def _begun(plan: Plan, team: Team) -> tuple[list[Answer], list[Answer]]:
    """What both processes answer to `cells` and to `facts`; raises `Unjudgeable`, or `HeadBroken`, where one ends."""
    team.begin()
    known, facts = [], []
    for name, side in zip(SIDES, plan.sides, strict=True):
        try:
            known.append(team.known(name))
            facts.append(team.clients[name].ask("facts"))
        except Skip as error:
            raise (HeadBroken if name == "head" else Unjudgeable)(f"{name} ({side.label}): {error}") from None
    return known, facts


def _conditions(plan: Plan, facts: Sequence[Answer]) -> tuple[tuple[Answer, Answer], tuple[Key, ...]]:
    """The fingerprints of both sides, and the controls that are the same on both; raises `Unjudgeable`."""
    base, head = (it["fingerprint"] for it in facts)
    free = OF_INTERPRETERS if plan.sides[0].python != plan.sides[1].python else ()
    differ = [name for name in base if base[name] != head[name] and name not in free]
    if differ:
        differences = "; ".join(f"{name}: {base[name]} and {head[name]}" for name in differ)
        raise Unjudgeable(f"the two sides run under different conditions: {differences}")
    controls = CONTROLS if plan.together else CONTROLS + GPU_CONTROLS
    versions = [it["controls"] for it in facts]
    return (base, head), tuple(key for key in controls if versions[0][key[1]] == versions[1][key[1]])


def _present(plan: Plan, answers: Sequence[Answer]) -> _Present:
    """What the sides can do; raises `UsageError` where that is nothing."""
    for name in set(answers[0]["unknown"]).intersection(answers[1]["unknown"]):
        raise UsageError(answers[1]["unknown"][name])
    names = [_names(plan.rivals, answer) for answer in answers]
    cells, neither = [], []
    requests: tuple[dict[Key, Any], dict[Key, Any]] = {}, {}
    why: tuple[dict[Key, str], dict[Key, str]] = {}, {}
    for case in plan.cases:
        for label in dict.fromkeys([*names[0], *names[1]]):
            key = label, case.id
            for i in (0, 1):
                own = names[i].get(label)
                refusal = answers[i]["cells"][own][case.id] if own else _absent(answers[i], label)
                if refusal:
                    why[i][key] = refusal
                else:
                    requests[i][key] = {"impl": own, "case": case.columns()}
            if key in why[0] and key in why[1]:
                neither.append(f"{label} {case.id}: {why[1][key]}")
            else:
                cells.append(key)
    if not cells:
        raise UsageError(f"nothing to compare: {neither[0] if neither else 'no implementation on either side'}")
    return _Present(tuple(cells), requests, why, tuple(neither))


def _checking(plan: Plan, team: Team, i: int, requests: Mapping[Key, Any], found: dict[Key, Facts | Failure]) -> Script:
    """Finds the facts of each cell of a side, or the failure; a process that is lost is replaced."""
    for key, request in requests.items():
        try:
            found[key] = yield from _checked(team.clients[SIDES[i]], request, plan.setting.threads != 1)
        except Skip as outcome:
            found[key] = Failure(SIDES[i], outcome.reason, str(outcome))
            if isinstance(outcome, Lost):
                team.replace(SIDES[i])


def _checked(client: WorkerClient, request: Mapping[str, Any], threaded: bool) -> Generator[Request, Answer, Facts]:
    """What the check of a cell tells; raises what refuses it, by the clock too."""
    it = {"what": "it"}
    checked = yield from checking(client, "it", **request, threaded=threaded)
    yield Request(client, "time", it | {"calls": 1, "draw": 1})  # on fresh inputs
    usual = (yield Request(client, "time", it | {"calls": 1, "warm": 1}))["seconds"]
    yield Request(client, "caching", it | {"usual": usual, "first": checked["first_s"]})
    yield Request(client, "drop", it)
    facts: Facts = checked["columns"]
    return facts


def _absent(answer: dict[str, Any], label: str) -> str:
    """Why a side doesn't have an implementation: the error of its import, where it was asked for by name."""
    return str(answer["unknown"].get(label, f"there is no {label}"))


def _names(rivals: str, answer: dict[str, Any]) -> dict[str, str]:
    """What both sides call an implementation, and what this side does; raises `UsageError`."""
    if rivals and answer["unknown"]:
        raise UsageError(next(iter(answer["unknown"].values())))
    return {rivals or name: name for name in answer["cells"]}


def _placed(plan: Plan, rng: random.Random) -> tuple[Side, Side]:
    """In the sides' own folders, or in their twins: so what a folder does to time is noise, and no difference of the sides."""
    twins = plan.twins if rng.random() < 0.5 else {}
    base, head = (
        replace(side, impls=twins.get(side.impls, side.impls), tree=side.tree and twins.get(side.tree, side.tree))
        for side in plan.sides
    )
    return base, head


def _fresh(plan: Plan, sides: Sequence[Side]) -> Team:
    """A fresh pair, ready to prepare cells."""
    team = _team(plan, sides)
    try:
        team.begin()
        for name in SIDES:
            team.known(name)
    except BaseException:
        team.close()
        raise
    return team
