"""`python -m tests.measured.agreement`: the suite's clock beside `torch.utils.benchmark`, interleaved, on the same 24 calls.

Each round times a call by both, in random order; a ratio is ours over theirs. Run it with nothing else running.
"""

from __future__ import annotations

import argparse
import math
import random
from statistics import mean, median, stdev

import torch
from bench.clock import sample
from scipy import stats
from torch.utils.benchmark import Timer

import impls
from bench.gate import module_of
from bench.meters import meter_for
from bench.modes import Call, call_of, recording
from bench.problem import given, problem_of
from bench.sweep import Case

IMPLS = ("fused", "wrapper", "sdpa")
CASES = [Case.of(T=T, H=8, D_h=64, dtype=dtype) for T in (64, 256, 512, 1024) for dtype in ("float32", "bfloat16")]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=10)
    options.add_argument("--seconds", type=float, default=0.12, help="of either clock, for each call and round")
    given_options = options.parse_args()
    print(f"{'implementation':<16}{'case':<32}{'ours / theirs':>14}{'95 % interval':>22}")
    ratios = []
    for case in CASES:
        for name in IMPLS:
            logs = _log_ratios(_call(name, case), case, given_options.rounds, given_options.seconds)
            half = stats.t.ppf(0.975, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
            low, high = (math.exp(mean(logs) + side * half) for side in (-1, 1))
            ratios.append((math.exp(median(logs)), low, high))
            print(f"{name:<16}{case.id:<32}{ratios[-1][0]:>14.4f}{f'{low:.4f} .. {high:.4f}':>22}", flush=True)
    within = sum(abs(ratio - 1) <= 0.05 or low <= 1 <= high for ratio, low, high in ratios)
    print(f"median of the ratios {median(ratio for ratio, _, _ in ratios):.4f}; ", end="")
    print(f"{within} of {len(ratios)} within 5 % or with 1 in their own interval")


def _call(name: str, case: Case) -> Call:
    return call_of(module_of(impls.get(name), case), case, given(problem_of(case)))


def _log_ratios(call: Call, case: Case, rounds: int, seconds: float) -> list[float]:
    meter = meter_for(case.device)
    theirs = Timer("run()", globals={"run": call.run}, num_threads=torch.get_num_threads())

    def ours() -> float:
        return median(sample(meter, call.run, seconds).data)

    def torchs() -> float:
        return theirs.blocked_autorange(min_run_time=seconds).median

    logs = []
    with recording(case):
        for _ in range(rounds):
            found = {clock: clock() for clock in random.sample([ours, torchs], 2)}
            logs.append(math.log(found[ours] / found[torchs]))
    return logs


if __name__ == "__main__":
    main()
