"""Estimates how often verdicts are right on this machine: unchanged code against itself, and injected slow-downs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from stats.verdict import IMPROVED, REGRESSED

from ..cases.case_hash import hash_of
from ..runs.saving import load
from ..timing.machine import fingerprint
from .plan import Plan, Record

SLOW_DOWNS, SPEED_UPS = (0.01, 0.02, 0.05, 0.10), (-0.02, -0.05)
"""Shares injected."""

PROCEDURE = (
    "bench/ab/comparison.py",
    "bench/ab/plan.py",
    "bench/ab/replicates.py",
    "bench/timing/engine.py",
    "bench/timing/cell.py",
    "bench/timing/malloc.py",
    "bench/timing/devices/cpu.py",
    "bench/timing/devices/cuda.py",
    "bench/timing/devices/device.py",
    "bench/workers/client.py",
    "bench/workers/fresh.py",
    "bench/workers/tasks.py",
    "bench/workers/worker.py",
    "stats/estimate.py",
    "stats/effects.py",
    "stats/verdict.py",
)
"""Modules of the decision procedure: comparisons by another procedure don't count."""

NAME = "self-test"
"""Beginning of the saved comparisons' names."""

Injection = tuple[str, float]
"""Implementation, and the share by which head's is slowed; if negative, base's is slowed, so that head is faster."""


def schedule(runs: int, impls: Sequence[str]) -> list[Injection | None]:
    """Plan `runs` comparisons of unchanged code, a third as many with each slow-down, and a sixth with each speed-up,
    cycling over the implementations.
    """
    slowed = [(impls[i % len(impls)], share) for i in range(math.ceil(runs / 3)) for share in SLOW_DOWNS]
    faster = [(impls[i % len(impls)], share) for i in range(math.ceil(runs / 6)) for share in SPEED_UPS]
    return [None] * runs + slowed + faster


def injected(plan: Plan, injection: Injection | None) -> Plan:
    """Return the same comparison with one variant slowed down."""
    if injection is None:
        return plan
    name, share = injection
    base, head = plan.variants
    if share > 0:
        return replace(plan, variants=(base, replace(head, slower={name: share})))
    return replace(plan, variants=(replace(base, slower={name: 1 / (1 + share) - 1}), head))


def kept(folder: Path) -> list[Record]:
    """Return the saved comparisons of self-tests of this machine by the current procedure."""
    now = json.loads(json.dumps(conditions())).items()
    return [it for path in sorted(folder.glob(f"*_{NAME}*.json")) if now <= (it := load(path)).get("same", {}).items()]


def conditions() -> Record:
    """Return the machine and procedure of a comparison."""
    return {"fingerprint": fingerprint(), "procedure": hash_of(PROCEDURE)}


def summary(records: Sequence[Record], margin: float) -> Iterator[str]:
    """Yield sentences on saved comparisons with this margin; none if nothing was measured."""
    by_share: dict[float, list[tuple[int, int, int, int]]] = {}
    for record in (it for it in records if it["margin"] == margin):
        name, share = record["injection"] or ("", 0.0)
        right = IMPROVED if share < 0 else REGRESSED
        found = [cell["word"] == right for cell in record["cells"] if cell["impl"] == name]
        alarms = [cell["word"] in (REGRESSED, IMPROVED) for cell in record["cells"] if cell["impl"] != name]
        by_share.setdefault(share, []).append((sum(found), len(found), sum(alarms), len(alarms)))
    for share, counts in sorted(by_share.items(), key=lambda it: (it[0] != 0, it[0])):
        of_all = [sum(column) for column in zip(*counts, strict=True)]
        flagged = f"{of_all[2]} of {of_all[3]}"
        if share:
            yield f"self-test, {share * 100:+.3g} % injected: {of_all[0]} of {of_all[1]} cells found, {flagged} others flagged"
        else:
            raised = f"{sum(count[2] > 0 for count in counts)} of {len(counts)} runs of unchanged code"
            yield f"self-test of this machine: {raised} raised a false alarm ({flagged} cells)"
