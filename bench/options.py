"""The command line: which implementations, which cases. A user's mistake becomes one line that says what would be right."""

from __future__ import annotations

import argparse
import importlib
import inspect
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import pytest
import torch

import impls
from impls import Impl, Limits
from impls.layer import kernel_options

from .sweep import DEVICES, DTYPES, MASKS, MODES, SCOPES, SOURCES, SWEEPS, Case, Sweep


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise ValueError("a positive whole number")
    return int(text)


def _one_of(known: Iterable[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in known:
            raise ValueError(f"one of {', '.join(known)}{_nearest(text, known)}")
        return text

    return parse


def _positive(text: str) -> float:
    """A positive number; argparse says what is wrong with another."""
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return number


def _probability(text: str) -> float:
    try:
        p = float(text)
    except ValueError:
        p = -1.0
    if not 0 <= p < 1:
        raise ValueError("a probability: 0 or more, and less than 1")
    return p


def _switch(text: str) -> bool:
    return {"on": True, "off": False}[_one_of(("on", "off"))(text)]


AXES: dict[str, tuple[Callable[[str], Any], str]] = {
    "B": (_whole, "batch sizes"),
    "T": (_whole, "tokens in the queries"),
    "T_kv": (_whole, "tokens in keys and values (with --source cross)"),
    "H": (_whole, "query heads"),
    "H_kv": (_whole, "key-value heads"),
    "D_h": (_whole, "width of a query or key head"),
    "D_v": (_whole, "width of a value head"),
    "d_model": (_whole, "width of the model"),
    "dtype": (_one_of(DTYPES), ", ".join(DTYPES)),
    "device": (_one_of(DEVICES), "cpu, cuda (default: what the machine has)"),
    "mask": (_one_of(MASKS), ", ".join(MASKS)),
    "source": (_one_of(SOURCES), ", ".join(SOURCES)),
    "mode": (_one_of(MODES), f"{', '.join(MODES)} (the newest of T tokens against a cache of the others)"),
    "scope": (_one_of(SCOPES), "layer, or core: from q, k, v to o"),
    "dropout": (_probability, "probability of dropping one of the probs"),
    "out_dropout": (_probability, "probability of dropout after the output projection"),
    "qkv_bias": (_switch, "biases in the input projections: on, off"),
    "out_bias": (_switch, "a bias in the output projection: on, off"),
    "threads": (_whole, "intra-op threads on the CPU"),
}
"""Every axis that the command line can override, how a value is read, and its help."""


@dataclass(frozen=True)
class Cell:
    """One implementation on one case: one row, or one reason why there is none."""

    impl: Impl
    case: Case

    @property
    def key(self) -> tuple[str, str]:
        return self.impl.name, self.case.id


@dataclass(frozen=True)
class Selection:
    """What the user asked for, with every name resolved."""

    sweep: Sweep
    device: str
    impls: tuple[Impl, ...]
    cells: tuple[Cell, ...]
    overrides: dict[str, tuple[Any, ...]] = field(default_factory=dict)


TIMING: dict[str, tuple[float, str, str]] = {
    "cell_time": (0.12, "SECONDS", "timing of one cell, at most"),
    "precision": (0.02, "SHARE", "timing ends when the median's interval, within the process, is half as wide as this"),
    "cell_timeout": (300.0, "SECONDS", "a cell that takes longer, proof and compiling included, is given up"),
}
"""How a cell is timed: default, unit, meaning. A resumed run goes on with what it was begun with."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("attention", "attention-bench")
    group.addoption("--sweep", metavar="NAME", help=f"which cases: {', '.join(SWEEPS)} (default: quick)")
    group.addoption("--impl", metavar="NAMES", action="append", default=[],
                    help="exactly what runs: a comma list or repeated; NAME+compile for a compiled form; "
                         "NAME=package.module:attr for a kernel or layer of your own")  # fmt: skip
    for axis, (_, about) in AXES.items():
        group.addoption(f"--{axis}", metavar="VALUES", help=f"override an axis, a comma list: {about}")
    for name, (default, metavar, about) in TIMING.items():
        group.addoption(
            f"--{name.replace('_', '-')}", type=_positive, metavar=metavar, help=f"{about} (default: {default})"
        )
    group.addoption("--list", action="store_true", dest="attention_list",
                    help="show implementations with what they can do, and sweeps with their cells")  # fmt: skip
    group.addoption("--dry-run", action="store_true", dest="attention_dry_run",
                    help="show what would be measured and about how long")  # fmt: skip
    group.addoption(
        "--shuffle",
        type=int,
        metavar="SEED",
        help="measure the cases in an order drawn by this seed, and the implementations of a case likewise",
    )
    group.addoption("--resume", metavar="NAME", help="finish the run that was saved under NAME and interrupted")


ASKED = ("sweep", "impl", *AXES)
"""The options that decide which cells a run has."""


def asked(config: pytest.Config) -> dict[str, Any]:
    """The options that decide which cells there are, as they were given."""
    return {name: value for name in ASKED if (value := config.getoption(name))}


def settle_timing(config: pytest.Config, begun: dict[str, float]) -> dict[str, float]:
    """Give every option of `TIMING` its value: as asked for now, else as the run was begun, else the default."""
    for name, (default, *_) in TIMING.items():
        if config.getoption(name) is None:
            setattr(config.option, name, begun.get(name, default))
    return {name: config.getoption(name) for name in TIMING}


def select(config: pytest.Config, options: dict[str, Any]) -> Selection:
    """Resolve the options (of `asked`) into cells; raises `pytest.UsageError` with one line."""
    name = options.get("sweep", "quick")
    if name not in SWEEPS:
        raise pytest.UsageError(f"unknown sweep {name!r}; known: {', '.join(SWEEPS)}{_nearest(name, SWEEPS)}")
    overrides = {axis: _values(axis, options[axis]) for axis in AXES if axis in options}
    devices = overrides.get("device", ())
    if "cuda" in devices and not torch.cuda.is_available():
        raise pytest.UsageError(
            "--device cuda: torch finds no CUDA device here; leave --device out, or use --device cpu"
        )
    if "threads" in overrides:
        overrides["threads"] = tuple(None if n == torch.get_num_threads() else n for n in overrides["threads"])
    chosen = _impls(options.get("impl", []), SWEEPS[name], str(config.invocation_params.dir))
    device = devices[0] if devices else "cuda" if torch.cuda.is_available() else "cpu"
    try:
        cases = SWEEPS[name].cases(device, overrides)
    except ValueError as error:
        raise pytest.UsageError(f"sweep {name}: {error}") from None
    cells = tuple(Cell(impl, case) for case in dict.fromkeys(cases) for impl in chosen)
    for cell in cells:
        if why := uncallable(cell):
            raise pytest.UsageError(f"--impl {cell.impl.name}: {why}")
    return Selection(SWEEPS[name], device, chosen, cells, overrides)


def _values(axis: str, text: str) -> tuple[Any, ...]:
    read, _ = AXES[axis]
    found = []
    for value in text.split(","):
        try:
            found.append(read(value.strip()))
        except ValueError as error:
            raise pytest.UsageError(f"--{axis} {text}: {value.strip()!r} is not {error}") from None
    return tuple(dict.fromkeys(found))


def _impls(given: list[str], sweep: Sweep, folder: str) -> tuple[Impl, ...]:
    """The implementations that are named, or the sweep's own: eager ones, and the compiled forms worth a place."""
    names = [name.strip() for text in given for name in text.split(",") if name.strip()]
    if not names:
        if given:
            raise pytest.UsageError(f"--impl names nothing; known: {_known()}")
        chosen = [impl for impl in impls.shelf() if impl.common or sweep.whole_shelf]
        names = [impl.name for impl in chosen]
        names += [impl.name + impls.COMPILE for impl in chosen if impl.compiled_by_default]
    return tuple(_impl(name, folder) for name in dict.fromkeys(names))


def _impl(name: str, folder: str) -> Impl:
    if "=" in name:
        own, _, path = name.partition("=")
        return _own(own, path, folder)
    try:
        return impls.get(name)
    except KeyError:
        if ":" in name:
            raise pytest.UsageError(f"--impl {name}: give it a name, as in mine={name}") from None
        plain = name.removesuffix(impls.COMPILE)
        message = f"unknown implementation {name!r}; known: {_known()}"
        raise pytest.UsageError(message + _nearest(plain, [i.name for i in impls.shelf()])) from None


def _own(name: str, path: str, folder: str) -> Impl:
    """Register a user's kernel or layer, `mine=package.module:attr`, and give it (or its compiled form) back."""
    plain = name.removesuffix(impls.COMPILE)
    module, _, attr = path.partition(":")
    if not plain or not module or not attr:
        raise pytest.UsageError(f"--impl {name}={path}: expected NAME=package.module:attr")
    if folder not in sys.path:
        sys.path.insert(0, folder)  # the one insertion: what lies where the user started is importable
    try:
        it = getattr(importlib.import_module(module), attr)
    except AttributeError:
        raise pytest.UsageError(f"--impl {name}: module {module} has no attribute {attr!r}") from None
    except Exception as error:
        raise pytest.UsageError(f"--impl {name}: can't import {module}: {type(error).__name__}: {error}") from None
    try:
        declared = Limits(**getattr(it, "limits", {}))
        impl = impls.make(plain, it, limits=declared)
        if plain not in {i.name for i in impls.shelf()} or impls.get(plain).owner != impl.owner:
            impls.add(impl)
    except (TypeError, ValueError) as error:
        raise pytest.UsageError(f"--impl {name}={path}: {error}") from None
    return impls.get(name)


def uncallable(cell: Cell) -> str | None:
    """Why the signature of an implementation doesn't allow the call that a case needs; None when it does."""
    impl, case = cell.impl, cell.case
    if impl.refusal(case):
        return None
    if impl.kernel is not None:
        needed = dict.fromkeys(kernel_options(case.layer_shape, _mask_of(case), training=True))
        return _misfit(impl.kernel, ["q", "k", "v"], needed, case)
    if isinstance(impl.layer, type):
        inputs = ["x", "x_k"] if case.source == "cross" else ["x"]
        named = {"padding": case.padded, "cache": case.mode == "decode"}
        return _misfit(impl.layer, ["shape"], {}, case) or _misfit(
            impl.layer.forward,  # type: ignore[attr-defined]
            ["self", *inputs],
            {name: None for name, used in named.items() if used},
            case,
        )
    return None


def _mask_of(case: Case) -> Any:
    """Something where a kernel would be given a mask."""
    return case.mask if case.padded else None


def _misfit(function: Callable[..., Any], positional: list[str], keywords: dict[str, Any], case: Case) -> str | None:
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # what is written in C may have none
        return None
    try:
        signature.bind(*positional, **keywords)
    except TypeError as error:
        call = ", ".join([*positional, *(f"{name}=..." for name in keywords)])
        name = getattr(function, "__qualname__", "it")
        return f"{name}{signature} can't be called as ({call}), which {case.id} needs: {error}"
    return None


def _known() -> str:
    return f"{', '.join(impl.name for impl in impls.shelf())}, and NAME{impls.COMPILE}"


def _nearest(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


def seconds_of(cell: Cell, cell_time: float) -> float:
    """About how long a cell takes, proof and memory included: a guess for progress and `--dry-run`."""
    case, limits = cell.case, cell.impl.limits
    if cell.impl.refusal(case):
        return 0.01
    pairs = case.B * case.H * case.T * case.T_kv
    work = 4 * pairs * (case.D_h + case.D_v) / 2e10  # the gate's float64 reference and the calls it makes
    loops = 6 * pairs / limits.max_pairs if limits.max_pairs else 0.0  # a limit on pairs marks a Python loop
    work *= {"backward": 3}.get(case.mode, 1)
    return 0.1 + cell_time + work + loops + (1.5 if cell.impl.compiled else 0.0)


def clock_text(seconds: float) -> str:
    """`about 40 s`, `about 3 min`"""
    if seconds < 90:
        return f"about {max(1, math.ceil(seconds))} s"
    return f"about {round(seconds / 60)} min"
