"""`python -m tests.experiments.masking`: mask efficiency of a kernel that skips all masked work, and of one that skips none.

They differ in nothing else: queries by blocks, each against the keys that it sees, or against all of them. A block on the
diagonal is computed whole, so that the one that skips does (1 + 1 / BLOCKS) times the visible work.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from reports.judging.rows import rows_of
from reports.reading import runs, units

from . import CHECKOUT, measured

BLOCKS = 16
OPTIONS = "--T 1024,4096 --H 8 --D_h 64 --dtype float32 --processes 3"


def skips_all(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False) -> Tensor:
    return by_blocks(q, k, v, is_causal, skip=is_causal)


def skips_none(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False) -> Tensor:
    return by_blocks(q, k, v, is_causal, skip=False)


def by_blocks(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, skip: bool) -> Tensor:
    """(B, H, T, D_h) each -> (B, H, T, D_v)"""
    T, size = q.shape[-2], -(-q.shape[-2] // BLOCKS)
    rows = []
    for first in range(0, T, size):
        last = min(first + size, T)
        keys = last if skip else k.shape[-2]
        scores = q[..., first:last, :] @ k[..., :keys, :].mT * q.shape[-1] ** -0.5  # (B, H, size, keys)
        if is_causal:
            future = torch.ones(last - first, keys, dtype=torch.bool).triu(1 + first)
            scores = scores.masked_fill(future, -torch.inf)
        rows.append(scores.softmax(-1) @ v[..., :keys, :])
    return torch.cat(rows, dim=-2)


for kernel in (skips_all, skips_none):
    kernel.limits = {"grouped": False, "dropout": False, "masks": ("none", "causal")}  # type: ignore[attr-defined]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--impl", default="sdpa,sdpa_flash,sdpa_math,fused,online", help="beside the two")
    options.add_argument("--options", default=OPTIONS, help=f"for `pytest bench/`; without: {OPTIONS}")
    asked = options.parse_args()
    own = [f"{kernel.__name__}={__spec__.name}:{kernel.__name__}" for kernel in (skips_all, skips_none)]
    with tempfile.TemporaryDirectory() as folder:
        impls = ",".join([*own, *filter(None, asked.impl.split(","))])
        options = "--scope", "core", "--mask", "none,causal", "--impl", impls, *asked.options.split()
        path = {"PYTHONPATH": str(CHECKOUT)}
        file = measured(Path(folder), *options, environment=path)
        rows = [row for row in rows_of(runs.read(file)) if row["mask_efficiency"] > 0]
    for row in sorted(rows, key=lambda row: (row["T"], row["mask_efficiency"])):
        found = units.bounded(row["mask_efficiency"], row["mask_efficiency_low"], row["mask_efficiency_high"])
        print(f"T = {row['T']:<6} {row['impl']:20} {found:24} of 1; {row['work_share']:.3f} where none is skipped")


if __name__ == "__main__":
    main()
