"""Reads a saved comparison of `python -m bench ab`, with its caveats."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from stats import effects, shares, verdict
from stats.estimate import grouped
from stats.verdict import Verdict

from ..reading import runs
from ..reading.runs import RunError
from ..reading.words import plural
from .comparison import VARIANTS, Cell, Comparison, changes, worst_first
from .frame import key_of


def read(path: Path) -> dict[str, Any]:
    """Read the saved file.

    Raises:
        RunError: it can't be read, or is no comparison.
    """
    data = runs.parse(path)
    kinds = {"sides": dict, "fingerprints": dict, "cells": list, "pairs": list, "margin": int | float}
    if not isinstance(data, dict) or not all(isinstance(data.get(key), kind) for key, kind in kinds.items()):
        raise RunError(f"{path}: not a comparison that `python -m bench ab` saved")
    return data


def comparison(path: Path, margin: float | None = None) -> Comparison:
    """Judge the saved replicates by the current rules.

    Raises:
        RunError: it can't be read, or is no comparison.
    """
    data = read(path)
    replicates, kept = data["pairs"], data["margin"] if margin is None else margin
    (logs, workloads, ends), times = effects.of_saved(replicates), _times(replicates)
    judged, implementations = verdict.of_replicates(logs, workloads, ends, kept)
    cells = []
    for cell in data["cells"]:
        key = key_of(cell)
        result = Verdict(cell["word"], cell["reason"]) if cell["ratio"] is None else judged[key]
        seconds = [median(times.get((*key, variant), [math.nan])) for variant in (0, 1)]
        before, after = (cell.get(variant) or {} for variant in VARIANTS)
        broken = result.word == verdict.BROKEN or cell.get("failed") == ["head"]
        cells.append(Cell(*key, result, seconds[0], seconds[1], tuple(changes(before, after, kept)), broken))
    return Comparison(
        data["sides"]["base"]["label"],
        data["sides"]["head"]["label"],
        margin=kept,
        cells=sorted(cells, key=worst_first),
        notes=list(_notes(data, workloads, cells, implementations, path)),
        machine=data["fingerprints"]["head"],
        commands=[data["command"]],
        implementations=implementations,
        unjudged=verdict.drifted(workloads),
    )


def _times(replicates: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], list[float]]:
    """Return the seconds of one call in every block, by implementation, case and variant."""
    return grouped(
        ((*replicate["logs"][cell][:2], variant), seconds)
        for replicate in replicates
        for cell, variant, seconds in zip(*(replicate["blocks"][it] for it in ("cell", "side", "seconds")), strict=True)
    )


def _notes(
    data: Mapping[str, Any],
    workloads: Mapping[str, Sequence[float]],
    cells: Sequence[Cell],
    found: Mapping[str, Verdict],
    path: Path,
) -> Iterator[str]:
    replicates = data["pairs"]
    yield (
        f"{plural(len(replicates), 'replicate')} (pairs of fresh processes) in {data['seconds']:.0f} s, "
        f"{plural(data['threads'], 'thread')}, seed {data['seed']}"
    )
    base, head = (data["fingerprints"][variant] for variant in VARIANTS)
    yield from (f"{name}: {base[name]} → {head[name]}" for name in base if base[name] != head.get(name))
    if workloads:
        drift = ", ".join(f"{name} {shares.signed(median(logs))}" for name, logs in workloads.items())
        yield f"the reference workload's time changed by: {drift}"
    yield from (f"{name}: {result.reason}" for name, result in found.items() if verdict.CONTRADICTED in result.reason)
    yield from (f"in neither variant: {text}" for text in data["neither"])
    yield from data.get("self_test", ())
    if "same" in data and any(cell.verdict.word == verdict.INCONCLUSIVE for cell in cells):
        yield f"to measure the INCONCLUSIVE cells for longer: python -m bench ab --continue {shlex.quote(str(path))}"
