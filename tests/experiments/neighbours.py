"""`python -m tests.experiments.neighbours`: what a hostile implementation does to the others of its case.

Runs by turns without it, with one that evicts the caches at every call, and with one whose call leaves a thread spinning
(refused by the proof, so that it is never timed). Printed: how far the others' medians and ratios lie from those without it.
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
import threading, time, torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

memory = torch.zeros(1 << 26)  # 256 MiB

def evicts(q, k, v, *, is_causal=False):
    memory.add_(1)
    return sdpa(q, k, v, is_causal=is_causal)

def spin():
    until = time.perf_counter() + 0.05
    while time.perf_counter() < until:
        pass

def spins(q, k, v, *, is_causal=False):
    threading.Thread(target=spin, daemon=True).start()
    return sdpa(q, k, v, is_causal=is_causal)
"""
OTHERS = ("fused", "packed", "einsum", "sdpa")
WITH = {"alone": "", "evicts": ",evicts=hostile:evicts", "spins": ",spins=hostile:spins"}

Medians = dict[tuple[str, str], tuple[float, float]]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=4, help="of each")
    asked = options.parse_args()
    found: dict[str, list[Medians]] = {name: [] for name in WITH}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "hostile.py").write_text(HOSTILE)
        for _ in range(asked.runs):
            for name, extra in WITH.items():
                found[name].append(_run(Path(folder), extra))
    cells = sorted(set.intersection(*(set(run) for runs in found.values() for run in runs)))
    alone = {cell: [median(run[cell][i] for run in found["alone"]) for i in (0, 1)] for cell in cells}
    for name, runs in found.items():
        for i, what in enumerate(("medians", "ratios to fused")):
            moved = sorted(abs(math.log(median(run[cell][i] for run in runs) / alone[cell][i])) for cell in cells)
            signed = median(math.log(median(run[cell][i] for run in runs) / alone[cell][i]) for cell in cells)
            print(
                f"{name:8} {what:16} usual move {median(moved):6.1%}, largest {moved[-1]:6.1%}, in the middle {signed:+.1%}"
            )


def _run(folder: Path, extra: str) -> Medians:
    """Median and ratio to fused of every cell of `OTHERS`."""
    command = [sys.executable, "-m", "pytest", str(CHECKOUT / "bench"), "-q", "--impl", ",".join(OTHERS) + extra]
    command += ["--T", "64,256", "--H", "8", "--dtype", "float32", "--benchmark-save=x", "--processes", "1"]
    subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL)
    data = json.loads(sorted(folder.glob("results/*/*.json"))[-1].read_text())
    rows = {(row["extra_info"]["impl"], row["extra_info"]["id"]): row for row in data["benchmarks"]}
    return {
        (impl, case): (row["stats"]["median"], verdict.ratio(_samples(row), _samples(rows["fused", case])).value)
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
