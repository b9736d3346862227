"""`python -m tests.experiments.unusual --seed 0`: right but unusual kernels in cases drawn at random; none is refused."""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import replace
from random import Random
from time import perf_counter
from typing import Any

import impls
from bench.cases.case import Case
from bench.cases.outcome import Wrong

from ..conftest import gated
from ..unusual_kernels import KERNELS, MODES, Unusual

KINDS = ("lse", "powers_of_two", "chunks", "blocks", "split")


def every_kernel() -> dict[str, Unusual]:
    return KERNELS | {"split": Unusual(impls.get("split").kernel, ("forward", "decode"), case={})}


def drawn(random: Random) -> dict[str, Any]:
    """Axes of a case; a kernel's own come before them."""
    mode, T = random.choice(MODES), random.choice((random.randint(2, 40), random.randint(41, 160), 64, 65, 127, 192))
    axes = {"mode": mode, "T": T, "mask": random.choice(("none", "causal")), "H": random.choice((1, 2, 3, 4))}
    axes |= {"B": random.choice((1, 1, 2, 3)), "D_h": random.choice((8, 16, 32, 40, 64, 80, 128))}
    axes |= {"scope": random.choice(("core", "layer")), "dtype": random.choice(("float32", "float32", "bfloat16"))}
    return axes | ({"T": 1, "T_kv": T, "mask": "none"} if mode == "decode" else {})


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--seconds", type=float, default=500.0)
    asked = options.parse_args()
    random, until, trials = Random(asked.seed), perf_counter() + asked.seconds, Counter[str]()
    while perf_counter() < until:
        axes = drawn(random)
        for name, it in every_kernel().items():
            own = dict(axes, **(it.case or {}))
            if own["mode"] not in it.modes or own["dtype"] not in it.dtypes or perf_counter() > until:
                continue
            case = Case.of(**own)
            limits = impls.Limits(**getattr(it.kernel, "limits", {}))
            impl = impls.get(name) if name == "split" else impls.make("mine", it.kernel, limits=limits)
            if case.scope == "core" and impl.core is None:
                case = replace(case, scope="layer")
            if impl.refusal(case) is not None:
                continue
            trials[next((kind for kind in KINDS if kind in name), "other")] += 1
            try:
                gated(impl, case)
            except Wrong as refusal:
                trials["refused"] += 1
                print(f"{name} {case.id}: {refusal}", flush=True)
    print(
        f"seed {asked.seed}: {trials.total() - trials['refused']} trials, {trials['refused']} refused; {dict(trials)}"
    )


if __name__ == "__main__":
    main()
