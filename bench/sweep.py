"""`python -m bench sweep --save NAME [options of pytest bench/]`: a run in K fresh processes, optionally under controlled
conditions; with `--cluster ray|slurm` on many machines, with one run per type of node.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from pytest_benchmark.utils import get_machine_id

from stats.arguments import Parser

from . import CHECKOUT
from .cluster import ENGINES
from .launch import COMMAND
from .runs.saving import newest_journal, results_root, valid_name
from .selection.errors import UsageError, count
from .terminal import complain
from .workers.fresh import pin, quiet_environment

USAGE_ERROR = 4
"""pytest's exit code for usage errors."""

PROCESSES = 5

UNSUPPORTED = (
    "--dry-run", "--list", "--collect-only", "--co", "--save-traces", "-x", "--exitfirst", "--maxfail",
    "--report", "--benchmark-autosave",
)  # fmt: skip
"""Options that have no effect on a cluster."""


def main(arguments: Sequence[str]) -> int:
    """Return the exit code of `pytest bench/`: 0 measured; 1 a cell failed; 2 unfinished; 4 a usage error."""
    options, others = _parser().parse_known_args(arguments)
    others += [f"--case={options.case}"] * bool(options.case)
    try:
        _refuse_conflicts(options, {option.partition("=")[0] for option in others})
        name = valid_name(options.resume or options.save, "--resume" if options.resume else "--save")
        results = results_root(Path.cwd(), options.benchmark_storage)
        folder, again = results / ("cluster" if options.cluster else str(get_machine_id())), _resuming(options, name)
        unfinished = newest_journal(folder, name)
        if unfinished and not options.resume:
            raise UsageError(f"run {name} was started and not finished: `{again}` continues")
        if not options.resume:
            others.append(f"--processes={options.processes or PROCESSES}")
        if not options.cluster:
            _here(options, others)
        if options.resume and not unfinished:
            raise UsageError(f"no run {name} was started in {folder}: --save {name} starts one")
        others += ["--quiet-machine"] * options.quiet_machine
        command = shlex.join(["python", "-m", "bench", "sweep", *arguments])
        asked = {"arguments": others, "kinds": options.node_types, "command": command, "resume": again}
        from .cluster.sweep import begin  # imports torch

        return begin(options, asked, results, name, unfinished)
    except UsageError as error:
        return complain(error, USAGE_ERROR)


def _resuming(options: argparse.Namespace, name: str) -> str:
    """Return the command that resumes a sweep: with the options that say where it is measured, which no journal has."""
    where = ("cluster", options.cluster), ("address", options.address), ("benchmark-storage", options.benchmark_storage)
    words = [f"--{option}={value}" for option, value in where if value]
    words += [f"--slurm-option={option}={value}" for option, value in options.slurm_option]
    words += ["--quiet-machine"] * (options.quiet_machine and not options.cluster)
    return shlex.join(["python", "-m", "bench", "sweep", *words, "--resume", name])


def _refuse_conflicts(options: argparse.Namespace, others: set[str]) -> None:
    """Raise `UsageError` for options that have no effect together."""
    own = options.processes or options.node_types or (options.cluster and options.quiet_machine)
    unsupported = options.cluster and ", ".join(others.intersection(UNSUPPORTED))
    for conflict, message in (
        (options.quiet_machine and others & {"--threads", "--allocator"},
         "--quiet-machine uses one thread, and keeps freed memory: leave out --threads and --allocator"),
        (options.slurm_option and options.cluster != "slurm", "--slurm-option goes with --cluster slurm"),
        (not options.cluster and (options.address or options.node_types), "--address and --node-types go with --cluster"),
        (unsupported, f"{unsupported} does not go with --cluster"),
        (options.resume and (own or others),
         f"--resume {options.resume} continues with its original options; leave out the others"),
    ):  # fmt: skip
        if conflict:
            raise UsageError(message)


def _here(options: argparse.Namespace, others: Sequence[str]) -> NoReturn:
    """Replace this process by `pytest bench/`, in several processes and under the requested conditions."""
    if options.quiet_machine:
        os.environ.update(quiet_environment())
        pin()
    given = {"benchmark-save": options.save, "resume": options.resume, "benchmark-storage": options.benchmark_storage}
    own = [f"--{name}={value}" for name, value in given.items() if value is not None]
    os.execv(sys.executable, [*COMMAND, str(CHECKOUT / "bench"), *own, *others])


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
    parser.add_argument("--case", help=argparse.SUPPRESS)  # a node replaces it
    parser.add_argument("--benchmark-storage", metavar="DIR", help="folder of results (default: results/)")
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
        help="an option of sbatch, with underscores, as account=NAME or time=60 (minutes); may be repeated",
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
