"""`python -m tests.experiments.in_model RUN --model NAME`: how well does an emitted dispatcher choose inside a model?

Emits one from RUN (of `--model NAME --scope core`; a file, a name or a glob) and draws cases: a mode, and a length between
those that were measured. In each, two blocks of the model with its embedding and its head for one token run by the
dispatcher, as transformers finds it after `register()`, by SDPA, and by each kernel that could have been chosen. Printed for
each: what was chosen, the best, the ratio of their steps, and how far any logits are from SDPA's; then in how many cases more
than 3 % of the step is lost, beyond the interval. Run it with nothing else running.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from bench.cases import decoders, models
from impls.decoder import _filled
from reports.judging import dispatcher
from reports.judging.dispatcher import SDPA, ByLength, Setting, key_ranges
from reports.judging.rows import rows_of
from reports.reading import command, runs
from stats import estimate

from .dispatching import MODES, SHARE, drawn

HEADS = "H", "H_kv", "D_h"

ROUNDS = 5, 200
"""Of each case, at least and at most."""


@dataclass(frozen=True)
class Found:
    """One case: the step's time by the dispatcher over the best, with its 95 % interval."""

    where: str
    chosen: str
    best: str
    ratio: float
    low: float
    high: float
    logits: float
    """The largest difference of any dispatcher's logits from SDPA's, over the largest of them."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("run")
    options.add_argument("--model", default="qwen3-0.6b")
    options.add_argument("--cases", type=int, default=20)
    options.add_argument("--seconds", type=float, default=20, help="that a case is timed for, about")
    options.add_argument("--seed", type=int, default=0)
    asked = options.parse_args()
    rows = [(run, rows_of(run)) for run in command.several([asked.run], runs.default_results())]
    (layer, *_) = models.layers_of(decoders.config_of(asked.model)).values()
    known = dispatcher.measured(rows)
    table = {it: of for it, of in known.items() if fits(it) and all(getattr(it, n) == layer[n] for n in HEADS)}
    with tempfile.TemporaryDirectory() as folder:
        print(dispatcher.emit(Path(folder) / "here.py", rows, []))
        names = {SDPA: SDPA, "here": registered(Path(folder) / "here.py")}
        timed_ = {name for by_length in table.values() for over in by_length.values() for name in over}
        for i, kernel in enumerate(sorted(timed_.intersection(dispatcher.kernels()))):
            always = {setting: [(1, 1 << 20, kernel)] for setting in table}
            path = Path(folder) / f"only_{i}.py"  # transformers takes a name with `flash` in it for one of its own
            path.write_text(dispatcher.module(path.stem, [run for run, _ in rows], always, []), encoding="utf-8")
            names[kernel] = registered(path)
        found = []
        for setting, T in drawn(table, asked.cases, random.Random(asked.seed)):
            found.append(timed(asked.model, setting, T, table[setting], names, asked.seconds))
            print(line(found[-1]), flush=True)
    report(found)


def fits(setting: Setting) -> bool:
    """Whether a model without padding makes such calls: a causal mask for a prompt, none for one new token."""
    return (setting.gradients, setting.T) in MODES and setting.mask == ("none" if setting.T == 1 else "causal")


def registered(path: Path) -> str:
    """Return the name under which transformers finds a module's dispatcher."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.register())


def timed(
    name: str, setting: Setting, T: int, by_length: ByLength, names: dict[str, str], seconds: float
) -> Found:  # fmt: skip
    model = model_of(name, setting.dtype)
    step = step_of(model, setting, T)

    def run(impl: str) -> tuple[float, torch.Tensor]:
        model.set_attn_implementation(names[impl])
        began = perf_counter()
        logits = step()
        return perf_counter() - began, logits

    logits = {impl: run(impl)[1].detach().float() for impl in names}
    taken: dict[str, list[float]] = {impl: [] for impl in names}
    began, order = perf_counter(), [*names]
    while len(taken[SDPA]) < ROUNDS[0] or (len(taken[SDPA]) < ROUNDS[1] and perf_counter() - began < seconds):
        random.shuffle(order)
        for impl in order:
            taken[impl].append(run(impl)[0])
    others = names.keys() - {"here"}
    logs = {impl: np.log(taken["here"]) - np.log(taken[impl]) for impl in others}
    best = max(others, key=lambda impl: float(np.median(logs[impl])))
    ratio = estimate.of_replicates(logs[best])
    low, high = ratio.interval(0.05)
    chosen = next((kernel for first, last, kernel in key_ranges(by_length) if first <= T <= last), SDPA)
    apart = max(float((it - logits[SDPA]).abs().max() / logits[SDPA].abs().max()) for it in logits.values())
    where = f"{name} {MODES[setting.gradients, setting.T]} T={T} {setting.dtype}"
    return Found(where, chosen, best, *np.exp([ratio.mean, low, high]).tolist(), apart)


@lru_cache
def model_of(name: str, dtype: str) -> Any:
    """Return two blocks of the model with embedding and head: sizes from the table, random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = decoders.config_of(name)
    torch.manual_seed(0)
    settings = AutoConfig.for_model(**config | {"num_hidden_layers": 2})
    return AutoModelForCausalLM.from_config(settings, dtype=getattr(torch, dtype)).eval()


def step_of(model: Any, setting: Setting, T: int) -> Callable[[], torch.Tensor]:
    """Return a call that computes the logits of the last token."""
    tokens = torch.randint(model.config.vocab_size, (setting.B, setting.T or T))
    sizes = setting.B, setting.H_kv, T - 1, setting.D_h
    cache = tuple(torch.randn(sizes, dtype=model.dtype) for _ in range(4)) if setting.T else ()

    def step() -> torch.Tensor:
        with torch.set_grad_enabled(setting.gradients):
            filled = _filled(cache) if cache else None
            logits: torch.Tensor = model(tokens, cache=filled, use_cache=bool(cache), logits_to_keep=1).logits
        if setting.gradients:
            model.zero_grad()
            logits.float().square().mean().backward()  # type: ignore[no-untyped-call]
        return logits

    return step


def line(it: Found) -> str:
    loses = "  LOSES" if it.low > 1 + SHARE else ""
    ratio = f"{it.ratio:.3f} ({it.low:.3f} to {it.high:.3f})"
    return f"{it.where:50} {it.chosen:12} best {it.best:12} {ratio}  logits {it.logits:.1e} apart{loses}"


def report(found: Sequence[Found]) -> None:
    losses = sum(it.low > 1 + SHARE for it in found)
    print(f"loses more than {SHARE:.0%} of the step to the best, beyond the interval: {losses} of {len(found)}")
    slower = [it.ratio - 1 for it in found if it.low > 1]
    if slower:
        lost = f"{np.median(slower):.1%} is lost there (median), at most {max(slower):.1%}"
        print(f"slower than the best, beyond the interval: {len(slower)}; {lost}")
    print(f"logits are {max(it.logits for it in found):.1e} apart at most")


if __name__ == "__main__":
    main()
