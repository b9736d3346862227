"""Runs made of several processes each, for what follows numbers from run to run."""

import math

import numpy as np
import synthetic_runs as synthetic

CASES = tuple(synthetic.case(T=T, dtype=dtype) for T in (64, 256) for dtype in ("float32", "bfloat16"))
IMPLS = ("fused", "einsum", "sdpa")
SECONDS = {"fused": 2e-3, "einsum": 3e-3, "sdpa": 1e-3, "sdpa+compile": 9e-4}


def run(
    seed,
    slower=None,
    processes=6,
    noise=0.003,
    impls=IMPLS,
    extra=None,
    **top,
):
    """A run over 4 cases. `slower` maps an implementation to the factor on its times, which changes its hash; `extra` goes into
    every row."""
    rng = np.random.default_rng(seed)
    rows = []
    for at in CASES:
        for impl in impls:
            true = SECONDS[impl] * at["T"] / 64 * (slower or {}).get(impl, 1.0)
            medians = [float(true * math.exp(x)) for x in rng.normal(0, noise, processes)]
            known = {"kernel": "math", "impl_hash": f"{impl} {(slower or {}).get(impl, 1.0)}", **(extra or {})}
            rows.append(synthetic.row(impl, at, medians, (), **known))
    return synthetic.document(rows, **top)


def cells(data, impl):
    """Rows of one implementation, to be changed in place."""
    return [row for row in data["benchmarks"] if row["extra_info"]["impl"] == impl]


def without(data, impl, reason, detail):
    """The run, with an implementation's rows moved to the skipped cells."""
    gone = cells(data, impl)
    data["benchmarks"] = [row for row in data["benchmarks"] if row not in gone]
    told = {"impl": impl, "reason": reason, "detail": detail}
    data["skipped"] = [{**told, "id": row["extra_info"]["id"]} for row in gone]
    return data
