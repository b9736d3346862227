"""A comparison as it is saved: every pair with its blocks, so that it can be judged anew, shown, and continued."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..runs.run import finite
from .comparison import Comparison, Line
from .pairing import SIDES, Logs, Pair, Timed
from .sources import digest

KIND = "ab"
"""Tells the file from one of a run."""

SCHEMA = 1


def as_json(
    found: Comparison,
    asked: Mapping[str, Any],
    command: str,
    known: Sequence[str] = (),
    continues: str | None = None,
) -> dict[str, Any]:
    """Numbers that are not finite are null. `asked`: the options of `python -m bench ab`, `command` the same for a reader;
    `known`: what the self-test of this machine says; `continues`: the file whose pairs come first."""
    plan = found.plan
    sides = [
        {"label": it.label, "impl": it.impl, "python": it.python, "commit": it.commit, "code": digest(it.code)}
        for it in plan.sides
    ]
    whole: dict[str, Any] = {
        "kind": KIND,
        "schema": SCHEMA,
        "datetime": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "asked": asked,
        "command": command,
        "continues": continues,
        "sides": dict(zip(SIDES, sides, strict=True)),
        "rivals": plan.rivals,
        "fingerprints": dict(zip(SIDES, found.fingerprints, strict=True)),
        "margin": plan.margin,
        "threads": plan.setting.threads,
        "seed": plan.seed,
        "seconds": found.seconds,
        "moved": found.moved,
        "cells": [_cell(line) for line in found.lines],
        "neither": list(found.neither),
        "self_test": list(known),
        "pairs": [pair_as_json(pair) for pair in found.pairs],
    }
    return dict(finite(whole))


def pairs_of(data: Mapping[str, Any]) -> tuple[Pair, ...]:
    """The pairs of a saved comparison."""
    return tuple(pair_of(pair) for pair in data["pairs"])


def _cell(line: Line) -> dict[str, Any]:
    facts = dict(zip(SIDES, line.facts, strict=True))
    return {"impl": line.impl, "id": line.case_id} | asdict(line.verdict) | facts | {"failed": line.failed}


def pair_as_json(pair: Pair) -> dict[str, Any]:
    """Its blocks by columns; `cell` counts the entries of `logs`."""
    order = {key: i for i, key in enumerate(pair.logs)}
    return {
        "seconds": pair.seconds,
        "logs": [[*key, log] for key, log in pair.logs.items()],
        "blocks": {
            "cell": [order[it.key] for it in pair.blocks],
            "side": [it.side for it in pair.blocks],
            "seconds": [float(f"{it.seconds:.6g}") for it in pair.blocks],
            "at": [round(it.at, 4) for it in pair.blocks],
            "switches": [round(it.switches, 4) for it in pair.blocks],
            "stolen": [round(it.stolen, 2) for it in pair.blocks],
        },
    }


def pair_of(pair: Mapping[str, Any]) -> Pair:
    """As `pair_as_json` gave it."""
    logs: Logs = {(impl, case): log for impl, case, log in pair["logs"]}
    keys, columns = list(logs), pair["blocks"]
    rows = zip(*(columns[name] for name in ("cell", "side", "seconds", "at", "switches", "stolen")), strict=True)
    return Pair(logs, [Timed(keys[cell], *row) for cell, *row in rows], pair["seconds"])
