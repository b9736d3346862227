"""`python -m tests.experiments.caching`: how often timing mistakes a correct kernel for one that caches, and the reverse.

Runs beside busy processes that the script starts, since these could make a correct kernel appear to cache.
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import torch
from torch import Tensor

import impls
from bench.cases.case import Case
from bench.cases.cells import Cell
from bench.cases.outcome import Wrong
from bench.timing.caching import check_no_result_caching
from bench.timing.devices import meter_for
from tests.conftest import checked

BUSY = "import torch\nwhile True: torch.randn(500, 500) @ torch.randn(500, 500)"

_seen: dict[tuple[bytes, ...], Tensor] = {}


def correct(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool) -> Tensor:
    o: Tensor = impls.get("fused").kernel(q, k, v, is_causal=is_causal)
    return o


def caches(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool) -> Tensor:
    content = tuple(x.numpy().tobytes() for x in (q, k, v))
    if content not in _seen:
        _seen[content] = correct(q, k, v, is_causal=is_causal)
    return _seen[content].clone()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--checks", type=int, default=1000)
    options.add_argument("--neighbours", type=int, default=3)
    asked = options.parse_args()
    torch.set_num_threads(1)  # as the processes of `ab`, which have the fewest calls to go by
    with neighbours(asked.neighbours):
        for kernel in (correct, caches):
            refused = sum(refuses(kernel, asked.checks))
            print(f"{kernel.__name__}: refused {refused} times of {asked.checks}", flush=True)


def refuses(kernel: impls.Kernel, checks: int) -> Iterator[bool]:
    """Return for each check whether it reports cached results."""
    gc.disable()
    built, _ = checked(Cell(impls.make(kernel.__name__, kernel), Case.of(T=256, H=2, D_h=8, scope="core")))
    with torch.inference_mode():
        meter, run = meter_for("cpu"), built.call.run
        for _ in range(checks):
            _seen.clear()
            built.refill(0)  # or so many nudges would end at infinity
            usual = median(meter.seconds(run, 1) for _ in range(5))
            try:
                check_no_result_caching(built, usual)
                yield False
            except Wrong:
                yield True


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Processes that multiply matrices until the block ends."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
