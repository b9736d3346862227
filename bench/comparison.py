"""One comparison from beginning to end: what both sides have is proved, timed in pairs, and judged."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import mean
from time import monotonic
from typing import Any

from reports.verdict import GONE, INCONCLUSIVE, JUDGED, NEW, REGRESSED, WRONG, Verdict, without_numbers

from .cells import Key
from .choice import Mistake
from .duel import CONTROLS, SIDES, Duel, Failure, Logs, Process, at_once, two_stages
from .outcome import NoRow
from .peer import STARTING, Lost, Peer, Setting, Side, Timer
from .sweep import Case

OF_INTERPRETERS = ("torch", "torch_build", "python", "cpu_capability")
"""What of the fingerprint may differ when two interpreters are compared."""

Facts = dict[str, Any]
"""Of a proved cell: `error`, `error_bound`, `peak_bytes`, `kernel`."""

Tell = Callable[[str], None]


class Unjudgeable(Exception):
    """Nothing can be compared; the message says why."""


@dataclass(frozen=True)
class Plan:
    """What is compared, and for how long."""

    sides: tuple[Side, Side]
    """base, head"""
    cases: tuple[Case, ...]
    names: tuple[str, ...]
    """As `--impl` has them; none for those of the sweep. Where a side has one implementation of its own, not used."""
    whole_shelf: bool
    setting: Setting
    margin: float
    seconds: float
    """To spend, all in all."""
    seed: int

    @property
    def rivals(self) -> str:
        """What the cells of two implementations of different names are called; '' where both sides run the same names."""
        base, head = ((side.impl or "").partition("=")[0] for side in self.sides)
        return f"{head} against {base}" if base else ""


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
    logs: tuple[float, ...] = ()
    """log(head / base) of the pairs that decided, not centred."""

    @property
    def changes(self) -> list[str]:
        """What changed beside time, compared exactly: `kernel flash → math`."""
        base, head = self.facts
        if not base or not head:
            return []
        return [
            f"{what} {form.format(base[name])} → {form.format(head[name])}"
            for name, (what, form) in WEIGHED.items()
            if base[name] != head[name]
        ]


WEIGHED = {"kernel": ("kernel", "{}"), "peak_bytes": ("peak memory", "{:,} B"), "error": ("error", "{:.3g}")}
"""Facts that are compared exactly, with their names and forms."""


@dataclass(frozen=True)
class Comparison:
    """What is said of two sides."""

    plan: Plan
    lines: tuple[Line, ...]
    screened: Sequence[Logs]
    confirmed: Sequence[Logs]
    """log(head / base) of each cell and control, pair by pair."""
    moved: str
    """Why nothing can be said of the code; or ''."""
    fingerprints: tuple[Mapping[str, Any], Mapping[str, Any]]
    seconds: float
    neither: tuple[str, ...] = field(default=())
    """Cells that neither side can do: `loop B1-...: loop stops at T = 64`."""

    @property
    def exit_code(self) -> int:
        """0: nothing regressed; 1: something did, in time or in memory, or is wrong where base was right; 2: it could not be
        judged.
        """
        if any(it.verdict.word == REGRESSED or it.failed == ("head",) or self.is_heavier(it) for it in self.lines):
            return 1
        words = {line.verdict.word for line in self.lines}
        unjudged = INCONCLUSIVE in words and not words.intersection(JUDGED)
        return 2 if self.moved or unjudged else 0

    def is_heavier(self, line: Line) -> bool:
        """Whether head needs more memory than base, by more than the margin."""
        base, head = line.facts
        if base is None or head is None:
            return False
        return bool(head["peak_bytes"] > base["peak_bytes"] * (1 + self.plan.margin))

    def drift(self) -> dict[str, float]:
        """Mean log ratio of each control: what the machine did to fixed work."""
        pairs = [*self.screened, *self.confirmed]
        return {key[1]: mean(pair[key] for pair in pairs) for key in CONTROLS if pairs and key in pairs[0]}


def compare(plan: Plan, tell: Tell) -> Comparison:
    """Raises `Unjudgeable`, or `Mistake` where nothing of what was asked for exists."""
    began = monotonic()

    def left() -> float:
        return plan.seconds - (monotonic() - began)

    with _Provers(plan) as provers:
        fingerprints, controls = provers.conditions()
        present = provers.present()
        tell(f"proving {len(present.cells)} cells on both sides")
        proofs = provers.prove(present)
    ready = [key for key in present.cells if all(isinstance(proof.get(key), dict) for proof in proofs)]
    duel = Duel(partial(_fresh, plan, present), random.Random(plan.seed), controls)
    many = len({impl for impl, _ in ready}) > 1
    together = many and not plan.rivals and plan.sides[0].python == plan.sides[1].python
    stages = two_stages(duel.pair, ready, plan.margin, together, left, tell) if ready else None
    lines = []
    for key in present.cells:
        facts, failures = _split(key, proofs, duel.failures.get(key))
        if failures:
            verdict = without_numbers(WRONG, "; ".join(f"{f.side}: {f.reason}: {f.detail}" for f in failures))
        elif None in facts:
            verdict = _one_sided(key, present, facts)
        else:
            assert stages
            verdict = stages.verdicts[key]
        logs = tuple(stages.logs(key)) if stages and key in stages.verdicts else ()
        lines.append(Line(*key, verdict, facts, tuple(f.side for f in failures), logs))
    return Comparison(
        plan,
        tuple(lines),
        stages.screened if stages else (),
        stages.confirmed if stages else (),
        stages.moved if stages else "",
        fingerprints,
        monotonic() - began,
        present.neither,
    )


def _split(
    key: Key, proofs: Sequence[Mapping[Key, Facts | Failure]], lost: Failure | None
) -> tuple[tuple[Facts | None, Facts | None], list[Failure]]:
    found = [proof.get(key) for proof in proofs]
    failures = [it for it in found if isinstance(it, Failure) and it.reason != "unsupported"]
    base, head = (it if isinstance(it, dict) else None for it in found)
    return (base, head), [*failures, *([lost] if lost else [])]


def _one_sided(key: Key, present: _Present, facts: tuple[Facts | None, Facts | None]) -> Verdict:
    if facts == (None, None):
        return without_numbers(INCONCLUSIVE, "neither side has such a kernel for it")
    word, absent = (NEW, 0) if facts[0] is None else (GONE, 1)
    why = present.why[absent].get(key, "torch has no such kernel for it")
    return without_numbers(word, f"{SIDES[absent]}: {why}")


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
        self._killed = False
        self._peers = [self._peer(side) for side in plan.sides]

    def __enter__(self) -> _Provers:
        return self

    def __exit__(self, *_: object) -> None:
        for peer in self._peers:
            peer.close()

    def _peer(self, side: Side) -> Peer:
        return Peer(side, self._plan.setting)

    def conditions(self) -> tuple[tuple[dict[str, Any], dict[str, Any]], tuple[Key, ...]]:
        """The fingerprints of both sides, and the controls that are the same on both; raises `Unjudgeable`."""
        first, second = (self._first(i) for i in (0, 1))
        base, head = first["fingerprint"], second["fingerprint"]
        free = OF_INTERPRETERS if self._plan.sides[0].python != self._plan.sides[1].python else ()
        differ = [name for name in base if base[name] != head[name] and name not in free]
        if differ:
            told = "; ".join(f"{name}: {base[name]} and {head[name]}" for name in differ)
            raise Unjudgeable(f"the two sides run under different conditions: {told}")
        return (base, head), tuple(key for key in CONTROLS if first["controls"][key[1]] == second["controls"][key[1]])

    def _first(self, i: int) -> dict[str, Any]:
        try:
            return self._peers[i].ask("facts", timeout=STARTING)
        except NoRow as error:
            raise Unjudgeable(f"{SIDES[i]} ({self._plan.sides[i].label}): {error}") from None

    def present(self) -> _Present:
        """What both sides can do; raises `Mistake` where that is nothing."""
        plan = self._plan
        answers = [register(peer, side, plan) for peer, side in zip(self._peers, plan.sides, strict=True)]
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
                    refusal = answers[i]["cells"][own][case_id] if own else f"there is no {label}"
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

    def prove(self, present: _Present) -> list[dict[Key, Facts | Failure]]:
        """Of both sides, at the same time."""
        return at_once(partial(self._prove, present), [self])

    def kill(self) -> None:
        """End both processes, and begin no other."""
        self._killed = True
        for peer in self._peers:
            peer.kill()

    def _prove(self, present: _Present, i: int) -> dict[Key, Facts | Failure]:
        """Facts, or the failure, of each cell of a side; a process that is lost is replaced."""
        found: dict[Key, Facts | Failure] = {}
        for key, request in present.requests[i].items():
            try:
                found[key] = _proved(self._peers[i], request)
            except NoRow as outcome:
                found[key] = Failure(SIDES[i], outcome.reason, str(outcome))
                if self._killed:
                    break
                if isinstance(outcome, Lost):
                    self._replace(i)  # it lives as long as this thread: long enough, since it only proves
        return found

    def _replace(self, i: int) -> None:
        self._peers[i].close()
        self._peers[i] = self._peer(self._plan.sides[i])
        register(self._peers[i], self._plan.sides[i], self._plan)


def _proved(peer: Peer, request: Mapping[str, Any]) -> Facts:
    """What the proof of a cell tells; raises what refuses it, by the clock too."""
    proved = peer.ask("prove", what="it", **request)
    peer.ask("time", what="it", calls=1, warm=0, draw=1)  # on fresh inputs
    usual = peer.ask("time", what="it", calls=1, warm=1)["seconds"]
    peer.ask("caching", what="it", usual=usual, first=proved["first_s"])
    peer.ask("drop", what="it")
    facts: Facts = proved["columns"]
    return facts


def register(peer: Peer, side: Side, plan: Plan, cases: Collection[Case] | None = None) -> dict[str, Any]:
    """Let a new process import the implementations that were asked for; what it answers to `cells`."""
    names = [side.impl] if side.impl else list(plan.names)
    wanted = plan.cases if cases is None else cases
    return peer.ask(
        "cells", STARTING, names=names, whole_shelf=plan.whole_shelf, cases=[case.columns() for case in wanted]
    )


def _names(rivals: str, answer: dict[str, Any]) -> dict[str, str]:
    """What both sides call an implementation, and what this side does; raises `Mistake`."""
    if rivals and answer["unknown"]:
        raise Mistake(next(iter(answer["unknown"].values())))
    return {rivals or name: name for name in answer["cells"]}


def _fresh(plan: Plan, present: _Present) -> tuple[Process, Process]:
    """A fresh pair, ready to prepare cells."""
    peers = [Peer(side, plan.setting) for side in plan.sides]
    try:
        for peer, side in zip(peers, plan.sides, strict=True):
            register(peer, side, plan, ())
    except BaseException:
        for peer in peers:
            peer.close()
        raise
    base, head = (Timer(peer, requests) for peer, requests in zip(peers, present.requests, strict=True))
    return base, head
