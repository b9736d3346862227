"""`python -m bench sweep --cluster ray|slurm --save NAME`: the same sweep on many machines, a run for each type of node."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from ..runs import journal as journals
from ..runs import replicates
from ..runs.replicates import PROCESSES, USAGE_ERROR
from ..runs.saving import results_root
from ..selection.command import complain, said
from ..selection.errors import UsageError, count

ENGINES = {"ray": "ray", "slurm": "submitit"}
"""The engines, each with its package; the module `on_NAME` reaches it."""

WITHOUT = (
    "--dry-run", "--list", "--collect-only", "--co", "--save-traces", "--redo", "-x", "--exitfirst", "--maxfail",
    "--benchmark-disable", "--benchmark-skip",
)  # fmt: skip
"""Options of pytest's side that a cluster has no use for."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Ends as `pytest bench/` does: 0 measured; 1 a cell is wrong, failed or timed out; 2 unfinished; 4 a mistake."""
    options, others = _parser().parse_known_args(arguments)
    try:
        if options.cluster:
            return _measured(options, others, said("sweep", arguments))
        for option in ("--address", "--node-types", "--slurm-option"):
            if getattr(options, option[2:].replace("-", "_")):
                raise UsageError(f"{option} goes with --cluster {' or '.join(ENGINES)}")
        return replicates.main(arguments)
    except UsageError as error:
        return complain(error, USAGE_ERROR)


def _parser() -> argparse.ArgumentParser:
    parser = replicates.parser()
    group = parser.add_argument_group("on many machines")
    group.add_argument("--cluster", choices=ENGINES, help="measure on the nodes of a cluster")
    group.add_argument(
        "--address", help="HOST:PORT of a running Ray cluster; of slurm only `local`: processes here, without Slurm"
    )
    group.add_argument(
        "--node-types",
        metavar="TYPE[:N],...",
        type=node_types,
        default={},
        help="which types of nodes measure, and how many of each at a time: a type is a resource `type:NAME` of Ray, or a "
        "partition of Slurm (default: all; of Slurm the default partition)",
    )
    group.add_argument(
        "--slurm-option",
        metavar="KEY=VALUE",
        action="append",
        type=_pair,
        default=[],
        help="an option of Slurm by the name that submitit gives it, as account=NAME; may be repeated",
    )
    return parser


def node_types(text: str) -> dict[str, int | None]:
    """`a:2,b` as {"a": 2, "b": None}."""
    parts = [part.strip().partition(":") for part in text.split(",")]
    if not all(kind for kind, _, _ in parts):
        raise argparse.ArgumentTypeError(f"{text!r}: expected TYPE or TYPE:N, with commas between them")
    return {kind: count(most) if most else None for kind, _, most in parts}


def _pair(text: str) -> tuple[str, str | int]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text}: expected KEY=VALUE")
    return name, int(value) if value.isdigit() else value


def _measured(options: argparse.Namespace, others: list[str], command: str) -> int:
    """Begin a sweep, or go on with one."""
    if unfit := {given.partition("=")[0] for given in others} & {*WITHOUT}:
        raise UsageError(f"{unfit.pop()} does not go with --cluster")
    results = results_root(Path.cwd(), options.benchmark_storage)
    name, path = replicates.begun(options, [*others, *options.node_types], results / "cluster")
    if path and (pid := journals.writer(path)) is not None:
        raise UsageError(f"run {name} is being measured right now, by process {pid}")
    own = [*["--quiet-machine"] * options.quiet_machine, f"--processes={options.processes or PROCESSES}"]
    asked = {"arguments": [*others, *own], "kinds": options.node_types, "command": command}
    header = journals.header_of(path) if path else asked
    from .archive import pack
    from .sweep import measure

    archive = pack(Path.cwd(), header["arguments"])
    digest = hashlib.sha256(archive).hexdigest()
    if header.setdefault("digest", digest) != digest:
        raise UsageError(f"the code has changed since run {name} was begun; begin another one: --save NAME")
    try:
        engine = import_module(f".on_{options.cluster}", __package__)
    except ModuleNotFoundError as error:
        needed = f"{error.name}: python -m pip install {ENGINES[options.cluster]}"
        raise UsageError(f"--cluster {options.cluster} needs {needed}") from None
    cluster = engine.Cluster(options, archive, header["kinds"], results / "cluster" / name)
    return measure(cluster, results, name, header, path)
