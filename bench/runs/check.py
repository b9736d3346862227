"""`python -m bench check`: checks kernels and layers in every declared capability, without timing them."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib.metadata import version
from time import perf_counter
from typing import Any

from stats.arguments import Parser

from ..cases.modes import Point
from ..cases.outcome import Skip, Unsupported, undeclared
from ..selection.errors import UsageError, positive
from ..terminal import complain
from ..workers.client import (
    Lost,
    NamedWorkers,
    Script,
    Variant,
    WorkerClient,
    WorkerSettings,
    checking,
    run_concurrently,
)

PASSED = "passed"

MOST_WORKERS = 4
"""Most worker processes: each begins by importing torch, which takes a core three seconds."""

SIZES = {"H": 2, "D_h": 64}
"""Sizes of all test problems that don't give their own."""

PADDED = {"mask": "causal+padding", "B": 3}
LONE = {"T": 1, "T_kv": 64, "mask": "none"}  # one new token
CHUNK = {"mask": "causal_br", "T": 8, "T_kv": 64}  # several new tokens
REQUESTS = {"requests": "1x8:8+1x6:20+2x1:14", "T": 16, "T_kv": 56, "mask": "causal_br", "source": "cross"}

Problems = tuple[Point, ...]
"""Axes of test problems that differ from the defaults."""

RULES: Problems = (
    {"window": 8}, {"prefix": 8}, {"documents": "lognormal"}, {"bias": "alibi", "H": 4}, {"bias": "dense"}, {"softcap": 20},
    {"sinks": True},
)  # fmt: skip

GROUPS: Point = {"H": 6, "H_kv": 2}
MODEL = GROUPS | {"D_h": 128, "dtype": "bfloat16"}  # as language models have
TILES = {"window": 160, "T": 200}  # a window of several tiles
BIASED: Point = {"qkv_bias": True, "out_bias": True}
NARROW = {"d_model": 96}  # narrower than the heads together, as in Gemma 7B
LATENT = {"latent": 64, "rope": 16}

BOTH: Problems = (
    {}, {"dtype": "bfloat16"}, {"dtype": "float16"}, {"dtype": "float64"}, {"autocast": "bfloat16"}, {"dropout": 0.1}, PADDED,
    GROUPS, GROUPS | TILES, MODEL, MODEL | {"window": 8}, GROUPS | {"dropout": 0.1}, {"D_h": 128}, {"D_v": 32}, {"D_v": 96},
    GROUPS | {"D_h": 192, "D_v": 128}, {"D_h": 256}, {"T": 256}, {"mask": "causal_br", "source": "cross", "T_kv": 100}, *RULES,
    {"mask": "padding", "B": 3}, {"source": "cross", "T_kv": 100}, {"H": 13, "H_kv": 1}, {"D_h": 40},
    {"mask": "padding", "B": 3, "dropout": 0.1}, GROUPS | {"bias": "dense"}, {"window": 8, "window_right": 2, "mask": "none"},
    GROUPS | PADDED, *(MODEL | axes | {"window": 8} for axes in ({"sinks": True}, {"softcap": 20})),
    *(MODEL | axes for axes in ({"mask": "none"}, {"dropout": 0.1})),
)  # fmt: skip
"""Problems of forward and backward calls."""

FORWARD: Problems = (
    *BOTH, {"mask": "none"}, {"mask": "none", "source": "cross", "T_kv": 40},
    REQUESTS, {"H": 1}, {"B": 17, "T": 32, "H": 17}, {"T": 1}, {"T": 2}, {"T": 5}, {"T": 1024, "H": 1},
    {"T": 1, "source": "cross", "T_kv": 40}, PADDED | {"dtype": "float16"}, MODEL | PADDED,
    *(GROUPS | axes | {"window": 8} for axes in ({"sinks": True}, {"softcap": 20})),
    {"mask": "padding", "B": 3, "source": "cross", "T_kv": 100}, GROUPS | {"bias": "alibi"},
    {"D_h": 128, "dtype": "float16"}, {"T": 5, "window": 8}, {"softcap": 20, "sinks": True}, {"softcap": 20, "bias": "dense"},
)  # fmt: skip

BACKWARD: Problems = (
    *BOTH, LONE | {"source": "cross"}, {"bias": "learned"}, {"B": 3, "mask": "none", "source": "cross", "T_kv": 40}
)  # fmt: skip

DECODE: Problems = (
    {}, {"T_kv": 3}, {"T_kv": 1024}, {"T_kv": 4097}, {"T_kv": 4097, "H": 32, "H_kv": 2}, {"dtype": "bfloat16"},
    {"dtype": "float16"}, {"dtype": "float64"}, {"D_h": 128}, {"D_h": 256}, GROUPS, MODEL, {"sinks": True}, CHUNK,
    CHUNK | {"window": 8}, CHUNK | {"window": 8, "T": 1, "T_kv": 5}, CHUNK | {"softcap": 20}, CHUNK | {"sinks": True},
    MODEL | CHUNK, *(MODEL | CHUNK | {"window": 8, "T": 1} | axes for axes in ({}, {"softcap": 20}, {"sinks": True})),
    {"D_h": 40}, {"D_v": 96}, {"softcap": 20}, GROUPS | {"sinks": True}, CHUNK | {"bias": "alibi", "T": 1, "H": 4},
)  # fmt: skip

