"""Estimates how often verdicts are right on this machine: unchanged code against itself, and injected slow-downs."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stats.verdict import IMPROVED, REGRESSED

from ..cases.meaning import hash_of
from ..runs.saving import load
from ..selection.options import clock_text
from ..timing.machine import fingerprint
from .comparison import Plan, Record

SLOW_DOWNS, SPEED_UPS = (0.01, 0.02, 0.05, 0.10), (-0.02, -0.05)
"""Shares injected by default."""

PROCEDURE = (
    "bench/ab/comparison.py",
    "bench/ab/pairing.py",
    "bench/timing/engine.py",
    "bench/timing/cell.py",
    "bench/workers/client.py",
    "bench/workers/tasks.py",
    "stats/estimate.py",
    "stats/effects.py",
    "stats/verdict.py",
)
"""Modules of the decision procedure: records of another procedure don't count."""

FILE = "self-test.json"

Injection = tuple[str, float]
"""Implementation, and the share by which head's is slowed; if negative, base's is slowed, so that head is faster."""


@dataclass(frozen=True)
class Log:
    """Results of this machine so far: one record per run, written as soon as the run ends."""

    path: Path

    def records(self) -> list[Record]:
        """Return the records of this machine and the current procedure."""
        now = json.loads(json.dumps(_tested()))
        return [it for it in load(self.path).get("runs", []) if now.items() <= it.items()]

    def add(self, record: Record) -> None:
        """Append a record, all or nothing: a run killed here leaves the earlier ones."""
        whole = {"runs": [*load(self.path).get("runs", []), record]}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".tmp")
        fresh.write_text(json.dumps(whole, indent=1), encoding="utf-8")
        os.replace(fresh, self.path)


def schedule(runs: int, impls: Sequence[str], asked: Injection | None) -> list[Injection | None]:
    """Plan `runs` runs with the requested injection; or `runs` runs of unchanged code, a third as many with each
    slow-down, and a sixth with each speed-up, cycling over the implementations.
    """
    if asked:
        return [asked if asked[1] else None] * runs
    slowed = [(impls[i % len(impls)], share) for i in range(math.ceil(runs / 3)) for share in SLOW_DOWNS]
    faster = [(impls[i % len(impls)], share) for i in range(math.ceil(runs / 6)) for share in SPEED_UPS]
    return [None] * runs + slowed + faster


def missing(wanted: Sequence[Injection | None], done: Sequence[Record]) -> list[Injection | None]:
    """Return the planned runs that are not recorded yet."""
    known = [_injection(record) for record in done]
    left = []
    for injection in wanted:
        if injection in known:
            known.remove(injection)
        else:
            left.append(injection)
    return left


def injected(plan: Plan, injection: Injection | None) -> Plan:
    """Return the same comparison with one variant slowed down."""
    if injection is None or not injection[1]:
        return plan
    name, share = injection
    base, head = plan.variants
    if share > 0:
        return replace(plan, variants=(base, replace(head, slower={name: share})))
    return replace(plan, variants=(replace(base, slower={name: 1 / (1 + share) - 1}), head))


def self_test(
    plan: Plan,
    wanted: Sequence[Injection | None],
    log: Log,
    measure: Callable[[Plan, Injection | None], Record],
    tell: Callable[[str], None],
) -> None:
    """Make the runs that are not recorded yet, and record each; `measure` compares, and saves the replicates."""
    settings = settings_of(plan)
    left = missing(wanted, [it for it in log.records() if it["settings"] == settings])
    if left:
        about = clock_text(len(left) * plan.seconds)
        tell(f"self-test: {about}; finished comparisons are kept, and the same command continues")
    for i, injection in enumerate(left, len(wanted) - len(left)):
        what = f"{injection[0]} {injection[1]:+.3g} of its time" if injection else "unchanged code"
        tell(f"self-test: run {i + 1} of {len(wanted)}, {what}")
        found = measure(replace(injected(plan, injection), seed=plan.seed + i), injection)
        log.add(record_of(found, injection, settings))


def _tested() -> Record:
    """Return the machine and procedure of a record."""
    return {"fingerprint": fingerprint(), "procedure": hash_of(PROCEDURE)}


def settings_of(plan: Plan) -> dict[str, Any]:
    """Return the settings that affect the quality of verdicts."""
    return {
        "cases": [case.id for case in plan.cases],
        "impls": list(plan.names),
        "margin": plan.margin,
        "threads": plan.setting.threads,
        "seconds": plan.seconds,
        "whole": plan.whole,
    }


def record_of(found: Record, injection: Injection | None, settings: dict[str, Any]) -> Record:
    """Return the stored part of a run."""
    right = (IMPROVED if injection[1] < 0 else REGRESSED) if injection else None
    of_injection = [cell for cell in found["cells"] if injection and cell["impl"] == injection[0]]
    others = [cell for cell in found["cells"] if cell not in of_injection]
    return {
        "when": time.strftime("%Y-%m-%dT%H:%M:%S"),
        **_tested(),
        "settings": settings,
        "injection": list(injection) if injection else None,
        "moved": found["moved"],
        "injected": len(of_injection),
        "found": sum(cell["word"] == right for cell in of_injection),
        "others": len(others),
        "alarms": [[cell["impl"], cell["id"]] for cell in others if cell["word"] in (REGRESSED, IMPROVED)],
        "pairs": len(found["pairs"]),
        "seconds": found["seconds"],
    }


def summary(records: Sequence[Record], margin: float) -> Iterator[str]:
    """Yield sentences on the results of this machine at this margin; none if nothing was measured."""
    at_margin = [record for record in records if record["settings"]["margin"] == margin]
    unchanged = [record for record in at_margin if not record["injection"]]
    if unchanged:
        alarms, cells = sum(len(it["alarms"]) for it in unchanged), sum(it["others"] for it in unchanged)
        raised = sum(bool(it["alarms"]) for it in unchanged)
        yield (
            f"self-test of this machine: {raised} of {len(unchanged)} runs of unchanged code raised a false alarm "
            f"({alarms} of {cells} cells)"
        )
    slowed = [record for record in at_margin if record["injection"]]
    for share in sorted({record["injection"][1] for record in slowed}):
        runs = [record for record in slowed if record["injection"][1] == share]
        found, of = sum(it["found"] for it in runs), sum(it["injected"] for it in runs)
        alarms, others = sum(len(it["alarms"]) for it in runs), sum(it["others"] for it in runs)
        yield f"self-test, {share * 100:+.3g} % injected: {found} of {of} cells found, {alarms} of {others} others flagged"


def _injection(record: Record) -> Injection | None:
    return (record["injection"][0], record["injection"][1]) if record["injection"] else None
