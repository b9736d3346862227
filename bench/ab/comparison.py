"""One comparison from beginning to end: what both sides have is proved, timed in pairs, and judged."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any

from stats.verdict import BROKEN, GONE, INCONCLUSIVE, NEW, WRONG, Verdict

from ..cases.case import Case
from ..cases.cells import Key
from ..cases.outcome import NoRow, Unsupported, Wrong
from ..selection.mistake import Mistake
from ..workers.client import STARTING, Answer, Lost, Request, Script, Setting, Side, Timer, WorkerClient, proving
from .pairing import CONTROLS, GPU_CONTROLS, SIDES, Failure, Judged, Pair, Pairing, Process, of_both, until_settled

OF_INTERPRETERS = ("torch", "torch_build", "python", "cpu_capability")
"""What of the fingerprint may differ when two interpreters are compared."""

Facts = dict[str, Any]
"""Of a proved cell: `error`, `error_bound`, `peak_bytes`, `kernel`."""

UNSUPPORTED = Unsupported.reason

Tell = Callable[[str], None]


class Unjudgeable(Exception):
    """Nothing can be compared; the message says why."""


class HeadBroken(Unjudgeable):
    """Head ends before it can be asked anything, where base answers."""


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

    Raises `Unjudgeable`, or `Mistake` where nothing of what was asked for exists.
    """
    began = monotonic()

    def left() -> float:
        return plan.seconds - (monotonic() - began)

    with _Provers(plan) as provers:
        try:
            fingerprints, controls = provers.conditions()
            present = provers.present()
        except HeadBroken as why:
            return _all_broken(plan, str(why), monotonic() - began)
        tell(f"proving {len(present.cells)} cell{'s' * (len(present.cells) != 1)} on both sides")
        proofs = provers.prove(present)
    ready = [key for key in present.cells if all(isinstance(proof.get(key), dict) for proof in proofs)]
    rng = random.Random(plan.seed + len(plan.before))
    pairing = Pairing(lambda: _fresh(_placed(plan, rng), present), rng, controls, together=plan.together)
    found = Judged([], {}, "")
    if ready:
        found = until_settled(pairing.pair, ready, plan.margin, left, tell, plan.before, plan.whole, keep)
    lines = []
    for key in present.cells:
        facts, failures = _split(key, present, proofs, pairing.failures.get(key))
        failed = tuple(side for side, failure in failures.items() if failure.reason != UNSUPPORTED)
        without = _without_numbers(failures, plan.of_head(key[0]), plan.allow_gone) if failures else None
        lines.append(Line(*key, without or found.verdicts[key], facts, failed))
    return Comparison(plan, tuple(lines), found.pairs, found.moved, fingerprints, monotonic() - began, present.neither)


def _all_broken(plan: Plan, why: str, seconds: float) -> Comparison:
    """Where head's code can't even be imported."""
    line = Line("all", "implementations", Verdict(BROKEN, why), failed=("head",))
    return Comparison(plan, (line,), (), "", ({}, {}), seconds)


def _split(
    key: Key, present: _Present, proofs: Sequence[Mapping[Key, Facts | Failure]], lost: Failure | None
) -> tuple[tuple[Facts | None, Facts | None], dict[str, Failure]]:
    """Facts of both sides, and why a side has no number, by side."""
    facts: list[Facts | None] = []
    failures = {lost.side: lost} if lost else {}
    for side, proof, why in zip(SIDES, proofs, present.why, strict=True):
        found = proof.get(key) or Failure(side, UNSUPPORTED, why[key])
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


