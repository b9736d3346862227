"""`python -m bench sweep --cluster ray|slurm --save NAME`: the same sweep on many machines, a run for each type of node."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..runs import replicates
from ..runs.replicates import PROCESSES, USAGE_ERROR
from ..runs.saving import results_root
from ..selection.command import complain, named, said
from ..selection.mistake import Mistake, count

ENGINES = ("ray", "slurm")

WITHOUT = (
    "--dry-run", "--list", "--collect-only", "--co", "--save-traces", "--redo", "--resume", "-x", "--exitfirst", "--maxfail",
    "--benchmark-autosave", "--benchmark-disable", "--benchmark-skip",
)  # fmt: skip
"""Options of pytest's side that a cluster has no use for."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Ends as `pytest bench/` does: 0 measured; 1 a cell is wrong, failed or timed out; 2 unfinished; 4 a mistake."""
    options, others = _parser().parse_known_args(arguments)
    try:
        if options.cluster is None:
            _refuse_without_cluster(options)
            return replicates.main(arguments)
        return _measured(options, others, said("sweep", arguments))
    except Mistake as mistake:
        return complain(mistake, USAGE_ERROR)


def _refuse_without_cluster(options: argparse.Namespace) -> None:
    for name in ("address", "node_types", "slurm_option"):
        if getattr(options, name):
            raise Mistake(f"--{name.replace('_', '-')} goes with --cluster {' or '.join(ENGINES)}")


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
        help="which types of nodes measure, and how many of each at a time: a type is a resource `type:NAME` of Ray, or a "
        "partition of Slurm (default: all; of Slurm the default partition)",
    )
    group.add_argument(
        "--slurm-option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="an option of Slurm by the name that submitit gives it, as account=NAME; may be repeated",
    )
    return parser


def _measured(options: argparse.Namespace, others: list[str], command: str) -> int:
    """Begin a sweep, or go on with one."""
    name = _name(options, others)
    for option in others:
        if option.partition("=")[0] in WITHOUT:
            raise Mistake(f"{option} does not go with --cluster")
    asked = {
        "arguments": [
            *others,
            *["--quiet-machine"] * options.quiet_machine,
            f"--processes={options.processes or PROCESSES}",
        ],
        "kinds": node_types(options.node_types),
        "command": command,
    }
    slurm = dict(_pair(text) for text in options.slurm_option)
    from .sweep import Sweep, engine_of

    results = results_root(Path.cwd(), options.benchmark_storage)
    sweep = Sweep.resumed(results, name) if options.resume else Sweep.new(results, name, asked)
    return sweep.measure(engine_of(options.cluster, options.address, slurm, sweep))


def _name(options: argparse.Namespace, others: Sequence[str]) -> str:
    if not options.resume and not options.save:
        raise Mistake("--save NAME is missing: what are the runs called? (--resume NAME finishes them)")
    begun_otherwise = (*others, options.save, options.processes, options.node_types, options.quiet_machine)
    if options.resume and any(begun_otherwise):
        raise Mistake(f"--resume {options.resume} goes on as it was begun; leave out the other options")
    return named(options.resume or options.save, "--resume" if options.resume else "--save")


def node_types(text: str | None) -> dict[str, int | None]:
    """`a:2,b` as {"a": 2, "b": None}; raises `Mistake`."""
    found: dict[str, int | None] = {}
    for part in [] if text is None else text.split(","):
        kind, _, most = part.strip().partition(":")
        try:
            found[kind] = count(most) if most else None
        except argparse.ArgumentTypeError as error:
            raise Mistake(f"--node-types {text}: {error}") from None
        if not kind:
            raise Mistake(f"--node-types {text!r}: expected TYPE or TYPE:N, with commas between them")
    return found


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise Mistake(f"--slurm-option {text}: expected KEY=VALUE")
    return name, value
