"""`python -m tests.experiments.neighbours`: what a hostile implementation does to the others of its case.

Runs by turns without it, with one that evicts the caches at every call, and with one whose call leaves a thread spinning
(refused by the proof, so that it is never timed). Each in a process of its own: one that evicts the caches, one that leaves a
thread spinning for so short a time that the proof doesn't see it, one that changes what a process shares, and one that ends its
process while it is timed. Printed: how far the others' medians and ratios lie from those without it, and how many intervals of
a ratio don't hold that without it.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from reports.judging import verdict

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
OTHERS = ("fused", "packed", "einsum", "sdpa")
HOSTILES = ("evicts", "spins", "evicts_alone", "spins_alone", "changes_alone", "dies_alone")
ALONE = "none"

Run = dict[tuple[str, str], tuple[float, verdict.Ratio]]
"""Median and ratio to fused of every cell of `OTHERS`."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=4, help="of each")
    asked = options.parse_args()
    found: dict[str, list[Run]] = {name: [] for name in (ALONE, *HOSTILES)}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "hostile.py").write_text(HOSTILE)
        for _ in range(asked.runs):
            for name, runs in found.items():
                runs.append(_run(Path(folder), "" if name == ALONE else f",{name}=hostile:{name}"))
    cells = sorted(set.intersection(*(set(run) for runs in found.values() for run in runs)))
    alone = {cell: tuple(_middle(found[ALONE], cell)) for cell in cells}
    for name, runs in found.items():
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
    """The middle median of some runs, and the middle ratio."""
    return [median(run[cell][0] for run in runs), median(run[cell][1].value for run in runs)]


def _run(folder: Path, extra: str) -> Run:
    command = [sys.executable, "-m", "pytest", str(CHECKOUT / "bench"), "-q", "--impl", ",".join(OTHERS) + extra]
    command += ["--T", "64,256", "--H", "8", "--dtype", "float32", "--benchmark-save=x", "--processes", "1"]
    subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL)
    data = json.loads(sorted(folder.glob("results/*/*.json"))[-1].read_text())
    rows = {(row["extra_info"]["impl"], row["extra_info"]["id"]): row for row in data["benchmarks"]}
    return {
        (impl, case): (row["stats"]["median"], verdict.ratio(_samples(row), _samples(rows["fused", case])))
        for (impl, case), row in rows.items()
        if impl in OTHERS
    }


def _samples(row: dict) -> verdict.Samples:  # type: ignore[type-arg]
    columns = row["extra_info"]
    return verdict.Samples(
        row["stats"]["data"], columns["sample_rounds"], columns["sample_visits"], columns["sample_processes"]
    )


if __name__ == "__main__":
    main()
