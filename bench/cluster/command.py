"""`python -m bench sweep --save NAME [options of pytest bench/]`: a run in K fresh processes, optionally under controlled
conditions; with `--cluster ray|slurm` on many machines, with one run per type of node.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from pytest_benchmark.utils import get_machine_id

from stats.arguments import Parser

from .. import CHECKOUT
from ..runs.saving import Journal, newest_journal, results_root, valid_name
from ..selection.errors import UsageError, count
from ..terminal import complain
from ..workers.fresh import pin, quiet_environment

USAGE_ERROR = 4
"""pytest's exit code for usage errors."""

PROCESSES = 5

ENGINES = {"ray": "ray", "slurm": "submitit"}
"""Engines with their packages; each is implemented by the module `on_NAME`."""

UNSUPPORTED = (
    "--dry-run", "--list", "--collect-only", "--co", "--save-traces", "--redo", "-x", "--exitfirst", "--maxfail",
    "--report", "--benchmark-autosave",
)  # fmt: skip
"""Options that have no effect on a cluster."""


def main(arguments: Sequence[str]) -> int:
    """Return the exit code of `pytest bench/`: 0 measured; 1 a cell failed; 2 unfinished; 4 a usage error."""
    options, others = _parser().parse_known_args(arguments)
    try:
        _refuse_conflicts(options, {option.partition("=")[0] for option in others})
        name = valid_name(options.resume or options.save, "--resume" if options.resume else "--save")
        results = results_root(Path.cwd(), options.benchmark_storage)
        unfinished = newest_journal(results / ("cluster" if options.cluster else str(get_machine_id())), name)
        if unfinished and not options.resume:
            raise UsageError(f"run {name} was started and not finished: `--resume {name}` continues")
        if options.cluster:
            command = shlex.join(["python", "-m", "bench", "sweep", *arguments])
            return _on_cluster(options, others, results, name, unfinished, command)
        _here(options, others)
    except UsageError as error:
        return complain(error, USAGE_ERROR)


def _refuse_conflicts(options: argparse.Namespace, others: set[str]) -> None:
    """Raise `UsageError` for options that have no effect together."""
    own = options.processes or options.node_types or (options.cluster and options.quiet_machine)
    unsupported = options.cluster and ", ".join(others.intersection(UNSUPPORTED))
    for conflict, message in (
        (options.quiet_machine and "--threads" in others, "--quiet-machine uses one thread: leave out --threads"),
        (options.slurm_option and options.cluster != "slurm", "--slurm-option goes with --cluster slurm"),
        (not options.cluster and (options.address or options.node_types), "--address and --node-types go with --cluster"),
        (unsupported, f"{unsupported} does not go with --cluster"),
        (options.resume and (own or others - {"--redo"}),
         f"--resume {options.resume} continues with its original options; leave out the others"),
    ):  # fmt: skip
        if conflict:
            raise UsageError(message)


def _here(options: argparse.Namespace, others: Sequence[str]) -> NoReturn:
    """Replace this process by `pytest bench/`, in several processes and under the requested conditions."""
    given = {
        "benchmark-save": options.save,
        "resume": options.resume,
        "processes": None if options.resume else options.processes or PROCESSES,
        "benchmark-storage": options.benchmark_storage,
    }
    if options.quiet_machine:
        os.environ.update(quiet_environment())
        pin()
    suite, own = CHECKOUT / "bench", [f"--{name}={value}" for name, value in given.items() if value is not None]
    os.execv(sys.executable, [sys.executable, "-P", str(suite / "launch.py"), str(suite), *own, *others])


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "python -m bench sweep",
        USAGE_ERROR,
        description="Measure a sweep in several fresh processes and save it as one run.",
        epilog="All other options are those of `pytest bench/`: --sweep, --impl, --T, ...",
    )
    parser.add_argument("--processes", type=count, metavar="K", help=f"number of processes (default: {PROCESSES})")
    name = parser.add_mutually_exclusive_group(required=True)
    name.add_argument("--save", "--benchmark-save", metavar="NAME", help="name of the saved run")
    name.add_argument("--resume", metavar="NAME", help="finish a run that was interrupted")
    parser.add_argument(
        "--quiet-machine",
        action="store_true",
        help="one thread, pinned to one core, and an allocator that keeps freed memory",
    )
    parser.add_argument("--benchmark-storage", metavar="URI", help="folder of results (default: results/)")
    group = parser.add_argument_group("on many machines")
    group.add_argument("--cluster", choices=ENGINES, help="measure on the nodes of a cluster")
    group.add_argument(
        "--address",
        help="HOST:PORT of a running Ray cluster; `local`: a new one, or with slurm processes, on this machine",
    )
    group.add_argument(
        "--node-types",
        metavar="TYPE[:N],...",
        type=node_types,
        default={},
        help="which types of nodes measure, and how many of each at a time: a type is a resource `type:NAME` of Ray, or a "
        "partition of Slurm (default: all; on Slurm one node, of the default partition)",
    )
    group.add_argument(
        "--slurm-option",
        metavar="KEY=VALUE",
        action="append",
        type=_pair,
        default=[],
        help="an option of sbatch, with underscores, as account=NAME or time=60; may be repeated",
    )
    return parser


def node_types(text: str) -> dict[str, int | None]:
    """Parse `a:2,b` into {"a": 2, "b": None}."""
    parts = [part.strip().partition(":") for part in text.split(",")]
    if not all(kind for kind, _, _ in parts):
        raise argparse.ArgumentTypeError(f"{text!r}: expected TYPE or TYPE:N, several joined by commas")
    return {kind: count(most) if most else None for kind, _, most in parts}


def _pair(text: str) -> tuple[str, str | int]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text}: expected KEY=VALUE")
    return name, int(value) if value.isdigit() else value


def _on_cluster(
    options: argparse.Namespace, others: list[str], results: Path, name: str, unfinished: Path | None, command: str
) -> int:
    """Begin a sweep, or resume the one that this journal left unfinished."""
    if options.resume and unfinished is None:
        raise UsageError(f"no run {name} was started in {results / 'cluster'}: --save {name} starts one")
    journal = Journal(unfinished) if unfinished else None
    own = (*["--quiet-machine"] * options.quiet_machine, f"--processes={options.processes or PROCESSES}")
    asked = {"arguments": [*others, *own], "kinds": options.node_types, "command": command}
    header = journal.header if journal else asked
    from .sweep import measure, pack  # imports torch

    archive = pack(Path.cwd(), header["arguments"])
    digest = hashlib.sha256(archive).hexdigest()
    if header.setdefault("digest", digest) != digest:
        raise UsageError(f"the code has changed since run {name} was started; start another one: --save NAME")
    try:
        engine = import_module(f".on_{options.cluster}", __package__)
    except ModuleNotFoundError as error:
        needed = f"{error.name}: python -m pip install {ENGINES[options.cluster]}"
        raise UsageError(f"--cluster {options.cluster} needs {needed}") from None
    cluster = engine.Cluster(options, archive, header["kinds"], results / "cluster" / name)
    return measure(cluster, results, name, header, journal)
