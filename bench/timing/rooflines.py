"""Measured roofline ceilings of this machine, and the share of them that a row reaches.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", 2009. On a CPU, a row above its
ceiling is a measurement error, not a fast implementation.
"""

from __future__ import annotations

from typing import Any

import torch

from ..cases.case import Case
from ..cases.counting import ITEM_BYTES, flops, least_bytes
from ..cases.outcome import Skip
from ..checks.settings import tf32_products, threads
from .devices import meter_for
from .devices.device import Work

TF32 = "tf32"
"""Float32 products that tensor cores round to 10 bits, listed beside the dtypes."""

SIZES = (256, 512, 1024, 2048, 4096, 8192)
"""Sides of the square matrices. Larger ones are left out once one product would take more than twice these seconds."""

SECONDS, THOROUGH = 0.02, 0.05
"""Seconds for which a product is repeated, after a first call; the same once a row is above its ceiling."""

COPIES = 0.25
"""Seconds within which copies are repeated: the first few may all fall into a disturbance of shared memory."""

LARGE = 2048
"""Side from which products are timed with all threads only: a single one would be slower, and take long."""

MEASUREMENTS = 5
"""Number of measurements of a ceiling before a row above it is rejected."""

TOLERATED = 1.1
"""Share of its ceiling up to which a row on a CPU counts as at it: the machine may be faster during a row than whenever
the ceiling was measured.
"""

SMALLEST = 1 << 16
"""Bytes below which no copy is timed, since call overhead would dominate."""

LARGEST = 1 << 32
"""Bytes above which copies are no slower: they exceed all caches. A case may need most of the memory."""

Key = tuple[str, str | int, int]
"""Device, a dtype or the bytes of a copy, threads."""

NAMES = ("device", "footprint", "threads", "bytes_per_s"), ("device", "dtype", "threads", "flops_per_s")
"""Names of a key's parts and of its rate in the run file, of copies and of products."""


class Rooflines:
    """Ceilings measured so far, each on first use, with the threads set at that time."""

    def __init__(self, seconds: float = SECONDS):
        self._within = seconds
        self._best: dict[Key, float] = {}

    def share(self, case: Case, seconds: float) -> float:
        """Return the time at the ceiling over the measured time, at most 1; raises `Skip` if it is above `TOLERATED`.

        An exceeded ceiling is measured again, in case the machine was busy the first time; the highest counts. On a GPU
        rows may exceed it and keep their share: it is unverified that its measured ceilings are the highest possible.
        """
        for i in range(MEASUREMENTS):
            if i:
                thorough = Rooflines(THOROUGH)
                thorough._seconds(case)
                self.restore(thorough.table())
            share = self._seconds(case) / seconds
            if share <= 1:
                return share
        if case.device != "cpu":
            return share
        if share <= TOLERATED:
            return 1.0
        raise Skip(f"{share:.0%} of this machine's measured roofline: a measurement error")

    def table(self) -> list[dict[str, Any]]:
        """Return for the run file: operations per second by dtype, bytes per second by footprint, with threads."""
        return [
            dict(zip(NAMES[isinstance(key[1], str)], (*key, rate), strict=True)) for key, rate in self._best.items()
        ]

    def restore(self, table: list[dict[str, Any]]) -> None:
        """Add ceilings measured earlier, or by other processes of the same run; the highest counts."""
        for *parts, rate in map(dict.values, table):
            key: Key = tuple(parts)
            self._best[key] = max(rate, self._best.get(key, 0.0))

    def _seconds(self, case: Case) -> float:
        """Return the least seconds possible for a case on this machine.

        A narrow dtype may be computed in float32 if that is faster, as on a CPU without instructions for it. On a GPU
        three TF32 products may replace one of float32.
        """
        dtypes = {case.computes} if ITEM_BYTES[case.computes] >= 4 else {case.computes, "float32"}
        compute = max(self._peak_flops(case.device, dtype) for dtype in dtypes)
        if case.computes == "float32" and case.device != "cpu":
            compute = max(compute, self._peak_flops(case.device, TF32) / (1 if case.tf32 else 3))
        bandwidth = self._peak_bytes(case.device, least_bytes(case))
        return max(flops(case) / compute, least_bytes(case) / bandwidth)

    def _peak_flops(self, device: str, dtype: str) -> float:
        """Return operations per second of the fastest square product, of random numbers: zeros run faster on some
        devices.
        """
        key = (device, dtype, torch.get_num_threads())
        if key not in self._best:
            rates = []
            stored = torch.float32 if dtype == TF32 else getattr(torch, dtype)
            with tf32_products(dtype == TF32):
                for n in SIZES:
                    a, b = (torch.randn(n, n, device=device).to(stored) for _ in range(2))
                    rates.append(2 * n**3 / self._fastest(device, lambda a=a, b=b: a @ b, self._within, n < LARGE))  # type: ignore[misc]
                    if 2 * (2 * n) ** 3 / rates[-1] > 2 * self._within:
                        break
            self._best[key] = max(rates)
        return self._best[key]

    def _peak_bytes(self, device: str, footprint: int) -> float:
        """Return bytes read and written per second by a copy as large as the case's traffic, which may fit a cache. On
        a GPU, where reading alone is faster, also by a sum, since decode hardly writes.
        """
        size = min(LARGEST, max(SMALLEST, 1 << (footprint - 1).bit_length()))
        key = (device, size, torch.get_num_threads())
        if key not in self._best:
            source, target = (torch.ones(size // 2, dtype=torch.uint8, device=device) for _ in range(2))
            seconds = self._fastest(device, lambda: target.copy_(source), COPIES)
            if device != "cpu":
                whole = torch.ones(size // 4, device=device)
                seconds = min(seconds, self._fastest(device, whole.sum, COPIES))
            self._best[key] = size / seconds
        return self._best[key]

    def _fastest(self, device: str, call: Work, within: float, single: bool = True) -> float:
        """Return the seconds of a call in the fastest of two to ten blocks that take about `within` seconds, with the
        current threads and, on the CPU if `single`, with one thread too.

        On a busy machine, threads that wait for each other are slower than a single one.
        """
        meter, found = meter_for(device), []
        for count in dict.fromkeys([torch.get_num_threads(), *[1] * (single and device == "cpu")]):
            with threads(count):
                meter.seconds(call, 1)
                one = meter.seconds(call, 1)
                calls = max(1, int(self._within / 20 / max(one, 1e-7)))
                blocks = max(2, min(10, int(within / (calls * one))))
                found += [one, *(meter.seconds(call, calls) / calls for _ in range(blocks))]
        return min(found)
