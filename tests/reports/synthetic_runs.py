"""Synthetic run files from formulas: deterministic, and without torch."""

import itertools
import json
import math
from dataclasses import dataclass
from statistics import median

import numpy as np

REGISTRY = (
    "loop", "linear", "mask_after_softmax", "wrapper", "fused", "packed", "einsum", "sdpa", "fused+compile", "sdpa+compile",
)  # fmt: skip
MACHINE = {
    "cpu": "AMD EPYC 9B14", "gpu": None, "cores": 2, "threads": 2, "memory_gib": 23, "torch": "2.13.0+cpu",
    "driver": None, "allocator": {},
}  # fmt: skip


def case_id(at):
    """Axes that every id has, and those that are not the usual ones."""
    usual = case(**{name: at[name] for name in ("B", "T", "H", "D_h", "dtype", "device")})
    others = [f"-{name}={value}" for name, value in at.items() if value and value != usual.get(name)]
    return f"B{at['B']}-T{at['T']}-H{at['H']}-D_h{at['D_h']}-{at['dtype']}-{at['device']}{''.join(others)}"


def case(**axes):
    """All fields of a case, with the defaults of the suite."""
    full = {
        "B": 1, "T": 64, "H": 8, "D_h": 64, "dtype": "float32", "device": "cpu", "mask": "causal", "source": "self",
        "dropout": 0.0, "out_dropout": 0.0, "qkv_bias": False, "out_bias": False, "threads": 2, "mode": "forward",
        "scope": "layer", **axes,
    }  # fmt: skip
    derived = {"T_kv": full["T"], "H_kv": full["H"], "D_v": full["D_h"], "d_model": full["H"] * full["D_h"]}
    return {**derived, **full}


def row(impl, at, samples, apart=(1.0, 1.0, 1.0), **extra):
    """One benchmark as this suite writes it (see `interleaved`); without `apart`, each sample is the block of a process.
    Quartiles are those of the samples of one process."""
    stats = dict(zip(("q1", "median", "q3"), np.quantile(samples, (0.25, 0.5, 0.75)).tolist(), strict=True))
    info = {"impl": impl, "id": case_id(at), **at, "error": 3e-7, "error_bound": 6e-7, "peak_bytes": 2**20,
            "flops": 10**9, "bytes": 10**6, "clock": "wall", **extra}  # fmt: skip
    made = {"group": case_id(at), "stats": stats | {"data": list(samples)}, "extra_info": info}
    return interleaved(made, apart) if apart else sampled(made, samples, len(samples))


def document(rows, **top):
    """A whole run file."""
    return {
        "machine_info": MACHINE, "commit_info": {"id": "0123abc", "dirty": False}, "benchmarks": rows,
        "datetime": "2026-11-20T10:00:00+00:00", "version": "5.3.1", "schema": 2, "sweep": "quick",
        "command": "pytest bench/ --benchmark-save=x", "state": {"environment": {"LANG": "C"}},
        "registry": list(REGISTRY), "baseline_impl": "fused", "complete": True, "skipped": [], **top,
    }  # fmt: skip


def by_length(seconds, T=(64, 256), top=None, peaks=None, **axes):
    """A run in which a call takes these seconds a token, with 8 heads, and needs these bytes, by implementation. Each value in
    a tuple of an axis has cases; `loop` supports T = 64 alone."""
    grid = {name: value if isinstance(value, tuple) else (value,) for name, value in axes.items()}
    cases = [case(**dict(zip(("T", *grid), values, strict=True))) for values in itertools.product(T, *grid.values())]
    rows, skipped = [], []
    for at, (impl, each) in itertools.product(cases, seconds.items()):
        if impl == "loop" and at["T"] > 64:
            skipped.append({"impl": impl, "id": case_id(at), "reason": "unsupported", "detail": "loop stops at T = 64"})
        else:
            peak = (peaks or {}).get(impl, 2**20)
            rows.append(row(impl, at, [each * at["T"] * at["H"] / 8], peak_bytes=peak))
    return document(rows, **{"skipped": skipped, **(top or {})})


@dataclass(frozen=True)
class Noise:
    """Of a run whose implementations are interleaved: standard deviations of logarithms of times, all independent and normal.

    A block takes its implementation's time, times one factor for each of these.
    """

    day: float = 0.06
    """The machine, all of a run alike."""
    round: float = 0.05
    """The machine, all blocks of a round alike."""
    run: float = 0.004
    """An implementation in a case, a whole run long: how memory happened to be laid out."""
    process: float = 0.01
    """The same, of one process."""
    block: float = 0.02
    """One block."""


def timed_interleaved(
    seed, slower=None, noise=Noise(), T=(64, 256, 1024),
    impls=("fused", "linear", "packed", "einsum", "sdpa", "wrapper"), processes=4, rounds=12, each=None, **top,
):  # fmt: skip
    """A run of the given noise. `slower` maps an implementation to the factor on its times, which changes its hash too;
    `rounds` are those of a process; `each`: seconds a token."""
    rng = np.random.default_rng(seed)
    day, rows = rng.normal(0, noise.day), []
    for length in T:
        at = case(T=length, H=1)
        drift = rng.normal(0, noise.round, processes * rounds)
        for impl in impls:
            factor = (slower or {}).get(impl, 1.0)
            whole = rng.normal(0, noise.run)
            process = rng.normal(0, noise.process, processes).repeat(rounds)
            logs = day + drift + whole + process + rng.normal(0, noise.block, drift.size)
            seconds = ((each or {}).get(impl, 1e-6) * length * factor * np.exp(logs)).tolist()
            made = row(impl, at, seconds, (), kernel="math", impl_hash=f"{impl} {factor}")
            rows.append(sampled(made, seconds, processes))
    return document(rows, controls=_still(rng, day), **top)


def slowed(data, by, others):
    """The run on a machine slower by a factor: that of an implementation, or else of the others."""
    for one in data["benchmarks"]:
        factor = by.get(one["extra_info"]["impl"], others)
        sampled(one, [seconds * factor for seconds in one["stats"]["data"]], one["extra_info"]["processes"])
    return data


def disturbed(data):
    """The run, with calls that other work interrupted 500 times a second."""
    for one in data["benchmarks"]:
        one["extra_info"]["switches_involuntary"] = 500 * one["stats"]["median"]
    return data


def _still(rng, day):
    """A reference workload with the drift of the implementations."""
    samples = [{"seconds": float(3e-3 * math.exp(day + rng.normal(0, 0.001)))} for _ in range(5)]
    return {"drift": 0.01, "looks": {"product": samples}}


def save(data, folder, name):
    """Writes `folder/Machine/NAME.json`."""
    path = folder / "Linux-CPython-3.11-64bit" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data))
    return path


def sampled(row, seconds, processes):
    """The row with these samples of its processes, one after the other, one visit each. Rows of one length are paired sample
    by sample."""
    many = len(seconds) // processes
    where = [i // many for i in range(len(seconds))]
    row["stats"] |= {"data": [*seconds], "median": median(seconds)}
    row["extra_info"] |= {
        "processes": processes,
        "process_medians": [median(seconds[p * many : (p + 1) * many]) for p in range(processes)],
        "sample_rounds": list(range(len(seconds))),
        "sample_visits": where,
        "sample_processes": where,
    }
    return row


def interleaved(row, apart=(1.0, 1.0, 1.0)):
    """The row as if its samples were repeated in several processes, times each process's factor in `apart`."""
    seconds = [seconds * factor for factor in apart for seconds in row["stats"]["data"]]
    return sampled(row, seconds, len(apart))
