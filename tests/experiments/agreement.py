"""`python -m tests.experiments.agreement`: the suite's clock beside `torch.utils.benchmark`, interleaved, on the same 24 calls.

Each round times a call by both, in random order; a ratio is ours over theirs. Run it with nothing else running.
"""

from __future__ import annotations

import argparse
import math
import random
from statistics import mean, median, stdev
from time import perf_counter

import torch
from scipy import stats
from torch.utils.benchmark import Timer

import impls
from bench.cases.case import Case
from bench.cases.cells import Cell
from bench.checks.calls import recording
from bench.timing.cell import Built, build
from bench.timing.schedule import block_of

IMPLS = ("fused", "wrapper", "sdpa")
CASES = [Case.of(T=T, H=8, D_h=64, dtype=dtype) for T in (64, 256, 512, 1024) for dtype in ("float32", "bfloat16")]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=10)
    options.add_argument("--seconds", type=float, default=0.12, help="of either clock, for each call and round")
    asked = options.parse_args()
    print(f"{'implementation':<16}{'case':<32}{'ours / theirs':>14}{'95 % interval':>22}")
    ratios = []
    for case in CASES:
        for name in IMPLS:
            logs = _log_ratios(build(Cell(impls.get(name), case)), asked.rounds, asked.seconds)
            half = stats.t.ppf(0.975, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
            low, high = (math.exp(mean(logs) + side * half) for side in (-1, 1))
            ratios.append((math.exp(median(logs)), low, high))
            print(f"{name:<16}{case.id:<32}{ratios[-1][0]:>14.4f}{f'{low:.4f} .. {high:.4f}':>22}", flush=True)
    within = sum(abs(ratio - 1) <= 0.05 or low <= 1 <= high for ratio, low, high in ratios)
    print(f"median of the ratios {median(ratio for ratio, _, _ in ratios):.4f}; ", end="")
    print(f"{within} of {len(ratios)} within 5 % or with 1 in their own interval")


def _log_ratios(built: Built, rounds: int, seconds: float) -> list[float]:
    theirs = Timer("run()", globals={"run": built.call.run}, num_threads=torch.get_num_threads())
    block = block_of(min(built.time(1)[0] for _ in range(5)))

    def ours() -> float:
        found, end = [], perf_counter() + seconds
        while perf_counter() < end or len(found) < 3:
            found.append(built.time(block.calls, block.slices, block.warm)[0])
        return median(found)

    def torchs() -> float:
        return theirs.blocked_autorange(min_run_time=seconds).median

    logs = []
    with recording(built.cell.case):
        for _ in range(rounds):
            found = {clock: clock() for clock in random.sample([ours, torchs], 2)}
            logs.append(math.log(found[ours] / found[torchs]))
    return logs


if __name__ == "__main__":
    main()
