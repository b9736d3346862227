"""`python -m tests.experiments.dispatching RUN`: how well does a dispatcher choose at lengths that were not measured?

Emits one from RUN (a file, a name or a glob, as for `advise --run`) and draws cases: a setting of its table, and a length
between the measured ones. Each is timed beside every registered kernel. Printed for each: what was chosen, the fastest other
kernel, and the ratios of the dispatcher's time to that and to SDPA's; then how often it loses more than 3 % and 3 µs to the
fastest beyond the interval, how often it beats SDPA, and the time of choosing. Run it with nothing else running.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import median
from timeit import repeat
from typing import Any

import torch

import impls
from reports.judging import dispatcher
from reports.judging.dispatcher import SDPA, ByLength, Setting, key_ranges, measured
from reports.judging.rows import ratio, rows_of
from reports.reading import command, runs
from stats.ratios import Ratio

from . import measured as suite

MODULE = "attention_here"
SHARE = 0.03
"""Of the time of the best, what may be lost to it."""

SECONDS = 3e-6
"""That may be lost to the best, however short its call."""

MODES = {(False, None): "forward", (True, None): "backward", (False, 1): "decode"}
"""By gradients and queries: the possible cases."""


@dataclass(frozen=True)
class Found:
    """One case: the dispatcher's time over that of the best registered kernel, and over that of SDPA."""

    where: str
    chosen: str
    best: str
    over_best: Ratio
    over_sdpa: Ratio
    seconds: float
    """Of the best."""

    @property
    def loses(self) -> bool:
        return self.over_best.low > 1 + SHARE and (self.over_best.low - 1) * self.seconds > SECONDS


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("run", help="what was measured: of --scope core, best of several processes")
    options.add_argument("--cases", type=int, default=40)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--options", default="--processes 3", help="for `pytest bench/`")
    asked = options.parse_args()
    rows = [(run, rows_of(run)) for run in command.several([asked.run], runs.default_results())]
    table = {
        key: of
        for key, of in measured(rows).items()
        if (key.gradients, key.T) in MODES and key.mask in ("none", "causal")
    }
    with tempfile.TemporaryDirectory() as folder:
        print(dispatcher.emit(Path(folder) / f"{MODULE}.py", rows, []))
        found = []
        for setting, T in drawn(table, asked.cases, random.Random(asked.seed)):
            found.append(timed(Path(folder), setting, T, table[setting], asked.options.split()))
            print(line(found[-1]), flush=True)
        report(found, overhead(Path(folder)))


def drawn(table: dict[Setting, ByLength], count: int, rng: random.Random) -> Iterator[tuple[Setting, int]]:
    """Yield settings with lengths between the shortest and the longest that were not measured."""
    wide = [setting for setting, by_length in table.items() if len(by_length) > 1]
    if not wide:
        sys.exit("no setting of this run has two lengths")
    seen = set[tuple[Setting, int]]()
    while len(seen) < count:
        setting = rng.choice(wide)
        lengths = sorted(table[setting])
        T = round(math.exp(rng.uniform(math.log(lengths[0]), math.log(lengths[-1]))))
        if T not in lengths and (setting, T) not in seen:
            seen.add((setting, T))
            yield setting, T


def timed(folder: Path, setting: Setting, T: int, by_length: ByLength, options: Sequence[str]) -> Found:
    """Run the suite from the dispatcher's folder; returns a case's ratios."""
    others = [impl.name for impl in impls.registered() if impl.kernel and impl.limits.max_T is None]
    axes: dict[str, Any] = {name: getattr(setting, name) for name in ("B", "H", "H_kv", "D_h", "D_v", "dtype")}
    axes |= {"T": T, "mask": setting.mask, "mode": MODES[setting.gradients, setting.T]}
    axes |= {"scope": "core", "device": "cpu" if setting.device == "cpu" else "cuda"}
    axes |= {"threads": setting.threads} if setting.threads else {}
    given = [text for axis, value in axes.items() for text in (f"--{axis}", str(value))]
    impls_ = ",".join([f"here={MODULE}:attention", *others])
    file = suite(folder, *given, *options, "--impl", impls_)
    rows = {row["impl"]: row for row in rows_of(runs.read(file))}
    here = rows.pop("here")
    over = {other: ratio(here, row) for other, row in rows.items()}
    best = max(over, key=lambda other: over[other].value)
    chosen = next((kernel for first, last, kernel in key_ranges(by_length) if first <= T <= last), SDPA)
    return Found(here["id"], chosen, best, over[best], over[SDPA], rows[best]["median"])


def overhead(folder: Path) -> float:
    """Return the seconds of choosing: a call whose kernel does nothing, minus a call of that kernel."""
    sys.path.insert(0, str(folder))
    here: Any = import_module(MODULE)
    q = torch.zeros(1, 1, 2, 2)

    def nothing(*_: Any, **__: Any) -> None: ...

    here.sdpa = nothing
    calls = 100_000
    chosen, direct = (
        min(repeat(lambda call=call: call(q, q, q, is_causal=True), number=calls, repeat=5)) / calls
        for call in (here.attention, nothing)
    )
    return chosen - direct


def report(found: Sequence[Found], seconds: float) -> None:
    losses = [it for it in found if it.loses]
    faster, slower = ([it for it in found if getattr(it.over_sdpa, word)] for word in ("faster", "slower"))
    print(
        f"loses more than {SHARE:.0%} and {SECONDS * 1e6:g} µs to the best, beyond the interval: {len(losses)} of {len(found)}"
    )
    gains = [1 / it.over_sdpa.value for it in faster]
    usual = f", {median(gains):.2f} times as fast in the middle, {max(gains):.2f} at most" if gains else ""
    print(f"beats {SDPA} in {len(faster)} of {len(found)}{usual}; is beaten by it in {len(slower)}")
    print(f"choosing takes {seconds * 1e6:.2f} µs a call")


def line(it: Found) -> str:
    over_best, over_sdpa = (f"{r.value:.3f} ({r.low:.3f} to {r.high:.3f})" for r in (it.over_best, it.over_sdpa))
    loses = "  LOSES" if it.loses else ""
    return f"{it.where:60} {it.chosen:12} best {it.best:20} {over_best}  over {SDPA} {over_sdpa}{loses}"


if __name__ == "__main__":
    main()