AROUND: Problems = (
    {"out_dropout": 0.1}, BIASED, GROUPS | BIASED, BIASED | {"dropout": 0.1, "out_dropout": 0.1}, {"source": "cross"}, NARROW,
    *({"mode": "backward"} | axes for axes in (BIASED, BIASED | {"source": "cross"}, NARROW, LATENT)),
    *({"mode": "decode"} | LONE | axes for axes in (
        BIASED, NARROW, LATENT, GROUPS | {"page": 16}, {"page": 16, "T_kv": 81}, CHUNK | {"T": 64}, CHUNK | LATENT,
        CHUNK | {"page": 16}, CHUNK | LATENT | {"page": 16, "dtype": "bfloat16"},
    )),
)  # fmt: skip
"""Problems of layers alone; the shared layer handles these axes for kernels."""

PROBLEMS = (
    *FORWARD,
    *({"mode": "backward"} | it for it in BACKWARD),
    *({"mode": "decode"} | LONE | it for it in DECODE),
)


def name_of(axes: Point) -> str:
    """Return the name of a test problem: `mode=forward mask=none`."""
    return " ".join(f"{axis}={value}" for axis, value in ({"mode": "forward"} | axes).items())


@dataclass(frozen=True)
class Result:
    """Result of one implementation on one test problem."""

    impl: str
    problem: str
    """Axes that differ from the defaults of `check`."""
    id: str
    """Id of the case."""
    outcome: str = PASSED
    """`passed`, or a reason of `bench.cases.outcome`."""
    detail: str | None = None
    error: float | None = None
    """Relative error of the output closest to its bound, in the case itself."""
    error_bound: float | None = None
    seconds: float = 0.0
    torch: str = version("torch")

    def __str__(self) -> str:
        detail = self.detail if self.error is None else f"error {self.error:.1e} of {self.error_bound:.1e}"
        return f"{self.outcome:<13} {self.impl}: {self.problem}: {detail}"


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 0 if all supported cases are correct, 1 if one is wrong or fails, or if none is supported, 3 for a
    usage error.
    """
    parser = Parser(
        "python -m bench check",
        description="Check kernels and layers for correctness in all modes and axes that they declare, without timing them.",
        epilog="Exit code: 0 when everything supported is correct, 1 when something is wrong or fails, or none is supported.",
    )
    parser.add_argument(
        "impl",
        nargs="+",
        metavar="IMPL",
        help="module:function, NAME=mine.py:function, or the name of a registered one",
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="default: cpu")
    parser.add_argument("--cell-timeout", type=positive, default=WorkerSettings.timeout, metavar="SECONDS",
                        help=f"give up a test problem that takes longer (default: {WorkerSettings.timeout:g})")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print a list of objects, one per test problem")
    options = parser.parse_args(arguments)
    found: list[Result] = []

    def report(result: Result) -> None:
        found.append(result)
        if not options.json and result.outcome != Unsupported.reason:
            print(result, flush=True)

    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # several processes share the cores: waiting threads sleep
    begun = perf_counter()
    try:
        names = [_named(it) for it in ",".join(options.impl).split(",")]
        check(names, options.device, options.cell_timeout, report)
    except UsageError as error:
        return complain(error)
    finally:
        if options.json and found:
            print(json.dumps([asdict(it) for it in found], indent=1))
    unsupported = Counter(it.detail for it in found if it.outcome == Unsupported.reason)
    passed = sum(it.outcome == PASSED for it in found)
    failed = len(found) - passed - unsupported.total()
    if not options.json:
        for why, count in unsupported.most_common():
            print(f"{Unsupported.reason:<13} {why} ({count})")
        seconds = perf_counter() - begun
        print(f"{passed} passed, {failed} failed, {unsupported.total()} unsupported, in {seconds:.0f} s")
        for hint in undeclared(it.detail or "" for it in found):
            print(hint)
    return 1 if failed or not passed else 0


def _named(text: str) -> str:
    """Return `function=module:function` for a text without a name."""
    return f"{text.rpartition(':')[2]}={text}" if ":" in text and "=" not in text else text


def check(names: list[str], device: str, timeout: float, report: Callable[[Result], None]) -> None:
    """Check implementations in several processes, and report each problem's outcome in order; raises `UsageError`."""
    sizes = SIZES | {"device": device}
    given = {"names": names, "axes": [sizes | it for it in PROBLEMS], "around": [sizes | it for it in AROUND]}
    numbers = map(str, range(min(MOST_WORKERS, os.cpu_count() or 1) if device == "cpu" else 1))
    setting = WorkerSettings(os.getcwd(), threads=None, timeout=timeout)
    done: dict[int, Result] = {}
    first = 0  # index of the next result to report

    def script(number: str) -> Script:
        nonlocal first
        for index, (impl, axes, built) in todo:  # each problem goes to one worker
            client, begun = workers[number], perf_counter()
            try:
                if built["unsupported"]:
                    raise Unsupported(built["unsupported"])
                cell = {"what": "it", "impl": impl, "case": built["case"]}
                reply = yield from checking(client, cell, False, set(), keep=False, memory=False)
                found: dict[str, Any] = {name: reply["columns"][name] for name in ("error", "error_bound")}
            except Skip as outcome:
                found = {"outcome": outcome.reason, "detail": str(outcome)}
            done[index] = Result(impl, name_of(axes), built["id"], **found, seconds=perf_counter() - begun)
            while first in done:
                report(done[first])
                first += 1

    with closing(NamedWorkers(numbers, lambda _: WorkerClient(Variant(), setting).send("cases", **given))) as workers:
        try:
            todo = enumerate(
                (impl, axes, built)
                for impl, cases in workers["0"].first["cases"].items()
                for axes, built in zip((*PROBLEMS, *AROUND), cases, strict=False)  # a kernel has none of the last ones
            )
            run_concurrently([script(number) for number in workers])
        except Lost as lost:  # a process can't start, or not again
            raise UsageError(f"{', '.join(names)}: {lost}") from None