class _Provers:
    """A process for each side that proves and weighs, and is never timed."""

    def __init__(self, plan: Plan):
        self._plan = plan
        self._clients = [self._peer(side) for side in plan.sides]

    def __enter__(self) -> _Provers:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.close()

    def _peer(self, side: Side) -> WorkerClient:
        return WorkerClient(side, self._plan.setting)

    def conditions(self) -> tuple[tuple[dict[str, Any], dict[str, Any]], tuple[Key, ...]]:
        """The fingerprints of both sides, and the controls that are the same on both; raises `Unjudgeable`."""
        first, second = (self._first(i) for i in (0, 1))
        base, head = first["fingerprint"], second["fingerprint"]
        free = OF_INTERPRETERS if self._plan.sides[0].python != self._plan.sides[1].python else ()
        differ = [name for name in base if base[name] != head[name] and name not in free]
        if differ:
            differences = "; ".join(f"{name}: {base[name]} and {head[name]}" for name in differ)
            raise Unjudgeable(f"the two sides run under different conditions: {differences}")
        controls = CONTROLS if self._plan.together else CONTROLS + GPU_CONTROLS
        return (base, head), tuple(key for key in controls if first["controls"][key[1]] == second["controls"][key[1]])

    def _first(self, i: int) -> dict[str, Any]:
        with _beginning(i, self._plan.sides[i]):
            return self._clients[i].ask("facts", timeout=STARTING)

    def present(self) -> _Present:
        """What both sides can do; raises `Mistake` where that is nothing."""
        plan = self._plan
        answers = [self._registered(i) for i in (0, 1)]
        for name in set(answers[0]["unknown"]).intersection(answers[1]["unknown"]):
            raise Mistake(answers[1]["unknown"][name])
        names = [_names(plan.rivals, answer) for answer in answers]
        cases = {case.id: case.columns() for case in plan.cases}
        cells, neither = [], []
        requests: tuple[dict[Key, Any], dict[Key, Any]] = {}, {}
        why: tuple[dict[Key, str], dict[Key, str]] = {}, {}
        for case_id, case in cases.items():
            for label in dict.fromkeys([*names[0], *names[1]]):
                key = label, case_id
                for i in (0, 1):
                    own = names[i].get(label)
                    refusal = answers[i]["cells"][own][case_id] if own else _absent(answers[i], label)
                    if refusal:
                        why[i][key] = refusal
                    else:
                        requests[i][key] = {"impl": own, "case": case}
                if key in why[0] and key in why[1]:
                    neither.append(f"{label} {case_id}: {why[1][key]}")
                else:
                    cells.append(key)
        if not cells:
            raise Mistake(f"nothing to compare: {neither[0] if neither else 'no implementation on either side'}")
        return _Present(tuple(cells), requests, why, tuple(neither))

    def _registered(self, i: int) -> dict[str, Any]:
        with _beginning(i, self._plan.sides[i]):
            return register(self._clients[i], self._plan.sides[i], self._plan)

    def prove(self, present: _Present) -> tuple[dict[Key, Facts | Failure], ...]:
        """Facts, or the failure, of each cell of a side; of both sides, at the same time unless they would share a GPU."""
        found: tuple[dict[Key, Facts | Failure], ...] = {}, {}
        of_both([self._proving(present.requests[i], i, found[i]) for i in (0, 1)], self._plan.together)
        return found

    def _proving(self, requests: Mapping[Key, Any], i: int, found: dict[Key, Facts | Failure]) -> Script:
        """A process that is lost is replaced."""
        for key, request in requests.items():
            try:
                found[key] = yield from _proved(self._clients[i], request)
            except NoRow as outcome:
                found[key] = Failure(SIDES[i], outcome.reason, str(outcome))
                if isinstance(outcome, Lost):
                    self._replace(i)

    def _replace(self, i: int) -> None:
        self._clients[i].close()
        self._clients[i] = self._peer(self._plan.sides[i])
        register(self._clients[i], self._plan.sides[i], self._plan)


def _proved(client: WorkerClient, request: Mapping[str, Any]) -> Generator[Request, Answer, Facts]:
    """What the proof of a cell tells; raises what refuses it, by the clock too."""
    proved = yield from proving(client, "it", **request)
    yield client, "time", {"what": "it", "calls": 1, "draw": 1}  # on fresh inputs
    usual = (yield client, "time", {"what": "it", "calls": 1, "warm": 1})["seconds"]
    yield client, "caching", {"what": "it", "usual": usual, "first": proved["first_s"]}
    yield client, "drop", {"what": "it"}
    facts: Facts = proved["columns"]
    return facts


@contextmanager
def _beginning(i: int, side: Side) -> Iterator[None]:
    """Nothing can be compared with a side that ends here; where that is head, head is broken."""
    try:
        yield
    except NoRow as error:
        raise (HeadBroken if i else Unjudgeable)(f"{SIDES[i]} ({side.label}): {error}") from None


def _absent(answer: dict[str, Any], label: str) -> str:
    """Why a side doesn't have an implementation: the error of its import, where it was asked for by name."""
    return str(answer["unknown"].get(label, f"there is no {label}"))


def register(client: WorkerClient, side: Side, plan: Plan, cases: Collection[Case] | None = None) -> dict[str, Any]:
    """Let a new process import the implementations that were asked for; what it answers to `cells`."""
    names = [side.impl] if side.impl else list(plan.names)
    wanted = plan.cases if cases is None else cases
    return client.ask(
        "cells", STARTING, names=names, whole_registry=plan.whole_registry, cases=[case.columns() for case in wanted]
    )


def _names(rivals: str, answer: dict[str, Any]) -> dict[str, str]:
    """What both sides call an implementation, and what this side does; raises `Mistake`."""
    if rivals and answer["unknown"]:
        raise Mistake(next(iter(answer["unknown"].values())))
    return {rivals or name: name for name in answer["cells"]}


def _placed(plan: Plan, rng: random.Random) -> Plan:
    """In the sides' own folders, or in their twins: so what a folder does to time is noise, and no difference of the sides."""
    twins = plan.twins if rng.random() < 0.5 else {}
    base, head = (
        replace(side, impls=twins.get(side.impls, side.impls), tree=side.tree and twins.get(side.tree, side.tree))
        for side in plan.sides
    )
    return replace(plan, sides=(base, head))


def _fresh(plan: Plan, present: _Present) -> tuple[Process, Process]:
    """A fresh pair, ready to prepare cells."""
    clients = [WorkerClient(side, plan.setting) for side in plan.sides]
    try:
        for client, side in zip(clients, plan.sides, strict=True):
            register(client, side, plan, ())
    except BaseException:
        for client in clients:
            client.close()
        raise
    base, head = (Timer(client, requests) for client, requests in zip(clients, present.requests, strict=True))
    return base, head
