"""Options of `python -m bench ab`; `bisect` shares those that select and compare cells."""

from __future__ import annotations

import argparse
import shlex
from itertools import chain
from pathlib import Path
from typing import Any

from stats.arguments import Parser
from stats.verdict import MARGIN, as_margin

from ..selection.errors import count, positive
from ..selection.options import CELLS, spelt
from ..workers.client import WorkerSettings

EACH_TIME = ("budget", "json", "markdown", "save", "to_continue")
"""Options that a continued comparison does not inherit."""

UNCHANGED_CODE = "", 0.0
"""What a comparison of a self-test injects: an implementation, and the share by which it is slower in head; here none."""


def parser() -> argparse.ArgumentParser:
    """Build the parser of `python -m bench ab`."""
    parser = Parser(
        "python -m bench ab",
        description="Compare two variants, base and head: interleaved, in replicates of two fresh processes.",
        epilog="Exit code: 0 nothing regressed; 1 something did; 2 nothing could be judged; 3 a usage error.",
    )
    variants = parser.add_argument_group("variants: two revisions, two implementations or two interpreters")
    for name, metavar, about in (
        ("base", "REF", "git revision of the base, in the repository of the current folder"),
        ("head", "REF", "git revision of the head (default: the working tree)"),
        ("base-impl", "NAME", "base implementation, or NAME=package.module:attr for your own"),
        ("head-impl", "NAME", "head implementation"),
        ("base-python", "PATH", "interpreter of the base, with torch, numpy and psutil"),
        ("head-python", "PATH", "interpreter of the head (default: this one)"),
    ):
        variants.add_argument(f"--{name}", metavar=metavar, help=about)
    add_cells(parser, minutes=3.0)
    how = parser.add_argument_group("other comparisons, and output")
    how.add_argument("--continue", type=Path, metavar="FILE", dest="to_continue",
                     help="measure the INCONCLUSIVE cells of a saved comparison for another --budget")  # fmt: skip
    how.add_argument("--save", metavar="NAME", help="name of the saved comparison under results/ (default: the time)")
    how.add_argument("--json", type=Path, metavar="FILE", help="write the verdicts for programs")
    how.add_argument("--markdown", type=Path, metavar="FILE", help="write the verdicts for a pull request")
    how.add_argument("--self-test", type=count, metavar="N",
                     help="count how often verdicts are right on this machine, in N comparisons of unchanged code, and more "
                          "with injected regressions")  # fmt: skip
    parser.set_defaults(inject=UNCHANGED_CODE)
    return parser


def add_cells(parser: argparse.ArgumentParser, minutes: float) -> None:
    """Add the options that select cells, and those that determine how cells are compared."""
    cells = parser.add_argument_group("cells, as in `pytest bench/`; VALUES as in 256,1024 replace the sweep's")
    for name, (metavar, about) in CELLS.items():
        if name != "threads":
            action = "append" if name == "impl" else "store"
            cells.add_argument(f"--{name}", action=action, metavar=metavar, help=about)
    cells.set_defaults(impl=[])
    cells.add_argument(
        "--threads", type=count, default=1, metavar="N", help="threads and cores of a process (default: 1)"
    )
    how = parser.add_argument_group("timing and verdicts")
    how.add_argument("--budget", type=positive, default=minutes, metavar="MINUTES",
                     help=f"approximate time of a comparison, after its check (default: {minutes:g})")  # fmt: skip
    how.add_argument("--margin", type=as_margin, default=MARGIN, metavar="SHARE",
                     help=f"equivalence margin: smaller changes are UNCHANGED or SLIGHT (default: {MARGIN})")  # fmt: skip
    limit = WorkerSettings.timeout
    how.add_argument("--cell-timeout", type=positive, default=limit, metavar="SECONDS",
                     help=f"give up a cell whose check or one block takes longer (default: {limit:g})")  # fmt: skip
    how.add_argument("--seed", type=int, help="seed of the random order of timing")
    how.add_argument("--allow-gone", metavar="NAMES", action="append", default=[],
                     help="implementations that may be missing in head, separated by commas; others are BROKEN")  # fmt: skip


def defaults() -> dict[str, Any]:
    """Return all options of `parser`, with their defaults."""
    return vars(parser().parse_args([]))


def asked(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options that define a comparison: those that differ from their defaults."""
    return {
        name: value
        for name, usual in defaults().items()
        if name not in EACH_TIME and (value := getattr(options, name)) != usual
    }


def command(options: argparse.Namespace) -> str:
    """Return `python -m bench ab ...` with the budget and the options that differ from their defaults."""
    printed = asked(options) | {"budget": f"{options.budget:g}"}
    given = (
        (spelt(name), ",".join(it) if isinstance(it, list) else str(it))
        for name, it in printed.items()
        if name != "inject"
    )
    return f"python -m bench ab {shlex.join(chain(*given))}"
