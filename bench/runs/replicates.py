"""`python -m bench sweep --processes K --save NAME [pytest options]`: a run in K fresh processes, quiet if need be.

The same as `pytest bench/ --processes K --benchmark-save=NAME`, but for the setting of its processes.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_benchmark.utils import get_machine_id

from .. import CHECKOUT
from ..selection.command import Parser, complain, named
from ..selection.errors import UsageError, count
from ..workers.fresh import QUIET, pin
from .journal import header_of, newest
from .saving import results_root

USAGE_ERROR = 4
"""pytest's own code for it."""

PROCESSES = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Become pytest: 0 measured; 1 a cell is wrong, failed or timed out; 2 interrupted. Gives 4, a usage error."""
    options, others = parser().parse_known_args(arguments)
    try:
        folder = results_root(Path.cwd(), options.benchmark_storage) / str(get_machine_id())
        name, journal = begun(options, others, folder)
    except UsageError as error:
        return complain(error, USAGE_ERROR)
    if journal:
        command, quiet = [f"--resume={name}", *others], _was_quiet(header_of(journal)["machine"])
    else:
        command = [f"--processes={options.processes or PROCESSES}", f"--benchmark-save={name}", *others]
        quiet = options.quiet_machine
    if options.benchmark_storage:
        command.append(f"--benchmark-storage={options.benchmark_storage}")
    if quiet:
        os.environ.update(QUIET)
        pin()
    sys.stdout.flush()
    suite = CHECKOUT / "bench"
    os.execv(sys.executable, [sys.executable, "-P", str(suite / "launch.py"), str(suite), *command])


def parser() -> argparse.ArgumentParser:
    parser = Parser(
        "sweep",
        USAGE_ERROR,
        description="Measure a sweep in several fresh processes and save it as one run.",
        epilog="All other options are those of `pytest bench/`: --sweep, --impl, --T, ...",
    )
    parser.add_argument("--processes", type=count, metavar="K", help=f"in how many processes (default: {PROCESSES})")
    parser.add_argument("--save", "--benchmark-save", metavar="NAME", help="what the run is called")
    parser.add_argument("--resume", metavar="NAME", help="finish a run that was interrupted")
    parser.add_argument(
        "--quiet-machine",
        action="store_true",
        help="one thread, pinned to one core, and an allocator that keeps what it has",
    )
    parser.add_argument("--benchmark-storage", metavar="URI", help="where results lie (default: results/)")
    return parser


def begun(options: argparse.Namespace, others: Sequence[str], folder: Path) -> tuple[str, Path | None]:
    """The run's name, and its journal in `folder` where it is resumed; raises `UsageError`."""
    if not (options.resume or options.save):
        raise UsageError("--save NAME is missing: what is the run called? (--resume NAME finishes one)")
    name = named(options.resume or options.save, "--resume" if options.resume else "--save")
    journal = newest(folder, name)
    if options.resume:
        if {*others} - {"--redo"} or options.processes or options.save or options.quiet_machine:
            raise UsageError(f"--resume {name} goes on as it was begun; leave out the other options")
        if journal is None:
            raise UsageError(f"no run {name} was begun in {folder}: --save {name} begins one")
        return name, journal
    for option in others:
        if option.startswith(("--benchmark-autosave", "--resume")):
            raise UsageError(f"{option}: the run is named by --save, and finished by --resume")
    if journal:
        raise UsageError(f"run {name} was begun and not finished: `--resume {name}` goes on")
    return name, None


def _was_quiet(machine: Mapping[str, Any]) -> bool:
    """Whether a run with this fingerprint was begun with `--quiet-machine`."""
    return machine["cores"] == 1 and bool(machine["allocator"]) and machine["allocator"].items() <= QUIET.items()
