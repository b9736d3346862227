"""`python -m reports advise`: the fastest implementation of each case of a saved run."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stats.axes import AXES

from ..judging import advice, dispatcher, findings
from ..judging.advice import Layers
from ..judging.model_steps import OF_MODELS
from ..judging.rows import rows_of
from ..reading import command, runs, units, words
from ..reading.axes import AXIS_NAMES
from ..reading.runs import Run, RunError
from .tables import LEFT, Table, plain

MOST_RUNS = 200
"""Most runs searched for one that contains the requested cases."""

COLUMNS = ("case", "fastest", "time", "memory", "next best", "slowdown")


def main(arguments: Sequence[str], layers_of: Callable[[str], Layers]) -> int:
    """Run `python -m reports advise`. `layers_of` returns the layers of a model by its name, or raises `RunError`."""
    options = _parser().parse_args(arguments)
    asked = advice.with_cache_length(
        {axis: getattr(options, axis) for axis in AXIS_NAMES if axis != "model" and axis in options}
    )
    if options.emit and options.run is not None:
        chosen = list(command.several([options.run], command.results(options)))
    else:
        chosen = [command.chosen(options.run, options.results)]
    if options.model and asked.get("scope") in OF_MODELS:
        raise RunError(f"--model names attention layers, and a {asked['scope']} is none: leave out --model")
    layers: Layers = layers_of(options.model) if options.model else {"": {}}
    if options.run is None:
        chosen = [_answering(chosen[0], asked, layers)]
    known = [(run, rows_of(run)) for run in chosen]
    usable, missing = [], list[str]()
    for kind, layer in layers.items():
        found = [(run, of) for run, rows in known if (of := advice.of_layer(rows, layer, asked)) or not layer]
        if not found:
            in_any = {**asked, "dtype": "any"}  # what is asked for needn't be the layer's
            others = [row["dtype"] for _, rows in known for row in advice.of_layer(rows, layer, in_any)]
            how = f"measure it with `pytest bench/ --model {shlex.quote(options.model)} --benchmark-save=NAME`"
            how = f"in {others[0]} it was: --dtype {others[0]}" if others else how
            missing.append(f"no {kind} layer of {options.model} was measured here; {how}")
        for run, of in found:
            try:
                usable.append((kind, run, of, advice.narrowed(of, asked)))
            except RunError as error:
                missing.append((f"{kind or run.name}: " if len(layers) * len(known) > 1 else "") + str(error))
    if not usable:
        raise RunError(missing[0])
    doubtful = [f"{run.name}: {why}" for run, _ in known for why in findings.unsteady(run)]
    stopped = [f"{run.name} is not complete" for run, _ in known if not run.complete]
    for why in (*missing, *stopped, *doubtful):
        command.warn(why)
    if options.emit:
        print(dispatcher.emit(options.emit, [(run, rows) for _, run, _, rows in usable], arguments))
    else:
        _show(options, chosen[0], {kind: advice.advise(of, rows, asked, run) for kind, run, of, rows in usable})
    return command.FINE


def _show(options: argparse.Namespace, run: Run, tables: Mapping[str, dict[str, Any]]) -> None:
    if options.json:
        origin = {"run": run.name, "date": run.date, "commit": run.commit_id}
        content = {"model": options.model, "layers": tables} if options.model else tables[""]
        print(json.dumps({**origin, **content}, indent=2, allow_nan=False, default=advice.typed))
        return
    title = f"from run {run.name}" + (f" of {run.date[:10]}" if run.date else "")
    if options.model:
        print(title)
    for kind, of in tables.items():
        print(
            plain(_table(f"{options.model}, {kind} layers", of, ("T", "dtype")) if options.model else _table(title, of))
        )


def _answering(newest: Run, asked: Mapping[str, Any], layers: Layers) -> Run:
    """Return the newest run of this machine that contains the requested cases; if none does, the newest."""
    for file in runs.newest_first(newest.path.parent.parent)[:MOST_RUNS]:
        if file.parent == newest.path.parent:
            with contextlib.suppress(RunError):
                every = rows_of(run := runs.read(file))
                rows = [row for layer in layers.values() for row in advice.of_layer(every, layer, asked)]
                advice.narrowed(rows, asked)
                return run
    return newest


def _table(title: str, advised: Mapping[str, Any], always: Sequence[str] = ()) -> Table:
    """Return a table with a row for each case, and remarks below. `always`: axes that identify a lone case."""
    axes, rows = advised["axes"] or always, []
    for cell in advised["cells"]:
        setting = words.setting({axis: cell[axis] for axis in axes} or cell, always=[*axes, "T", "H"])
        slower = units.interval(cell["slowdown_low"], cell["slowdown_high"]) if cell["slowdown_low"] else units.MISSING
        following = cell["next_best"] or units.MISSING
        tied = f" with {following}"  # which the column before names
        verdict = cell["text"].replace(f"{tied} and ", ", like ").removesuffix(tied).removesuffix("faster")
        memory = units.MISSING if cell["peak_bytes"] is None else units.memory(cell["peak_bytes"])
        first = (setting, cell["fastest"], units.seconds(cell["median"]), memory)
        rows.append((*first, following, verdict if verdict.startswith(slower) else f"{slower} {verdict}".strip()))
    wrong = f"Left out, wrong somewhere in this run: {', '.join(advised['left_out'])}." if advised["left_out"] else ""
    on_gpu = any(cell["device"] == "cuda" for cell in advised["cells"])
    note = " ".join(filter(None, (advised["page_faults"], wrong, words.sentence(words.UNVERIFIED) * on_gpu)))
    return Table(title, COLUMNS, rows, note, left=(*LEFT, "slowdown"))


def _parser() -> argparse.ArgumentParser:
    parser = command.parser("advise", "Print the fastest implementation of each case of a saved run.")
    command.add_run(parser)
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="only the attention layers of this model, or of a config.json (`list` shows them)",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON for programs")
    form.add_argument(
        "--emit", type=Path, metavar="FILE.py",
        help="write a module that calls the fastest kernel, with SDPA's signature; --run may be a glob of one machine's runs",
    )  # fmt: skip
    cases = parser.add_argument_group("only cases with this value; sizes may be ranges: --T 512..8192")
    for axis in (name for name in AXES if name != "model"):  # the argument names a model's layers
        about = AXES[axis].about.partition(" (default")[0]  # of a run
        cases.add_argument(f"--{axis}", type=_reader(axis), default=argparse.SUPPRESS, metavar="VALUE", help=about)
    return parser


def _reader(axis: str) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        known, (first, dots, last) = AXES[axis], text.partition("..")
        try:
            if not dots or known.kind != "size":
                return known.read(text)
            if found := range(known.read(first), known.read(last) + 1):
                return found
            raise ValueError("a range from a smaller number to a larger one")
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is not {error}") from None

    return read
