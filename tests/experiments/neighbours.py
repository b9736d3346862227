"""`python -m tests.experiments.neighbours`: what a hostile implementation does to the others of its case.

Runs interleaved without it, with one that evicts the caches at every call, and with one whose call leaves a thread spinning for
50 ms, which is too short for the check to see. Each in a process of its own: one that evicts the caches, one that leaves a
thread spinning, one that changes what a process shares, and one that ends its process while it is timed. Printed: what became
of it, how far its neighbours' medians and ratios lie from those without it, and how many intervals of a ratio don't hold that
without it.

`--others onnxruntime,jax`: registered implementations instead, as other libraries, which bring their own threads and settings.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from reports.judging.rows import samples_of
from stats.ratios import Ratio, ratio

from . import measured

CHECKOUT = Path(__file__).resolve().parents[2]
HOSTILE = """
import gc, os, sys, threading, time, torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

memory = torch.zeros(1 << 26)  # 256 MiB

def evicts(q, k, v, *, is_causal=False):
    memory.add_(1)
    return sdpa(q, k, v, is_causal=is_causal)

def spinning(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass

def spins(q, k, v, *, is_causal=False, seconds=0.05):
    threading.Thread(target=spinning, args=(seconds,), daemon=True).start()
    return sdpa(q, k, v, is_causal=is_causal)

def evicts_alone(q, k, v, *, is_causal=False):
    return evicts(q, k, v, is_causal=is_causal)

def spins_alone(q, k, v, *, is_causal=False):
    return spins(q, k, v, is_causal=is_causal, seconds=0.008)

def changes_alone(q, k, v, *, is_causal=False):
    sys.setrecursionlimit(500)
    os.nice(1)
    os.environ["OMP_NUM_THREADS"] = "64"
    return sdpa(q, k, v, is_causal=is_causal)

def dies_alone(q, k, v, *, is_causal=False):
    if not gc.isenabled() and q.shape[-2] == 64:  # while blocks are timed
        os._exit(3)
    return sdpa(q, k, v, is_causal=is_causal)

for each in (evicts_alone, spins_alone, changes_alone, dies_alone):
    each.limits = {"alone": True}
"""
NEIGHBOURS = ("fused", "packed", "einsum", "sdpa")
HOSTILES = ("evicts", "spins", "evicts_alone", "spins_alone", "changes_alone", "dies_alone")
ALONE = "none"

Run = dict[tuple[str, str], tuple[float, Ratio]]
"""Median and ratio to fused of every cell of `NEIGHBOURS`."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=4, help="of each")
    options.add_argument("--others", metavar="NAMES", help="registered ones, instead of those that are made up")
    options.add_argument("--T", default="64,256")
    asked = options.parse_args()
    made_up = {name: f"{name}=hostile:{name}" for name in HOSTILES}
    hostile = {name: name for name in asked.others.split(",")} if asked.others else made_up
    found: dict[str, list[Run]] = {name: [] for name in (ALONE, *hostile)}
    fates: dict[str, Counter[str]] = {name: Counter() for name in hostile}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "hostile.py").write_text(HOSTILE)
        for _ in range(asked.runs):
            for name, runs in found.items():
                impls = [*NEIGHBOURS, *([hostile[name]] if name in hostile else [])]
                options = "--T", asked.T, "--H", "8", "--dtype", "float32", "--processes", "1"
                data = json.loads(measured(Path(folder), "--impl", ",".join(impls), *options).read_text())
                runs.append(_run(data))
                if name in hostile:
                    fates[name].update(_fates(data, name))
    cells = sorted(set.intersection(*(set(run) for runs in found.values() for run in runs)))
    alone = {cell: tuple(_middle(found[ALONE], cell)) for cell in cells}
    for name, runs in found.items():
        for fate, times in fates.get(name, Counter()).items():
            print(f"{name:14} {times} of its cells: {fate}")
        moves = [[math.log(now / before) for now, before in zip(_middle(runs, cell), alone[cell], strict=True)]
                 for cell in cells]  # fmt: skip
        for what, moved in zip(("medians", "ratios to fused"), zip(*moves, strict=True), strict=True):
            apart = sorted(map(abs, moved))
            print(f"{name:14} {what:16} usual move {median(apart):6.1%}, largest {apart[-1]:6.1%}, "
                  f"in the middle {median(moved):+.1%}")  # fmt: skip
        ratios = [(run[cell][1], alone[cell][1]) for run in runs for cell in cells if cell[0] != "fused"]
        outside = sum(not ratio.low <= before <= ratio.high for ratio, before in ratios)
        print(f"{name:14} {outside} of {len(ratios)} intervals of a ratio don't hold that without it")


def _middle(runs: list[Run], cell: tuple[str, str]) -> list[float]:
    """Return the median over runs of a cell's median and of its ratio."""
    return [median(run[cell][0] for run in runs), median(run[cell][1].value for run in runs)]


def _fates(data: Mapping[str, Any], name: str) -> list[str]:
    """Return the outcome of each cell of an implementation: measured, or why not."""
    measured = ["measured" for row in data["benchmarks"] if row["extra_info"]["impl"] == name]
    return measured + [it["detail"] for it in data["skipped"] if it["impl"] == name]


def _run(data: Mapping[str, Any]) -> Run:
    rows = {(row["extra_info"]["impl"], row["extra_info"]["id"]): row for row in data["benchmarks"]}
    return {
        (impl, case): (row["stats"]["median"], ratio(samples_of(row), samples_of(rows["fused", case])))
        for (impl, case), row in rows.items()
        if impl in NEIGHBOURS
    }


if __name__ == "__main__":
    main()
